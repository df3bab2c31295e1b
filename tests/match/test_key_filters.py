"""crmctl looks up a few keys by filter, with the fewest requests. If a filter may miss a record, it reads everything: it calls no existing
key absent.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from crmctl.client.answers import Page
from crmctl.errors import RejectedError, ServiceError
from crmctl.match.key_lookups import Lookup
from crmctl.match.keys import KeyIndex, key_rule
from crmctl.models.resources import Record
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import OBJECT_ID

ATTRIBUTES = [
    attribute("email", "email"),
    attribute("code"),
    attribute("phone", "phone_number"),
    attribute("n", "number"),
    attribute("born", "date"),
    attribute("stage", "select", config={"options": ["old, for now", "won, at last"]}),
    attribute("company", "reference"),
]
SIZE = 600
PAGES = 7
"""The least number of requests that read all of them."""

Heeds = Callable[[Condition, Any], bool]


def in_any_case(condition: Condition, value: Any) -> bool:
    """Compare like crmctl's own service."""
    text, said = (unicodedata.normalize("NFC", str(one if one is not None else "")).casefold() for one in (value, condition.value))
    if condition.operator is not Operator.EQUALS:
        return said in text
    if isinstance(value, int | float):
        return float(said) == value
    return said.removesuffix("t00:00:00z") == text.removesuffix("t00:00:00z")


def to_the_letter(condition: Condition, value: Any) -> bool:
    text = str(value if value is not None else "")
    return text == condition.value if condition.operator is Operator.EQUALS else condition.value in text


