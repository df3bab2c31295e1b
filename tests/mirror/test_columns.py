"""The columns of a mirror's tables, with slugs and values that nobody would choose."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from crmctl.mirror.file import quoted, table_columns
from crmctl.mirror.mirror_tables import ObjectTable
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, Record

HOSTILE = 'x"; DROP TABLE members; --'


def attribute(slug: str, type: str = "text", **more: Any) -> Attribute:
    return Attribute(id=slug, slug=slug, type=type, **more)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        yield opened


def table(db: sqlite3.Connection, *attributes: Attribute, name: str = "things") -> ObjectTable:
    made = ObjectTable(db, name, attributes)
    made.create()
    return made


def record(record_id: str, **data: Any) -> Record:
    moment = "2026-01-02T03:04:05Z"
    return Record.parse({"id": record_id, "objectId": "o", "data": data, "createdAt": moment, "updatedAt": moment})


def row(db: sqlite3.Connection, name: str = "things") -> dict[str, Any]:
    cursor = db.execute(f"SELECT * FROM {quoted(name)}")
    return dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))


def test_values_by_type(db: sqlite3.Connection) -> None:
    made = table(
        db, attribute("email", "email"), attribute("score", "number"), attribute("vip", "checkbox"), attribute("amount", "currency"),
        attribute("address", "address"), attribute("name", "name"), attribute("tags", "list"), attribute("company", "reference"),
        attribute("phone", "phone_number"), attribute("born", "date"),
    )  # fmt: skip
    held = {
        "email": "a@b.c", "score": 2**60, "vip": True, "amount": {"amount": 12.5, "currency": "EUR"}, "tags": ["a", "ü"],
        "address": {"city": "Paris", "postalCode": "75001", "street": "Rue 1"}, "name": "Ada Lovelace", "born": "1815-12-10",
        "phone": {"primaryPhoneNumber": "+331", "country": "FR"}, "company": {"id": "c1"},
    }  # fmt: skip
    made.write([record("1", **held)])
    found = row(db)
    assert (found["email"], found["score"], found["vip"], found["amount"], found["amount_currency"]) == ("a@b.c", 2**60, 1, 12.5, "EUR")
    assert (found["address"], found["address_city"], found["address_postalCode"]) == ("Rue 1, Paris, 75001", "Paris", "75001")
    assert (found["name"], found["name_first"], found["tags"], found["company"]) == ("Ada Lovelace", None, '["a","ü"]', "c1")
    assert (found["phone"], found["born"], found["created_at"]) == ("+331", "1815-12-10", "2026-01-02T03:04:05Z")
    assert jsontext.loads(found["_data"])["data"]["address"]["city"] == "Paris"


def test_a_number_that_sqlite_cannot_hold_stays_text(db: sqlite3.Connection) -> None:
    made = table(db, attribute("n", "number"), attribute("plain", "number"))
    exact = "12345678901234567890.123456789"
    made.write([Record.parse(jsontext.loads(f'{{"id": "1", "data": {{"n": {exact}, "plain": 7}}}}'))])
    assert made.grown
    made.rebuild()
    assert (row(db)["n"], row(db)["plain"]) == (exact, 7)
    assert exact in row(db)["_data"]


@pytest.mark.parametrize(("text", "shown"), [("12.50", 12.5), ("-7", -7), ("0.1", 0.1), ("1e3", "1e3"), ("0.12345678901234567890", None)])
def test_a_number_shown_as_text_is_a_number(db: sqlite3.Connection, text: str, shown: Any) -> None:
    made = table(db, attribute("score", "number"), attribute("amount", "currency"), attribute("paid", "currency"))
    made.write([record("1", score=text, amount={"amount": text, "currency": "EUR"}, paid=text)])
    if made.grown:
        made.rebuild()
    assert [row(db)[slug] for slug in ("score", "amount", "paid")] == [text if shown is None else shown] * 3


def test_a_reference_shown_as_a_list_of_one_is_its_id(db: sqlite3.Connection) -> None:
    table(db, attribute("company", "reference")).write([record("1", company=[{"recordId": "c1"}])])
    assert row(db)["company"] == "c1"


def test_hostile_slugs_are_names_and_nothing_more(db: sqlite3.Connection) -> None:
    slugs = [HOSTILE, "select", "a b", "ü", "'", "sum(1)", "id", "_DATA", "Email", "email", "nul\0", "half\ud800", ""]
    made = table(db, *(attribute(slug) for slug in slugs), name=HOSTILE)
    made.write([record("1", **{slug: f"value of {number}" for number, slug in enumerate(slugs)})])
    found = row(db, HOSTILE)
    assert [found[slug] for slug in slugs[:6]] == [f"value of {number}" for number in range(6)]
    assert (found["id"], found["Email"]) == ("1", "value of 8")
    assert [column.name for column in made.columns] == [*slugs[:6], "Email"]
    made.delete(["1"])
    assert db.execute(f"SELECT count(*) FROM {quoted(HOSTILE)}").fetchone() == (0,)


def test_a_part_never_takes_the_name_of_an_attribute() -> None:
    names = [column.name for column in table_columns([attribute("address", "address"), attribute("address_city", "text")])]
    assert names.count("address_city") == 1
    assert names[:2] == ["address", "address_city"]


def test_text_that_is_no_unicode_is_kept_in_the_wire_form(db: sqlite3.Connection) -> None:
    made = table(db, attribute("note"))
    odd = record("1", note="half \ud83d pair \0 end")
    made.write([odd])
    assert row(db)["note"] == "half ? pair \0 end"
    assert jsontext.loads(jsontext.dumps(odd.wire)) == odd.wire == jsontext.loads(row(db)["_data"])


def test_writing_the_same_again_changes_nothing(db: sqlite3.Connection) -> None:
    made = table(db, attribute("note"))
    assert made.write([record("1", note="a")]).created == 1
    assert made.write([record("1", note="a")]).updated == 0
    assert made.write([record("1", note="b")]).updated == 1
