"""A realistic CSV with a column for every attribute type, the object for it, and a comparison with the records."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.support.service import RunningService

OPTIONS = ["new", "in progress", "done, at last", "Größer"]
ATTRIBUTES: list[dict[str, Any]] = [
    {"name": "Title", "type": "text"},
    {"name": "Mail", "type": "email", "isUnique": True},
    {"name": "Amount", "type": "number"},
    {"name": "Phone", "type": "phone_number"},
    {"name": "Active", "type": "checkbox"},
    {"name": "Full name", "type": "name"},
    {"name": "Home", "type": "address"},
    {"name": "Budget", "type": "currency"},
    {"name": "Since", "type": "date"},
    {"name": "Stage", "type": "select", "config": {"options": OPTIONS}},
    {"name": "Labels", "type": "list"},
]
COLUMNS = [
    "Title", "Mail", "Amount", "Phone", "Active", "full_name.first", "full_name.last", "home.street", "home.city", "home.country", "Budget",
    "Since", "Stage", "Labels", "Employer",
]  # fmt: skip
AWKWARD = [
    'say "hi"',
    "two\nlines",
    "a,b;c",
    " spaced ",
    "=1+1",
    "日本語",
    "Ωmega",
    "0123",
    "NULL",
    "null",
    "NA",
    "1.23E+11x",
    "🙂",
    "#",
    "'",
]


def make_object(service: RunningService) -> tuple[str, str]:
    """Create the object `contacts` with all twelve attribute types, and a person for its references; return both ids."""
    client = service.client
    body = {"slug": "contacts", "singularName": "Contact", "pluralName": "Contacts", "description": ""}
    identity = client.post("/api/v1/objects", json=body).json()["id"]
    people = service.object_id("people")
    reference = {"name": "Employer", "type": "reference", "config": {"allowed_object_id": people}}
    for attribute in (*ATTRIBUTES, reference):
        made = client.post(f"/api/v1/objects/{identity}/attributes", json={"isRequired": False, "isUnique": False} | attribute)
        assert made.status_code == 201, made.text
    person = client.post(f"/api/v1/objects/{people}/records", json={"data": {"email": "boss@acme.com"}}).json()["id"]
    return identity, person


def write_csv(path: Path, rows: int, person: str, *, prefix: str = "person") -> list[dict[str, str]]:
    """Write the file; equal arguments give equal rows."""
    written = list(_rows(rows, person, prefix, random.Random(rows)))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(written)
    return written


def _rows(count: int, person: str, prefix: str, chance: random.Random) -> Iterator[dict[str, str]]:
    for number in range(count):
        full = number % 7 != 0
        yield {
            "Title": chance.choice(AWKWARD) + f" {number}",
            "Mail": f"{prefix}{number}@acme.com",
            "Amount": chance.choice(["0", "-5", "3.25", "12345678901234567890", "0.1"]) if full else "",
            "Phone": f"+49 30 {1000000 + number}" if full else "",
            "Active": chance.choice(["yes", "no", "true", "FALSE", "1", "0"]) if full else "",
            "full_name.first": chance.choice(["Ada", "José", "美咲", "Anne-Marie"]),
            "full_name.last": chance.choice(["Lovelace", "O'Brien", "de la Cruz", "佐藤"]),
            "home.street": f"{number} High Street, Floor {number % 9}" if full else "",
            "home.city": chance.choice(["Paris", "Kraków", "東京"]) if full else "",
            "home.country": "FR" if full else "",
            "Budget": f"{number}.50 EUR" if full else "",
            "Since": f"20{number % 30:02}-0{number % 9 + 1}-{number % 28 + 1:02}" if full else "",
            "Stage": chance.choice(OPTIONS) if full else "",
            "Labels": chance.choice(["a;b", "one", "x;y;z"]) if full else "",
            "Employer": person if full else "",
        }


def differences(written: list[dict[str, str]], exported: Path) -> list[str]:
    """Return every cell that differs from its record, compared as values."""
    with exported.open(encoding="utf-8", newline="") as file:
        back = {row["mail"]: row for row in csv.DictReader(file)}
    found = [] if len(back) == len(written) else [f"{len(written)} rows written, {len(back)} exported"]
    for row in written:
        came = back.get(row["Mail"])
        found += [f"{row['Mail']} is missing"] if came is None else _row_differences(row, came)
    return found


def _row_differences(row: dict[str, str], came: dict[str, str]) -> list[str]:
    expected = {
        "title": row["Title"],
        "amount": row["Amount"] and Decimal(row["Amount"]),
        "phone": row["Phone"].replace(" ", ""),
        "active": row["Active"] and (row["Active"].lower() in ("yes", "true", "1")),
        **{column: text for column, text in row.items() if "." in column},
        "budget": row["Budget"] and Decimal(row["Budget"].split()[0]),
        "budget_currency": row["Budget"] and "EUR",
        "since": row["Since"],
        "stage": row["Stage"],
        "labels": row["Labels"],
        "employer": row["Employer"],
    }
    return [
        f"{row['Mail']} {slug}: {value!r} became {came[slug]!r}" for slug, value in expected.items() if value != _read(slug, came[slug])
    ]


def _read(slug: str, cell: str) -> Any:
    if cell == "":
        return ""
    match slug:
        case "amount" | "budget":
            return Decimal(cell)
        case "active":
            return cell == "true"
        case _:
            return cell
