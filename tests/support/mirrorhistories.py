"""Random histories of a service with syncs of a mirror in between; after each the mirror must hold what the service held."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from crmctl.errors import NetworkError
from crmctl.mirror.file import MirrorFile, mirror_path
from crmctl.mirror.object_sync import ObjectResult
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models.timestamps import MICROS
from tests.support.bulkcontext import QuietListener
from tests.support.historyservice import MINUTE, OBJECT_ID, HistoryService, Killed, Manners, Truth


@dataclass
class MirrorContext:
    """What a sync needs, over a service in memory."""

    service: Any
    state: Path
    clock: Any
    listener: QuietListener = field(default_factory=QuietListener)
    origin: str = "http://127.0.0.1"
    profile: str = "default"

    @property
    def crm(self) -> Any:
        return self.service


@dataclass
class Tally:
    """What many histories came to."""

    histories: int = 0
    syncs: int = 0
    requests: int = 0
    interrupted: int = 0
    unproven: int = 0
    anew: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


def random_manners(chance: random.Random) -> Manners:
    return Manners(
        cap=chance.choice([100, 100, 100, 30]),
        grain=chance.choice([1, 1000, 1_000_000]),
        ties=chance.choice(["arrival", "arrival", "id", "random"]),
        gives_total=chance.random() < 0.9,
        gives_date=chance.random() < 0.9,
        sorts_changes=chance.random() < 0.93,
        lag=chance.choice([0, 0, 0, 0, 0.1, 0.5]),
    )


def play(seed: int, folder: Path, tally: Tally) -> None:
    """One history."""
    chance = random.Random(seed)
    service = HistoryService(seed, random_manners(chance))
    for _ in range(chance.randrange(0, 8)):
        service.create(chance.choice([1, 5, 30, 100, 130]))
        service.advance(chance.choice([0, 1_000, MINUTE, 60 * MINUTE]))
    history = History(seed, chance, service, MirrorContext(service, folder, service.clock), tally)
    tally.histories += 1
    for _ in range(chance.randrange(2, 5)):
        history.sync()
        history.go_on(chance.randrange(0, 6))


@dataclass
class History:
    """One service and its mirror on their way. `stepped`: the clock has been set in this interval."""

    seed: int
    chance: random.Random
    service: HistoryService
    context: MirrorContext
    tally: Tally
    stepped: bool = False

    def go_on(self, events: int) -> None:
        for _ in range(events):
            self.stepped = something_happens(self.service, self.chance, self.stepped)

    def sync(self) -> None:
        """A sync, with or without others who write meanwhile, after others that were interrupted; and whether the mirror is right."""
        chance, service = self.chance, self.service
        busy, pace = chance.random() < 0.35, chance.choice([0.05, 0.3, 1.0])

        def meanwhile() -> None:
            if chance.random() < pace:
                small_change(service, chance)

        asked, again = service.requests, False
        service.truths = []
        while chance.random() < 0.25:
            again = self.interrupted(meanwhile if busy else nothing, again) or again
            self.go_on(chance.choice([0, 0, 1, 2]))
        before = service.clock.now()
        truth = service.begin(again=again)
        service.meanwhile = meanwhile if busy else nothing
        report = sync_mirror(self.context, SyncRequest(full=chance.random() < 0.02))  # type: ignore[arg-type]
        service.meanwhile = nothing
        self.stepped = False
        self.tally.requests += service.requests - asked
        [result] = report.results
        # A reading that was gone on with may hold as of when it began, which is what it says.
        self.judge(result, service.truths[0] if result.state.taken < int(before * MICROS) else truth)

    def judge(self, result: ObjectResult, truth: Truth) -> None:
        tally, state = self.tally, result.state
        tally.syncs += 1
        if result.reason:
            tally.anew[result.reason if not result.reason[0].isdigit() else "... " + result.reason.partition(" ")[2]] += 1
        if not state.proven:
            tally.unproven += 1
        elif problem := difference(self.context, truth):
            tally.wrong.append(f"seed {self.seed}, sync {tally.syncs}: {problem}; {state.how}: {result.reason} {state.proof}")

    def interrupted(self, meanwhile: Callable[[], None], again: bool) -> bool:
        """A sync whose process is killed, or whose connection is lost, at some request; whether it was. Others see nothing of it."""
        service, before = self.service, contents(self.context)
        truth = service.begin(again=again)
        service.ends_at = service.requests + self.chance.choice([self.chance.randrange(1, 8), self.chance.randrange(1, 40)])
        service.ends_with = self.chance.choice([Killed(), NetworkError("the connection was lost")])
        service.meanwhile = meanwhile
        try:
            report = sync_mirror(self.context, SyncRequest())  # type: ignore[arg-type]
        except (Killed, NetworkError):
            self.tally.interrupted += 1
            if contents(self.context) != before:
                self.tally.wrong.append(f"seed {self.seed}: a sync that was interrupted has changed what others see")
            return True
        finally:
            service.ends_at, service.meanwhile = None, nothing
        [result] = report.results
        self.judge(result, service.truths[0] if again else truth)
        return False


def nothing() -> None:
    """Nobody writes."""


def difference(context: MirrorContext, truth: Truth) -> str | None:
    """What the mirror holds that was never true during the sync."""
    held = contents(context)
    for one, wires in truth.seen.items():
        if one not in held:
            if one not in truth.absent:
                return f"{one} is missing"
        elif held[one] not in wires:
            return f"{one} is stale: {held[one]} instead of {wires}"
    ghosts = held.keys() - truth.seen.keys()
    return f"{len(ghosts)} ghosts: {sorted(ghosts)[:3]}" if ghosts else None


def contents(context: MirrorContext) -> dict[str, str]:
    """What the mirror holds; nothing where there is none."""
    file = MirrorFile.read(mirror_path(context.state, context.profile, context.origin))
    if file is None:
        return {}
    with file:
        state = file.state(OBJECT_ID)
        if state is None:
            return {}
        held = dict(file.db.execute("SELECT id, _data FROM people").fetchall())
    assert len(held) == state.records
    return held


def small_change(service: HistoryService, chance: random.Random) -> None:
    kind, late = chance.random(), chance.choice([0, 0, 0, 500_000])
    if kind < 0.4:
        service.create(1, late)
    elif kind < 0.7:
        service.update(service.some(0.002), late)
    else:
        service.delete(service.some(0.002))


def something_happens(service: HistoryService, chance: random.Random, stepped: bool) -> bool:
    """One event between two syncs; whether the clock has been set in this interval. Not played, for no list shows it: a clock that is
    wrong only between two syncs."""
    kind = chance.random()
    late = chance.choice([0, 0, 0, 30 * 1_000_000, 5 * MINUTE])
    if kind < 0.2:
        service.create(chance.choice([1, 3, 100]), late)
    elif kind < 0.45:
        service.update(service.some(chance.choice([0.0, 0.01, 0.1, 0.5])), late)
    elif kind < 0.7:
        service.delete(service.some(chance.choice([0.0, 0.01, 0.05, 0.4])))
    elif kind < 0.76:
        service.back_up()
    elif kind < 0.84:
        service.restore()
    elif kind < 0.88 and not stepped:
        service.step += chance.choice([-90, -20, -3, 7, 45]) * MINUTE
        stepped = True
    elif kind < 0.9:
        service.drop_attribute(remake=chance.random() < 0.5)
    service.advance(chance.choice([0, 1_000_000, MINUTE, 20 * MINUTE, 1500 * MINUTE]))
    return stepped
