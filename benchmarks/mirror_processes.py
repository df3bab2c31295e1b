"""Play histories with real processes: `crmctl mirror sync` and `crmctl serve`, killed at random, and restored databases."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from benchmarks.killing import restart, wait
from tests.support.cli import start_crmctl
from tests.support.mirrorhistories import Tally
from tests.support.service import ServiceProcess, service_process

from crmctl.service.context import DATABASE_FILE

NOT_PROVEN = 7
PAGE = 100


EACH = 20
"""This many histories share a service, whose database is copied for every backup."""


def real(seeds: Iterable[int]) -> Tally:
    """Play histories, each with its own object and mirror."""
    tally, whole = Tally(), 1.0
    for some in batched(list(seeds), EACH):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            service = service_process(folder / "data", "--rate-limit", "0")
            try:
                for seed in some:
                    history = History(seed, folder / str(seed), service, tally, whole)
                    history.play()
                    whole = history.whole
            finally:
                service.kill()
    return tally


def batched(seeds: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(seeds), size):
        yield seeds[first : first + size]


@dataclass
class History:
    """An object of a service and its mirror. `whole` is how long a sync takes today, in seconds; kills come within it."""

    seed: int
    folder: Path
    service: ServiceProcess
    tally: Tally
    whole: float
    number: int = 0
    ids: list[str] = field(default_factory=list)
    backups: list[tuple[Path, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.folder.mkdir()
        self.slug = f"things{self.seed}"
        self.data = self.folder.parent / "data"
        self.env = {
            "CRMCTL_BASE_URL": self.service.base_url, "CRMCTL_API_KEY": self.service.key,
            **{f"CRMCTL_{kind}_DIR": str(self.folder / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")},
        }  # fmt: skip

    def play(self) -> None:
        with self._connected():
            made = self._ask("POST", "", pluralName=self.slug, singularName=self.slug, description="", slug=self.slug)
            self.object = f"/{(made.get('object') or made)['id']}"
            for name in ("Note", "Number"):
                self._ask("POST", f"{self.object}/attributes", name=name, type="text", isRequired=False, isUnique=False, config={})
            for _ in range(self.chance.randrange(1, 5)):
                self.create(self.chance.choice([1, 40, 100]))
        for _ in range(self.chance.randrange(1, 3)):
            self.synced()
            with self._connected():
                for _ in range(self.chance.randrange(1, 5)):
                    self.something_happens()
            if self.backups and self.chance.random() < 0.6:
                self.restore()
        self.synced()
        self.tally.histories += 1
        shutil.rmtree(self.folder)

    # -- syncs -----------------------------------------------------------------------------------------------------------------------

    def synced(self) -> None:
        """Sync once, perhaps killed, perhaps while other clients write or the service dies; then sync undisturbed and compare."""
        while self.chance.random() < 0.4:
            self.killed(others=self.chance.random() < 0.5)
        if self.chance.random() < 0.3:
            self.judged(self._start(), ends=True)
        begun = time.monotonic()
        self.judged(self._start())
        self.whole = (self.whole + time.monotonic() - begun) / 2

    def judged(self, process: Any, *, ends: bool = False) -> None:
        """Return whether a sync succeeds and the mirror is right; with `ends`, another process replaces the service meanwhile."""
        before = self.held() if ends else {}
        if ends:
            wait(process, self.whole * self.chance.uniform(0.2, 0.9))
            restart(self.service, self.folder.parent)
        out, err = process.communicate()
        self.tally.syncs += 1
        if process.returncode == NOT_PROVEN:
            self.tally.unproven += 1
            return
        if process.returncode:
            if not ends or self.held() != before:
                self.tally.wrong.append(f"seed {self.seed}: exit {process.returncode}: {err}")
            return
        [result] = json.loads(out)
        self.tally.requests += result["requests"]
        self.tally.anew[result["reason"] or "(only changes)"] += 1
        held, there = self.held(), self.there()
        if held != there:
            missing, ghosts = there.keys() - held.keys(), held.keys() - there.keys()
            stale = sum(held[one] != there[one] for one in held.keys() & there.keys())
            said = f"{len(missing)} missing, {len(ghosts)} ghosts, {stale} stale; {result}"
            self.tally.wrong.append(f"seed {self.seed}, sync {self.tally.syncs}: {said}")

    def killed(self, *, others: bool) -> None:
        """Kill a sync at a moment; it must leave the old state or the whole new one."""
        before, over = self.held(), threading.Event()
        process = self._start()
        writer = threading.Thread(target=self._write_until, args=(over,))
        if others:
            writer.start()
        wait(process, self.whole * self.chance.uniform(0.3, 1.1))
        ended = process.poll() is not None
        process.kill()
        process.communicate()
        over.set()
        if others:
            writer.join()
        self.tally.interrupted += not ended
        after = self.held()
        if not ended and not others and after not in (before, self.there()):
            self.tally.wrong.append(f"seed {self.seed}: a sync that was killed has left half of its work")

    def _write_until(self, over: threading.Event) -> None:
        with self._connected():
            while not over.is_set():
                self.something_happens()

    def _start(self) -> Any:
        return start_crmctl("mirror", "sync", self.slug, "-o", "json", env=self.env)

    # -- comparison ------------------------------------------------------------------------------------------------------------------

    def held(self) -> dict[str, Any]:
        """Return every record of the mirror."""
        for path in (self.folder / "state" / "mirror").glob("*.sqlite"):
            with closing(sqlite3.connect(path)) as db:  # a file killed at its very beginning is repaired by the next process that may write
                if db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self.slug,)).fetchone():
                    return {one: json.loads(text) for one, text in db.execute(f"SELECT id, _data FROM {self.slug}")}
        return {}

    def there(self) -> dict[str, Any]:
        """Return every record of the service while no client writes."""
        found: dict[str, Any] = {}
        with self._connected():
            while page := self._ask("GET", f"{self.object}/records?limit={PAGE}&offset={len(found)}&order=asc")["records"]:
                found.update((one["id"], one) for one in page)
        return found

    # -- events ----------------------------------------------------------------------------------------------------------------------

    def something_happens(self) -> None:
        kind = self.chance.random()
        if kind < 0.3:
            self.create(self.chance.choice([1, 3, 100]))
        elif kind < 0.55:
            for some in self._some():
                self._ask("POST", f"{self.object}/records/bulk", mode="upsert", records=[self._record(id=one) for one in some])
        elif kind < 0.8:
            for some in self._some():
                self._ask("DELETE", f"{self.object}/records/bulk", ids=some)
                self.ids = [one for one in self.ids if one not in set(some)]
        else:
            self.back_up()

    def create(self, count: int) -> None:
        self._ask("POST", f"{self.object}/records/bulk", mode="create", records=[self._record() for _ in range(count)])
        newest = self._ask("GET", f"{self.object}/records?limit={count}")["records"]
        self.ids += [one["id"] for one in newest if one["id"] not in set(self.ids)]

    def _record(self, **more: str) -> dict[str, Any]:
        self.number += 1
        return {**more, "data": {"note": f"note {self.number}"} if more else {"note": f"note {self.number}", "number": str(self.number)}}

    def _some(self) -> list[list[str]]:
        """Return ids of some records, scattered or in a block, in requests."""
        count = min(len(self.ids), self.chance.choice([1, 1, 5, 150]))
        start = self.chance.randrange(len(self.ids) - count + 1)
        chosen = self.chance.sample(self.ids, count) if self.chance.random() < 0.5 else self.ids[start : start + count]
        return [chosen[first : first + PAGE] for first in range(0, len(chosen), PAGE)]

    def back_up(self) -> None:
        place = self.folder / f"backup{len(self.backups)}.db"
        with closing(sqlite3.connect(self.data / DATABASE_FILE)) as source, closing(sqlite3.connect(place)) as target:
            source.backup(target)
        self.backups.append((place, list(self.ids)))

    def restore(self) -> None:
        """Stop the service, put an earlier database in place of its own, and start it again."""
        place, ids = self.chance.choice(self.backups)

        def put_back() -> None:
            for suffix in ("", "-wal", "-shm"):
                (self.data / f"{DATABASE_FILE}{suffix}").unlink(missing_ok=True)
            shutil.copy(place, self.data / DATABASE_FILE)

        restart(self.service, self.folder.parent, put_back)
        self.ids = list(ids)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        with self.service.client() as self._client:
            yield

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        answer: httpx.Response = self._client.request(method, f"/api/v1/objects{path}", json=body or None)
        answer.raise_for_status()
        return answer.json() if answer.content else None
