"""Count the requests of a nightly import: `python benchmarks/nightly_requests.py [ROWS]`; exits with 1 above the target.

ROWS rows (200,000) for as many records, of which the file changes 1 % and people another 0.1 % by day; ten records are deleted. Runs once
with a mirror, once without, and imports one row by e-mail into the same records. The service runs in this process, so the counts are exact;
they include requests about objects and attributes.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.bulkcontext import QuietListener
from tests.support.clock import FakeClock

from crmctl.client.answers import Page
from crmctl.client.directory import Directory
from crmctl.errors import NotFoundError
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.resources import (
    Attribute,
    BulkResult,
    Object,
    Record,
)
from crmctl.plan.import_records import import_records
from crmctl.plan.requests import ImportRequest
from crmctl.values.filters import Condition
from crmctl.values.moments import (
    micros_of,
    to_timestamp,
)
from crmctl.values.operators import Operator

PEOPLE = "0b7ecf00-0000-4000-8000-000000000001"
DAY = 86_400.0
MOST_NIGHTLY, MOST_SINGLE = 120, 4
MICROS = 1_000_000


class Service:
    """Lists, single records and bulk writes in memory; `asked` counts by call."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.session = SimpleNamespace(max_wait=300.0)
        self.asked: dict[str, int] = {}
        self.data: dict[str, dict[str, Any]] = {}
        self.created: dict[str, int] = {}
        self.updated: dict[str, int] = {}
        self._by_creation: list[tuple[int, str]] = []
        self._by_change: list[tuple[int, str]] = []
        self._is_sorted = False
        self.session = SimpleNamespace(max_wait=300.0, take_requests=lambda: sum(self.asked.values()))

    # -- events --------------------------------------------------------------------------------------------------------------------------

    def add(self, data: dict[str, Any], at: int) -> str:
        record_id = str(uuid.UUID(int=(1 << 120) + len(self.created)))
        self.data[record_id], self.created[record_id], self.updated[record_id] = data, at, at
        self._is_sorted = False
        return record_id

    def change(self, record_id: str, data: dict[str, Any], at: int) -> None:
        self.data[record_id] = self.data[record_id] | data
        self.updated[record_id] = at
        self._is_sorted = False

    def delete(self, record_id: str) -> None:
        del self.data[record_id]
        self._is_sorted = False

    @property
    def now(self) -> int:
        return int(self.clock.now() * MICROS)

    # -- requests ------------------------------------------------------------------------------------------------------------------------

    def list_records(self, object_id: str, **asked: Any) -> Page[Record]:
        self._count("list records")
        filters: Sequence[Condition] = asked.get("filters", ())
        if not self._is_sorted:
            self._by_creation = sorted((self.created[one], one) for one in self.data)
            self._by_change = sorted((self.updated[one], one) for one in self.data)
            self._is_sorted = True
        places = self._by_change if asked.get("sort") == "updated_at" else self._by_creation
        first = 0
        for one in filters:
            if one.slug == "created_at":
                first = bisect_left(places, (micros_of(one.value) or 0, ""))
            else:
                places = [place for place in places if self._meets(place[1], one)]
        offset, limit, total = asked.get("offset", 0), asked.get("limit", 50), len(places) - first
        if asked.get("order", "desc") == "desc":
            end = max(first, len(places) - offset)
            page = places[max(first, end - limit) : end][::-1]
        else:
            page = places[first + offset : first + offset + limit]
        return Page([self._record(one) for _, one in page], total, limit, offset, formatdate(self.clock.now(), usegmt=True))

    def _meets(self, record_id: str, condition: Condition) -> bool:
        said, value = condition.value.lower(), str(self.data[record_id].get(condition.slug, "")).lower()
        return said in value if condition.operator is Operator.CONTAINS else said == value

    def get_record(self, object_id: str, record_id: str) -> Record:
        self._count("get record")
        if record_id not in self.data:
            raise NotFoundError("no such record")
        return self._record(record_id)

    def _record(self, record_id: str) -> Record:
        times = {"createdAt": to_timestamp(self.created[record_id]), "updatedAt": to_timestamp(self.updated[record_id])}
        return Record.parse({"id": record_id, "objectId": PEOPLE, "data": dict(self.data[record_id]), **times})

    def bulk_write(self, object_id: str, records: Sequence[bytes], *, mode: str, watch: Any = None, **_: Any) -> BulkResult:
        self._count("bulk")
        watch.sending()
        created = 0
        for one in map(jsontext.loads, records):
            if "id" in one and mode == "upsert":
                self.change(one["id"], one["data"], self.now)
            else:
                self.add(one["data"], self.now)
                created += 1
        return BulkResult(created=created, updated=len(records) - created)

    def list_objects(self) -> list[Object]:
        self._count("objects")
        return [Object.parse({"id": PEOPLE, "slug": "people", "type": "standard", "isActive": True})]

    def list_attributes(self, object_id: str, include_inactive: bool = False) -> list[Attribute]:
        self._count("attributes")
        kinds = {"email": "email", "name": "name", "score": "number", "note": "text"}
        every = enumerate(kinds.items())
        return [
            Attribute.parse({"id": slug, "slug": slug, "name": slug, "type": kind, "isUnique": slug == "email", "displayOrder": n})
            for n, (slug, kind) in every
        ]

    def list_members(self) -> list[Any]:
        self._count("members")
        return []

    def _count(self, call: str) -> None:
        self.asked[call] = self.asked.get(call, 0) + 1
        self.clock.advance(0.6)


