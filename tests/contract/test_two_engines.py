"""The same requests to a service on each engine, with values that engines treat differently, get equal answers except for ids."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.values.operators import Operator
from tests.support.clock import FakeClock
from tests.support.service import RunningService, running_service

pytestmark = pytest.mark.needs("initdb", "postgres")

TEXTS = ["", " ", "a", "A", "a\u0301", "\u00e1", "\u00df", "SS", "I", "\u0130", "\u0131", "\ufb01", "\0", "a\0b", "\ud800", "\U0010ffff"]
TEXTS += ["\uffff", "%", "_", "\\", "'\"", "x" * 3000, "\u03a3\u03b1\u03c2", "\u212a", "\uff21", "10", "9", "true", "\ufeffa"]
NUMBERS = ["0", "-0", "-0.0", "1.10", "1e2", "100", "1e400", "-1e-400", "9223372036854775807", "9223372036854775808", "9007199254740993"]
NUMBERS += ["0.10000000000000000001", "5e-324", "true", '" 5 "', '""', "1e4000"]
DATES = ["0001-01-01", "9999-12-31", "0000-01-01", "2024-02-29", "2026-01-31T10:00:00.1234567Z", "2026-01-31T23:59:60Z", "", " 2026-01-31"]
DATES += ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "2026-01-31T10:00:00+14:00"]
ATTRIBUTES = {"t": "text", "u": "text", "l": "list", "e": "email", "n": "number", "d": "date", "m": "currency"}


class Pair:
    """Two services that get the same requests."""

    def __init__(self, *services: RunningService) -> None:
        self.services = services
        self.places: list[dict[str, str]] = [{} for _ in services]

    def ask(self, method: str, path: str, body: str | None = None, remember: str = "") -> str:
        """Send a request to both. Return the answer with ids replaced by numbers in their order; `remember` names the answer's id for later
        paths.
        """
        answers = []
        for service, places in zip(self.services, self.places, strict=True):
            answer = service.client.request(
                method, f"/api/v1/{path.format(**places)}", content=body, headers={"Content-Type": "application/json"}
            )
            if remember:
                places[remember] = answer.json()["id"]
            service.clock.advance(1)  # type: ignore[attr-defined]
            ids: dict[str, str] = {}
            plain = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", lambda found, ids=ids: ids.setdefault(found[0], f"id {len(ids)}"), answer.text)  # type: ignore[misc]
            answers.append(f"{answer.status_code} {plain}")
        assert answers[0] == answers[1], (method, path, body)
        return answers[0]


@pytest.fixture
def pair(tmp_path: Path, postgres: Any) -> Iterator[Pair]:
    url = postgres.create_database()
    start = 1_800_000_000.0
    with (
        running_service(tmp_path / "one", clock=FakeClock(start), background=False) as one,
        running_service(tmp_path / "two", database_url=url, clock=FakeClock(start), background=False) as two,
    ):
        yield Pair(one, two)
    postgres.drop_database(url)


def fill(pair: Pair) -> int:
    """Create records with every odd value. Return the number of accepted ones."""
    pair.ask("POST", "objects", '{"pluralName": "Odds"}', "o")
    for slug, kind in ATTRIBUTES.items():
        made = {"name": slug, "slug": slug, "type": kind, "isRequired": False, "isUnique": slug == "u"}
        pair.ask("POST", "objects/{o}/attributes", json.dumps(made))
    given = [(slug, json.dumps(text)) for slug, text in product("tu", TEXTS)]
    given += [("e", json.dumps(f"{text}@example.com")) for text in TEXTS[::3]] + [("l", json.dumps([text, text])) for text in TEXTS[::2]]
    given += [("n", number) for number in NUMBERS] + [("m", f'{{"amount": {number}, "currency": "EUR"}}') for number in NUMBERS]
    given += [("d", json.dumps(date)) for date in DATES]
    answers = [pair.ask("POST", "objects/{o}/records", f'{{"data": {{"{slug}": {value}}}}}') for slug, value in given]
    return sum(answer.startswith("201") for answer in answers)


@pytest.mark.campaign
def test_both_engines_treat_odd_values_alike(pair: Pair) -> None:
    made = fill(pair)
    assert 60 < made < 130
    for sort, order, offset in product(("created_at", "updated_at"), ("asc", "desc"), (0, 60)):
        pair.ask("GET", f"objects/{{o}}/records?sort={sort}&order={order}&limit=100&offset={offset}")
    values = {"t": TEXTS, "l": TEXTS[:16], "n": [text.strip('"') for text in NUMBERS], "d": DATES, "created_at": DATES[:4]}
    found = 0
    for number, (slug, operator) in enumerate(product(values, Operator)):
        for value in values[slug][number % 4 :: 4] if operator.takes_value else ["true"]:
            asked = {"filters": [{"attributeSlug": slug, "operator": str(operator), "value": value}], "limit": 5}
            found += pair.ask("POST", "objects/{o}/records/search", json.dumps(asked)).startswith("200")
    assert found > 60
    compare_reports(pair)
    compare_changes(pair)


def compare_reports(pair: Pair) -> None:
    measures = [{"function": name, "attribute": "n"} for name in ("sum", "avg", "min", "max")]
    reports = [
        {"name": f"by {slug}", "object": "odds", "groupBy": slug, "measures": [*measures, {"function": "count"}]} for slug in "tuled"
    ]
    reports += [
        {"name": f"{slug} {order}", "object": "odds", "columns": list(ATTRIBUTES), "sort": {"field": slug, "order": order}}
        for slug, order in product(("t", "n", "d", "m", "updated_at"), ("asc", "desc"))
    ]
    for service in pair.services:
        load_document(service.engine, parse_document(json.dumps({"reports": reports})), clock=service.clock, ids=new_id)
    for report in reports:
        for service, places in zip(pair.services, pair.places, strict=True):
            known = service.client.get("/api/v1/reports").json()["reports"]
            places["r"] = next(stored["id"] for stored in known if stored["name"] == report["name"])
        answer = pair.ask("POST", "reports/{r}/run", "{}")
        assert answer.startswith("201"), answer


def compare_changes(pair: Pair) -> None:
    for text in TEXTS[::3]:
        pair.ask("POST", "objects/{o}/records", json.dumps({"data": {"t": "first"}}), "id")
        pair.ask("PATCH", "objects/{o}/records/{id}", json.dumps({"data": {"t": text, "l": [text], "n": -0.0}}))
        alike = [{"data": {"u": text}}, {"data": {"u": text.upper()}}, {"id": None, "data": {}}]
        pair.ask("POST", "objects/{o}/records/bulk", json.dumps({"mode": "upsert", "records": alike}))
        pair.ask("GET", "objects/{o}/records/{id}")
        pair.ask("GET", "objects/{o}/records/{id}/history")
