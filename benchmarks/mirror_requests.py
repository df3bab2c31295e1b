"""Count the requests of a mirror's sync: 1 % changed, and 0 to 1,000 records deleted, scattered or in one block.

    python benchmarks/mirror_requests.py [--records 200000] [--burst]

The service is in memory, so that only requests count. One mirror syncs night after night; after each sync the benchmark compares the
changed and deleted records and the total, at the end every record. Changes are spread evenly over the time, with `--burst` within minutes.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.clock import FakeClock
from tests.support.mirrorhistories import MirrorContext

from crmctl.client.answers import Page
from crmctl.errors import NotFoundError, RejectedError
from crmctl.mirror.file import MirrorFile
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, Member, Object, Record
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS, to_timestamp

OBJECT_ID = "00000000-0000-4000-8000-000000000001"
START = 1_760_000_000 * MICROS
TYPES = {"email": "email", "name": "name", "score": "number", "status": "select", "company": "reference", "notes": "text"}


DAY = 86_400.0
YEAR = 365 * DAY
NIGHTS = ((0, True), (10, True), (100, True), (1000, True), (10, False), (1000, False))
"""Numbers of deleted records, scattered or in a block."""


class LongList:
    """Records listed by either time without sorting. The number of a record is its id; `pace` is the seconds between two of them."""

    def __init__(self, count: int, pace: float) -> None:
        self.count = count
        self.pace = int(pace * MICROS)
        self.clock = FakeClock(START / MICROS + count * pace + DAY)
        self.by_creation = list(range(count))
        self.by_change = list(range(count))
        self.there = set(self.by_creation)
        self.changed: dict[int, int] = {}
        self.requests = 0

    def update(self, numbers: Sequence[int], within: float) -> None:
        """Change these records within that many seconds."""
        for number in numbers:
            self.clock.advance(within / len(numbers))
            self.changed[number] = int(self.clock.now() * MICROS)
        moved = set(numbers)
        self.by_change = [each for each in self.by_change if each not in moved] + list(numbers)

    def delete(self, numbers: Sequence[int]) -> None:
        gone = set(numbers)
        self.there -= gone
        self.by_creation = [each for each in self.by_creation if each not in gone]
        self.by_change = [each for each in self.by_change if each not in gone]

    def wire(self, number: int) -> dict[str, Any]:
        created = START + number * self.pace
        data = {
            "email": f"person{number}@example{number % 500}.com", "name": {"first": "Person", "last": f"Number{number}"},
            "score": self.changed.get(number, number) % 1000, "status": ("new", "contacted", "customer")[number % 3],
            "company": f"10000000-0000-4000-8000-{number % 5000:012}",
            "notes": f"Met at the fair in {2000 + number % 26}; asked for an offer, and for a call back in the week after.",
        }  # fmt: skip
        return {
            "id": f"00000000-0000-4000-8000-{number:012}", "objectId": OBJECT_ID, "data": data, "createdAt": to_timestamp(created),
            "updatedAt": to_timestamp(self.changed.get(number, created)),
        }  # fmt: skip

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]:
        self.requests += 1
        if filters or sort not in ("created_at", "updated_at"):
            raise RejectedError("there is no such attribute or order", status=400)
        numbers = self.by_change if sort == "updated_at" else self.by_creation
        total = len(numbers)
        first, end = offset, min(offset + limit, total)
        chosen = numbers[first:end] if order == "asc" else numbers[max(0, total - end) : max(0, total - first)][::-1]
        items = [Record.parse(self.wire(number)) for number in chosen]
        return Page(items, total, limit, offset, formatdate(self.clock.now(), usegmt=True))

    def get_record(self, object_id: str, record_id: str) -> Record:
        self.requests += 1
        number = int(record_id[-12:])
        if number not in self.there:
            raise NotFoundError("there is no such record", status=404)
        return Record.parse(self.wire(number))

    def list_objects(self) -> list[Object]:
        self.requests += 1
        return [Object.parse({"id": OBJECT_ID, "slug": "people", "isActive": True})]

    def list_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        self.requests += 1
        return [Attribute.parse({"id": slug, "slug": slug, "type": kind}) for slug, kind in TYPES.items()]

    def list_members(self) -> list[Member]:
        self.requests += 1
        return []


def wrong_rows(service: LongList, path: Path, numbers: Sequence[int] | None = None) -> int:
    """Return missing, stale and surplus records, of all or of these."""
    file = MirrorFile.read(path)
    assert file is not None
    with file:
        [total] = file.db.execute("SELECT count(*) FROM people").fetchone()
        wrong = abs(total - len(service.by_creation))
        there = set(service.by_creation)
        for number in range(service.count) if numbers is None else numbers:
            wire = service.wire(number)
            held = file.db.execute("SELECT _data FROM people WHERE id = ?", (wire["id"],)).fetchone()
            wrong += held != ((jsontext.dumps(wire),) if number in there else None)
    return wrong


def measure(count: int, folder: Path, *, burst: bool) -> int:
    service = LongList(count, 1.0 if burst else YEAR / count)
    context = MirrorContext(service, folder, service.clock)
    begun, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    path = mirror_path(context.state, context.profile, context.origin)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024
    took = f"{time.process_time() - begun:.0f} s of processor time"
    print(f"{count:,} records: {service.requests:,} requests, {took}, {grown} MiB more memory", flush=True)
    json_bytes = sum(len(jsontext.dumps(service.wire(number)).encode()) + 1 for number in range(0, count, 97)) * 97
    print(f"the file is {path.stat().st_size / json_bytes:.2f} times the JSON")
    # One change shows that the service lists by time of change.
    service.update([0], DAY)
    sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    missed, chance = 0, random.Random(count)
    print("| changed | deleted | where | requests | seconds | wrong |")
    print("|---|---|---|---|---|---|")
    for share in (0.0, 0.01):
        for deleted, scattered in NIGHTS:
            there = service.by_creation
            changed = chance.sample(there, int(count * share))
            service.update(changed, 60.0 if burst else DAY / 2)
            gone = chance.sample(there, deleted) if scattered else there[len(there) // 3 :][:deleted]
            service.delete(gone)
            service.clock.advance(DAY / 2)
            before, begun = service.requests, time.process_time()
            sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
            took, asked = time.process_time() - begun, service.requests - before
            wrong = wrong_rows(service, path, [*changed, *gone])
            missed += wrong
            place = "-" if not deleted else "scattered" if scattered else "one block"
            print(f"| {len(changed):,} | {deleted:,} | {place} | {asked:,} | {took:.1f} | {wrong} |", flush=True)
    wrong = wrong_rows(service, path)
    print(f"every record at the end: {wrong} wrong")
    return 1 if missed or wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--burst", action="store_true", help="one record a second, all changes within a minute")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mirror-") as folder:
        return measure(given.records, Path(folder), burst=given.burst)


if __name__ == "__main__":
    raise SystemExit(main())
