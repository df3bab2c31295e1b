"""Gathering the records of an export into its staging: one sweep, a second one where deletions are wanted out, then passes over changes.

What is promised: every record that exists from beginning to end is there once, with content no older than the beginning of the last pass
over changes. It is no snapshot across records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from crmctl.bulk.export.collected_records import Staging
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.full_scan import Sweep, SweepState
from crmctl.bulk.read.sorted_lists import Listing, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass, Position
from crmctl.client.record_lists import Lister
from crmctl.clock import Clock
from crmctl.models.filters import Condition
from crmctl.models.records import Record
from crmctl.models.timestamps import MICROS, micros_of, micros_of_date

LOOKBACK = 15 * 60.0
"""Seconds before the beginning from which changes are read again: they may have been committed late."""

SETTLE = 60.0
"""The same between two passes over changes."""

UNEVEN = 2 * MICROS
"""By how much two moments of one clock seem to differ where answers are dated in whole seconds, and take time."""

ROUNDS = 8
"""Most passes over changes; a service that never rests is as consistent as the last of them."""


class Phase(StrEnum):
    SWEEP = "sweep"
    PRUNE = "prune"
    CHANGES = "changes"
    DONE = "done"


class Flag(StrEnum):
    """What a user of the file should know."""

    UNSTABLE_TIES = "unstable_ties"
    UNSORTED = "unsorted"
    UPDATES_UNSEEN = "updates_unseen"
    STILL_CHANGING = "still_changing"


@dataclass(frozen=True)
class GatherMark:
    """Where a reading of changes ended: all before `since` is known. `as_of` is the beginning of its last pass by the service's clock,
    `taken` the same moment by the clock of this machine; all in microseconds."""

    since: int
    as_of: int
    taken: int

    def horizon(self, now: int, here: int) -> int:
        """How far back changes are to be read when the service's clock shows `now` and this machine's `here`: as much further than `since`
        as the service's clock has gone back. Changes made after that carry times that look known."""
        gone_back = self.as_of - now + max(0, here - self.taken)
        return self.since - (gone_back if gone_back > UNEVEN else 0)


@dataclass
class GatherState:
    """How far gathering is; kept with the records. Moments are microseconds by the service's clock.

    `started` is T0, `horizon` how far back the next pass over changes reads, `as_of` the beginning of the last one, `taken` the same by
    this machine's clock; `newest` the newest change when that one began.
    """

    phase: Phase = Phase.SWEEP
    sweep: SweepState = field(default_factory=lambda: SweepState(Position()))
    started: int | None = None
    horizon: int = 0
    as_of: int = 0
    taken: int = 0
    newest: int | None = None
    rounds: int = 0
    pruned: int = 0
    passes: list[dict[str, Any]] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    statistics: PassStatistics = field(default_factory=PassStatistics)

    def to_document(self) -> dict[str, Any]:
        return {**vars(self), "sweep": self.sweep.to_document(), "statistics": vars(self.statistics)}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        changed = {
            "phase": Phase(document["phase"]),
            "sweep": SweepState.from_document(document["sweep"]),
            "statistics": PassStatistics(**document["statistics"]),
        }
        return cls(**{**document, **changed})

    def flag(self, flag: Flag) -> None:
        if flag not in self.flags:
            self.flags.append(str(flag))


@dataclass(frozen=True)
class GatherOptions:
    """`mark`: only what changed since an earlier run instead of all."""

    conditions: Sequence[Condition] = ()
    prune: bool = False
    lookback: float = LOOKBACK
    mark: GatherMark | None = None


