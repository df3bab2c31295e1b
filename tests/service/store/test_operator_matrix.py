"""The service and crmctl agree on every operator for every type, single and in arrays, with values that are hard to compare.

`test_filters` draws random values; this test is exhaustive, and a new type or operator fails until it has values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, cached_property, partial
from itertools import chain, pairwise, product
from typing import Any

import pytest

from crmctl.client.query.clauses import part_filter
from crmctl.errors import RejectedError, UsageError
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, AttributeType, Record
from crmctl.service.faults import BadRequest
from crmctl.service.store import records
from crmctl.values.attribute_types import PART_NAMES, TYPES
from crmctl.values.conditions import value_test
from crmctl.values.filters import Clause
from crmctl.values.operators import FAMILIES, OPERATORS, Operator
from tests.service.store.conftest import Store, new_id, opened
from tests.support.databases import ENGINES, fresh_database

LETTERS = [
    "a", "A", "ä", "a\u0308", "A\u0308", "a\u0323\u0308", "a\u0308\u0323", "ß", "ẞ", "ss", "SS", "ﬃ", "ffi", "FFI", "İ", "i", "I", "ı",
    "i\u0307",
    "σ", "ς", "Σ", "ᾳ", "αι", "ΐ", "ǆ", "ǅ", "Å", "\u212b", "Å", "ŉ", "ｱ", "\u0301", "\u0345",
]  # fmt: skip
OTHERS = [
    " ", "a b", "\u00a0", "日本", "😀", "👩\u200d💻", "𝐀", "𐐀", "𐐨", "\U0010ffff", "\ufffd", "שלום", "\u202eabc\u202c", "abc", "\u200b",
    "\x01", "\x1f",
    "\x7f", "\x85", "a\tb", "a\nb", "%", "_", "\\", "'", '"', "[", "null", "0", "10", "9",
]  # fmt: skip
TEXTS: list[Any] = [*LETTERS, *OTHERS]
NUMBERS: list[Any] = [
    0, -0.0, 1, 1.0, -1, 9, 10, 0.1, 0.30000000000000004, Decimal("0.3"), 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**63 + 1, 2**70, -(2**64),
    1e300, Decimal("9007199254740993.5"), Decimal("1.00000000000000000001"), Decimal("1E-30"), Decimal("12345678901234567890.5"),
]  # fmt: skip
DATES = [
    "2024-02-29", "2024-02-29T00:00:00Z", "2024-02-29T01:00:00+01:00", "2024-02-28T23:59:59.999999Z", "2024-03-01",
    "2000-02-29T00:00:00+14:00",
    "2024-12-31T23:30:00-01:00", "2025-01-01T00:30:00Z", "1969-12-31T23:59:59.999999Z", "1970-01-01", "0999-01-01", "9999-12-31",
    "2024-02-29T12:30",
]  # fmt: skip
NAMES = [
    {"first": "Ada", "last": "Łovelace"}, {"last": "Ada", "first": "x"}, {"first": "ADA", "last": None}, {"first": "", "last": ""},
    {"first": None},
    {"title": "Dr", "first": "İ", "last": "ß"}, {"firstName": "i\u0307", "lastName": "SS"},
    {"first": "שלום", "middle": "a\u0308", "last": "😀"},
]  # fmt: skip
ADDRESSES = [
    {"city": "São Paulo", "street": "1 Straße"}, {"city": "SA\u0303O PAULO", "street": None}, {"line1": "1 STRASSE", "zip": "0"},
    {"city": ""},
    {"street": "a", "city": "b", "state": "c", "postalCode": "9", "country": "İ"}, {"country": None},
]  # fmt: skip
OPTIONS = list(dict.fromkeys(text for text in TEXTS[::3] if text.strip() and text.isprintable()))
IDS = ["0a1b2c3d-0000-4000-8000-00000000000a", "0a1b2c3d-0000-4000-8000-00000000000b"]
MONEY: list[Any] = [*({"amount": amount, "currency": "EUR"} for amount in NUMBERS), {"amount": 1, "currency": "JPY"}, *NUMBERS]

VALUES: dict[AttributeType, list[Any]] = {
    AttributeType.TEXT: [*TEXTS, ""],
    AttributeType.EMAIL: ["", "ada@example.com", "ADA@example.com", "b_c@x.org", "b%@x.org", "bxc@x.org"],
    AttributeType.PHONE_NUMBER: ["", "+49 30 123", "+4930123", "0800-X", "0800-x"],
    AttributeType.NAME: [*NAMES, *TEXTS[:12], ""],
    AttributeType.ADDRESS: [*ADDRESSES, *TEXTS[:12], ""],
    AttributeType.LIST: [*TEXTS[::3], *NUMBERS, ""],
    AttributeType.NUMBER: NUMBERS,
    AttributeType.CURRENCY: MONEY,
    AttributeType.DATE: DATES,
    AttributeType.CHECKBOX: [True, False],
    AttributeType.SELECT: OPTIONS,
    AttributeType.REFERENCE: [*IDS, *(record_id.upper() for record_id in IDS)],
}
"""Values that are hard to compare, by type. Every type also gets missing values, nulls and empty arrays."""

STRANGE = [
    "",
    " ",
    "NaN",
    "Infinity",
    "1_000",
    "1e2",
    "+1",
    ".5",
    "1.",
    " 10 ",
    "true",
    "TRUE",
    "maybe",
    "2023-02-29",
    "Ada",
    "ada łovelace",
    IDS[0][:8],
]
"""Operands for every type."""

THOROUGH = frozenset({Operator.EQUALS, Operator.CONTAINS})
"""Operators tested with every operand; the others get a quarter each."""

SHAPES = [(kind, many) for kind in AttributeType for many in (False, True) if many or kind != AttributeType.LIST]


def values_of(kind: AttributeType, many: bool) -> list[Any]:
    values = VALUES[kind]
    if not many:
        return [*values, None]
    pairs = [list(pair) for pair in pairwise(values)]
    return [*([value] for value in values), *pairs, [], None, values[:5]]


def operands_of(kind: AttributeType) -> list[str]:
    if kind in (AttributeType.NUMBER, AttributeType.CURRENCY):
        found = [str(number) for number in NUMBERS]
    elif kind in (AttributeType.CHECKBOX, AttributeType.DATE, AttributeType.REFERENCE):
        found = [str(value) for value in VALUES[kind]]
    else:
        found = [value for value in VALUES[kind] if isinstance(value, str)]
    return [*found, *STRANGE]


@dataclass
class Shelf:
    """A store that creates an object for each shape on first use."""

    store: Store
    _made: dict[str, tuple[str, list[dict[str, Any]]]] = field(default_factory=dict)

    def of(self, attribute: Attribute) -> tuple[str, list[dict[str, Any]]]:
        """Return the object whose records have values of this shape, and its records."""
        if attribute.slug not in self._made:
            kind, many = AttributeType(attribute.type or ""), attribute.is_list is True
            config = {"select": {"options": OPTIONS}, "reference": {"allowed_object_id": self._targets}}.get(kind)
            definition = {"slug": attribute.slug, "type": kind, "is_list": many, "config": config}
            things = self.store.object(f"of_{attribute.slug}", definition)
            sent = jsontext.loads(jsontext.dumps(values_of(kind, many)))  # numbers as they come over the wire
            rows = [{"data": {attribute.slug: value}} for value in sent] + [{"data": {}}]
            for start in range(0, len(rows), 100):
                part = rows[start : start + 100]
                outcome = self.store.write(records.bulk_write, things, "create", part)
                assert outcome == {"created": len(part), "updated": 0, "failed": []}
            self._made[attribute.slug] = things, self.store.find(things)
        return self._made[attribute.slug]

    @cached_property
    def _targets(self) -> str:
        target = self.store.object("targets")
        for record_id in IDS:
            ids = iter([record_id, new_id()]).__next__
            self.store.engine.write(partial(records.create_record, object_id=target, data={}, ids=ids, now=0.0))
        return target


@pytest.fixture(scope="module", params=ENGINES)
def shelf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    with fresh_database(request, tmp_path_factory.mktemp("matrix")) as url, opened(url) as store:
        yield Shelf(store)


def attribute_of(kind: AttributeType, many: bool) -> Attribute:
    return Attribute(id="", slug=f"{kind}_{'many' if many else 'one'}", type=kind, is_list=many)


def test_every_type_has_values() -> None:
    assert set(VALUES) == set(AttributeType)
    assert all(any(value not in ("", None) for value in values) for values in VALUES.values())


def answer_of(ask: Callable[[], set[str]]) -> set[str] | None:
    """Return the ids, or None if the condition is refused."""
    try:
        return ask()
    except (BadRequest, RejectedError):
        return None


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "many"), SHAPES, ids=str)
def test_service_and_crmctl_agree_on_every_operator(shelf: Shelf, kind: AttributeType, many: bool) -> None:
    attribute = attribute_of(kind, many)
    things, stored = shelf.of(attribute)
    values = {record["id"]: record["data"].get(attribute.slug) for record in stored}
    carried_out = set()
    for number, operator in enumerate(Operator):
        operands = operands_of(kind) if operator in THOROUGH else operands_of(kind)[number % 4 :: 4]
        for operand in operands if operator.takes_value else ["true"]:
            condition = (attribute.slug, str(operator), operand)

            def asked(condition: tuple[str, str, str] = condition) -> set[str]:
                return {record["id"] for record in shelf.store.find(things, condition)}

            def decided(condition: tuple[str, str, str] = condition) -> set[str]:
                meets = value_test(attribute, OPERATORS[condition[1]], condition[2])
                return {one for one, value in values.items() if meets(value)}

            there, here = answer_of(asked), answer_of(decided)
            differing = [values[record_id] for record_id in (there or set()) ^ (here or set())]
            assert (there is None, differing) == (here is None, []), condition
            if there is not None:
                carried_out.add(operator)
    assert carried_out == {operator for operator in Operator if TYPES[kind].family in FAMILIES[operator.meaning.kind]}


@pytest.mark.campaign
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("kind", [AttributeType(kind) for kind in PART_NAMES], ids=str)
def test_the_prefilter_of_a_part_admits_every_match(shelf: Shelf, kind: AttributeType, many: bool) -> None:
    """crmctl decides conditions on parts; the service's prefilter must admit every match."""
    attribute = attribute_of(kind, many)
    things, stored = shelf.of(attribute)
    parsed = [Record.parse(record) for record in stored]
    inside = chain.from_iterable(value.values() for value in VALUES[kind] if isinstance(value, dict))
    wanted = list(dict.fromkeys(str(value) for value in inside if value not in (None, "")))

    @cache
    def ids_of(slug: str, operator: str, value: str) -> frozenset[str]:
        return frozenset(record["id"] for record in shelf.store.find(things, (slug, operator, value)))

    for part, operator in product(PART_NAMES[kind], Operator):
        for operand in wanted if operator.takes_value else ["true"]:
            try:
                asked = part_filter(attribute, part, Clause(f"{attribute.slug}.{part}", operator, (operand,)))
            except (UsageError, RejectedError):
                continue
            admitted = {record.id for record in parsed if all(condition.admits(record) for condition in asked.local_conditions)}
            for prefilter in asked.prefilters if admitted else ():
                conditions = [(condition.slug, str(condition.operator), condition.value) for condition in prefilter.conditions]
                found = {record_id for condition in conditions for record_id in ids_of(*condition)}
                assert admitted <= found, (part, operator, operand)
