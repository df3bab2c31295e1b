"""What bringing a mirror up to date costs, in requests: 1 % changed, and 0 to 1,000 records deleted, scattered or in one block.

    python benchmarks/mirror_requests.py --records 200000

The service is in memory, so that only requests count; after every sync the mirror must hold exactly what the service holds.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
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

from crmctl.client.shapes import Page
from crmctl.errors import RejectedError
from crmctl.mirror.file import MirrorFile, mirror_path
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.filters import Condition
from crmctl.models.members import Member
from crmctl.models.objects import Object
from crmctl.models.records import Record
from crmctl.models.timestamps import MICROS, to_timestamp

OBJECT_ID = "00000000-0000-4000-8000-000000000001"
START = 1_760_000_000 * MICROS
TYPES = {"email": "email", "name": "name", "score": "number", "status": "select", "company": "reference", "notes": "text"}


class LongList:
    """Records made one a second, listed by either time without sorting anything. The number of a record is its id."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.clock = FakeClock(START / MICROS + count + 86_400)
        self.by_creation = list(range(count))
        self.by_change = list(range(count))
        self.changed: dict[int, int] = {}
        self.requests = 0

    def update(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.clock.advance(0.01)
            self.changed[number] = int(self.clock.now() * MICROS)
        moved = set(numbers)
        self.by_change = [each for each in self.by_change if each not in moved] + list(numbers)

    def delete(self, numbers: Sequence[int]) -> None:
        gone = set(numbers)
        self.by_creation = [each for each in self.by_creation if each not in gone]
        self.by_change = [each for each in self.by_change if each not in gone]

    def wire(self, number: int) -> dict[str, Any]:
        created = START + number * MICROS
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
        return Record.parse(self.wire(int(record_id[-12:])))

    def list_objects(self) -> list[Object]:
        self.requests += 1
        return [Object.parse({"id": OBJECT_ID, "slug": "people", "isActive": True})]

    def list_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        self.requests += 1
        return [Attribute.parse({"id": slug, "slug": slug, "type": kind}) for slug, kind in TYPES.items()]

    def list_members(self) -> list[Member]:
        self.requests += 1
        return []


def wrong_rows(service: LongList, path: Path) -> int:
    """Missing, stale and ghosts."""
    file = MirrorFile.read(path)
    assert file is not None
    with file:
        held = dict(file.db.execute("SELECT id, _data FROM people"))
    wrong = 0
    for number in service.by_creation:
        wire = service.wire(number)
        wrong += held.pop(wire["id"], None) != jsontext.dumps(wire)
    return wrong + len(held)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--check", action="store_true", help="compare every record after every sync")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mirror-"))
    try:
        return measure(given.records, folder, check=given.check)
    finally:
        shutil.rmtree(folder)


def measure(count: int, folder: Path, *, check: bool) -> int:
    service = LongList(count)
    context = MirrorContext(service, folder / "state", service.clock)
    begun = time.process_time()
    sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    path = mirror_path(context.state, context.profile, context.origin)
    print(f"{count:,} records: {service.requests:,} requests, {time.process_time() - begun:.1f} s of processor time")
    json_bytes = sum(len(jsontext.dumps(service.wire(number)).encode()) + 1 for number in range(0, count, 97)) * 97
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"the file is {path.stat().st_size / json_bytes:.2f} times the JSON; {memory} MiB, most of it the service's")
    kept = folder / "kept.sqlite"
    shutil.copy(path, kept)
    missed = 0
    print("| changed | deleted | where | requests | seconds | wrong |")
    print("|---|---|---|---|---|---|")
    for share in (0.0, 0.01):
        for deleted, scattered in ((0, True), (10, True), (100, True), (1000, True), (10, False), (1000, False)):
            again = LongList(count)
            shutil.copy(kept, path)
            chance = random.Random(deleted)
            again.clock.advance(86_400)
            changed = chance.sample(range(count), int(count * share))
            again.update(changed)
            block = range(count // 3, count // 3 + deleted)
            again.delete(chance.sample(range(count), deleted) if scattered else block)
            begun = time.process_time()
            report = sync_mirror(MirrorContext(again, context.state, again.clock), SyncRequest())  # type: ignore[arg-type]
            took = time.process_time() - begun
            wrong: int | str = wrong_rows(again, path) if check else "-"
            missed += report.results[0].state.records != len(again.by_creation) or wrong not in (0, "-")
            place = "-" if not deleted else "scattered" if scattered else "one block"
            print(f"| {len(changed):,} | {deleted:,} | {place} | {again.requests:,} | {took:.1f} | {wrong} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
