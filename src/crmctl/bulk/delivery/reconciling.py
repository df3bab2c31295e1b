"""What became of rows in doubt: read back until they are all found, or proven absent, or it is clear that nobody can tell.

One thread calls `work` between other things; senders only park. How to read is `reading`, what is alike `recognising`.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from crmctl.bulk.delivery.stale import MERGED, compare
from crmctl.bulk.journal.journal import Header, Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.payloads.batches import Batch, Entry
from crmctl.bulk.payloads.markers import Marker
from crmctl.bulk.records.reading import Baseline, ByPrefix, Enough, NewestFirst, Reader, Reading, Unusable, Way, moment_of
from crmctl.bulk.records.recognising import Match, Recognition, by_content, match, without_altered
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, DeniedError
from crmctl.models.filters import Operator
from crmctl.models.records import Record

SETTLE_SECONDS = 120.0
"""How long after its sending a row that is not found may still appear."""

PARKED_LIMIT = 16
"""With so many batches in doubt nothing new is sent."""

CONTROL_SECONDS = 60.0
"""How long a confirmed batch may take to show up before a way of reading counts as unusable."""

CONTROL_RECORDS = 10_000
CLOCK_MARGIN = 5.0
"""Seconds by which clocks may have drifted apart since they were compared."""

FIRST_GAP, LAST_GAP = 0.5, 30.0
LAGS = 5
LATE_SECONDS = 600.0
"""After so long an update is not repeated before it is clear that nobody has changed the record since."""

MOST_ROUNDS = 2
"""A single row that is in doubt and then absent so often is left unsent."""


@dataclass(frozen=True)
class Freed:
    """Rows proven absent, to be sent again. `round`: how often that has happened to them."""

    batch: Batch
    round: int


@dataclass
class Parked:
    """A batch in doubt. Times in Unix seconds: of its sending, of the doubt, of the next look."""

    number: int
    batch: Batch
    sent_at: float
    known_at: float
    round: int
    look_at: float
    gap: float = FIRST_GAP
    last: frozenset[int] | None = None

    @property
    def creates(self) -> list[Entry]:
        """Updates by id are not looked for: repeating them does no harm."""
        return [entry for entry in self.batch.entries if entry.id is None]


@dataclass(frozen=True)
class Confirmed:
    """A batch of which every row was created: what a way of reading must show."""

    entries: Sequence[Entry]
    sent_at: float
    at: float


@dataclass
class Method:
    """A way of reading and of recognising, and what is known of the two. `recognition` None is by content.

    `lag`: seconds until a record shows up. `ahead`: seconds the service's clock is ahead of ours; None until that is known.
    """

    way: Way
    recognition: Recognition | None
    works: bool = False
    broken: str | None = None
    control: Confirmed | None = None
    waited: bool = False
    lag: float = 0.0
    ahead: float | None = None
    altered: frozenset[str] = frozenset()

    def recognition_of(self, entries: Sequence[Entry]) -> Recognition:
        if self.recognition is not None:
            return self.recognition
        every = by_content(entries)
        return Recognition(every.slugs - self.altered, unique=False)

    def fits(self, entries: Sequence[Entry]) -> bool:
        return self.broken is None and all(self.recognition_of(entries).keys(entries).values())


@dataclass(frozen=True)
class _View:
    """What one look showed. `conclusive`: rows that were not found are not there."""

    seen: Match = field(default_factory=Match)
    conclusive: bool = False
    why: str = "the rows cannot be recognised"
    failed: bool = False
    hopeless: bool = False


def methods(journal: Journal) -> list[Method]:
    """The ways to find rows of a job again, the best first."""
    header = journal.header
    newest = NewestFirst(Baseline.from_document(journal.recall("baseline")))
    found: list[Method] = []
    if header.marker is not None:
        marker = Marker.of(header.marker, header.job)
        marked = Recognition(frozenset({header.marker}), unique=True)
        found += [Method(ByPrefix(marker, operator), marked) for operator in (Operator.STARTS_WITH, Operator.CONTAINS)]
    return [*found, *(Method(newest, recognition) for recognition in recognitions(header)), Method(newest, None)]


def recognitions(header: Header) -> list[Recognition]:
    """What tells a job's rows from all other records, the best first: the marker, the key that no record had, a unique attribute."""
    by_key = [Recognition.by_key(header.keys, header.key_types)] if header.keys else []
    marked, unique = ([Recognition(frozenset({slug}), unique=True)] if slug is not None else [] for slug in (header.marker, header.unique))
    return [*marked, *by_key, *unique]


def showing(entries: Sequence[Entry], recognition: Recognition, most: float = math.inf) -> Enough:
    """Whether records that are told of one after the other show all of these rows, or are `most` already."""
    left = Counter(recognition.keys(entries).values())
    tells = None not in left
    told = 0

    def enough(news: Sequence[Record]) -> bool:
        nonlocal told
        told += len(news)
        left.subtract(key for record in news if (key := recognition.key(record.data)) in left)
        return told >= most or (tells and max(left.values(), default=0) <= 0)

    return enough


