"""A new attribute type, operator or output format fails here until every table names it."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

from crmctl.cli.help_text import render
from crmctl.cli.help_topics import PAGES
from crmctl.cli.options import common_options
from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.models.resources import AttributeType
from crmctl.plan.inspect_file import TESTS
from crmctl.service.http.schemas import OPERATORS
from crmctl.values.attribute_types import COMPOSITE_TYPES, TYPES, Trait, types_with
from crmctl.values.composites import JOINED_BY
from crmctl.values.operators import OPERATORS as OPERATOR_ROWS
from crmctl.values.operators import SIGNS, VALUELESS, Operator

NAMES = set(AttributeType)


def test_the_specification_names_every_type() -> None:
    assert set(TYPES) == NAMES


def test_tables_of_some_types_are_of_the_right_ones() -> None:
    assert set(JOINED_BY) == COMPOSITE_TYPES & types_with(Trait.KEEPS_BLANKS)
    assert types_with(Trait.JSON_OBJECT) >= COMPOSITE_TYPES
    # The text of a column does not tell these apart; options are recognized by their repetition.
    assert NAMES - set(TESTS) == COMPOSITE_TYPES - {"phone_number"} | {"text", "select", "list"}


def test_every_trait_is_used_and_true_of_some_types() -> None:
    assert {trait.name: types_with(trait) for trait in Trait if types_with(trait) in (frozenset(), frozenset(NAMES))} == {}


def test_every_operator_has_a_sign_or_takes_no_value() -> None:
    assert set(SIGNS.values()) | VALUELESS == set(Operator)
    assert set(SIGNS.values()) & VALUELESS == set()


def test_every_operator_is_explained_and_documented() -> None:
    [rows] = [rows for title, rows in PAGES["filters"].sections.items() if title.startswith("Operators")]
    named = {term: [OPERATOR_ROWS[word] for word in re.findall(r"[A-Za-z]+", text) if word in list(Operator)] for term, text in rows}
    assert {one for each in named.values() for one in each} == set(Operator) == set(OPERATORS)
    assert set(named.pop("no value")) == VALUELESS
    assert {sign: one for term, each in named.items() if each for sign, one in zip(term.split(), each, strict=True)} == SIGNS


def test_the_language_of_filters_is_explained_on_one_screen() -> None:
    """A screen of 24 lines and 80 columns, with a line for the prompt."""
    lines = render(PAGES["filters"], 80).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


def test_there_is_one_list_of_formats() -> None:
    spelled = "|".join(OUTPUT_FORMATS)
    assert PAGES["output"].usage.endswith(spelled)
    assert {name for term, _ in PAGES["output"].sections["Formats"] for name in term.split(", ")} == set(OUTPUT_FORMATS)
    assert get_args(get_type_hints(common_options, include_extras=True)["output"])[-1].metavar == spelled
