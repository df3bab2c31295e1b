"""What the service's lists say about rows that were sent: that they are there, that they are not, or nothing.

Two witnesses: the records themselves, read back, and how many there are (`record_counts`). What is alike is said in `record_match`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.record_match import Recognition, RecordMatch, match
from crmctl.bulk.read.read_back import Baseline, ByPrefix, Reader, ReadResult, Unusable
from crmctl.bulk.rows.batches import Batch, Entry
from crmctl.bulk.send.methods import Confirmed, Method, methods, showing
from crmctl.bulk.send.record_counts import RecordCount
from crmctl.bulk.send.twin_rows import known
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, DeniedError
from crmctl.models.records import Record

CLOCK_MARGIN = 5.0
"""Seconds by which clocks may have drifted apart since they were compared."""

CLOCKS_APART = 900.0
"""Seconds of creation time that are read further back where the count says that there is more: a service has several clocks."""

NOTHING_NEWER = "the service's lists show nothing that was created since, and may be old"
TOO_FEW = "the service lists fewer records than there must be: its lists are old, or somebody deletes records"
TOO_MANY = "the service has more new records than can be accounted for"


@dataclass
class Sent:
    """A batch that was sent. Unix times of its sending, and of when it was known that its outcome is not."""

    number: int
    batch: Batch
    sent_at: float
    known_at: float

    @property
    def creates(self) -> list[Entry]:
        """Updates by id are not looked for: repeating them does no harm."""
        return [entry for entry in self.batch.entries if entry.id is None]


@dataclass(frozen=True)
class Look:
    """What one look showed. `counted`: every new record is accounted for; `conclusive`: besides, the lists are newer than the sending, so
    that rows that were not found are not there. `failed`: nothing could be read."""

    seen: RecordMatch = field(default_factory=RecordMatch)
    counted: bool = False
    conclusive: bool = False
    why: str = "the rows cannot be recognised"
    failed: bool = False
    hopeless: bool = False


class TimeSpan(NamedTuple):
    """From when on records are read: Unix time by the service's clock and by ours; None for the beginning."""

    since: float | None
    local: float | None


class Weighing(NamedTuple):
    """What is weighed: rows that were sent, by a method that has shown what is there (`controlled`) or not."""

    method: Method
    sent: Sent
    controlled: bool


