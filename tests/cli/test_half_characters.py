"""Records of other services with half a surrogate pair, which no file or database can hold: crmctl keeps the JSON escapes."""

from __future__ import annotations

import json
from pathlib import Path

from crmctl.models import jsontext
from tests.support.fakecrm import FakeCrm, FakeRequest
from tests.support.inprocess import run_here

OBJECT = "00000000-0000-4000-8000-000000000001"
HALF = "half \ud83d of it"
RECORDS = [
    {
        "id": f"00000000-0000-4000-9000-{n:012}",
        "objectId": OBJECT,
        "data": {"name": HALF if n == 3 else f"n{n}"},
        "createdAt": f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z",
        "updatedAt": f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z",
    }
    for n in range(150)
]


def listed(asked: FakeRequest) -> object:
    items = sorted(RECORDS, key=lambda one: str(one["createdAt"]), reverse=asked.query.get("order") != "asc")
    offset, limit = int(asked.query.get("offset", 0)), int(asked.query.get("limit", 50))
    more = offset + limit < len(items)
    return {"records": items[offset : offset + limit], "pagination": {"total": 150, "limit": limit, "offset": offset, "hasMore": more}}


def test_json_with_half_a_character_is_exact_and_can_be_stored() -> None:
    text = jsontext.dumps({HALF: [HALF, "\U0001f600"]})
    assert text.encode()
    assert jsontext.loads(text) == {HALF: [HALF, "\U0001f600"]}


def test_such_records_are_exported_and_mirrored_like_others(tmp_path: Path) -> None:
    found = {"id": OBJECT, "slug": "people", "singularName": "Person", "pluralName": "People", "type": "standard", "isActive": True}
    name = {"id": "a1", "objectId": OBJECT, "name": "Name", "slug": "name", "type": "text", "isActive": True}
    routes = {
        "GET /objects": lambda _: {"objects": [found]},
        f"GET /objects/{OBJECT}": lambda _: {**found, "attributes": [name]},
        f"GET /objects/{OBJECT}/attributes": lambda _: {"attributes": [name]},
        f"GET /objects/{OBJECT}/records": listed,
        "GET /members": lambda _: {"members": []},
    }
    with FakeCrm(routes) as fake:
        run_here("bulk", "export", "people", "-O", tmp_path / "people.jsonl", "--yes", env=fake.env).ok()
        run_here("mirror", "sync", "people", env=fake.env).ok()
        held = run_here("mirror", "sql", "SELECT count(*) AS n FROM people", env=fake.env).ok().json()
    rows = [json.loads(line) for line in (tmp_path / "people.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 150
    assert HALF in [row.get("name") or row["data"]["name"] for row in rows]
    assert held == [{"n": 150}]