class Gathering:
    """One export's reading; goes on where its staging says."""

    def __init__(self, lister: Lister, object_id: str, options: GatherOptions, staging: Staging, clock: Clock, progress: Progress) -> None:
        noted = staging.noted("gathering")
        self.state = GatherState.from_document(noted) if noted else GatherState()
        self._lister = lister
        self._object_id = object_id
        self._options = options
        self._staging = staging
        self._clock = clock
        self._progress = progress

    def run(self) -> GatherState:
        """Read until everything is there. Raises what a sweep raises; every page that was read stays in the staging."""
        state = self.state
        if state.started is None:
            self._begin()
        while state.phase is not Phase.DONE:
            if state.phase is Phase.SWEEP:
                self._sweep(self._staging.merge)
                self._enter(Phase.PRUNE if self._options.prune else Phase.CHANGES)
            elif state.phase is Phase.PRUNE:
                self._prune()
            else:
                self._follow_changes()
        return state

    def _begin(self) -> None:
        """T0, by the service's clock; and its newest change, in case its records go by another one."""
        state = self.state
        state.statistics.requests += 1
        head = self._lister.list_records(
            self._object_id, filters=self._options.conditions, sort="updated_at", order="desc", limit=1, offset=0
        )
        newest = micros_of(head.items[0].updated_at) if head.items else None
        now = self._now(head.date)
        mark = self._options.mark
        state.started, state.as_of, state.taken, state.newest = now, now, self._here(), newest
        if mark is None:
            horizon = now - int(self._options.lookback * MICROS)
            state.horizon = horizon if newest is None else min(horizon, newest)
        else:
            state.horizon = mark.horizon(now, state.taken)
        self._enter(Phase.SWEEP if mark is None else Phase.CHANGES)

    def _enter(self, phase: Phase) -> None:
        self.state.phase = phase
        if phase is Phase.PRUNE:
            self.state.sweep = SweepState(Position())
        with self._staging.step():
            self._save()

    def _save(self) -> None:
        self._staging.note("gathering", self.state.to_document())

    def _sweep(self, take: Callable[[Iterable[Record]], int | None]) -> None:
        state, before = self.state, self.state.statistics.requests
        unstable = state.statistics.unstable
        reading = Sweep(self._lister, Listing(self._object_id, self._options.conditions), state.statistics, state.sweep)
        for page in reading.pages():
            state.sweep = reading.state
            with self._staging.step():
                new = take(page)
                self._save()
            self._progress.advance(len(page) if new is None else new)
        if state.statistics.unstable > unstable:
            state.flag(Flag.UNSTABLE_TIES)
        if not reading.state.by_time:
            state.flag(Flag.UNSORTED)
        state.passes.append({"pass": str(state.phase), "requests": state.statistics.requests - before, "records": reading.state.rows})

    def _prune(self) -> None:
        """A second complete reading; what it does not meet was deleted, or meets the conditions no more, when it ended.

        An absence proves nothing where a group was unstable: then all is kept.
        """

        def take(rows: Iterable[Record]) -> None:
            kept = list(rows)
            self._staging.keep(kept)
            self._staging.merge(kept)

        unstable = self.state.statistics.unstable
        self._sweep(take)
        with self._staging.step():
            if self.state.statistics.unstable == unstable:
                self.state.pruned = self._staging.prune()
            self.state.phase = Phase.CHANGES
            self._save()

    def _follow_changes(self) -> None:
        """One pass over what changed since the horizon, newest first."""
        state, before = self.state, self.state.statistics.requests
        unsorted = Flag.UPDATES_UNSEEN in state.flags
        field = "created_at" if unsorted else "updated_at"
        listing = Listing(self._object_id, self._options.conditions, field, descending=True, until=state.horizon)
        reading = AnchoredPass(self._lister, listing, state.statistics)
        earlier = GatherMark(state.horizon, state.as_of, state.taken)
        news, rows, began, newest = 0, 0, None, None
        try:
            for page in reading.pages():
                if began is None:
                    began = self._now(None), self._here()
                    newest = listing.key(page[0]) if page else None
                    reading.read_back_to(earlier.horizon(*began))
                with self._staging.step():
                    news += self._staging.merge(page)
                rows += len(page)
        except Unsorted:
            # Records without a time of change may still come sorted by creation; without that, changes cannot be told. What changed since
            # an earlier run shows when everything is read.
            state.flag(Flag.UPDATES_UNSEEN)
            if unsorted:
                self._enter(Phase.DONE)
            elif self._options.mark is not None:
                self._enter(Phase.SWEEP)
            return
        state.rounds += 1
        if began is not None:
            state.as_of, state.taken = began
        state.newest = -newest if newest is not None else state.newest
        state.horizon = min(state.as_of, state.as_of if state.newest is None else state.newest) - int(SETTLE * MICROS)
        state.passes.append({"pass": str(state.phase), "requests": state.statistics.requests - before, "records": rows, "news": news})
        if news and state.rounds == ROUNDS:
            state.flag(Flag.STILL_CHANGING)
        self._enter(Phase.CHANGES if news and state.rounds < ROUNDS else Phase.DONE)

    def _here(self) -> int:
        return int(self._clock.now() * MICROS)

    def _now(self, date: str | None) -> int:
        told = micros_of_date(date) if date is not None else self.state.statistics.date
        return told if told is not None else self._here()
