"""Play nights of a feed with people's edits: `python benchmarks/three_way_merges.py [MERGES]`; exits with 1 if an edit is lost.

Every night the file and people each change some values of 200 records with two attributes and parts of an address. Counts edits of people
lost under `--on-conflict keep`, changes of the file missing under `take`, changes of the file missing under `keep` although no person had
edited the value, and requests beyond those of an import without a feed.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.bulkserver import BulkServer
from tests.support.keydesk import KeyDesk

UNITS = ("note", "code", "n")
MERGES = 10_000


@dataclass
class Nights:
    """`wrote` holds the values the feed is known to have written last, by name and attribute; `lost` names errors."""

    desk: KeyDesk
    policy: str
    draw: random.Random
    names: list[str]
    lost: list[str] = field(default_factory=list)
    merges: int = 0
    extra_requests: int = 0
    file: dict[str, dict[str, str]] = field(default_factory=dict)
    wrote: dict[str, dict[str, str]] = field(default_factory=dict)

    def run(self, nights: int) -> None:
        self.file = {name: {unit: self._value(unit) for unit in UNITS} for name in self.names}
        self._import()
        self.wrote = {name: dict(row) for name, row in self.file.items()}
        for _ in range(nights):
            self._night()

    def _night(self) -> None:
        edits = self._people()
        changed = {(name, unit) for name in self.names for unit in UNITS if self.draw.random() < 0.3 and self._set(self.file[name], unit)}
        before = {name: dict(data) for name, data in self._records().items()}
        self._import()
        for name, data in self._records().items():
            self.merges += 1
            for unit in UNITS:
                self._check((name, unit), (before[name][unit], str(data[unit])), is_changed=(name, unit) in changed)
        self.edited = edits

    def _check(self, place: tuple[str, str], values: tuple[str, str], *, is_changed: bool) -> None:
        name, unit = place
        was, now = values
        said, base = self.file[name][unit], self.wrote[name][unit]
        by_person = was != base
        if self.policy == "keep" and by_person and now != was:
            self.lost.append(f"{name}.{unit}: an edit, {was}, is gone")
        if said != now and (self.policy == "take" or (not by_person and is_changed)):
            self.lost.append(f"{name}.{unit}: a change of the feed, {said}, did not come")
        if now == said:
            self.wrote[name][unit] = said

    def _people(self) -> int:
        edits = 0
        for data in self._records().values():
            for unit in UNITS:
                edits += self.draw.random() < 0.2 and self._set(data, unit)
        return edits

    def _records(self) -> dict[str, dict[str, Any]]:
        found = {}
        for record in self.desk.server.records:
            name = record["data"]["email"].partition("@")[0]
            if name in self.file:
                record["data"]["n"] = str(record["data"]["n"])
                found[name] = record["data"]
        return found

    def _import(self) -> None:
        for record in self.desk.server.records:
            record["data"]["n"] = int(record["data"]["n"])
        lines = [",".join([f"{name}@acme.com", *row.values()]) for name, row in self.file.items()]
        text = "\n".join([",".join(["email", *UNITS]), *lines, ""])
        reads = len(self.desk.server.reads)
        result = self.desk.load(text, "email", feed=self.policy)
        assert result.error is None, result
        # As without a feed: all records, the end of the list twice, the changes, the records that existed before; creations once more.
        most = 2 * (-(-len(self.desk.server.records) // 99) + 4)
        self.extra_requests += max(0, len(self.desk.server.reads) - reads - most)

    def _set(self, row: dict[str, Any], unit: str) -> bool:
        """Change a value perhaps; return whether it changed. There are few values, so both often choose the same."""
        old, row[unit] = row[unit], self._value(unit)
        return bool(old != row[unit])

    def _value(self, unit: str) -> str:
        return str(self.draw.randrange(6)) if unit == "n" else f"{unit} {self.draw.choice('abcDEF')}"


def main(merges: int) -> int:
    lost = extra = 0
    for policy in ("keep", "take"):
        started = time.process_time()
        server = BulkServer()
        with tempfile.TemporaryDirectory() as folder:
            nights = Nights(KeyDesk(server, Path(folder)), policy, random.Random(1), [f"p{n}" for n in range(200)])
            nights.run(-(-merges // 200))
        seconds = time.process_time() - started
        print(f"{policy}: {nights.merges:,} merges of {len(UNITS)} values, {len(nights.lost)} lost, {seconds:.0f} s of processor time")
        for one in nights.lost[:5]:
            print(f"  {one}")
        lost, extra = lost + len(nights.lost), extra + nights.extra_requests
    print(f"requests beyond those of an import without a feed: {extra}")
    return 1 if lost or extra else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MERGES))
