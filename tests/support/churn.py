"""A service in memory whose records are created, changed and deleted between any two requests: the ground truth for complete reading.

Only the wire is mocked: the reader gets the pages a real service would send at that moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache, cached_property
from typing import Any
from uuid import UUID

from crmctl.client.answers import Page
from crmctl.errors import RejectedError
from crmctl.models.resources import Record
from crmctl.read.export_passes import Gathering, GatherMark, GatherState, Staging
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS, micros_of, to_timestamp
from tests.support.bulkjobs import Silent
from tests.support.clock import FakeClock

START = 1_760_000_000 * MICROS
TIES: dict[str, Callable[[Sequence[Row], random.Random], list[Any]]] = {
    "id": lambda rows, _: [row.id for row in rows],
    "reversed": lambda rows, _: [row.reversed for row in rows],
    "arrival": lambda rows, _: [row.number for row in rows],
    "random": lambda rows, chance: [chance.random() for _ in rows],
}
"""Order of records with one timestamp: by id up or down, by arrival (stable, but ids do not show it), or different for every request."""


@dataclass
class Row:
    """One record; `born` and `visible_from` count requests, `version` counts its changes."""

    number: int
    id: str
    created: int
    updated: int
    version: int = 0
    born: int = 0

    @cached_property
    def reversed(self) -> int:
        return -UUID(self.id).int


@dataclass(frozen=True)
class Churn:
    """Mean number of events between two requests. `late`: share of writes that become visible some requests after their timestamp."""

    inserts: float = 0.0
    updates: float = 0.0
    deletes: float = 0.0
    late: float = 0.0


@dataclass
class ChurningService:
    """Read it with `list_records`. `group` records share a timestamp at the beginning; `cap` is the deepest offset it lists."""

    seed: int
    count: int
    group: int
    ties: str
    churn: Churn
    gives_total: bool = True
    filters_time: bool = False
    cap: int | None = None
    untimed: bool = False
    requests: int = 0
    rows: dict[str, Row] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    delta_began: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.now = START
        self.late: list[tuple[int, Callable[[], None]]] = []
        self.numbers = 0
        self.history: dict[str, list[tuple[int, int]]] = {}
        for n in range(self.count):
            self._insert(START - 86_400 * MICROS + (n // self.group) * 7_000)

    def _insert(self, created: int) -> Row:
        self.numbers += 1
        row = Row(self.numbers, str(UUID(int=self.chance.getrandbits(128))), created, created, born=self.requests)
        self.rows[row.id] = row
        self.history[row.id] = [(self.requests, 0)]
        return row

    def _update(self, id: str, at: int) -> None:
        if id in self.rows:
            row = self.rows[id]
            row.version, row.updated = row.version + 1, max(row.updated, at)
            self.history[id].append((self.requests, row.version))

    def _times(self, mean: float) -> int:
        whole = int(mean)
        return whole + (self.chance.random() < mean - whole)

    def _churn(self) -> None:
        """Make the changes of other clients before the next request is answered."""
        self.now += self.chance.randrange(50_000, 900_000)
        due = [act for when, act in self.late if when <= self.requests]
        self.late = [entry for entry in self.late if entry[0] > self.requests]
        for act in due:
            act()
        for _ in range(self._times(self.churn.inserts)):
            at = self.now
            if self.chance.random() < 0.5:
                self.now += self.chance.randrange(1, 1000)
            self._write(lambda at=at: self._insert(at))
        for _ in range(self._times(self.churn.updates)):
            chosen = self.chance.choice(list(self.rows)) if self.rows else ""
            self._write(lambda chosen=chosen, at=self.now: self._update(chosen, at))
        for _ in range(self._times(self.churn.deletes)):
            if self.rows:
                chosen = self.chance.choice(list(self.rows))
                del self.rows[chosen]
                self.gone.add(chosen)

    def _write(self, act: Callable[[], object]) -> None:
        if self.chance.random() < self.churn.late:
            self.late.append((self.requests + self.chance.randrange(1, 6), act))
        else:
            act()

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
        self._churn()
        self.requests += 1
        rows = list(self.rows.values())
        for condition in filters:
            if not self.filters_time:
                raise RejectedError("unknown attribute created_at", status=400)
            since = micros_of(condition.value) or 0
            rows = [row for row in rows if row.created >= since]
        if self.cap is not None and offset + limit > self.cap:
            raise RejectedError("offset + limit must not exceed the cap", status=400)
        sign = -1 if order == "desc" else 1
        moments = [sign * row.created for row in rows] if sort == "created_at" else [sign * row.updated for row in rows]
        in_order = sorted(zip(moments, TIES[self.ties](rows, self.chance), range(len(rows)), strict=True))
        if sort == "updated_at" and offset == 0 and limit > 1:
            self.delta_began = self.requests
        shown = (rows[place] for _, _, place in in_order[offset : offset + limit])
        items = [_wire(row.id, row.version, row.created, row.updated, timed=not self.untimed) for row in shown]
        total = len(rows) if self.gives_total else None
        return Page(items, total, limit, offset, formatdate(self.now // MICROS, usegmt=True))


@cache
def _wire(record_id: str, version: int, created: int, updated: int, *, timed: bool) -> Record:
    times = {"createdAt": to_timestamp(created), "updatedAt": to_timestamp(updated)} if timed else {}
    return Record.parse({"id": record_id, "data": {"version": version}, **times})


@dataclass(frozen=True)
class Outcome:
    """The result of an export under churn. `lost`, `stale` and `invented` must be empty."""

    lost: set[str]
    stale: set[str]
    invented: set[str]
    requests: int
    sweep_requests: int
    state: GatherState


def export_under_churn(service: ChurningService, *, prune: bool = False, mark: GatherMark | None = None) -> Outcome:
    """Export everything, or the changes since a mark, and compare the result with the service."""
    from crmctl.models import jsontext

    with Staging() as staging:
        state = Gathering(service, "object", staging, FakeClock(service.now / MICROS), Silent(), prune=prune, mark=mark).run()
        exported = {wire["id"]: wire["data"]["version"] for wire in map(jsontext.loads, staging.wires())}
        assert len(exported) == len(staging)
    began = service.delta_began or service.requests
    throughout = {row.id for row in service.rows.values() if row.born < began}
    stale = {
        record_id
        for record_id in throughout & exported.keys()
        if exported[record_id] < max(new for when, new in service.history[record_id] if when < began)
    }
    return Outcome(
        lost=throughout - exported.keys(),
        stale=stale,
        invented=exported.keys() - service.rows.keys() - service.gone,
        requests=service.requests,
        sweep_requests=state.passes[0]["requests"],
        state=state,
    )
