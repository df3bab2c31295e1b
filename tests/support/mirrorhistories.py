"""Random histories of a service with syncs of a mirror in between; after each sync the mirror must match the service."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from crmctl.errors import NetworkError
from crmctl.mirror.file import ACTIVITIES, MirrorFile, quoted
from crmctl.mirror.object_sync import JustRead, ObjectResult
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncReport, SyncRequest, sync_mirror
from crmctl.values.moments import MICROS
from tests.support.bulkcontext import QuietListener
from tests.support.historypair import PairService
from tests.support.historyservice import MINUTE, OBJECT_ID, HistoryService, Killed, Manners, Truth


@dataclass
class MirrorContext:
    """The dependencies of a sync, over a service in memory."""

    service: Any
    state: Path
    clock: Any
    listener: QuietListener = field(default_factory=QuietListener)
    origin: str = "http://127.0.0.1"
    profile: str = "default"
    key: str = "key"

    @property
    def crm(self) -> Any:
        return self.service


@dataclass
class Tally:
    """The results of many histories. `behind`: errors in the `lagging` histories, whose pages come from stale replicas."""

    histories: int = 0
    syncs: int = 0
    requests: int = 0
    interrupted: int = 0
    unproven: int = 0
    anew: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)
    lagging: int = 0

    def add(self, other: Tally) -> None:
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))


def random_manners(chance: random.Random) -> Manners:
    return Manners(
        cap=chance.choice([100, 100, 100, 30]),
        grain=chance.choice([1, 1000, 1_000_000]),
        ties=chance.choice(["arrival", "arrival", "id", "random"]),
        gives_total=chance.random() < 0.9,
        gives_date=chance.random() < 0.9,
        sorts_changes=chance.random() < 0.93,
        lag=chance.choice([0, 0, 0, 0, 0.1, 0.5]),
        cleans=chance.random() < 0.3,
    )


def play(seed: int, folder: Path, tally: Tally) -> None:
    """Play one history; every other one has two objects and activities."""
    chance = random.Random(seed)
    service = (PairService if seed % 2 else HistoryService)(seed, random_manners(chance))
    for _ in range(chance.randrange(0, 8)):
        any_part(service, chance).create(chance.choice([1, 5, 30, 100, 130]))
        service.advance(chance.choice([0, 1_000, MINUTE, 60 * MINUTE]))
    history = History(seed, chance, service, MirrorContext(service, folder, service.clock), tally)
    tally.histories += 1
    tally.lagging += service.manners.lag > 0
    for _ in range(chance.randrange(2, 5)):
        history.sync()
        history.go_on(chance.randrange(0, 6))


@dataclass
class History:
    """One service and its mirror. `stepped`: the clock was set since the last sync."""

    seed: int
    chance: random.Random
    service: HistoryService
    context: MirrorContext
    tally: Tally
    stepped: bool = False

    def go_on(self, events: int) -> None:
        for _ in range(events):
            self.stepped = make_random_event(self.service, self.chance, self.stepped)

    def sync(self) -> None:
        """Sync, perhaps while others write and after interrupted syncs, and check the mirror."""
        chance, service = self.chance, self.service
        busy, pace = chance.random() < 0.35, chance.choice([0.05, 0.3, 1.0])

        def meanwhile() -> None:
            if chance.random() < pace:
                small_change(service, chance)

        asked, again = service.requests, False
        for part in service.parts:
            part.truths = []
        while chance.random() < 0.25:
            again = self.interrupted(meanwhile if busy else nothing, again) or again
            self.go_on(chance.choice([0, 0, 1, 2]))
        before = service.clock.now()
        service.begin(again=again)
        service.meanwhile = meanwhile if busy else nothing
        report = sync_mirror(self.context, self.request(full=chance.random() < 0.02))  # type: ignore[arg-type]
        service.meanwhile = nothing
        self.stepped = False
        self.tally.requests += service.requests - asked
        self.judge(report, before)

    def request(self, *, full: bool = False) -> SyncRequest:
        """Return a request, sometimes with attributes that were read before the service went on."""
        objects = len(self.service.parts) - 1
        if self.chance.random() < 0.85 or full:
            return SyncRequest(full=full, activities=True if objects else None)
        chosen = [part.object_id for part in self.service.parts if part.object_id != ACTIVITIES]
        asked = int(self.context.clock.now() * MICROS)
        read = {object_id: JustRead(self.service.list_attributes(object_id), asked) for object_id in chosen}
        self.go_on(self.chance.choice([0, 0, 1, 2]))
        return SyncRequest(chosen, just_read=read)

    def judge(self, report: SyncReport, before: float) -> None:
        """Check every object separately. A continued sync may show the moment of its beginning, which it states."""
        self.tally.syncs += 1
        parts = {part.object_id: part for part in self.service.parts}
        for result in report.results:
            part = parts[result.state.object_id]
            self.judge_one(part, result, part.truths[0 if result.state.taken < int(before * MICROS) else -1])

    def judge_one(self, part: HistoryService, result: ObjectResult, truth: Truth) -> None:
        tally, state = self.tally, result.state
        if result.reason:
            tally.anew[result.reason if not result.reason[0].isdigit() else "... " + result.reason.partition(" ")[2]] += 1
        if not state.proven:
            tally.unproven += 1
        elif problem := difference(self.context, truth, part.object_id):
            about = f"{state.slug} {state.how}: {result.reason} {state.proof}"
            found = tally.behind if part.manners.lag else tally.wrong
            found.append(f"seed {self.seed}, sync {tally.syncs}: {problem}; {about}")

    def interrupted(self, meanwhile: Callable[[], None], again: bool) -> bool:
        """Interrupt a sync at some request by a kill or a lost connection; its changes must stay invisible. Return whether it was
        interrupted.
        """
        service, held = self.service, self.held()
        began = service.clock.now()
        service.begin(again=again)
        service.ends_at = service.requests + self.chance.choice([self.chance.randrange(1, 8), self.chance.randrange(1, 40)])
        service.ends_with = self.chance.choice([Killed(), NetworkError("the connection was lost")])
        service.meanwhile = meanwhile
        try:
            report = sync_mirror(self.context, self.request())  # type: ignore[arg-type]
        except (Killed, NetworkError):
            self.tally.interrupted += 1
            changed = [part for part in service.parts if contents(self.context, part.object_id) != held[part.object_id]]
            # Objects are synced one after the other: those finished before the interruption are new.
            if any(len(service.parts) == 1 or self.is_wrong(part) for part in changed):
                self.tally.wrong.append(f"seed {self.seed}: an interrupted sync changed the mirror visibly")
            return True
        finally:
            service.ends_at, service.meanwhile = None, nothing
        self.judge(report, began)
        return False

    def is_wrong(self, part: HistoryService) -> bool:
        """Whether the mirror claims to hold a part, but has contents that were never true since the first unfinished sync."""
        with MirrorFile.read(mirror_path(self.context.state, self.context.origin, self.context.key)) as file:  # type: ignore[union-attr]
            state = file.state(part.object_id)
        return state is not None and state.proven and difference(self.context, part.truths[0], part.object_id) is not None

    def held(self) -> dict[str, dict[str, str]]:
        return {part.object_id: contents(self.context, part.object_id) for part in self.service.parts}


def nothing() -> None:
    """Write nothing."""


def any_part(service: HistoryService, chance: random.Random) -> HistoryService:
    return service if len(service.parts) == 1 else chance.choice(service.parts)


def difference(context: MirrorContext, truth: Truth, object_id: str = OBJECT_ID) -> str | None:
    """Describe contents of the mirror that were never true during the sync."""
    held = contents(context, object_id)
    for one, wires in truth.seen.items():
        if one not in held:
            if one not in truth.absent:
                return f"{one} is missing"
        elif held[one] not in wires:
            return f"{one} is stale: {held[one]} instead of {wires}"
    ghosts = held.keys() - truth.seen.keys()
    return f"{len(ghosts)} ghosts: {sorted(ghosts)[:3]}" if ghosts else None


def contents(context: MirrorContext, object_id: str = OBJECT_ID) -> dict[str, str]:
    """Return the mirror's contents of an object, nothing if it has none."""
    file = MirrorFile.read(mirror_path(context.state, context.origin, context.key))
    if file is None:
        return {}
    with file:
        state = file.state(object_id)
        if state is None:
            return {}
        held = dict(file.db.execute(f"SELECT id, _data FROM main.{quoted(state.table_name)}").fetchall())
    assert len(held) == state.records
    return held


