"""Scenarios, of which the tables of the contract tests consist: a request, its answer, and its allowed effects."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.service.http.schemas import SHAPES
from crmctl.service.store.tx import PostgresDialect, SqliteDialect
from tests.support.service import RunningService

NIL = "00000000-0000-4000-8000-000000000000"
RATE_HEADERS = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")


@dataclass(frozen=True)
class Scenario:
    """One request and what to expect. `path` and the strings of `body` may contain `{people}`, `{deals}`, `{email}` and other names that
    the test passes in `names`.

    The answer's message must contain all of `says`, its document the fields `holds`; the request must add events of the types in `events`.
    A refused scenario (status 400 and up) also checks that the request wrote nothing.
    """

    name: str
    method: str
    path: str
    status: int
    body: Any = None
    raw: bytes | None = None
    says: Sequence[str] = ()
    field: str | None = None
    error: str | None = None
    holds: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    events: Sequence[str] = ()

    def run(self, crm: RunningService, names: Mapping[str, str]) -> Any:
        """Send the request and check everything. Return the answer's document."""
        before, events_before = _contents(crm), len(crm.outbox())
        content = self.raw if self.raw is not None else None if self.body is None else json.dumps(_fill(self.body, names)).encode()
        answer = crm.client.request(self.method, "/api/v1" + _fill(self.path, names), content=content)
        assert answer.status_code == self.status, answer.text
        assert answer.headers["content-type"] == "application/json"
        for header in RATE_HEADERS:
            assert answer.headers[header].isdigit(), header
        document = answer.json()
        if self.status >= 400:
            self._check_refusal(document)
            after = _contents(crm)
            changed = [table for table in before if before[table] != after[table]]
            assert not changed, f"a refused request wrote to {changed}"
        for key, value in _fill(dict(self.holds), names).items():
            assert document[key] == value, key
        assert [kind for kind, _ in crm.outbox()[events_before:]] == list(self.events)
        assert crm.key not in json.dumps(list(crm.log))
        return document

    def _check_refusal(self, document: Any) -> None:
        assert set(document) <= {"error", "message", "details"}
        expected = {400: "bad_request", 401: "unauthorized", 404: "not_found", 405: "method_not_allowed", 409: "conflict", 403: "forbidden"}
        assert document["error"] == (self.error or expected[self.status])
        for part in self.says:
            assert part in document["message"], document["message"]
        if self.field:
            assert document["details"]["field"] == self.field


def _contents(crm: RunningService) -> dict[str, list[Any]]:
    """Return every row of every table, to notice any write. The request log is written by itself, a moment after any request."""

    def read(tx: Any) -> dict[str, list[Any]]:
        catalogue = _CATALOGUES[type(tx.dialect)]
        tables = [table for (table,) in tx.all(catalogue) if table != "request_log"]
        return {table: sorted(map(repr, tx.all(f"SELECT * FROM {table}"))) for table in tables}

    return crm.engine.read(read)


_CATALOGUES = {
    SqliteDialect: "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, 6) <> 'sqlite'",
    PostgresDialect: "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
}


def _fill(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[0]), value)
    if isinstance(value, dict):
        return {key: _fill(item, names) for key, item in value.items()}
    return [_fill(item, names) for item in value] if isinstance(value, list) else value


def check_all(crm: RunningService, scenarios: Sequence[Scenario], names: Mapping[str, str]) -> None:
    """Run the scenarios in order against one service; name the one that fails."""
    for scenario in scenarios:
        try:
            scenario.run(crm, names)
        except AssertionError as error:
            raise AssertionError(f"{scenario.name}: {error}") from error


def check_documented(answer: Any, shape: Mapping[str, Any]) -> None:
    """Check that an answer has the required fields of its shape, and no unknown ones."""
    while "$ref" in shape:
        shape = SHAPES[shape["$ref"].rpartition("/")[2]]
    if shape.get("type") == "array":
        for item in answer:
            check_documented(item, shape["items"])
    elif "properties" in shape:
        assert set(shape["required"]) <= answer.keys() <= shape["properties"].keys()
        for field, value in answer.items():
            check_documented(value, shape["properties"][field])
    elif "anyOf" not in shape:
        kinds = {"string": str, "integer": int, "boolean": bool, "object": dict}
        assert "type" not in shape or type(answer) is kinds[shape["type"]], (answer, shape)
