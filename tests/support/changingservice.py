"""A service that keeps every version of its records, alters values, answers wrongly and shows lists late, while people edit and create
records.

A play describes its behaviour; `overwritten` names the values of people that a job replaced although it could have known them.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from crmctl.client.transport import Request, Response
from crmctl.errors import NetworkError
from tests.support.answerruns import ALTERATIONS
from tests.support.faultruns import MovingClock
from tests.support.faultservice import LATE_SECONDS, Fault, json_response

Data = dict[str, Any]
ROWS = 23
PEOPLE, COMPANIES = (f"0b7ecf00-0000-4000-8000-00000000000{n}" for n in (1, 2))
TYPES = {
    PEOPLE: {"email": "email", "name": "text", "note": "text", "score": "number", "tags": "text", "due": "date", "company": "reference"},
    COMPANIES: {"name": "text"},
}


@dataclass(frozen=True)
class ChangePlay:
    """One job and its faults. `answers` by number of the write since the first import began. `writer`: `edits` records, or creates `rivals`
    with the same key. `kill`: the step at which the process ends; `resumes`: whether the user resumes it.
    """

    kind: str
    alteration: str | None = None
    altered: int | None = None
    answers: tuple[tuple[int, str], ...] = ()
    lists: str = "current"
    writer: str = "none"
    total: bool = True
    unique: bool = False
    kill: tuple[str, int] | None = None
    resumes: bool = True
    seed: int = 0
    batch: int = 5
    senders: int = 1


@dataclass
class VersionedRecord:
    """A record with all its versions: moment, data (None: deleted) and the writer, `job` or `person`. `row`: the row it came from."""

    id: str
    object_id: str
    row: int | str | None
    lag: float
    versions: list[tuple[float, Data | None, str]]
    edits: dict[str, tuple[Any, float]] = field(default_factory=dict)

    @property
    def data(self) -> Data | None:
        return self.versions[-1][1]

    def at(self, moment: float) -> tuple[float, Data | None, str] | None:
        return next((version for version in reversed(self.versions) if version[0] <= moment), None)


class ChangingService:
    """Implements `Transport`. `frozen`: the moment that lists show for ever. `overwritten`: values of people that a job replaced."""

    def __init__(self, clock: MovingClock, spec: ChangePlay) -> None:
        self.clock, self.spec = clock, spec
        self.records: dict[str, VersionedRecord] = {}
        self.answers: dict[int, Fault] = {}
        self.alters = self.is_late = False
        self.watches = True
        self.repeated: set[str | None] = set()
        self.writer = "none"
        self.writes = self.reads = 0
        self.frozen: float | None = None
        self.began = 0.0
        self.overwritten: list[str] = []
        self._chance = random.Random(spec.seed)

    # -- the transport ---------------------------------------------------------------------------------------------------------------

    def send(self, request: Request) -> Response:
        parts = urlsplit(request.url)
        path = parts.path.partition("/api/v1/")[2].split("/")
        body = json.loads(request.body) if request.body else {}
        if request.method == "GET":
            return self._read(path, parse_qs(parts.query))
        if self.writer != "none":
            self.clock.advance(2)
            self._meddle()
        fault = self.answers.pop(self.writes, Fault("none", "all"))
        if fault.reply.startswith("429"):  # crmctl believes it, so it may repeat over a person's newer value
            self.repeated |= {row.get("id") for row in body.get("records", ())}
        self.writes += 1
        return self._answer(fault, self._work(request.method, path, body))

    def upload(self, upload: Any) -> Response:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""

    def _answer(self, fault: Fault, work: Callable[[str], tuple[int, Any]]) -> Response:
        status, good = work(fault.applies)
        if fault.reply == "drop":
            raise NetworkError("the connection was lost", outcome_unknown=True, retryable=True)
        if fault.reply == "good":
            return json_response(status, work("all, without effect")[1] if fault.applies == "no" else good)
        status = int(fault.reply[:3])
        headers = {"retry-after": "2"} if status == 429 else {}
        return json_response(status, {"error": "fault", "message": "as requested"}, headers)

    def _read(self, path: list[str], query: Mapping[str, list[str]]) -> Response:
        if path == ["objects"]:
            slugs = {PEOPLE: "people", COMPANIES: "companies"}
            return json_response(200, {"objects": [{"id": one, "slug": slug, "name": slug} for one, slug in slugs.items()]})
        if path[-1] == "attributes":
            return json_response(200, {"attributes": self._attributes(path[1])})
        if len(path) == 2:
            return json_response(200, {"object": {"id": path[1]}, "attributes": self._attributes(path[1])})
        if path[0] != "objects":
            return json_response(200, {path[0]: [], "pagination": {"limit": 50, "offset": 0, "total": 0}})
        if len(path) == 4:
            record = self.records.get(path[3])
            if record is None or record.data is None:
                return json_response(404, {"error": "not_found", "message": "no such record"})
            return json_response(200, self._wire(record, record.versions[-1]))
        return self._page(path[1], query)

    def _attributes(self, object_id: str) -> list[Data]:
        return [
            {"id": f"a-{slug}", "slug": slug, "name": slug.title(), "type": kind, "isList": slug == "tags",
             "isUnique": self.spec.unique and slug == ("email" if object_id == PEOPLE else "name"),
             "targetObjectId": COMPANIES if kind == "reference" else None}
            for slug, kind in TYPES[object_id].items()
        ]  # fmt: skip

    def _page(self, object_id: str, query: Mapping[str, list[str]]) -> Response:
        self.reads += 1
        now, lists = self.clock.now(), self.spec.lists if self.is_late else "current"
        if lists == "every second read late" and self.reads % 2:
            now -= LATE_SECONDS
        rows = []
        for record in [*self.records.values()]:  # an abandoned reader of a killed process may still read
            lag = {"5 s late": 5.0, "each record late": record.lag}.get(lists, 0.0)
            version = record.at(min(now - lag, self.frozen if self.frozen is not None else now))
            if record.object_id == object_id and version is not None and version[1] is not None and _meets(version[1], query):
                rows.append(self._wire(record, version))
        key = {"created_at": "createdAt", "updated_at": "updatedAt"}[query.get("sort", ["created_at"])[0]]
        rows.sort(key=lambda row: (str(row[key]), str(row["id"])), reverse=query.get("order", ["desc"])[0] == "desc")
        limit, offset = int(query.get("limit", ["50"])[0]), int(query.get("offset", ["0"])[0])
        pagination = {"limit": limit, "offset": offset} | ({"total": len(rows)} if self.spec.total else {})
        return json_response(200, {"records": rows[offset : offset + limit], "pagination": pagination})

    def _wire(self, record: VersionedRecord, version: tuple[float, Data | None, str]) -> Data:
        created, changed = (
            datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z") for at in (record.versions[0][0], version[0])
        )
        return {"id": record.id, "objectId": record.object_id, "data": version[1], "createdAt": created, "updatedAt": changed}

    # -- writes ----------------------------------------------------------------------------------------------------------------------

    def _work(self, method: str, path: list[str], body: Data) -> Callable[[str], tuple[int, Any]]:
        if path[-1] == "bulk" and method == "POST":
            return lambda applies: (200, self._write(path[1], body["records"], applies))
        if path[-1] == "bulk":
            return lambda applies: (200, {"deleted": self._delete(body["ids"], applies)})
        if method == "DELETE":
            return lambda applies: (204, {"deleted": self._delete(path[-1:], applies)})
        assert method == "PATCH", (method, path)

        def change(applies: str) -> tuple[int, Any]:
            record = self.records.get(path[-1])
            if record is None or record.data is None:
                return 404, {"error": "not_found", "message": "no such record"}
            if applies not in ("no", "all, without effect"):
                self._update(record, body["data"])
            return 200, self._wire(record, record.versions[-1])

        return change

    def _write(self, object_id: str, rows: Sequence[Data], applies: str) -> Data:
        made = changed = 0
        failed = []
        chosen = {"no": 0, "half": len(rows) // 2, "all, without effect": 0}.get(applies, len(rows))
        first = len(rows) // 2 if applies == "last" else 0
        for index, row in enumerate(rows):
            record = self.records.get(row.get("id", ""))
            is_done = first <= index < max(chosen, 0)
            if row.get("id") and (record is None or record.data is None):
                failed.append({"index": index, "error": "not a record of the organization"})
            elif record is not None:
                changed += 1
                for _ in range(is_done * (1 + (applies == "twice"))):
                    self._update(record, row["data"])
            elif self._is_used(object_id, row["data"]):
                failed.append({"index": index, "error": "this value is already used"})
            else:
                made += 1
                for _ in range(is_done * (1 + (applies == "twice" and not self.spec.unique))):
                    self.create(object_id, row["data"], "job")
        return {"created": made, "updated": changed, "failed": failed}

    def _delete(self, ids: Sequence[str], applies: str) -> int:
        there = [record for record_id in ids if (record := self.records.get(record_id)) is not None and record.data is not None]
        half = len(there) // 2
        chosen = {"no": [], "half": there[:half], "last": there[half:], "all, without effect": []}.get(applies, there)
        for record in chosen:
            for slug, (value, moment) in record.edits.items():
                self._note(record, slug, value, moment)
            record.versions.append((self.clock.now(), None, "job"))
        return len(there)

    def _update(self, record: VersionedRecord, data: Data) -> None:
        assert record.data is not None
        stored = self.stored(record.row, data)
        for slug, value in data.items():
            value = stored.get(slug, value)
            edit = record.edits.get(slug)
            if edit is not None and record.data.get(slug) == edit[0] != value:
                self._note(record, slug, *edit)
        kept = {slug: value for slug, value in stored.items() if slug in data or slug not in record.data}  # a default fills empty values
        record.versions.append((self.clock.now(), record.data | kept, "job"))

    def _note(self, record: VersionedRecord, slug: str, value: Any, moment: float) -> None:
        """Note a person's lost value if crmctl could have known it: it wrote this record before the edit, or read it after the edit."""
        written = any(writer == "job" and self.began <= at < moment for at, _, writer in record.versions)
        slowest = {"current": 0.0, "5 s late": 5.0}.get(self.spec.lists, 25.0)
        if self.watches and record.id not in self.repeated and (written or moment + slowest < self.began):
            self.overwritten.append(f"row {record.row}: {slug} {value!r}")

    def create(self, object_id: str, data: Data, writer: str) -> VersionedRecord:
        record_id = str(uuid.UUID(int=self._chance.getrandbits(128), version=4))
        row = row_number(data) if object_id == PEOPLE else data["name"]
        version = (self.clock.now(), self.stored(row, data) if writer == "job" else data, writer)
        record = VersionedRecord(record_id, object_id, row, self._chance.uniform(0, 25), [version])
        self.records[record_id] = record
        return record

    def edit(self, record: VersionedRecord, slug: str, value: Any) -> None:
        assert record.data is not None
        moment = self.clock.now()
        record.edits[slug] = (value, moment)
        record.versions.append((moment, record.data | {slug: value}, "person"))

    def stored(self, row: int | str | None, data: Data) -> Data:
        """Return these values as the service stores them."""
        applies = self.alters and self.spec.alteration is not None and self.spec.altered in (None, row)
        if not applies or not isinstance(row, int):
            return data
        every = data_of(row) | data
        altered = ALTERATIONS[str(self.spec.alteration)](every)
        return {slug: altered[slug] for slug in data if slug in altered} | {
            slug: value for slug, value in altered.items() if slug not in every
        }

    def _is_used(self, object_id: str, data: Data) -> bool:
        slug = "email" if object_id == PEOPLE else "name"
        value = self.stored(row_number(data) if object_id == PEOPLE else None, data).get(slug)
        return self.spec.unique and any(record.data.get(slug) == value for record in self.of(object_id) if record.data is not None)

    def of(self, object_id: str = PEOPLE) -> list[VersionedRecord]:
        """Return the records that exist."""
        return [record for record in self.records.values() if record.object_id == object_id and record.data is not None]

    def _meddle(self) -> None:
        there = self.of()
        if self.writer == "edits" and there:
            self.edit(self._chance.choice(there), self._chance.choice(("note", "stage")), f"by hand {self.writes}")
        elif self.writer == "rivals":
            data = data_of(self._chance.randint(1, ROWS)) | {"note": "a rival"}
            if not self._is_used(PEOPLE, data):
                self.create(PEOPLE, data, "person")


def _meets(data: Data, query: Mapping[str, list[str]]) -> bool:
    tests: dict[str, Callable[[str, str], bool]] = {
        "equals": lambda text, value: text == value,
        "contains": lambda text, value: value in text,
    }
    conditions = [(found, values[0]) for name, values in query.items() if (found := re.fullmatch(r"filter\[(\w+)\]\[(\w+)\]", name))]
    return all(tests[found[2]](str(data.get(found[1]) or "").casefold(), value.casefold()) for found, value in conditions)


def row_number(data: Data) -> int | None:
    found = re.match(r"[pP](\d+)", str(data.get("email") or ""))
    return int(found[1]) if found else None


def data_of(n: int, night: int = 0) -> Data:
    return {
        "email": f"P{n}+x@acme.com",
        "name": f"  Ann  & Co Number {n:03d} of the North ",
        "note": f"row {n} with a note that is rather long {night}",
        "score": n * 1.37 + 0.123,
        "tags": [f"t{n % 3}", "b", "a"],
        "due": f"2026-01-{n % 27 + 1:02d}",
    }
