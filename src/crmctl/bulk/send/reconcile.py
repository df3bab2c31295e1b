"""What became of rows in doubt: read back until they are all found, or proven absent, or it is clear that nobody can tell.

One thread calls `work` between other things; senders only park. What a look says is `evidence`; what follows from it is decided here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from crmctl.backoff import Backoff
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.record_match import RecordMatch
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.rows.batches import Batch, Entry
from crmctl.bulk.send.context import SendContext
from crmctl.bulk.send.evidence import Evidence, Sent
from crmctl.bulk.send.in_flight import Gate, Stopped
from crmctl.bulk.send.methods import CONTROL_SECONDS
from crmctl.bulk.send.update_replay_check import MERGED, compare
from crmctl.errors import CrmctlError

PARKED_LIMIT = 16
"""With so many batches in doubt nothing new is sent."""

LOOKS = Backoff(longest=30.0, jitter=0.0)
"""Seconds between looks."""

LONG_WAIT = 5.0
"""Seconds after which a wait is said."""

LAGS = 5
LATE_SECONDS = 600.0
"""After so long an update is not repeated before it is clear that nobody has changed the record since."""

ALIKE = "other rows are just like them"
TAKEN = "records that have their key hold something else, and may be somebody else's"

MOST_ROUNDS = 2
"""A single row that is in doubt and then absent so often is left unsent."""


@dataclass(frozen=True)
class Freed:
    """Rows proven absent, to be sent again; in halves, where the service refused them as a whole (`refusal` is what it said). `round`: how
    often they were in doubt and absent."""

    batch: Batch
    round: int
    refusal: str | None = None


@dataclass
class Parked(Sent):
    """A batch in doubt. `look_at`: Unix time of the next look. `refusal`: what the service said when it refused the batch as a whole."""

    round: int
    look_at: float
    refusal: str | None = None
    looks: int = 0
    last: frozenset[int] | None = None
    is_starved: bool = False


class Reconciler:
    """`again` reads all rows of the job anew."""

    def __init__(self, context: SendContext, reader: Reader, again: Callable[[], Iterable[Entry]]) -> None:
        self.evidence = Evidence(reader, context.journal, again, context.clock)
        self.gate: Gate | None = None
        """Closed while records are counted."""
        self.batches_to_come: Callable[[], int] = lambda: 0
        """How many batches are under way or still to be sent: what they bring may settle what nobody can tell now."""
        self.settled: Callable[[int], None] = lambda _count: None
        """Told how many rows are in doubt no more, or for good; those that are sent again are not among them."""
        self._reader = reader
        self._journal, self._clock = context.journal, context.clock
        self._settle, self._assume = context.options.settle, context.options.assume
        self._arrivals: deque[Parked] = deque()
        self._parked: list[Parked] = []
        self.notes: list[str] = []
        self.recovered = 0
        """How many batches turned out to be there as a whole."""

    # -- what senders tell -----------------------------------------------------------------------------------------------------------

    def park(self, sent: Sent, round: int = 0, refusal: str | None = None) -> None:
        """Look after a batch in doubt; what was sent in an earlier run is in doubt since then."""
        now = self._clock.now()
        parked = Parked(sent.number, sent.batch, min(sent.sent_at, now), min(sent.known_at, now), round, now, refusal)
        self.evidence.doubt(parked)
        self._arrivals.append(parked)

    def confirm(self, entries: Sequence[Entry], sent_at: float, at: float) -> None:
        """A batch of which every row was created just now, or in an earlier run."""
        self.evidence.confirm(entries, sent_at, at)
        for parked in [parked for parked in self._parked if parked.refusal is not None]:
            parked.look_at = min(parked.look_at, self._clock.now())

    def believes(self, sent: Sent, *, is_part: bool) -> bool:
        """Whether a batch that a sender got back as refused was not carried out; `is_part`: of a larger one of which that is known.

        Counts: nothing may be under way.
        """
        if not is_part and not self.evidence.can_judge_refusal(sent, more_to_come=self.batches_to_come() > 1):
            return False
        return self.evidence.believes_refusal(sent)

    @property
    def pending(self) -> int:
        return len(self._parked) + len(self._arrivals)

    @property
    def is_starved(self) -> bool:
        """Whether something can only be told when something new was confirmed."""
        return self.pending < PARKED_LIMIT and any(parked.is_starved for parked in self._parked)

    @property
    def wait(self) -> float:
        """Seconds until there is something to look at."""
        if self._arrivals:
            return 0.0
        return max(0.0, min((parked.look_at for parked in self._parked), default=0.0) - self._clock.now())

    @property
    def patience(self) -> str:
        """What is waited for, and how long that may take; empty when it is hardly worth saying."""
        left = max((self._deadline(parked) for parked in self._parked), default=0.0) - self._clock.now()
        rows = sum(len(parked.batch) for parked in self._parked)
        return f"waiting up to {left:.0f} s to see whether {rows:,} rows in doubt are there" if left >= LONG_WAIT else ""

    def settle_refusals(self) -> None:
        """Sending has ended, and nothing is under way: batches that were refused and are not there need not stay in doubt."""
        while self._arrivals:
            self._parked.append(self._arrivals.popleft())
        for parked in list(self._parked):
            if parked.refusal is not None and self.evidence.believes_refusal(parked):
                self._believe(parked, parked.refusal)

    # -- looking ---------------------------------------------------------------------------------------------------------------------

    def work(self) -> list[Freed]:
        """Look at what is due; returns the rows that are to be sent again."""
        while self._arrivals:
            self._parked.append(self._arrivals.popleft())
        now = self._clock.now()
        freed: list[Freed] = []
        try:
            for parked in [parked for parked in self._parked if parked.look_at <= now]:
                freed += self._look(parked)
        except Stopped:
            pass
        return freed

    def _look(self, parked: Parked) -> list[Freed]:
        if not parked.creates:
            return self._conclude(parked, RecordMatch(), frozenset())
        deadline = self._deadline(parked)
        is_due = self._clock.now() >= deadline
        if parked.refusal is not None and not self.evidence.can_judge_refusal(parked, more_to_come=self._may_hope):
            parked.is_starved = is_due
            return self._later(parked, deadline)
        with self.gate.looking() if is_due and self.gate is not None else nullcontext():
            if is_due and parked.refusal is not None and self.evidence.believes_refusal(parked):
                return self._believe(parked, parked.refusal)
            view = self.evidence.look(parked, thoroughly=is_due)
        now = self._clock.now()
        found = frozenset(view.seen.found)
        missing = {entry.ordinal for entry in parked.creates} - found
        if not missing:
            self.recovered += 1
            return self._conclude(parked, view.seen, frozenset())
        if view.failed:
            if view.hopeless or now >= deadline + CONTROL_SECONDS:
                self._give_up(parked, view.why)
                return []
        elif is_due and parked.last == found and now >= parked.sent_at + self._settle:
            if view.conclusive:
                open_rows = view.seen.ambiguous | view.seen.taken
                return self._conclude(parked, view.seen, missing - open_rows, TAKEN if view.seen.taken else ALIKE)
            parked.is_starved = view.counted or now >= max(deadline, self.evidence.confirmed_at) + CONTROL_SECONDS
            if parked.is_starved and not self._may_hope:
                return self._conclude(parked, view.seen, frozenset(), view.why)
        parked.last = None if view.failed else found
        return self._later(parked, deadline)

    def _later(self, parked: Parked, deadline: float) -> list[Freed]:
        now = self._clock.now()
        parked.looks += 1
        gap = LOOKS.gap(parked.looks)
        parked.look_at = now + max(0.05, min(gap, deadline - now) if deadline > now else gap)
        return []

    def _deadline(self, parked: Parked) -> float:
        """When rows that are not found may count as absent. A refusal is the service's own word: one look that agrees is enough."""
        settled = parked.known_at if parked.refusal is not None else parked.sent_at + self._settle
        return max(settled, parked.known_at + LAGS * self.evidence.lag)

    @property
    def _may_hope(self) -> bool:
        """Whether something new will be confirmed."""
        return self.pending < PARKED_LIMIT and self.batches_to_come() > 0

    # -- deciding --------------------------------------------------------------------------------------------------------------------

    def _believe(self, parked: Parked, refusal: str) -> list[Freed]:
        """A batch that was refused as a whole is not there: it goes on in halves, and a single row has failed."""
        with self.evidence.lock:
            self._journal.refute_doubt(parked.number, parked.batch.ordinals)
            self._forget(parked, ())
        if len(parked.batch) == 1:
            self._journal.conclude([(parked.batch.ordinals[0], RowState.FAILED, None, refusal)])
            self.settled(1)
            return []
        return [Freed(parked.batch, parked.round, refusal)]

    def _conclude(self, parked: Parked, seen: RecordMatch, absent: Collection[int], why: str = "") -> list[Freed]:
        """Write down what is known; the rows that may be sent again."""
        found = dict(seen.found)
        updates = [entry for entry in parked.batch.entries if entry.id is not None]
        is_harmless = self._journal.header.mode == "delete"  # what is gone stays gone
        if not updates or is_harmless or (self._clock.now() - parked.sent_at <= LATE_SECONDS and not self._journal.recall(MERGED)):
            gone = {*absent, *(entry.ordinal for entry in updates)}
        else:
            try:
                images = self._journal.before(updates[0].ordinal, updates[-1].ordinal)
                applied, repeatable = compare(self._reader, updates, parked.sent_at, images)
            except CrmctlError as error:
                self._give_up(parked, f"it cannot be read back: {error.message}")
                return []
            found.update(dict.fromkeys(applied))
            gone = {*absent, *repeatable}
            why = why or "somebody may have changed the record since it was sent"
        # An import by key looks once more at what has failed: these rows update the records that have their key.
        failed = seen.taken if seen.by_key else frozenset[int]()
        open_rows = set(parked.batch.ordinals) - found.keys() - gone - failed
        if open_rows and self._assume == "applied":
            found.update(dict.fromkeys(open_rows))
        elif open_rows and self._assume == "lost":
            gone |= open_rows
        if open_rows and self._assume is not None:
            self._journal.note("assumed", f"{len(open_rows)} rows {self._assume}, as the user said", parked.number)
            open_rows = set()
        with self.evidence.lock:
            self._journal.resolve(parked.number, found, gone | failed, why if open_rows else "")
            self._journal.conclude((ordinal, RowState.FAILED, None, TAKEN) for ordinal in failed)
            if seen.extra:
                self._journal.record_duplicates(seen.extra)
            self._forget(parked, seen.found)
        if open_rows and why and why not in self.notes:
            self.notes.append(why)
        free = Batch(tuple(entry for entry in parked.batch.entries if entry.ordinal in gone))
        if not free.entries or (len(free) == 1 and parked.round >= MOST_ROUNDS):
            self.settled(len(parked.batch))
            return []
        self.settled(len(parked.batch) - len(free))
        # What was absent twice is sent in halves: perhaps a single row makes the service fail.
        parts = free.halves() if parked.round and len(free) > 1 else (free,)
        return [Freed(part, parked.round + 1) for part in parts]

    def _give_up(self, parked: Parked, why: str) -> None:
        """Leave a batch in doubt, for a later run."""
        self._forget(parked, ())
        self._journal.note("given up", why, parked.number)
        self.settled(len(parked.batch))
        if why not in self.notes:
            self.notes.append(why)

    def _forget(self, parked: Parked, found: Collection[int]) -> None:
        self._parked.remove(parked)
        self.evidence.conclude(parked, found)
