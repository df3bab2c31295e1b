"""Decide the fate of rows in doubt."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from crmctl.clock import Backoff
from crmctl.errors import CrmctlError
from crmctl.files.validation import Batch, Entry
from crmctl.match.record_match import RecordMatch
from crmctl.read.read_back import Reader
from crmctl.write.database import RowState
from crmctl.write.evidence import LAGS, Evidence, Sent
from crmctl.write.journal import BEFORE, DOUBTED
from crmctl.write.methods import CONTROL_SECONDS
from crmctl.write.send_context import PATIENCE, WITHOUT_EFFECT, SendContext, Stopped

PARKED_LIMIT = 16
"""Number of batches in doubt at which sending pauses."""

LOOKS = Backoff(longest=30.0, jitter=0.0)
"""Seconds between looks."""

LONG_WAIT = 5.0
"""Shortest wait in seconds that crmctl announces."""

ALIKE = "other rows are just like them"
TAKEN = "records that have their key hold something else, and another client may have created them"

UNREAD = "the service did not confirm the deletion, and the records cannot be read"

MOST_ROUNDS = 2
"""Number of rounds in doubt and absent after which a single row stays unsent."""


@dataclass(eq=False)
class Task(Sent):
    """A batch to send, under way or in doubt.

    `round`: how often its rows were in doubt and then absent. `refusal`: the service's message if it refused the whole batch; to be sent,
    it goes in halves. `parent`: the number of the batch it was split from. `is_acknowledged`: the service answered that it wrote the rows.
    `is_resumed`: an earlier run sent it. A batch in doubt is looked for at `look_at`, and stays in doubt after `until` (Unix times).
    """

    round: int = 0
    refusal: str | None = None
    parent: int | None = None
    is_acknowledged: bool = False
    is_resumed: bool = False
    look_at: float = 0.0
    until: float = 0.0
    looks: int = 0
    last: frozenset[int] | None = None
    is_starved: bool = False


class Reconciler:
    """Settles batches in doubt. `again` reads all rows of the job again."""

    def __init__(self, context: SendContext, reader: Reader, again: Callable[[], Iterable[Entry]]) -> None:
        self.evidence = Evidence(reader, context.journal, again, context.clock)
        self.looking: Callable[[], AbstractContextManager[None]] = nullcontext
        """Keeps requests back while records are counted. Raises Stopped after an interrupt."""
        self.batches_to_come: Callable[[], int] = lambda: 0
        """Return the number of batches in flight or still to be sent. Their results may settle open doubts."""
        self._reader = reader
        self._journal, self._clock, self._progress = context.journal, context.clock, context.progress
        self._settle = context.options.settle
        self._trusts_lists = context.options.trusts_lists
        self._max_wait = context.service.session.max_wait
        self._parked: list[Task] = []
        self.notes: list[str] = []
        self.recovered = 0
        """Number of batches found complete."""
        self._announced = 0.0

    # -- reports from senders --------------------------------------------------------------------------------------------------------

    def park(self, task: Task) -> None:
        """Watch a batch in doubt until the end of `--max-wait`. A batch from an earlier run has been in doubt since then."""
        now = self._clock.now()
        task.sent_at, task.known_at = min(task.sent_at, now), min(task.known_at, now)
        task.look_at, task.until = now, now + self._max_wait
        if not task.creates and self._journal.header.mode != "delete":
            task.look_at += PATIENCE.gap(task.round + 1)  # these rows may go again at once, and the service may need a moment
        self.evidence.doubt(task)
        self._parked.append(task)

    def confirm(self, entries: Sequence[Entry], sent_at: float, at: float) -> None:
        """Record a batch whose rows were all created, just now or in an earlier run."""
        self.evidence.confirm(entries, sent_at, at)
        for parked in [parked for parked in self._parked if parked.refusal is not None]:
            parked.look_at = min(parked.look_at, self._clock.now())

    def believes(self, sent: Sent, *, is_part: bool) -> bool:
        """Whether the service did not carry out a batch that it refused.

        `is_part`: the larger batch is already known not to be carried out. Counts records, so no request may be in flight.
        """
        if not is_part and not self.evidence.can_judge_refusal(sent, more_to_come=self.batches_to_come() > 1):
            return False
        return self.evidence.believes_refusal(sent)

    @property
    def pending(self) -> int:
        return len(self._parked)

    @property
    def is_starved(self) -> bool:
        """Whether some batch can be settled only after another batch is confirmed."""
        return self.pending < PARKED_LIMIT and any(parked.is_starved for parked in self._parked)

    @property
    def wait(self) -> float:
        return max(0.0, min((parked.look_at for parked in self._parked), default=0.0) - self._clock.now())

    def announce_wait(self) -> str:
        """Progress text with the reason and length of the wait; empty for a short wait, or one that ends as announced before."""
        now = self._clock.now()
        end = max((min(self._deadline(parked) + CONTROL_SECONDS, parked.until) for parked in self._parked), default=now)
        if end - max(now, self._announced) < LONG_WAIT:
            return ""
        self._announced = end
        rows = sum(len(parked.batch) for parked in self._parked)
        return f"waiting up to {end - now:.0f} s to see whether {rows:,} rows in doubt are there"

    def settle_refusals(self) -> None:
        """Settle refused batches that do not exist. Call it after sending has ended and no request is in flight."""
        for parked in list(self._parked):
            if parked.refusal is not None and self.evidence.believes_refusal(parked):
                self._believe(parked, parked.refusal)

    # -- looking ---------------------------------------------------------------------------------------------------------------------

    def work(self) -> list[Task]:
        now = self._clock.now()
        freed: list[Task] = []
        try:
            for parked in [parked for parked in self._parked if parked.look_at <= now]:
                freed += self._look(parked)
        except Stopped:
            pass
        return freed

    def _look(self, parked: Task) -> list[Task]:
        if not parked.creates:
            return self._conclude(parked, RecordMatch(), frozenset())
        deadline = self._deadline(parked)
        is_due = self._clock.now() >= deadline
        if parked.refusal is not None and not self.evidence.can_judge_refusal(parked, more_to_come=self._may_hope):
            parked.is_starved = is_due
            return self._later(parked, deadline)
        with self.looking() if is_due else nullcontext():
            if is_due and parked.refusal is not None and self.evidence.believes_refusal(parked):
                return self._believe(parked, parked.refusal)
            view = self.evidence.look(parked, thoroughly=is_due)
        now = self._clock.now()
        ordinals = frozenset(view.seen.found)
        missing = {entry.ordinal for entry in parked.creates} - ordinals
        if not missing:
            self.recovered += 1
            if parked.looks:
                self.evidence.note_lag(now - parked.known_at)  # or the service was late, and may be again
            return self._conclude(parked, view.seen, frozenset())
        if view.failed:
            if view.hopeless or now >= deadline + CONTROL_SECONDS:
                self._give_up(parked, view.why)
                return []
        elif is_due and parked.last == ordinals and now >= parked.sent_at + self._settle:
            is_trusted = self._trusts_lists and parked.is_resumed
            # If every new record is explained, none of them belongs to rows that are just like others.
            open_rows = view.seen.taken if is_trusted and view.counted else view.seen.ambiguous | view.seen.taken
            if view.conclusive:
                return self._conclude(parked, view.seen, missing - open_rows, TAKEN if view.seen.taken else ALIKE)
            parked.is_starved = view.counted or now >= max(deadline, self.evidence.confirmed_at) + CONTROL_SECONDS
            if parked.is_starved and not self._may_hope:
                return self._conclude(parked, view.seen, missing - open_rows if is_trusted else frozenset(), view.why)
        parked.last = None if view.failed or view.is_cut else ordinals
        return self._later(parked, deadline, is_cut=view.is_cut)

    def _later(self, parked: Task, deadline: float, *, is_cut: bool = False) -> list[Task]:
        now = self._clock.now()
        if now >= parked.until:
            self._give_up(parked, "--max-wait ended before it was certain whether they are there")
            return []
        parked.looks += 1
        gap = deadline - now if is_cut else LOOKS.gap(parked.looks)
        parked.look_at = min(now + max(0.05, min(gap, deadline - now) if deadline > now else gap), parked.until)
        return []

    def _deadline(self, parked: Task) -> float:
        """Return when rows not found may count as absent. The service itself reported a refusal, so one confirming look is enough."""
        settled = parked.known_at if parked.refusal is not None else parked.sent_at + self._settle
        return max(settled, parked.known_at + LAGS * self.evidence.lag)

    @property
    def _may_hope(self) -> bool:
        return self.pending < PARKED_LIMIT and self.batches_to_come() > 0

    # -- deciding --------------------------------------------------------------------------------------------------------------------

    def _believe(self, parked: Task, refusal: str) -> list[Task]:
        """Settle a refused batch that does not exist: fail a single row, send several again in halves."""
        ordinals = parked.batch.ordinals
        self._journal.resolve(parked.number, {}, ordinals)
        self._journal.keep(DOUBTED, ((ordinal, None) for ordinal in ordinals))
        self._forget(parked, ())
        if len(parked.batch) == 1:
            self._journal.conclude([(parked.batch.ordinals[0], RowState.FAILED, None, refusal)])
            self._progress.advance(1)
            return []
        return [Task(parked.batch, round=parked.round, refusal=refusal)]

    def _conclude(self, parked: Task, seen: RecordMatch, absent: Collection[int], why: str = "") -> list[Task]:
        """Record the outcome of each row and return the rows to send again."""
        record_ids = dict(seen.found)
        updates = [entry for entry in parked.batch.entries if entry.id is not None]
        if not updates or (self._journal.header.mode == "delete" and not parked.round):  # deleting twice is harmless
            gone = {*absent, *(entry.ordinal for entry in updates)}
        elif self._journal.header.mode == "delete":
            existing = self._there(updates)
            record_ids.update(dict.fromkeys(entry.ordinal for entry in updates if existing is not None and entry.ordinal not in existing))
            gone = existing or set()
            why = UNREAD
        else:
            from crmctl.write.effect import compare

            try:
                images = self._journal.kept(BEFORE, updates[0].ordinal, updates[-1].ordinal)
                applied, repeatable = compare(self._reader, updates, parked.sent_at, images, now=self._clock.now)
            except CrmctlError as error:
                self._give_up(parked, f"it cannot be read back: {error.message}")
                return []
            record_ids.update(dict.fromkeys(applied))
            gone = {*absent, *repeatable}
            why = why or "another client may have changed the record since it was sent"
            if parked.is_acknowledged and parked.round and repeatable:  # a further repetition would have no effect either
                gone, why = {*absent}, WITHOUT_EFFECT
        # An import by key looks again at failed rows: they update the records that have their key.
        failed = seen.taken if seen.by_key else frozenset[int]()
        open_rows = set(parked.batch.ordinals) - record_ids.keys() - gone - failed
        self._journal.resolve(parked.number, record_ids, gone | failed, why if open_rows else "")
        self._journal.conclude((ordinal, RowState.FAILED, None, TAKEN) for ordinal in failed)
        if seen.extra:
            self._journal.add_duplicates(seen.extra)
        self._forget(parked, seen.found)
        if open_rows and why and why not in self.notes:
            self.notes.append(why)
        free = Batch(tuple(entry for entry in parked.batch.entries if entry.ordinal in gone))
        if not free.entries or (len(free) == 1 and parked.round >= MOST_ROUNDS):
            self._progress.advance(len(parked.batch))
            return []
        self._progress.advance(len(parked.batch) - len(free))
        # Send rows absent twice in halves: a single bad row may make the service fail.
        parts = free.halves() if parked.round and len(free) > 1 else (free,)
        return [Task(part, round=parked.round + 1) for part in parts]

    def _there(self, entries: Sequence[Entry]) -> set[int] | None:
        """Return the rows of a deletion whose records exist; None if that cannot be read."""
        from crmctl.write.effect import current_records

        try:
            records = current_records(self._reader, [str(entry.id) for entry in entries])
            return {entry.ordinal for entry, record in zip(entries, records, strict=True) if record is not None}
        except CrmctlError:
            return None

    def _give_up(self, parked: Task, why: str) -> None:
        """Leave a batch in doubt, for a later run."""
        self._forget(parked, ())
        self._progress.advance(len(parked.batch))
        if why not in self.notes:
            self.notes.append(why)

    def _forget(self, parked: Task, ordinals: Collection[int]) -> None:
        self._parked.remove(parked)
        self.evidence.conclude(parked, ordinals)
