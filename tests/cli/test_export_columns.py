"""CSV and Excel exports: money in two columns, composites by part, joined lists; an import reads every value back."""

from __future__ import annotations

import csv
from datetime import datetime
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from crmctl.files.export_formats import Layout
from crmctl.models.resources import Attribute
from crmctl.values.attribute_types import TYPES
from tests.support.inprocess import run_here
from tests.support.service import RunningService

USUAL: dict[str, list[Any]] = {
    "text": ["plain", "{not json", " blanks ", "=1+1", "a;b, c", "0012"],
    "email": ["ada@acme.com"],
    "number": [1, 2.5, -3, 12345678901234567890],
    "phone_number": ["+442079460958"],
    "checkbox": [True, False],
    "name": [
        {"first": "Ada", "last": "Lovelace"},
        {"first": "Zoë"},
        "Ada Lovelace",
        {"last": "O'Hara", "title": None},
        '{"first": "Ada"}',
        '"["',
    ],
    "address": [
        {"street": "1, Via Roma", "city": "Rome", "postalCode": "00100"},
        "1 Via Roma, Rome",
        {"city": "Paris"},
        "[1, 2]",
        '"{\\"a\\": 1}"',
    ],
    "currency": [{"amount": 71558.99, "currency": "USD"}, {"amount": 0, "currency": "JPY"}, {"amount": 12, "currency": "EUR"}],
    "date": ["1990-12-31", "1815-12-10"],
    "list": [["a", "b"], ["one"], ["a, b", "c"], ["a;b"], ["[x]"], [1, "two"]],
    "select": ["new"],
}


@pytest.fixture
def rows(crm: RunningService) -> list[dict[str, Any]]:
    """Create records of an object with an attribute of every type, and a list of every type that permits one."""
    thing = crm.client.post("/api/v1/objects", json={"singularName": "Thing", "pluralName": "Things", "slug": "things"}).json()["id"]
    values = {**USUAL, "reference": [thing]}
    people = f"/api/v1/objects/{crm.object_id('people')}/records"
    values["reference"] = [crm.client.post(people, json={"data": {"email": "ref@acme.com"}}).json()["id"]]
    assert values.keys() == TYPES.keys()
    rows: list[dict[str, Any]] = [{"key": str(number)} for number in range(7)]
    attributes = [("key", "text", False)]
    attributes += [
        (f"{kind}_{'many' if many else 'one'}", kind, many) for kind in values for many in (False, True) if kind != "list" or not many
    ]
    for slug, kind, many in attributes:
        config = {"select": {"options": ["new", "old"]}, "reference": {"allowed_object_id": crm.object_id("people")}}.get(kind)
        body = {"name": slug, "slug": slug, "type": kind, "isList": many, "isUnique": slug == "key", "isRequired": False, "config": config}
        crm.client.post(f"/api/v1/objects/{thing}/attributes", json=body).raise_for_status()
        for number, row in enumerate(rows[:-1] if slug != "key" else ()):
            value = values[kind][number % len(values[kind])]
            row[slug] = [value, values[kind][0]] if many else value
    answer = crm.client.post(f"/api/v1/objects/{thing}/records/bulk", json={"records": [{"data": row} for row in rows]}).json()
    assert answer["failed"] == [], answer
    return data()


def data() -> list[dict[str, Any]]:
    return [
        record["data"] for record in sorted(run_here("records", "list", "things", "--all").ok().json(), key=lambda one: one["data"]["key"])
    ]


@pytest.mark.parametrize("name", ["things.csv", "things.xlsx", "listed.csv"])
@pytest.mark.parametrize("shape", ["columns", "json"])
def test_an_import_reads_every_type_back(rows: list[dict[str, Any]], name: str, shape: str) -> None:
    if name == "listed.csv":
        Path(name).write_text(run_here("records", "list", "things", "--all", "-o", "csv", "--shape", shape).ok().out, encoding="utf-8")
    else:
        run_here("bulk", "export", "things", "-O", name, "--shape", shape).ok()
    same = run_here("bulk", "import", "things", name, "--key", "key").ok().json()
    assert (same["unchanged"], same["rows"]) == (7, 7), same
    run_here("bulk", "delete", "things", "--ids", "-", "--yes", input=run_here("records", "list", "things", "-o", "ids").ok().out).ok()
    assert run_here("bulk", "import", "things", name, "--again").ok().json()["created"] == 7
    assert [without_nulls(row) for row in data()] == [without_nulls(row) for row in rows]


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {
        slug: {part: text for part, text in value.items() if text is not None} if isinstance(value, dict) else value
        for slug, value in row.items()
    }


