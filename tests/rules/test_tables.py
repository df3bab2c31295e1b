"""A new attribute type, operator or output format fails here until every table that must name it does."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import pytest

from crmctl.bulk.usecases.inspect_file import TESTS
from crmctl.cli import help_topics
from crmctl.cli.help_text import render
from crmctl.cli.options import common_options
from crmctl.config.keys import OUTPUT_FORMATS
from crmctl.models.attribute_types import TRAITS, Trait, types_with
from crmctl.models.attributes import AttributeType
from crmctl.models.composites import JOINED_BY
from crmctl.models.filters import SIGNS, VALUELESS, Operator
from crmctl.models.part_names import PART_NAMES
from crmctl.models.typed_text import READERS
from crmctl.output.emitter import FORMATS
from crmctl.output.views import TYPE_KINDS
from crmctl.service.http.parameters import OPERATORS
from crmctl.service.store import conditions
from crmctl.service.values.kinds import KINDS, Family

TYPES = set(AttributeType)


@pytest.mark.parametrize("table", [TRAITS, READERS, TYPE_KINDS, KINDS], ids=["traits", "readers", "views", "service"])
def test_every_type_has_a_row(table: dict[str, object]) -> None:
    assert set(table) == TYPES


def test_tables_of_some_types_are_of_the_right_ones() -> None:
    with_parts = types_with(Trait.HAS_PARTS)
    assert set(PART_NAMES) == with_parts
    assert set(JOINED_BY) == with_parts & types_with(Trait.KEEPS_BLANKS)
    assert with_parts <= types_with(Trait.JSON_OBJECT)
    # Of a column's text alone these cannot be told; options are found by how often they repeat.
    assert TYPES - set(TESTS) == with_parts - {"phone_number"} | {"text", "select", "list"}


def test_every_trait_is_asked_for_by_somebody_and_true_of_some() -> None:
    assert {trait.name: types_with(trait) for trait in Trait if types_with(trait) in (frozenset(), frozenset(TYPES))} == {}


def test_every_operator_has_a_sign_or_takes_no_value() -> None:
    assert set(SIGNS.values()) | VALUELESS == set(Operator)
    assert set(SIGNS.values()) & VALUELESS == set()


def test_every_operator_is_explained_and_documented() -> None:
    [rows] = [section.rows for section in help_topics.FILTERS.sections if section.title.startswith("Operators")]
    named = {term: [Operator(word) for word in re.findall(r"[A-Za-z]+", text) if word in list(Operator)] for term, text in rows}
    assert {one for each in named.values() for one in each} == set(Operator) == set(OPERATORS)
    assert set(named.pop("no value")) == VALUELESS
    assert {sign: one for term, each in named.items() if each for sign, one in zip(term.split(), each, strict=True)} == SIGNS


def test_the_language_of_filters_is_explained_on_one_screen() -> None:
    """Of 24 lines and 80 columns, with a line for the prompt."""
    lines = render(help_topics.FILTERS, 80).splitlines()
    assert len(lines) <= 23
    assert max(map(len, lines)) <= 80


def test_every_operator_is_meant_for_a_family_and_every_family_has_operators() -> None:
    allowed = conditions.OPERATORS
    assert set(allowed) == set(Family)
    positive = set().union(*allowed.values()) | {Operator.IS_NOT_EMPTY}
    assert {conditions.COMPLEMENTS.get(each, each) for each in Operator} == positive
    assert set(conditions.COMPLEMENTS) | positive == set(Operator)


def test_there_is_one_list_of_formats() -> None:
    assert tuple(FORMATS) == OUTPUT_FORMATS
    spelled = "|".join(OUTPUT_FORMATS)
    assert help_topics.OUTPUT.usage.endswith(spelled)
    [rows] = [section.rows for section in help_topics.OUTPUT.sections if section.title == "Formats"]
    assert {name for term, _ in rows for name in term.split(", ")} == set(OUTPUT_FORMATS)
    assert get_args(get_type_hints(common_options, include_extras=True)["output"])[-1].metavar == spelled
