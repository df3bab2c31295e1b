"""Templates: their results, what they refuse, and a bound on their size."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from crmctl.service.faults import BadRequest
from crmctl.service.workflows.workflow_definition import compile_template, render

SCOPE: dict[str, Any] = {
    "record": {
        "id": "r",
        "data": {
            "email": "Ada@x.org",
            "amount": 5,
            "big": Decimal("1234567890123456789012.5"),
            "tags": ["a", "b"],
            "items": "mine",
            "off": False,
        },
    },
    "long": "x" * 60_000,
    "steps": [{"recordId": "s"}],
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain { text }", "plain { text }"),
        ("Hello {{ record.data.email }}!", "Hello Ada@x.org!"),
        ("{{ record.data.email | lower }}", "ada@x.org"),
        ("{{ record.data.amount }}", 5),
        (" {{ record.data.amount + 1 }} ", 6),
        ("{{ record.data.amount }}{{ record.data.amount }}", "55"),
        ("{{ record.data.big }}", Decimal("1234567890123456789012.5")),
        ("{{ record.data.big * 2 }}", Decimal("2469135780246913578025")),
        ("={{ record.data.big }}", "=1234567890123456789012.5"),
        ("{{ record.data.tags }}", ["a", "b"]),
        ("tags: {{ record.data.tags }}", 'tags: ["a","b"]'),
        ("{{ record.data.tags | join('-') }}", "a-b"),
        ("{{ record.data.tags[1] }}{{ steps[0].recordId }}", "bs"),
        ("{{ record.data.items }}", "mine"),
        ("{{ record.data.off }}", False),
        ("is {{ record.data.off }}", "is false"),
        ("{{ record.data.phone | default('none') }}", "none"),
        ("{{ nothing.at.all | default('none') }}", "none"),
        ("{{ 'yes' if record.data.amount > 3 else 'no' }}", "yes"),
        ("{{ record.data.phone is defined }}", False),
        ("{{ record.data.email[:3] }}", "Ada"),
        ("{{ record.data.email | replace('Ada', 'Bob') }}", "Bob@x.org"),
        ("<{{ record.data.email }}>\n", "<Ada@x.org>\n"),
    ],
)
def test_expressions_produce_values_and_texts(template: str, expected: Any) -> None:
    given = render(template, SCOPE)
    assert given == expected
    assert type(given) is type(expected)


def test_templates_are_found_at_any_depth_and_named_when_they_fail() -> None:
    value = {"a": [1, None, {"b": "{{ record.id }}"}], "c": "{{ record.data.amount }}"}
    assert render({"data": value}, SCOPE) == {"data": {"a": [1, None, {"b": "r"}], "c": 5}}
    with pytest.raises(BadRequest, match=r"data\.a\[0\]: 'phone' is undefined"):
        render({"data": {"a": ["{{ record.data.phone }}"]}}, SCOPE)


@pytest.mark.parametrize(
    "template",
    [
        "{{ nothing }}",
        "{{ record.data.phone }} x",
        "{{ record.data.email.upper }}",
        "{{ record.__class__ }}",
        "{{ record.data.tags.append }}",
        "{{ record.data.email * 3 }}",
        "{{ record.data.email + 'x' }}",
        "{{ '%99999999d' % 1 }}",
        "{{ 1 / 0 }}",
        "{{ record.data.email > 1 }}",
        "{{ record.data.email | truncate(2) }}",
        "{{ record.data.tags | join(record.data.tags) }}",
        "{{ 1e999 }}",
        "{{ record.data.amount * 1e308 }}",
        "{{ 'nan' | float }}",
    ],
)
def test_undefined_and_meaningless_expressions_fail(template: str) -> None:
    with pytest.raises(BadRequest):
        render(template, SCOPE)


@pytest.mark.parametrize(
    "template",
    [
        "{{ range(10) }}",
        "{{ record.data.email.upper() }}",
        "{% set x = 1 %}",
        "{% include 'x' %}",
        "{{ 9 ** 999999999 }}",
        "{{ 'a' ~ 'b' }}",
        "{{ [1, 2] }}",
        "{{ 'a' | center(999999999) }}",
        "{{ '%s' | format(1) }}",
        "{{ record | attr('x') }}",
        "{{ record.data.email is callable }}",
        "{{ unfinished",
        "{{ }}",
        "{{ a b }}",
        "x" * 10_001,
    ],
)
def test_anything_but_simple_expressions_is_refused(template: str) -> None:
    with pytest.raises(BadRequest):
        compile_template(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ long }}{{ long }}",
        "{{ long | replace('x', long) }}",
        "{{ long | replace('', long) }}",
        "{{ record.data.tags | join(long) }}{{ long }}",
    ],
)
def test_the_length_of_a_text_is_limited(template: str) -> None:
    with pytest.raises(BadRequest, match="longer than 100,000"):
        render(template, SCOPE)
