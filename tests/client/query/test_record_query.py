"""Queries to services with all kinds of habits: the answer is always the same, only its cost differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from crmctl.client.query.clauses import FilterReader, list_order, moment_filter, text_search
from crmctl.client.query.groups import Measures, RecordGroups, sample
from crmctl.client.query.record_filter import ListOrder, RecordFilter
from crmctl.client.query.record_query import RecordQuery
from crmctl.client.query.related_records import dangling_ids
from crmctl.errors import UsageError
from crmctl.models.resources import Attribute, Record
from crmctl.values.conditions import value_test
from crmctl.values.filters import parse_clause
from crmctl.values.moments import EPOCH, read_moment
from crmctl.values.operators import Operator
from tests.client.query.memorycrm import ATTRIBUTES, COMPANIES, NOW, MemoryCrm, Told
from tests.support.campaigns import rest_in_campaigns

NIL = "00000000-0000-0000-0000-000000000000"
FLAWS = [
    "none",
    "refuses times",
    "blind to parts",
    "ignores times",
    "finds no times",
    "refuses parts",
    "one condition each",
    "no total",
    "counts short pages",
]
CITIES = ["Rome", "rome", "Paris", "Roma", "São Paulo", "", None]


def made(seed: int = 7, count: int = 340) -> dict[str, list[Record]]:
    """Make people of the last ten years, some changed since, with values as objects, as texts and absent; and their companies."""
    chance = random.Random(seed)
    companies = [
        Record.parse({"id": f"c0000000-0000-4000-8000-{number:012}", "data": {"name": f"Company {number}", "domain": f"c{number % 9}.com"}})
        for number in range(12)
    ]
    people = []
    for number in range(count):
        created = EPOCH + timedelta(seconds=NOW - chance.randrange(10 * 365 * 86_400))
        updated = min(created + timedelta(days=chance.choice([0, 0, 1, 400])), EPOCH + timedelta(seconds=NOW))
        address = {"city": chance.choice(CITIES), "street": f"{number} Via Roma", "country": "Italy"}
        data = {
            "email": f"p{number}@acme.com",
            "name": chance.choice([{"first": chance.choice(["Ada", "Grace"]), "last": "L"}, {"firstName": "Ada"}, "Ada L", None]),
            "address": chance.choice([address, address, "1 Via, Rome", None]),
            "status": chance.choice(["new", "won", "lost", None]),
            "score": chance.choice([None, number % 50, number / 3]),
            "tags": chance.choice([["a"], ["a", "b"], ["c"], [], None]),
            "company": chance.choice([None, *(company.id for company in companies)]),
            "amount": chance.choice([{"amount": number, "currency": "EUR"}, {"amount": -number, "currency": "USD"}, None]),
            "birthday": chance.choice([None, "1990-01-01", "1985-05-05T10:00:00Z"]),
        }
        times = {"createdAt": created.isoformat(), "updatedAt": updated.isoformat()}
        people.append(Record.parse({"id": f"a0000000-0000-4000-8000-{number:012}", "data": data, **times}))
    return {"people": people, COMPANIES: companies}


RECORDS = made()


def at(text: str) -> object:
    return read_moment(text, NOW).at


def created(record: Record) -> object:
    return read_moment(record.created_at or "", NOW).at


def part(slug: str, *names: str) -> Callable[[Record], object]:
    def read(record: Record) -> object:
        value = record.data.get(slug)
        return next((value[name] for name in names if value.get(name)), None) if isinstance(value, dict) else None

    return read


def domain(record: Record) -> object:
    return next((one.data["domain"] for one in RECORDS[COMPANIES] if one.id == record.data.get("company")), None)


city, first = part("address", "city"), part("name", "first", "firstName")
SOME = [{"amount": number, "currency": "EUR" if number >= 0 else "USD"} for number in (0, 1, 2, -3, -4)]
QUESTIONS: dict[tuple[str, ...], Callable[[Record], bool]] = {
    ("status in won,lost",): lambda one: one.data["status"] in ("won", "lost"),
    ("status not in won,lost",): lambda one: one.data["status"] not in ("won", "lost"),
    ("tags in a,b",): lambda one: bool({"a", "b"} & set(one.data["tags"] or ())),
    ("status in won,new", "tags in a,c"): lambda one: (
        one.data["status"] in ("won", "new") and bool({"a", "c"} & set(one.data["tags"] or ()))
    ),
    ("address.city=Rome",): lambda one: city(one) == "Rome",
    ("address.city~rom",): lambda one: "rom" in str(city(one) or "").lower(),
    ("address.city in Rome,Paris",): lambda one: city(one) in ("Rome", "Paris"),
    ("address.city!=Rome",): lambda one: city(one) != "Rome",
    ("address.city isEmpty",): lambda one: not city(one),
    ("address.city isNotEmpty",): lambda one: bool(city(one)),
    ("name.first=Ada",): lambda one: first(one) == "Ada",
    ("amount.currency=USD",): lambda one: part("amount", "currency")(one) == "USD",
    ("amount.amount>=500",): lambda one: (part("amount", "amount")(one) or 0) >= 500,  # type: ignore[operator]
    ("amount in 0 EUR,1 EUR,2 EUR,-3 USD,-4 USD,-5 EUR,6 USD",): lambda one: one.data["amount"] in SOME,
    ("amount not in 0 eur,1 eur,2 eur,-3 usd,-4 usd",): lambda one: one.data["amount"] not in SOME,
    ("amount!=2 EUR",): lambda one: one.data["amount"] != {"amount": 2, "currency": "EUR"},
    ("company.domain=c3.com",): lambda one: domain(one) == "c3.com",
    ("company.domain in c0.com,c1.com",): lambda one: domain(one) in ("c0.com", "c1.com"),
    ("company.domain!=c0.com",): lambda one: domain(one) != "c0.com",
    ("company.domain=nobody.com",): lambda one: False,
    ("created_at<2y",): lambda one: created(one) < at("2y"),  # type: ignore[operator]
    ("createdAt>=2020-01-01", "createdAt<2021-01-01"): lambda one: at("2020-01-01") <= created(one) < at("2021-01-01"),  # type: ignore[operator]
    ("createdAt>=2020-01-01", "createdAt<2100-01-01"): lambda one: created(one) >= at("2020-01-01"),  # type: ignore[operator]
    ("created_at<90y",): lambda one: False,
    ("created_at>today",): lambda one: created(one) > at("today"),  # type: ignore[operator]
    ("created_at<5y", "status in won,lost"): lambda one: created(one) < at("5y") and one.data["status"] in ("won", "lost"),  # type: ignore[operator]
    ("created_at>-2y", "address.city=Rome"): lambda one: created(one) > at("2y") and city(one) == "Rome",  # type: ignore[operator]
    ("birthday<30y",): lambda one: bool(one.data["birthday"]),
    ("birthday>=1990-01-01",): lambda one: one.data["birthday"] == "1990-01-01",
}


def ask(crm: MemoryCrm, told: Told, *texts: str, order: ListOrder | None = None) -> RecordQuery:
    context = told.context(crm)
    return RecordQuery(context, "people", FilterReader(context, "people").read(texts), order)


def fitting(flaw: str, texts: tuple[str, ...]) -> bool:
    """Whether a flaw concerns a query; other combinations need no test."""
    times, parts = any("reated" in text for text in texts), any("." in text.split("=")[0] for text in texts)
    return flaw in ("none", "no total", "one condition each") or (times if "times" in flaw else parts)


CASES = [(texts, flaw) for flaw in FLAWS for texts in QUESTIONS if fitting(flaw, texts)]
USUAL = sum(flaw in FLAWS[:3] for _, flaw in CASES)


@pytest.mark.parametrize(
    ("texts", "flaw"), rest_in_campaigns(CASES, USUAL), ids=lambda case: case if isinstance(case, str) else " & ".join(case)
)
def test_the_answer_does_not_depend_on_the_habits_of_the_service(texts: tuple[str, ...], flaw: str) -> None:
    expected = {record.id for record in RECORDS["people"] if QUESTIONS[texts](record)}
    crm = MemoryCrm(RECORDS, frozenset({flaw}))
    for sort, order in ((None, None), ("created_at", "asc"), ("updated_at", "desc")):
        found = [record for page in ask(crm, Told(), *texts, order=ListOrder(sort, order)).pages(None) for record in page.items]
        assert {record.id for record in found} == expected
        assert len(found) == len(expected), "each once"
        times = [getattr(record, sort or "created_at") for record in found]
        assert times == sorted(times, reverse=order != "asc")
        some = [record.id for page in ask(crm, Told(), *texts, order=ListOrder(sort, order)).pages(7, 3) for record in page.items]
        assert some == [record.id for record in found][3:10]
    sorted_here = ask(crm, Told(), *texts, order=list_order("email", "asc", attributes)).pages(None)
    assert [record.data["email"] for page in sorted_here for record in page.items] == sorted(
        record.data["email"] for record in RECORDS["people"] if record.id in expected
    )
    assert ask(crm, Told(), *texts).count() == len(expected)


@pytest.mark.parametrize(
    ("texts", "limit", "bound"),
    [
        (("status in won,lost",), 50, 2),
        (("status in won,lost",), 150, 4),
        (("status not in won,lost",), 50, 1),
        (("company.domain=c8.com",), 50, 2),
        (("company.domain=c1.com",), 50, 3),
        (("created_at<2y",), 50, 1),
        (("address.city=Paris",), 10, 1),
        (("tags in a,b", "status in won,new"), 10, 4),
    ],
)
def test_a_service_like_crmctls_gets_few_requests(texts: tuple[str, ...], limit: int, bound: int) -> None:
    crm, told = MemoryCrm(RECORDS), Told()
    assert sum(len(page.items) for page in ask(crm, told, *texts).pages(limit)) == limit or texts[0].startswith("company")
    assert len(crm.asked) <= bound
    assert told.costs == []


def test_without_a_filter_by_time_reading_ends_behind_the_last_match() -> None:
    records = {"people": made(count=5000)["people"]}
    crm, told = MemoryCrm(records, frozenset({"refuses times"})), Told()
    expected = [one for one in records["people"] if created(one) >= at("1y")]  # type: ignore[operator]
    found = [record.id for page in ask(crm, told, "created_at>=1y").pages(None) for record in page.items]
    assert sorted(found) == sorted(one.id for one in expected)
    assert len(crm.asked) <= 10, "50 pages hold them all"


def test_reading_more_than_is_shown_is_announced_with_its_price() -> None:
    crm, told = MemoryCrm(RECORDS), Told()
    shown = list(ask(crm, told, "address.city!=Rome").pages(None))
    assert sum(len(page.items) for page in shown) > 150
    assert [cost.requests for cost in told.costs] == [3]
    assert "reading 340 records of people" in told.costs[0].purpose
    told.costs.clear()
    ordered = ask(MemoryCrm(RECORDS), told, order=list_order("score", "desc", attributes))
    scores = [record.data["score"] for page in ordered.pages(None) for record in page.items]
    valued = [score for score in scores if score is not None]
    assert valued == sorted(valued, reverse=True)
    assert scores[len(valued) :] == [None] * (340 - len(valued)), "nulls last"
    assert [cost.requests for cost in told.costs] == [3]


def test_a_large_sample_and_a_count_by_many_options_say_their_price() -> None:
    crm, told = MemoryCrm({"people": made(count=3000)["people"]}), Told()
    assert len(sample(ask(crm, told), 40, seed=1)) == 40
    assert [cost.requests for cost in told.costs] == [len(crm.asked) - 1]
    options = [f"s{number}" for number in range(12)]
    status = Attribute(id="4", slug="status", type="select", config={"options": options})
    crm.asked.clear(), told.costs.clear()
    RecordGroups(told.context(crm), "people", RecordFilter(), Measures(["status"]), {"status": status}).rows()
    assert (told.costs[0].requests, len(crm.asked)) == (13, 44), "and all of them, since others than the options are there"


def attributes() -> dict[str, Attribute]:
    return {attribute.slug: attribute for attribute in ATTRIBUTES["people"]}


def test_many_values_are_rather_looked_for_in_the_whole_object() -> None:
    crm = MemoryCrm(RECORDS)
    wanted = ",".join(f"p{number}@acme.com" for number in range(0, 340, 2))
    found = list(ask(crm, told := Told(), f"email in {wanted}").pages(None))
    assert sum(len(page.items) for page in found) == 170
    assert len(crm.asked) == 5
    assert [cost.requests for cost in told.costs] == [3]
    few = MemoryCrm({"people": RECORDS["people"] * 60})
    ask(few, told, f"email in {wanted}").count()
    assert told.costs[-1].requests == 170, "170 lists are fewer than 204 pages"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("company=acme.com", "company.domain=acme.com"),
        ("status=won or status=lost", "status in won,lost"),
        ("status=won and score>3", "repeat --filter"),
        ("score=3 or score=4", "score in 3,4"),
        ("score.x=3", "has no parts"),
        ("address.cty=Rome", "address.city"),
        ("adress.city=Rome", "address"),
        ("emial=x", "did you mean email?"),
        ("company.domian=x", "did you mean domain?"),
        ("created_at<soon", "2y"),
        ("birthday=soon", "2y"),
    ],
)
def test_an_obvious_mistake_is_refused_with_the_right_form(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask(MemoryCrm(RECORDS), Told(), text)
    assert said in (refused.value.hint or "") + refused.value.message


def test_amounts_are_sorted_as_numbers() -> None:
    amounts = Attribute.parse({"id": "a", "slug": "amount", "name": "Amount", "type": "currency"})
    values: list[Any] = [{"amount": 1000, "currency": "USD"}, {"amount": 5, "currency": "EUR"}, {"Amount": "70"}, 7]
    for sort in ("amount", "amount.amount"):
        key = list_order(sort, None, lambda: {"amount": amounts}).key
        assert key is not None
        assert sorted(values, key=lambda value: key(Record.parse({"id": "1", "data": {"amount": value}}))) == [
            values[1], values[3], values[2], values[0],
        ]  # fmt: skip


def test_an_impossible_value_gets_a_warning() -> None:
    crm, told = MemoryCrm(RECORDS), Told()
    query = ask(crm, told, "status in won,wno")
    assert told.warnings == ["'wno' is no option of status (new, won, lost); did you mean won?"]
    assert query.count() > 0
    with pytest.raises(UsageError, match="'wno' is no option of status"):
        FilterReader(told.context(crm, strict=True), "people").read(["status=wno"])
    context = told.context(crm)
    assert list(dangling_ids(context, "people", FilterReader(context, "people").read([f"company={NIL}"]))) == [("company", NIL)]
    ask(crm, told, "id=e70137e3")
    assert told.warnings[-1].startswith("'e70137e3' is no whole id, and equals none")
    ask(crm, told, "email=a@b.c or email=d@e.f")
    assert "--filter 'email in a@b.c,d@e.f'" in told.warnings[-1]


def test_a_part_of_a_text_gets_a_warning() -> None:
    query = ask(MemoryCrm(RECORDS), Told(), "address.city=Rome")
    list(query.pages(None))
    texts = sum(1 for one in RECORDS["people"] if one.data["address"] == "1 Via, Rome")
    said = f"{texts} records have address as one text that holds it: it has no parts, so address.city says nothing of it"
    assert query.wanted.remarks() == [said]


def test_a_text_is_searched_in_every_text_attribute() -> None:
    crm = MemoryCrm(RECORDS)
    context = Told().context(crm)
    reader = FilterReader(context, "people")
    query = RecordQuery(context, "people", text_search(reader, "grace"))
    found = {record.id for page in query.pages(None) for record in page.items}
    searched = [each for each in ATTRIBUTES["people"] if each.type in ("name", "email", "address")]
    tests = [(each.slug, value_test(each, Operator.CONTAINS, "grace")) for each in searched]
    assert found == {one.id for one in RECORDS["people"] if any(test(one.data.get(slug)) for slug, test in tests)}
    assert found
    assert RecordFilter() & RecordFilter(is_impossible=True) == RecordFilter(is_impossible=True)


@pytest.mark.parametrize(
    ("condition", "operands"),
    [
        ("created_at>=2026-01-03", ["2026-01-03T00:00:00.000Z"]),
        ("created_at=2026-01-03", ["2026-01-03T00:00:00.000Z", "2026-01-04T00:00:00.000Z"]),
        ("updated_at>2026-01-03T10:00:00.123456Z", ["2026-01-03T10:00:00.123456Z"]),
    ],
)
def test_times_are_sent_so_that_a_service_that_compares_texts_finds_the_first_moment(condition: str, operands: list[str]) -> None:
    clause = parse_clause(condition)
    (bound,) = moment_filter(clause.target, clause, NOW).bounds
    assert [one.value for one in bound.conditions] == operands