class Context:
    def __init__(self, service: Service, folder: Path) -> None:
        self.service = self.crm = service
        self.clock, self.state, self.profile, self.origin = service.clock, folder / "state", "test", "http://crm.example.com"
        self.key = "key"
        self.directory = Directory(service, folder / "cache", self.profile, self.origin, service.clock)  # type: ignore[arg-type]
        self.listener, self.stdin = QuietListener(), sys.stdin.buffer


def write(path: Path, rows: int, changed: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("email,score,note\n")
        file.writelines(f"p{n}@acme.com,{n % 100 + (changed if n % 100 == 7 else 0)},note {n}\n" for n in range(rows))


def measured(context: Context, what: str, **options: Any) -> int:
    """Return the requests of an import by kind."""
    context.service.asked.clear()
    started = time.process_time()
    result = import_records(context, ImportRequest(object="people", keys=("email",), **options))  # type: ignore[arg-type]
    result.raise_for_error()
    asked = context.service.asked
    done = {str(state): count for state, count in result.summary.counts.items() if count}
    told = ", ".join(f"{count:,} {call}" for call, count in asked.items())
    print(f"{what}: {sum(asked.values()):,} requests ({told}); {done}; {time.process_time() - started:.0f} s of processor time", flush=True)
    return sum(asked.values())


def filled(folder: Path, rows: int) -> tuple[Context, list[str]]:
    """Return a service with that many people, and their ids."""
    service = Service(FakeClock())
    begun = service.now - int(400 * DAY * MICROS)
    ids = [service.add({"email": f"p{n}@acme.com", "score": n % 100, "note": f"note {n}"}, begun + n * MICROS) for n in range(rows)]
    return Context(service, folder), ids


def first_syncs(context: Context, ids: list[str]) -> None:
    """Make a mirror that has proven that the service lists by time of change."""
    for what in ("at first", "once more, to see that the service lists by time of change"):
        report = sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
        print(f"the mirror: {report.requests:,} requests {what}", flush=True)
        context.clock.advance(DAY / 2)
        context.service.change(ids[0], {"note": "a person's"}, context.service.now)


def a_day(context: Context, ids: list[str], deleted: int = 10) -> None:
    """Let people change one record in a thousand and delete some, evenly spread."""
    context.clock.advance(DAY / 2)
    for n in range(0, len(ids), 1000):
        context.service.change(ids[n], {"note": "a person's"}, context.service.now)
    for n in range(0, len(ids), len(ids) // deleted):
        context.service.delete(ids[n + len(ids) // deleted // 2])
    context.clock.advance(DAY / 2)


def main(rows: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        context, ids = filled(folder, rows)
        path = folder / "people.csv"
        (folder / "one.csv").write_text("email,score\nP77@ACME.com,-1\n", encoding="utf-8")
        (folder / "new.csv").write_text("email,score\nnobody@acme.com,1\n", encoding="utf-8")
        single = measured(context, "one row of a record that is there", file=str(folder / "one.csv"), mirror="never")
        single_new = measured(context, "one row of a new record", file=str(folder / "new.csv"), mirror="never")
        write(path, rows, 1)
        without = measured(context, "1 % changed, without a mirror", file=str(path), mirror="never")
        context.clock.advance(DAY)
        first_syncs(context, ids)
        a_day(context, ids)
        write(path, rows, 2)
        nightly = measured(context, "1 % changed, 0.1 % by people, 10 deleted, with the mirror", file=str(path), mirror="only")
        context.clock.advance(DAY)
        write(path, rows, 3)
        next_one = measured(context, "1 % changed, the night after", file=str(path), mirror="only", feed="erp", on_conflict="take")
    schema = 3
    return int(max(single, single_new) - schema > MOST_SINGLE or max(nightly, next_one) > MOST_NIGHTLY or without < nightly)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
