"""A small records service that stores what it receives and misbehaves on request: the ground truth for bulk tests. Its client `crm` calls
it without a socket.

server = BulkServer()
server.faults[2] = Fault(applies=True, drop=True)   # the third bulk request is applied, and never answered
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import Request, Response
from crmctl.clock import Clock
from crmctl.config.credentials import Credential
from crmctl.errors import NetworkError
from tests.support.clock import FakeClock

OBJECT_ID = "0b7ecf00-0000-4000-8000-000000000001"


@dataclass
class Fault:
    """The effect of one write request. `applies`: whether its rows are written. `drop`: no answer.

    The answer waits for `hold`. Otherwise `status` and `body` (JSON value or raw bytes) replace the answer.
    """

    applies: bool = False
    drop: bool = False
    status: int = 500
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None


class BulkServer:
    """`records` are the rows in order of creation. `faults` are by number of the write request, from 0.

    `refuse_row(data)` returns the message of a row's failure, `refuse_batch(records)` a `(status, message)` for a whole request.
    `before_page(n)` runs before the n-th list answer (from 0), `before_record(id)` before one record is shown; `visible(record)` decides
    whether lists show it.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.faults: dict[int, Fault] = {}
        self.writes: list[dict[str, Any]] = []
        self.reads: list[dict[str, list[str]]] = []
        self.deletes: list[list[str]] = []
        self.refuse_row: Callable[[dict[str, Any]], str | None] = lambda _: None
        self.refuse_batch: Callable[[list[dict[str, Any]]], tuple[int, str] | None] = lambda _: None
        self.before_page: Callable[[int], None] = lambda _: None
        self.before_record: Callable[[str], None] = lambda _: None
        self.visible: Callable[[dict[str, Any]], bool] = lambda _: True
        self.order_ties: Callable[[dict[str, Any]], Any] = lambda record: record["id"]
        self.readable = True
        self.lock = threading.RLock()
        self._created = 0
        self.origin = "http://127.0.0.1:9"

    def crm(self, clock: Clock | None = None, *, timeout: float = 5.0, max_wait: float = 300.0) -> Crm:
        """Return a client of this server."""
        credential = Credential("key-that-must-not-leak", "test", self.origin)
        return Crm(Session(self.origin, credential, _Direct(self), clock=clock or FakeClock(), timeout=timeout, max_wait=max_wait))

    def seed(self, rows: list[dict[str, Any]], created_at: Callable[[int], str] | None = None) -> list[str]:
        """Add records directly and return their ids."""
        return [self.add(data, created_at(n) if created_at else None)["id"] for n, data in enumerate(rows)]

    def add(self, data: dict[str, Any], created_at: str | None = None) -> dict[str, Any]:
        with self.lock:
            self._created += 1
            moment = created_at or f"2026-01-01T00:00:00.{self._created:06d}Z"
            record = {
                "id": str(uuid.UUID(int=self._created)),
                "objectId": OBJECT_ID,
                "data": data,
                "createdAt": moment,
                "updatedAt": moment,
            }
            self.records.append(record)
            return record

    def values(self, slug: str) -> Counter[Any]:
        """Count the values of an attribute."""
        with self.lock:
            return Counter(record["data"].get(slug) for record in self.records)

    # -- answers ---------------------------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, body: bytes, within: float) -> Response | None:
        """Return the answer to one request, None if the connection breaks. Raises NetworkError after `within` seconds."""
        if method == "GET":
            return self._shown_by(urlsplit(target))
        document = json.loads(body) if method == "POST" else json.loads(body)["ids"]
        log, act = (self.writes, self.write) if method == "POST" else (self.deletes, self.delete)
        with self.lock:
            fault = self.faults.get(len(log))
            log.append(document)
        if fault is None:
            return _answer(*act(document))
        if fault.applies:
            act(document)
        if fault.hold is not None and not fault.hold.wait(within):
            raise NetworkError(f"no answer within {within:g} s", code="timeout", retryable=True, outcome_unknown=True)
        if fault.drop:
            return None
        document = {"error": "fault", "message": "as requested"} if fault.body is None else fault.body
        return _answer(fault.status, document, fault.headers)

    def _shown_by(self, url: SplitResult) -> Response:
        """Return a list or one record."""
        if not self.readable:
            return _answer(403, {"error": "insufficient_scope", "message": "records:read is missing"})
        record_id = url.path.split("/records")[-1].strip("/")
        if not record_id:
            return _answer(200, self.page(parse_qs(url.query)))
        with self.lock:
            self.before_record(record_id)
            found = next((record for record in self.records if record["id"] == record_id), None)
        return _answer(200 if found else 404, found or {"error": "not_found", "message": "no such record"})

    def write(self, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            if (refusal := self.refuse_batch(body["records"])) is not None:
                return refusal[0], {"error": "bad_request", "message": refusal[1]}
            created, updated, failed = 0, 0, []
            known = {record["id"]: record for record in self.records}
            for index, entry in enumerate(body["records"]):
                message = self.refuse_row(entry["data"])
                target = entry.get("id") if body.get("mode") == "upsert" else None
                if message is None and target is not None and target not in known:
                    message = "not a record of the organization"
                if message is not None:
                    failed.append({"index": index, "error": message})
                elif target is not None:
                    known[target]["data"].update(entry["data"])
                    updated += 1
                else:
                    self.add(entry["data"])
                    created += 1
            return 200, {"created": created, "updated": updated, "failed": failed}

    def page(self, query: dict[str, list[str]]) -> dict[str, Any]:
        with self.lock:
            number = len(self.reads)
            self.reads.append(query)
        self.before_page(number)
        with self.lock:
            limit, offset = int(query.get("limit", ["50"])[0]), int(query.get("offset", ["0"])[0])
            key = {"created_at": "createdAt", "updated_at": "updatedAt"}[query.get("sort", ["created_at"])[0]]
            rows = sorted((record for record in self.records if self._shown(record, query)), key=self.order_ties)
            rows.sort(key=lambda record: str(record[key]), reverse=query.get("order", ["desc"])[0] == "desc")
            pagination = {"total": len(rows), "limit": limit, "offset": offset}
            return {"records": rows[offset : offset + limit], "pagination": pagination}

    def _shown(self, record: dict[str, Any], query: dict[str, list[str]]) -> bool:
        conditions = [(found, values[0]) for name, values in query.items() if (found := FILTER.fullmatch(name))]
        return self.visible(record) and all(
            OPERATORS[found["operator"]](str(record["data"].get(found["slug"]) or ""), value) for found, value in conditions
        )

    def delete(self, ids: list[str]) -> tuple[int, Any]:
        with self.lock:
            before = len(self.records)
            self.records = [record for record in self.records if record["id"] not in set(ids)]
            return 200, {"deleted": before - len(self.records)}


OPERATORS: dict[str, Callable[[str, str], bool]] = {
    "equals": lambda text, value: text == value,
    "contains": lambda text, value: value in text,
    "startsWith": lambda text, value: text.startswith(value),
}


def _answer(status: int, document: Any, headers: Mapping[str, str] | None = None) -> Response:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    lower = {name.lower(): value for name, value in (headers or {}).items()}
    return Response(status, {"content-type": "application/json"} | lower, content)


FILTER = re.compile(r"filter\[(?P<slug>[^]]+)\]\[(?P<operator>[^]]+)\]")


@dataclass(frozen=True)
class _Direct:
    """Passes the requests of a session to a server in the same thread."""

    server: BulkServer

    def send(self, request: Request) -> Response:
        answer = self.server.answer(request.method, request.url, request.body or b"", request.timeout)
        if answer is None:
            raise NetworkError("the connection was lost", code="connection_lost", retryable=True, outcome_unknown=True)
        return answer

    def close(self) -> None:
        """Nothing is open."""
