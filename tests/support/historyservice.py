"""A service in memory with a history: records come, change and go, backups are restored, clocks jump, attributes are recreated, and other
clients write between any two requests. The ground truth for the contents of a mirror.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from functools import cached_property, lru_cache
from typing import Any
from uuid import UUID

from crmctl.client.answers import Page
from crmctl.errors import NetworkError, NotFoundError, RejectedError
from crmctl.models.jsontext import dumps
from crmctl.models.resources import Activity, Attribute, Member, Object, Record
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS, to_timestamp
from tests.support.clock import FakeClock

START = 1_760_000_000 * MICROS
MINUTE = 60 * MICROS
OBJECT_ID = "00000000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Manners:
    """How a service behaves: maximum records on a page, precision of times (microseconds), order of equal times, which facts it states and
    sorts it supports. `lag`: how often a list comes from a stale replica. `cleans`: deleting a record silently removes references to it
    from other records.
    """

    cap: int = 100
    grain: int = 1
    ties: str = "arrival"
    gives_total: bool = True
    gives_date: bool = True
    sorts_changes: bool = True
    lag: float = 0.0
    cleans: bool = False


class Killed(BaseException):
    """The requesting process is dead."""


@dataclass(frozen=True)
class StoredRow:
    """One immutable version of a record."""

    number: int
    id: str
    created: int
    updated: int
    data: dict[str, Any]
    object_id: str = OBJECT_ID

    def wire(self) -> dict[str, Any]:
        return {
            "id": self.id, "objectId": self.object_id, "data": dict(self.data), "createdAt": timestamp(self.created),
            "updatedAt": timestamp(self.updated),
        }  # fmt: skip

    @cached_property
    def record(self) -> Record:
        return Record.parse(self.wire())

    @cached_property
    def text(self) -> str:
        return dumps(self.wire())


timestamp = lru_cache(to_timestamp)
Rows = dict[str, StoredRow]


@dataclass
class Truth:
    """Everything that was true since a moment: all contents of every id, and the ids that were absent at some time."""

    seen: dict[str, set[str]]
    absent: set[str] = field(default_factory=set)


@dataclass
class HistoryService:
    """Call it like a client. `meanwhile` runs before every request; `truths` belong to unfinished syncs, the newest last. `ends_with`:
    raised instead of the answer with number `ends_at`.
    """

    seed: int
    manners: Manners = field(default_factory=Manners)
    meanwhile: Callable[[], None] = lambda: None
    requests: int = 0
    object_id: str = OBJECT_ID

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.clock = FakeClock(START / MICROS)
        self.step = 0
        self.rows: Rows = {}
        self.numbers = 0
        self.attributes = [self._attribute("n"), self._attribute("note")]
        self.backups: list[list[Rows]] = []
        self.late: list[tuple[int, Callable[[], None]]] = []
        self.truths: list[Truth] = []
        self.ends_at: int | None = None
        self.ends_with: BaseException = NetworkError("the connection was lost")
        self._touched: set[str] = set()
        self._states: list[Rows] = []
        self._orders: dict[tuple[bool, int], list[StoredRow]] = {}

    # -- changes -----------------------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """The time of the service's own clock."""
        return int(self.clock.now() * MICROS) + self.step

    @property
    def stamp(self) -> int:
        return self.now // self.manners.grain * self.manners.grain

    def _attribute(self, slug: str) -> Attribute:
        return Attribute.parse({"id": self._new_id(), "slug": slug, "name": slug, "type": "text", "isActive": True})

    def _new_id(self) -> str:
        return str(UUID(int=self.chance.getrandbits(128)))

    def create(self, count: int, late: int = 0) -> None:
        """Create records with one time, visible `late` microseconds later."""
        stamp, made = self.stamp, []
        for _ in range(count):
            self.numbers += 1
            made.append(StoredRow(self.numbers, self._new_id(), stamp, stamp, self._data(), self.object_id))
        self._write(lambda: self._put(made), late)

    def _data(self) -> dict[str, Any]:
        return {attribute.slug: f"{attribute.slug}{self.numbers}" for attribute in self.attributes}

    def update(self, ids: Sequence[str], late: int = 0) -> None:
        stamp = self.stamp

        def act() -> None:
            for record_id in ids:
                if record_id in self.rows:
                    self.numbers += 1
                    old = self.rows[record_id]
                    data = {**old.data, "n": f"changed{self.numbers}"}
                    self._put([replace(old, updated=stamp if late else self.stamp, data=data)])

        self._write(act, late)

    def delete(self, ids: Sequence[str]) -> None:
        for record_id in ids:
            self.rows.pop(record_id, None)
        self._moved(ids)
        if self.manners.cleans:
            self.clean_up()

    def clean_up(self) -> None:
        """Silently change records that refer to deleted ones."""

    @property
    def parts(self) -> Sequence[HistoryService]:
        """The objects of the service."""
        return (self,)

    def back_up(self) -> None:
        self.backups.append([dict(part.rows) for part in self.parts])

    def restore(self) -> None:
        if self.backups:
            for part, rows in zip(self.parts, self.chance.choice(self.backups), strict=True):
                before, part.rows = part.rows, dict(rows)
                part._moved(
                    {record_id for record_id in before.keys() | part.rows.keys() if before.get(record_id) is not part.rows.get(record_id)}
                )

    def drop_attribute(self, *, remake: bool) -> None:
        """Remove an attribute: its values silently disappear from the records."""
        gone = self.attributes.pop()
        for one, row in list(self.rows.items()):
            self.overwrite(one, {slug: value for slug, value in row.data.items() if slug != gone.slug})
        if remake or not self.attributes:
            self.attributes.append(self._attribute(gone.slug))

    def overwrite(self, one: str, data: dict[str, Any]) -> None:
        """Silently replace the content of a record, without a new time."""
        self._put([replace(self.rows[one], data=data)])

    def _put(self, rows: Sequence[StoredRow]) -> None:
        self.rows.update((row.id, row) for row in rows)
        self._moved([row.id for row in rows])

    def _moved(self, ids: Iterable[str]) -> None:
        self._touched.update(ids)
        self._orders.clear()

    def _write(self, act: Callable[[], None], late: int) -> None:
        if late:
            self.late.append((self.now + late, act))
        else:
            act()

    def advance(self, micros: int) -> None:
        self.clock.advance(micros / MICROS)
        self._come()

    def _come(self) -> None:
        """Make late writes visible."""
        due = [entry for entry in self.late if entry[0] <= self.now]
        self.late = [entry for entry in self.late if entry[0] > self.now]
        for _, act in due:
            act()

    def some(self, share: float) -> list[str]:
        """Return the ids of some records: scattered, or a block."""
        ids = list(self.rows)
        count = min(len(ids), round(len(ids) * share + self.chance.random()))
        if self.chance.random() < 0.5:
            return self.chance.sample(ids, count)
        start = self.chance.randrange(len(ids) - count + 1)
        return ids[start : start + count]

    # -- observations --------------------------------------------------------------------------------------------------------------------

    def begin(self, *, again: bool = False) -> Truth:
        """Record from now on what is true between requests. `again`: the sync was interrupted before."""
        self._look()
        truth = Truth({one: {row.text} for one, row in self.rows.items()})
        self.truths = [*self.truths, truth] if again else [truth]
        self._states = [dict(self.rows)]
        return truth

    def _look(self) -> None:
        if not self._touched:
            return
        for truth in self.truths:
            for record_id in self._touched:
                row = self.rows.get(record_id)
                if row is None or record_id not in truth.seen:
                    truth.absent.add(record_id)
                if row is not None:
                    truth.seen.setdefault(record_id, set()).add(row.text)
        self._touched.clear()
        if self.manners.lag:
            self._states.append(dict(self.rows))

    # -- answers -------------------------------------------------------------------------------------------------------------------------

    def _answer(self) -> str | None:
        self.requests += 1
        self.advance(self.chance.randrange(50_000, 700_000))
        self.meanwhile()
        self._look()
        if self.requests == self.ends_at:
            raise self.ends_with
        return formatdate(self.now // MICROS, usegmt=True) if self.manners.gives_date else None

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
        if filters:
            raise RejectedError("there is no such attribute", status=400)
        date = self._answer()
        if self.manners.sorts_changes and sort not in ("created_at", "updated_at"):
            raise RejectedError("there is no such order", status=400)
        by_change = sort == "updated_at" and self.manners.sorts_changes
        rows = self._in_order(by_change, -1 if order == "desc" else 1)
        items = [row.record for row in rows[offset : offset + min(limit, self.manners.cap)]]
        return Page(items, len(rows) if self.manners.gives_total else None, limit, offset, date)

    def _in_order(self, by_change: bool, sign: int) -> list[StoredRow]:
        if self.manners.lag and self.chance.random() < self.manners.lag:
            return self._sorted(self.chance.choice(self._states[-4:]), by_change, sign)
        if self.manners.ties == "random":
            return self._sorted(self.rows, by_change, sign)
        if (by_change, sign) not in self._orders:
            self._orders[by_change, sign] = self._sorted(self.rows, by_change, sign)
        return self._orders[by_change, sign]

    def _sorted(self, rows: Rows, by_change: bool, sign: int) -> list[StoredRow]:
        ties: dict[str, Callable[[StoredRow], Any]] = {
            "arrival": lambda row: sign * row.number, "id": lambda row: row.id, "random": lambda row: self.chance.random(),
        }  # fmt: skip
        tie = ties[self.manners.ties]
        return sorted(rows.values(), key=lambda row: (sign * (row.updated if by_change else row.created), tie(row)))

    def get_record(self, object_id: str, record_id: str) -> Record:
        self._answer()
        if record_id not in self.rows:
            raise NotFoundError("not found", status=404)
        return self.rows[record_id].record

    def list_objects(self) -> list[Object]:
        self._answer()
        return [Object.parse({"id": OBJECT_ID, "slug": "people", "type": "standard", "isActive": True})]

    def get_object(self, object_id: str) -> tuple[Object, list[Attribute] | None]:
        self._answer()
        raise NotFoundError("not found", status=404)

    def list_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        self._answer()
        return list(self.attributes)

    def list_members(self) -> list[Member]:
        self._answer()
        return []

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]:
        self._answer()
        return Page([], 0, limit, offset)