def small_change(service: HistoryService, chance: random.Random) -> None:
    kind, late, service = chance.random(), chance.choice([0, 0, 0, 500_000]), any_part(service, chance)
    if kind < 0.4:
        service.create(1, late)
    elif kind < 0.7:
        service.update(service.some(0.002), late)
    else:
        service.delete(service.some(0.002))


def make_random_event(service: HistoryService, chance: random.Random, stepped: bool) -> bool:
    """Make one change between two syncs. Return whether the clock was set since the last sync.

    Lists cannot show a clock that is wrong only between two syncs, or that goes back where answers have no date, so neither is played.
    """
    kind = chance.random()
    late, part = chance.choice([0, 0, 0, 30 * 1_000_000, 5 * MINUTE]), any_part(service, chance)
    if kind < 0.2:
        part.create(chance.choice([1, 3, 100]), late)
    elif kind < 0.45:
        part.update(part.some(chance.choice([0.0, 0.01, 0.1, 0.5])), late)
    elif kind < 0.7:
        part.delete(part.some(chance.choice([0.0, 0.01, 0.05, 0.4])))
    elif kind < 0.76:
        service.back_up()
    elif kind < 0.84:
        service.restore()
    elif kind < 0.88 and not stepped and service.manners.gives_date:
        service.step += chance.choice([-90, -20, -3, 7, 45]) * MINUTE
        stepped = True
    elif kind < 0.9:
        part.drop_attribute(remake=chance.random() < 0.5)
    service.advance(chance.choice([0, 1_000_000, MINUTE, 20 * MINUTE, 1500 * MINUTE]))
    return stepped