def test_money_parts_and_lists_have_columns(crm: RunningService) -> None:
    create = ("records", "create", "deals", "--set", "name=Big")
    run_here(*create, "--set", "amount=71558.99 USD", "--set", "tags=a;b", "--set", "close_date=2026-05-01").ok()
    run_here("records", "create", "people", "--set", "name.first=Ada", "--set", "name.last=Byron", "--set", "address.city=Rome").ok()
    run_here("records", "create", "people", "--set", "name=Grace Hopper", "--set", "email=g@acme.com").ok()
    for arguments in (("bulk", "export", "deals", "-o", "csv"), ("records", "list", "deals", "-o", "csv")):
        [row] = csv.DictReader(run_here(*arguments).ok().out.splitlines())
        assert (row["amount"], row["amount_currency"], row["tags"]) == ("71558.99", "USD", "a;b")
        [row] = csv.DictReader(run_here(*arguments, "--shape", "json").ok().out.splitlines())
        assert (row["amount"], row["tags"]) == ('{"amount":71558.99,"currency":"USD"}', '["a","b"]')
    chosen = run_here("records", "list", "deals", "-o", "csv", "--fields", "amount,name").ok().out
    assert chosen == "amount,amount_currency,name\n71558.99,USD,Big\n"
    people = list(csv.DictReader(run_here("bulk", "export", "people", "-o", "csv").ok().out.splitlines()))
    assert sorted((row["name"], row["name.first"], row["address.city"]) for row in people) == [
        ("", "Ada", "Rome"),
        ("Grace Hopper", "", ""),
    ]
    assert "address" not in people[0]
    run_here("bulk", "export", "deals", "-O", "deals.xlsx").ok()
    header, cells = openpyxl.load_workbook("deals.xlsx").active.iter_rows(values_only=True)
    sheet = dict(zip(header, cells, strict=True))
    assert (sheet["amount"], sheet["amount_currency"], sheet["close_date"]) == (71558.99, "USD", datetime(2026, 5, 1))
    assert isinstance(sheet["createdAt"], datetime)
    assert "--shape must be columns or json" in run_here("records", "list", "deals", "--shape", "wide", "-o", "csv").exits(2).err


def test_a_row_fills_a_value_as_a_whole_or_by_parts(crm: RunningService) -> None:
    Path("both.csv").write_text(
        "email,address,address.city\na@acme.com,Rome,Paris\nb@acme.com,,Paris\nc@acme.com,Rome,\n", encoding="utf-8"
    )
    refused = run_here("bulk", "import", "people", "both.csv").exits(9)
    assert "other columns fill parts of address" in refused.err
    assert run_here("bulk", "import", "people", "both.csv", "--on-error", "continue").exits(10).json()["created"] == 2
    rows = run_here("records", "list", "people", "--order", "asc").ok().json()
    assert [row["data"]["address"] for row in rows] == [{"city": "Paris"}, "Rome"]


def test_items_with_a_comma_get_a_warning(crm: RunningService) -> None:
    done = run_here("records", "create", "people", "--set", "tags=a,b", "--set", "email=a@acme.com").ok()
    assert (done.json()["data"]["tags"], "'a,b' is one item" in done.err) == (["a,b"], True)
    assert not run_here("records", "create", "people", "--set", 'tags:=["a,b"]').ok().err
    assert not run_here("records", "create", "people", "--set", 'tags+:=["a,b"]').ok().err
    done = run_here("bulk", "import", "people", "-", input='email,tags\nb@acme.com,"a,b"\nc@acme.com,"c,d"\n').ok()
    assert done.err.count("a comma is part of an item") == 1


def test_an_export_keeps_the_id_of_a_record_beside_an_attribute_id() -> None:
    layout = Layout("csv", [Attribute.parse({"id": slug, "slug": slug, "type": "text"}) for slug in ("id", "data", "updatedAt")])
    assert layout.columns == ["id", "data.id", "data", "data.updatedAt", "createdAt", "updatedAt"]
    wire = '{"id": "r1", "data": {"id": "A", "data": "B", "updatedAt": "C"}, "createdAt": "D", "updatedAt": "E"}'
    assert layout.cells(wire) == ["r1", "A", "B", "C", "D", "E"]
