"""Random histories of a service with syncs of a mirror in between; after each the mirror must hold what the service held."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.mirror.file import MirrorFile, mirror_path
from crmctl.mirror.sync import SyncReport, SyncRequest, sync_mirror
from tests.support.bulkcontext import QuietListener
from tests.support.historyservice import MINUTE, OBJECT_ID, HistoryService, Manners


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

    syncs: int = 0
    unproven: int = 0
    anew: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    requests: int = 0


def random_manners(chance: random.Random) -> Manners:
    return Manners(
        cap=chance.choice([100, 100, 100, 30]),
        grain=chance.choice([1, 1000, 1_000_000]),
        ties=chance.choice(["arrival", "arrival", "id", "random"]),
        gives_total=chance.random() < 0.9,
        gives_date=chance.random() < 0.9,
        sorts_changes=chance.random() < 0.93,
    )


def play(seed: int, folder: Path, tally: Tally) -> None:
    """One history."""
    chance = random.Random(seed)
    service = HistoryService(seed, random_manners(chance))
    for _ in range(chance.randrange(0, 8)):
        service.create(chance.choice([1, 5, 30, 100, 130]))
        service.advance(chance.choice([0, 1_000, MINUTE, 60 * MINUTE]))
    context = MirrorContext(service, folder, service.clock)
    for _ in range(chance.randrange(2, 5)):
        sync_once(service, context, chance, tally, seed)
        stepped = False
        for _ in range(chance.randrange(0, 6)):
            stepped = something_happens(service, chance, stepped)


def sync_once(service: HistoryService, context: MirrorContext, chance: random.Random, tally: Tally, seed: int) -> SyncReport:
    """A sync, with or without others who write meanwhile, and whether the mirror is right after it."""
    busy = chance.random() < 0.35
    pace = chance.choice([0.05, 0.3, 1.0])

    def meanwhile() -> None:
        if chance.random() < pace:
            small_change(service, chance)

    service.meanwhile = meanwhile if busy else lambda: None
    service.begin()
    asked = service.requests
    report = sync_mirror(context, SyncRequest(full=chance.random() < 0.02))  # type: ignore[arg-type]
    service.meanwhile = lambda: None
    tally.syncs += 1
    tally.requests += service.requests - asked
    [result] = report.results
    if result.reason:
        tally.anew[result.reason] = tally.anew.get(result.reason, 0) + 1
    if not result.state.proven:
        tally.unproven += 1
    elif problem := difference(service, context):
        tally.wrong.append(f"seed {seed}, sync {tally.syncs}: {problem}; {result.state.how}: {result.reason} {result.state.proof}")
    return report


def difference(service: HistoryService, context: MirrorContext) -> str | None:
    """What the mirror holds that was never true during the sync."""
    held = contents(context)
    for one, wires in service.seen.items():
        if one not in held:
            if one not in service.absent:
                return f"{one} is missing"
        elif held[one] not in wires:
            return f"{one} is stale: {held[one]} instead of {wires}"
    ghosts = held.keys() - service.seen.keys()
    return f"{len(ghosts)} ghosts: {sorted(ghosts)[:3]}" if ghosts else None


def contents(context: MirrorContext) -> dict[str, str]:
    file = MirrorFile.read(mirror_path(context.state, context.profile, context.origin))
    assert file is not None
    with file:
        state = file.state(OBJECT_ID)
        assert state is not None
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