@dataclass
class People:
    """Lists of records in memory; `heeds` compares like the service, `asked` collects the filters."""

    data: Sequence[dict[str, Any]]
    heeds: Heeds = in_any_case
    counts: bool = True
    filters_pages: bool = False
    asked: list[Sequence[Condition]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = [
            Record(id=f"00000000-0000-4000-8000-{n:012}", data=data, created_at=at(n), updated_at=at(n)) for n, data in enumerate(self.data)
        ]

    def list_records(self, object_id: str, **asked: Any) -> Page[Record]:
        filters, limit, offset = asked.get("filters", ()), asked["limit"], asked.get("offset", 0)
        self.asked.append(filters)
        rows = self.records[::-1] if asked.get("order") == "desc" else self.records
        if self.filters_pages:
            page = [row for row in rows[offset : offset + limit] if self._fits(row, filters)]
            return Page(page, len(rows), limit, offset)
        found = [row for row in rows if self._fits(row, filters)]
        return Page(found[offset : offset + limit], len(found) if self.counts else None, limit, offset)

    def _fits(self, record: Record, filters: Sequence[Condition]) -> bool:
        # The list's own readers filter by times.
        return all(one.slug == "created_at" or self.heeds(one, record.data.get(one.slug)) for one in filters)

    @property
    def was_read(self) -> bool:
        return len(self.asked) >= PAGES


def at(n: int) -> str:
    return f"2026-01-01T{n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}.000000Z"


def people(key: str = "email", there: Any = "ada@acme.com", **more: Any) -> People:
    """Make many records, and among the older ones the record to find."""
    others: dict[str, Callable[[int], Any]] = {
        "email": lambda n: f"p{n}@acme.com",
        "code": lambda n: f"no {n}, of_all",
        "phone": lambda n: f"+44 20 {n % 90 + 10} 46 {n:04}",
        "n": lambda n: n * 10,
        "born": lambda n: f"{1000 + n}-02-03",
        "stage": lambda n: "old, for now",
        "company": lambda n: f"abcdef00-0000-4000-9000-{n:012}",
    }
    data = [{key: there if n == 400 else others[key](n)} for n in range(SIZE)]
    return People(data, **more)


def found(lister: People, key: str, *values: Any) -> list[int]:
    """Return the places of the records that look-ups of these values find."""
    with KeyIndex(key_rule([key], ATTRIBUTES)) as index:
        for n, value in enumerate(values):
            index.want(n, {key: value})
        lookup = Lookup(lister, OBJECT_ID)
        lookup.fill(index)
        assert lookup.requests == len(lister.asked)
        return [int(record_id[-6:]) for _, record_id, _ in index.matches()]


SPELLINGS = [
    ("email", "ada@acme.com", "ada@acme.com"),
    ("email", "Ada@ACME.com", "ada@acme.com"),
    ("email", " ada@acme.com ", "ADA@acme.com"),
    ("email", "ada+crm%41_x@acme.com", "ada+crm%41_x@acme.com"),
    ("email", "jos\u00e9@acme.com", "jose\u0301@acme.com"),
    ("code", 'Caf\u00e9 no 7\\8 % * ? [a] "b", c', 'Cafe\u0301 no 7\\8 % * ? [a] "b", c'),
    ("code", "  A-1 b ", "A-1 b"),
    ("phone", "+442079460958", "+44 20 7946 0958"),
    ("n", 12.0, "12"),
    ("born", "2020-02-01", "2020-02-01"),
    ("born", "2020-02-01T00:00:00Z", "2020-02-01"),
    ("stage", "won, at last", "won, at last"),
    ("company", "ABCDEF00-0000-4000-9000-0000000000aa", "abcdef00-0000-4000-9000-0000000000aa"),
]


@pytest.mark.parametrize(("key", "there", "typed"), SPELLINGS)
def test_one_key_of_any_type_takes_two_requests_and_one_more_to_know_that_it_is_not_there(key: str, there: Any, typed: str) -> None:
    lister = people(key, there)
    assert found(lister, key, typed) == [400]
    assert len(lister.asked) == 2 or key == "phone" or not typed.isascii()  # a filter on such a value may match every record
    absent = {"n": "13", "born": "2021-02-01", "stage": "won, at last", "company": "abcdef00-0000-4000-9000-0000000000ab"}
    lister = people(key, None)
    assert found(lister, key, absent.get(key, "nobody@else.org, no 5")) == []
    assert len(lister.asked) <= 3 or key in ("phone", "stage") or not typed.isascii()


@pytest.mark.parametrize(("key", "there", "typed"), SPELLINGS)
def test_an_exact_filter_leaves_other_spellings_to_reading(key: str, there: Any, typed: str) -> None:
    assert found(people(key, there, heeds=to_the_letter), key, typed) == [400]


def nothing(condition: Condition, value: Any) -> bool:
    return False


def everything(condition: Condition, value: Any) -> bool:
    return True


def refused(condition: Condition, value: Any) -> bool:
    raise RejectedError("this attribute has no such operator")


def broken(condition: Condition, value: Any) -> bool:
    raise ServiceError("internal error")


def pattern(condition: Condition, value: Any) -> bool:
    """Imitate LIKE without an escape: an underscore is any letter, and a backslash swallows the next letter."""
    return in_any_case(Condition(condition.slug, condition.operator, condition.value.replace("\\", "")), value)


def at_commas(condition: Condition, value: Any) -> bool:
    """Compare only the text before a comma."""
    return (
        in_any_case(Condition(condition.slug, condition.operator, condition.value.partition(",")[0]), value) and "," not in condition.value
    )


def decoded_twice(condition: Condition, value: Any) -> bool:
    said = condition.value.replace("+", " ").replace("%41", "A")
    return in_any_case(Condition(condition.slug, condition.operator, said), value)


@pytest.mark.parametrize("heeds", [nothing, everything, refused, broken, pattern, at_commas, decoded_twice])
@pytest.mark.parametrize(("key", "there", "typed"), SPELLINGS)
def test_a_misbehaving_filter_misses_no_record(heeds: Heeds, key: str, there: Any, typed: str) -> None:
    assert found(people(key, there, heeds=heeds), key, typed) == [400]


@pytest.mark.parametrize(("key", "there", "typed"), SPELLINGS[:7])
def test_a_filter_that_looks_at_one_page_only_is_not_believed(key: str, there: Any, typed: str) -> None:
    lister = people(key, there, filters_pages=True)
    lister.records.insert(150, lister.records.pop(400))  # on no page that begins a list
    assert [n for n in range(SIZE) if lister.records[n].id.endswith("000400")] == [150]
    with KeyIndex(key_rule([key], ATTRIBUTES)) as index:
        index.want(1, {key: typed})
        lookup = Lookup(lister, OBJECT_ID)
        assert not lookup._ask(index, lister.list_records(OBJECT_ID, limit=100, order="desc"))


def test_a_service_without_totals_is_filtered_too() -> None:
    lister = people(counts=False)
    assert found(lister, "email", "ADA@acme.com") == [400]
    assert len(lister.asked) == 3
    lister = people(counts=False)
    assert found(lister, "email", "nobody@acme.com") == []
    assert len(lister.asked) == 4


@pytest.mark.parametrize(("keys", "asked"), [(1, 2), (4, 5), (5, 7), (7, 9), (8, None), (300, None)])
def test_keys_are_filtered_as_long_as_reading_needs_more_requests(keys: int, asked: int | None) -> None:
    lister = people()
    wanted = [f"p{n}@acme.com" for n in range(keys)]
    assert found(lister, "email", *wanted) == list(range(keys))
    filtered = [filters for filters in lister.asked if any(one.slug == "email" for one in filters)]
    assert (len(lister.asked), len(filtered)) == (asked, keys) if asked else not filtered


def test_a_key_that_many_values_contain_is_read_and_not_paged_through_at_any_price() -> None:
    lister = people("code", "no 7, of_all")
    assert found(lister, "code", "of_all", "no 400, of_all") == []
    assert len(lister.asked) <= 3 + PAGES + 4


def test_two_records_in_two_spellings_are_both_found() -> None:
    lister = people()
    lister.records[500].data["email"] = "ADA@ACME.COM"
    with KeyIndex(key_rule(["email"], ATTRIBUTES)) as index:
        index.want(1, {"email": "ada@acme.com"})
        Lookup(lister, OBJECT_ID).fill(index)
        (key,) = index.distinct()
        assert len(index.found(key)) == 2
    assert len(lister.asked) == 2


def test_keys_of_several_attributes_share_a_filter() -> None:
    lister = People([{"email": f"p{n % 10}@acme.com", "n": n} for n in range(SIZE)])
    with KeyIndex(key_rule(["email", "n"], ATTRIBUTES)) as index:
        index.want(1, {"email": "P7@acme.com", "n": 407})
        index.want(2, {"email": "p8@acme.com", "n": 407})
        Lookup(lister, OBJECT_ID).fill(index)
        assert [(row, int(record_id[-6:])) for row, record_id, _ in index.matches()] == [(1, 407)]
    assert len(lister.asked) == 4


def test_telephone_numbers_are_found_by_reading_everything() -> None:
    """A number has too many notations for a filter."""
    lister = people("phone", "(020) 79 46 09 58")
    assert found(lister, "phone", "+02079460958") == [400]
    assert not [filters for filters in lister.asked if any(condition.slug == "phone" for condition in filters)]