class Evidence:
    """Looks when it is asked to; safe for several threads. Counting needs that nothing is under way: the caller sees to that.

    `again` reads all rows of the job anew.
    """

    def __init__(self, reader: Reader, journal: Journal, again: Callable[[], Iterable[Entry]], clock: Clock) -> None:
        self._reader = reader
        self._journal = journal
        self._again = again
        self._clock = clock
        self.lock = threading.RLock()
        """Held while what is known changes in more than one place."""
        self._baseline = Baseline.from_document(journal.recall("baseline"))
        self._confirmed: Confirmed | None = None
        self._newest_sent = float("-inf")
        self._twins: dict[tuple[int, frozenset[str]], Mapping[str, Sequence[int]]] = {}
        self._refused: set[int] = set()
        self.accepts_older_lists = False
        """For rows that were perhaps never sent: there need not be anything newer to be seen."""
        self._was_doubted = self._was_refused = False
        self.methods = methods(journal)
        self.count = RecordCount.of(journal)

    # -- what is known to be there ---------------------------------------------------------------------------------------------------

    def confirm(self, entries: Sequence[Entry], sent_at: float, at: float) -> None:
        """A batch of which every row was created just now, or in an earlier run."""
        with self.lock:
            self._confirmed = Confirmed(entries, sent_at, at)
            self._newest_sent = max(self._newest_sent, sent_at)
            self._refused.clear()

    def doubt(self, sent: Sent) -> None:
        """A batch is in doubt from now on."""
        with self.lock:
            self._was_doubted = True
            self.count.found.setdefault(sent.number, 0)

    def conclude(self, sent: Sent, found: Collection[int]) -> None:
        """A batch is in doubt no more: these of its rows are there."""
        with self.lock:
            self.count.found.pop(sent.number, None)
            if found:
                self._newest_sent = max(self._newest_sent, sent.sent_at)

    @property
    def confirmed_at(self) -> float:
        """When the last batch was confirmed, Unix time."""
        return self._confirmed.at if self._confirmed is not None else 0.0

    @property
    def lag(self) -> float:
        """Seconds until a record shows up, as far as that was measured."""
        return max(method.lag for method in self.methods)

    @property
    def is_waiting(self) -> bool:
        """Whether a confirmed batch is still being waited for."""
        return any(method.waited and method.broken is None and not method.works for method in self.methods)

    def is_newer(self, sent: Sent) -> bool:
        """Whether something is there that was sent after it was known that this was in doubt."""
        return self._newest_sent >= sent.known_at

    def verdict(self) -> str | None:
        """One count when everything was sent: what is wrong where more or fewer records are there than were created."""
        if not self._was_doubted and (not self._was_refused or self.count.before is None):
            return None
        try:
            return self.count.verdict(self._reader.page().total, self._journal.counts()[RowState.IN_DOUBT])
        except CrmctlError as error:
            return f"the records could not be counted in the end: {error.message}"

    # -- looking ---------------------------------------------------------------------------------------------------------------------

    def look(self, sent: Sent, *, thoroughly: bool) -> Look:
        """The first view that answers the question, or the first there is. Only a thorough one can say that rows are absent."""
        with self.lock:
            views: list[Look] = []
            for method in self.methods:
                try:
                    if not method.fits(sent.creates):
                        continue
                    view = self._by(method, sent, thoroughly=thoroughly)
                except Unusable as error:
                    method.broken = str(error)
                    self._journal.note("unusable", method.broken)
                    continue
                except CrmctlError as error:
                    hopeless = isinstance(error, DeniedError)
                    return Look(why=f"it cannot be read back: {error.message}", failed=True, hopeless=hopeless)
                self.count.found[sent.number] = len(view.seen.found)
                is_told = view.conclusive and not any(earlier.seen.taken for earlier in views)
                if is_told or len(view.seen.found) == len(sent.creates):
                    return view
                views.append(view)
            return views[0] if views else Look()

    def can_judge_refusal(self, sent: Sent, *, more_to_come: bool) -> bool:
        """Whether a list could tell by now: it would show something newer, or nothing newer will come, or refusals follow one another."""
        with self.lock:
            self._refused.add(sent.number)
            return self.is_newer(sent) or not more_to_come or len(self._refused) > 1

    def believes_refusal(self, sent: Sent) -> bool:
        """Whether a batch that was refused as a whole was not carried out: nothing of it is there, and records are as many as before.

        One request as a rule.
        """
        with self.lock:
            self._was_refused = True
            made, is_parked = self.count.made, sent.number in self.count.found
            try:
                page = self._reader.page()
            except CrmctlError:
                return False
            if self.count.left(page.total, made, sent.sent_at) == 0 and not self._shows(page.items, sent):
                self.count.mark(sent.number, page.total, self._clock.now())
                return True
            view = self.look(sent, thoroughly=True)
            if not is_parked:
                self.count.found.pop(sent.number, None)
            return view.counted and not view.seen.found and not view.seen.ambiguous

    def _shows(self, records: Sequence[Record], sent: Sent) -> bool:
        new = [record for record in records if self._is_new(record)]
        method = self.methods[-1]
        return bool(self._match(method.recognition_of(sent.creates), sent, new).found)

    def _by(self, method: Method, sent: Sent, *, thoroughly: bool) -> Look:
        controlled = method.has_shown(self._reader, self._confirmed, self._earliest, self._clock.now())
        weighing = Weighing(method, sent, controlled)
        reading = self._read(method, sent, thoroughly=thoroughly)
        recognition = method.recognition_of(sent.creates)
        if isinstance(method.way, ByPrefix):
            seen = self._match(recognition, sent, reading.records)
            return self._weigh_marked(weighing, method.way, seen, complete=reading.complete and thoroughly)
        seen = self._match(recognition, sent, self._new(reading))
        if len(seen.found) == len(sent.creates) or not thoroughly:
            return Look(seen)
        if reading.total is None or self.count.before is None:
            return self._weigh_uncounted(weighing, reading)
        return self._weigh_counted(weighing, reading)

    def _weigh_marked(self, weighing: Weighing, way: ByPrefix, seen: RecordMatch, *, complete: bool) -> Look:
        sent = weighing.sent
        if not weighing.controlled:
            return Look(seen, why="no batch was confirmed that could be read back the same way")
        if not complete:
            return Look(seen, why="more records have been created since than can be read back")
        self.count.found[sent.number] = len(seen.found)
        total, made = way.total(self._reader), self.count.made
        counted = self._shows_confirmed(way) if total is None else total == made + sum(map(len, seen.extra.values()))
        return self._fresh(sent, seen, counted=counted, why=TOO_FEW if total is None or total < made else TOO_MANY)

    def _weigh_counted(self, weighing: Weighing, reading: ReadResult) -> Look:
        """Read further and further back, until every record is accounted for that is there now and was not before."""
        method, sent, controlled = weighing
        recognition = method.recognition_of(sent.creates)
        windows = self._windows(method, sent)
        local: float | None = sent.sent_at - CLOCK_MARGIN
        while True:
            new = self._new(reading)
            seen = self._match(recognition, sent, new)
            self.count.found[sent.number] = len(seen.found)
            extra = sum(map(len, seen.extra.values()))
            left = (self.count.left(reading.total, self.count.made, sent.sent_at) or 0) - extra
            if len(seen.found) == len(sent.creates):
                return Look(seen)
            if left < 0:
                return Look(seen, why=TOO_FEW)
            is_told = controlled and reading.complete and method.ahead is not None
            if left == 0 or (is_told and len(new) - self.count.rows_since(local) - extra >= left):
                return self._all_told(sent, seen, reading)
            window = next(windows, None)
            if window is None:
                return self._weigh_all(weighing, reading, seen, left)
            local = window.local
            reading = method.way.read(self._reader, sent.creates, window.since, _never)

    def _weigh_all(self, weighing: Weighing, reading: ReadResult, seen: RecordMatch, left: int) -> Look:
        """Everything was read that may be newer than the job: either all new records are among it, or there are some nobody can place."""
        method, sent, controlled = weighing
        assert reading.total is not None
        assert self.count.before is not None
        unread = reading.total - self.count.before - len(self._new(reading))
        old = self._match(method.recognition_of(sent.creates), sent, self._not_new(reading))
        behind = {ordinal: record_id for ordinal, record_id in old.found.items() if ordinal not in seen.found}
        if not reading.complete:
            return Look(seen, why="more records have been created since than can be read back")
        if behind and len(behind) in (unread, left) and not old.extra:
            # As many records are too many as are like these rows and look old: a clock far behind made them.
            seen = replace(seen, found={**seen.found, **behind})
            return self._all_told(sent, seen, reading)
        if unread:
            return Look(seen, why=TOO_MANY if unread > 0 else TOO_FEW)
        if not controlled:
            return Look(seen, why="there are new records that may or may not be these rows")
        return self._all_told(sent, seen, reading)

    def _all_told(self, sent: Sent, seen: RecordMatch, reading: ReadResult) -> Look:
        self.count.found[sent.number] = len(seen.found)
        self.count.mark(sent.number, reading.total, self._clock.now())
        return self._fresh(sent, seen, counted=True)

    def _weigh_uncounted(self, weighing: Weighing, reading: ReadResult) -> Look:
        """The service does not say how many records there are: what remains is that the lists show what was confirmed since."""
        method, sent, controlled = weighing
        recognition = method.recognition_of(sent.creates)
        reading = method.way.read(self._reader, sent.creates, next(self._windows(method, sent)).since, _never)
        new = self._new(reading)
        seen = self._match(recognition, sent, new)
        if len(seen.found) == len(sent.creates):
            return Look(seen)
        if not reading.complete or self._match(recognition, sent, self._not_new(reading)).found:
            return Look(seen, why="the service does not say how many records it has, and there are older ones like these rows")
        if not controlled:
            mine = set(recognition.keys(sent.creates).values())
            strangers = any(recognition.key(record.data) not in mine for record in new)
            return self._fresh(sent, seen, counted=not strangers, why="there are new records that may or may not be these rows")
        shown = self._confirmed is not None and showing(self._confirmed.entries, method.recognition_of(self._confirmed.entries))(new, None)
        return self._fresh(sent, seen, counted=shown, why=NOTHING_NEWER)

    def _fresh(self, sent: Sent, seen: RecordMatch, *, counted: bool, why: str = "") -> Look:
        """Absent is only what is missing from a list that shows something newer."""
        if not counted:
            return Look(seen, why=why)
        newer = bool(seen.found) or self.is_newer(sent) or self.accepts_older_lists
        return Look(seen, counted=True, conclusive=newer, why=why if newer else NOTHING_NEWER)

    # -- reading ---------------------------------------------------------------------------------------------------------------------

    def _read(self, method: Method, sent: Sent, *, thoroughly: bool) -> ReadResult:
        recognition = method.recognition_of(sent.creates)
        made = self.count.made - self.count.found.get(sent.number, 0)

        def read(since: float | None) -> ReadResult:
            shows = showing(sent.creates, recognition) if recognition.unique else _never

            def enough(news: Sequence[Record], total: int | None) -> bool:
                # Where times say nothing the count alone tells whether there is anything to look for.
                left = None if thoroughly and method.ahead is not None else self.count.left(total, made, sent.sent_at)
                return shows([record for record in news if self._is_new(record)], total) or (left is not None and left <= 0)

            return method.way.read(self._reader, sent.creates, since, enough)

        if method.ahead is not None and self._confirmed is not None:
            since = sent.sent_at + method.ahead - CLOCK_MARGIN
            reading = read(since if self._beginning is None else max(since, self._beginning))
            if reading.newest is not None and reading.newest >= self._confirmed.sent_at + method.ahead - CLOCK_MARGIN - CLOCKS_APART:
                return reading
            method.ahead = None  # times of creation do not move on: they are none
        return read(self._beginning)

    def _windows(self, method: Method, sent: Sent) -> Iterator[TimeSpan]:
        """Further and further back: from the sending, then from the beginning of the job."""
        if method.ahead is not None:
            yield TimeSpan(sent.sent_at + method.ahead - CLOCKS_APART, sent.sent_at - CLOCKS_APART)
        yield TimeSpan(self._earliest, None)

    @property
    def _beginning(self) -> float | None:
        return self._baseline.newest if self._baseline is not None else None

    @property
    def _earliest(self) -> float | None:
        """No record of the job can be older, by any of the service's clocks."""
        return None if self._beginning is None else self._beginning - CLOCKS_APART

    def _is_new(self, record: Record) -> bool:
        return self._baseline is not None and self._baseline.is_new(record)

    def _new(self, reading: ReadResult) -> list[Record]:
        return [record for record in reading.records if self._is_new(record)]

    def _not_new(self, reading: ReadResult) -> list[Record]:
        return [record for record in reading.records if not self._is_new(record)]

    def _shows_confirmed(self, way: ByPrefix) -> bool:
        if self._confirmed is None:
            return False
        entries = self._confirmed.entries
        shows = showing(entries, self.methods[0].recognition_of(entries))
        return shows(way.read(self._reader, entries, None, _never).records, None)

    # -- rows that are alike ---------------------------------------------------------------------------------------------------------

    def _match(self, recognition: Recognition, sent: Sent, records: Sequence[Record]) -> RecordMatch:
        return match(
            sent.creates, records, recognition, known(self._journal, sent.creates, lambda keys: self._others(keys, sent, recognition))
        )

    def _others(self, keys: Collection[str], sent: Sent, recognition: Recognition) -> Mapping[str, Sequence[int]]:
        """By key, the rows outside the batch."""
        if not keys:
            return {}
        at = (sent.number, recognition.slugs)
        if at not in self._twins:
            mine = set(sent.batch.ordinals)
            wanted = set(recognition.keys(sent.creates).values())
            twins: dict[str, list[int]] = {}
            for entry in self._again():
                if entry.id is None and entry.ordinal not in mine and (key := next(iter(recognition.keys([entry]).values()))) in wanted:
                    twins.setdefault(str(key), []).append(entry.ordinal)
            self._twins[at] = twins
        return {key: self._twins[at].get(key, ()) for key in keys}


def _never(_records: Sequence[Record], _total: int | None) -> bool:
    return False