class Reconciler:
    """`again` reads all rows of the job anew. `assume`: what rows are of which nobody can tell, `applied`, `lost`, or None for unknown."""

    def __init__(
        self, reader: Reader, journal: Journal, again: Callable[[], Iterable[Entry]], clock: Clock, settle: float, assume: str | None
    ) -> None:
        self._reader = reader
        self._journal = journal
        self._again = again
        self._clock = clock
        self._settle = settle
        self._assume = assume
        self._methods = methods(journal)
        self._arrivals: deque[Parked] = deque()
        self._parked: list[Parked] = []
        self._confirmed: Confirmed | None = None
        self._twins: dict[tuple[int, frozenset[str]], Mapping[str, Sequence[int]]] = {}
        self.notes: list[str] = []
        self.recovered = 0
        """How many batches turned out to be there as a whole."""

    # -- what senders tell -----------------------------------------------------------------------------------------------------------

    def park(self, number: int, batch: Batch, round: int, sent_at: float) -> None:
        now = self._clock.now()
        self._arrivals.append(Parked(number, batch, min(sent_at, now), now, round, now))

    def confirm(self, entries: Sequence[Entry], sent_at: float, at: float) -> None:
        """A batch of which every row was created just now, or in an earlier run."""
        self._confirmed = Confirmed(entries, sent_at, at)

    @property
    def pending(self) -> int:
        return len(self._parked) + len(self._arrivals)

    @property
    def wait(self) -> float:
        """Seconds until there is something to look at."""
        if self._arrivals:
            return 0.0
        return max(0.0, min((parked.look_at for parked in self._parked), default=0.0) - self._clock.now())

    # -- looking ---------------------------------------------------------------------------------------------------------------------

    def work(self) -> list[Freed]:
        """Look at what is due; returns the rows that are to be sent again."""
        while self._arrivals:
            self._parked.append(self._arrivals.popleft())
        now = self._clock.now()
        freed: list[Freed] = []
        for parked in [parked for parked in self._parked if parked.look_at <= now]:
            freed += self._look(parked)
        return freed

    def _look(self, parked: Parked) -> list[Freed]:
        if not parked.creates:
            return self._conclude(parked, Match(), frozenset())
        view = self._view(parked)
        now = self._clock.now()
        ordinals = {entry.ordinal for entry in parked.creates}
        found = frozenset(view.seen.found)
        missing = ordinals - found
        deadline = self._deadline(parked)
        if not missing:
            self.recovered += 1
            return self._conclude(parked, view.seen, frozenset())
        if view.failed:
            if view.hopeless or now >= deadline + CONTROL_SECONDS:
                self._give_up(parked, view.why)
                return []
        elif now >= deadline and parked.last == found:
            if view.conclusive:
                return self._conclude(parked, view.seen, missing - view.seen.ambiguous, "other rows are just like them")
            if now >= deadline + CONTROL_SECONDS or not self._may_learn_more():
                return self._conclude(parked, view.seen, frozenset(), view.why)
        parked.last = None if view.failed else found
        until = deadline - now if deadline > now else parked.gap
        parked.look_at = now + max(0.05, min(parked.gap, until, LAST_GAP))
        parked.gap *= 2
        return []

    def _deadline(self, parked: Parked) -> float:
        lag = max(method.lag for method in self._methods)
        return max(parked.sent_at + self._settle, parked.known_at + LAGS * lag)

    def _may_learn_more(self) -> bool:
        """Whether a confirmed batch is still being waited for."""
        return any(method.waited and method.broken is None and not method.works for method in self._methods)

    def _view(self, parked: Parked) -> _View:
        """The first view that answers the question, or the first there is."""
        views: list[_View] = []
        for method in self._methods:
            try:
                if not method.fits(parked.creates):
                    continue
                view = self._by(method, parked)
            except Unusable as error:
                method.broken = str(error)
                self._journal.note("unusable", method.broken)
                continue
            except CrmctlError as error:
                hopeless = isinstance(error, DeniedError)
                return _View(why=f"it cannot be read back: {error.message}", failed=True, hopeless=hopeless)
            if view.conclusive or len(view.seen.found) == len(parked.creates):
                return view
            views.append(view)
        return views[0] if views else _View()

    def _by(self, method: Method, parked: Parked) -> _View:
        controlled = self._try_control(method)
        recognition = method.recognition_of(parked.creates)
        reading = self._read(method, parked, recognition)
        seen = match(parked.creates, reading.records, recognition, lambda keys: self._others(keys, parked, recognition))
        if controlled:
            return _View(seen, reading.complete, "more records have been created since than can be read back")
        if method.way.needs_control:
            return _View(seen, conclusive=False, why="no batch was confirmed that could be read back the same way")
        # Without a control: where every record that is newer than the job is a doubtful row, no other of those rows can be there.
        mine = {key for one in self._parked for key in recognition.keys(one.creates).values()}
        strangers = sum(recognition.key(record.data) not in mine for record in reading.records)
        known = self._journal.recall("baseline") is not None
        return _View(seen, reading.complete and known and not strangers, "there are new records that may or may not be these rows")

    def _read(self, method: Method, parked: Parked, recognition: Recognition) -> Reading:
        def read(since: float | None) -> Reading:
            enough = showing(parked.creates, recognition) if recognition.unique else lambda _: False
            return method.way.read(self._reader, parked.creates, since, enough)

        if method.ahead is not None and self._confirmed is not None:
            since = parked.sent_at + method.ahead - CLOCK_MARGIN
            reading = read(since if self._beginning is None else max(since, self._beginning))
            if reading.newest is not None and reading.newest >= self._confirmed.sent_at + method.ahead - CLOCK_MARGIN:
                return reading
            method.ahead = None  # times of creation do not move on: they are none
        return read(self._beginning)

    @property
    def _beginning(self) -> float | None:
        baseline = Baseline.from_document(self._journal.recall("baseline"))
        return baseline.newest if baseline is not None else None

    def _try_control(self, method: Method) -> bool:
        """Whether the method has shown what is there. Raises Unusable when it does not show it in time."""
        if method.works or (self._confirmed is None and method.control is None):
            return method.works
        control = method.control = method.control or self._confirmed
        assert control is not None
        recognition = method.recognition_of(control.entries)

        enough = showing(control.entries, recognition, most=CONTROL_RECORDS)
        records = method.way.read(self._reader, control.entries, self._beginning, enough).records
        if not showing(control.entries, recognition)(records):
            without = without_altered(recognition, control.entries, records) if method.recognition is None else recognition
            telling = len(set(without.keys(control.entries).values())) == len(set(recognition.keys(control.entries).values()))
            if without == recognition or not telling or not showing(control.entries, without)(records):
                method.waited = True
                if self._clock.now() >= control.at + CONTROL_SECONDS:
                    raise Unusable(f"{method.way.name}: rows that are there are not found")
                return False
            method.altered = recognition.slugs - without.slugs
            recognition = without
        method.way.probe(self._reader)
        method.works = True
        method.lag = self._clock.now() - control.at if method.waited else 0.0
        keys = set(recognition.keys(control.entries).values())
        moments = [moment for record in records if recognition.key(record.data) in keys and (moment := moment_of(record)) is not None]
        method.ahead = min(moments) - control.at if moments else None
        return True

    def _others(self, keys: Collection[str], parked: Parked, recognition: Recognition) -> Mapping[str, int]:
        """By key, how many rows outside the batch may be in the service."""
        if not keys:
            return {}
        at = (parked.number, recognition.slugs)
        if at not in self._twins:
            mine = set(parked.batch.ordinals)
            wanted = set(recognition.keys(parked.creates).values())
            twins: dict[str, list[int]] = {}
            for entry in self._again():
                if entry.id is None and entry.ordinal not in mine and (key := next(iter(recognition.keys([entry]).values()))) in wanted:
                    twins.setdefault(str(key), []).append(entry.ordinal)
            self._twins[at] = twins
        return {key: sum(map(self._may_be_there, self._twins[at].get(key, ()))) for key in keys}

    def _may_be_there(self, ordinal: int) -> bool:
        entry = self._journal.rows(ordinal, ordinal).get(ordinal)
        return entry is not None and entry.state in (RowState.CREATED, RowState.IN_DOUBT)

    # -- deciding --------------------------------------------------------------------------------------------------------------------

    def _conclude(self, parked: Parked, seen: Match, absent: Collection[int], why: str = "") -> list[Freed]:
        """Write down what is known; the rows that may be sent again."""
        found = dict(seen.found)
        updates = [entry for entry in parked.batch.entries if entry.id is not None]
        if not updates or (self._clock.now() - parked.sent_at <= LATE_SECONDS and not self._journal.recall(MERGED)):
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
        open_rows = set(parked.batch.ordinals) - found.keys() - gone
        if open_rows and self._assume == "applied":
            found.update(dict.fromkeys(open_rows))
        elif open_rows and self._assume == "lost":
            gone |= open_rows
        if open_rows and self._assume is not None:
            self._journal.note("assumed", f"{len(open_rows)} rows {self._assume}, as the user said", parked.number)
            open_rows = set()
        self._journal.resolve(parked.number, found, gone, why if open_rows else "")
        if seen.extra:
            self._journal.record_duplicates(seen.extra)
        self._parked.remove(parked)
        free = Batch(tuple(entry for entry in parked.batch.entries if entry.ordinal in gone))
        if not free.entries or (len(free) == 1 and parked.round >= MOST_ROUNDS):
            return []
        # What was absent twice is sent in halves: perhaps a single row makes the service fail.
        parts = free.halves() if parked.round and len(free) > 1 else (free,)
        return [Freed(part, parked.round + 1) for part in parts]

    def _give_up(self, parked: Parked, why: str) -> None:
        """Leave a batch in doubt, for a later run."""
        self._parked.remove(parked)
        self._journal.note("given up", why, parked.number)
        if why not in self.notes:
            self.notes.append(why)
