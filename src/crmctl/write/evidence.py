"""Evidence from the service's lists that rows were written or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

from crmctl.clock import Clock
from crmctl.errors import CrmctlError, DeniedError
from crmctl.files.validation import Batch, Entry
from crmctl.frozen import frozen
from crmctl.match.record_match import Recognition, RecordMatch, match
from crmctl.models.resources import PAGE_LIMIT, SMALLEST_PAGE, Record
from crmctl.read.read_back import LONG_READ, MOST_PAGES, Baseline, Enough, Reader, ReadResult, Unusable, moment_of, read_newest
from crmctl.write.database import RowState
from crmctl.write.journal import Journal, doubtful, records_made
from crmctl.write.methods import Confirmed, Method, altered_attributes, explain, methods, showing
from crmctl.write.send_context import known

FEWER = "its lists are old, or somebody deletes records"
MORE = "somebody else creates records, or rows are there twice; crmctl bulk repair looks for those"


@dataclass
class RecordCount:
    """Records in the service compared with those the job created.

    `before` is the total when the job began, None if the service does not report one. `found` counts the rows found of each batch still in
    doubt, by batch number.
    """

    journal: Journal
    before: int | None
    found: dict[int, int] = field(default_factory=dict)
    _marks: list[tuple[float, int]] = field(default_factory=list)

    @property
    def made(self) -> int:
        """Number of records known to be created by the job."""
        return records_made(self.journal) + sum(self.found.values())

    def left(self, total: int | None, made: int, sent_at: float) -> int | None:
        """Return how many records are unexplained: neither old, nor `made` by the job, nor attributed to other clients before `sent_at`
        (Unix time).

        Negative if records are missing. None without totals.
        """
        if total is None or self.before is None:
            return None
        strangers = next((count for at, count in reversed(self._marks) if at < sent_at), 0)
        return total - self.before - made - strangers

    def mark(self, number: int, total: int | None, now: float) -> None:
        """Attribute all surplus records at `now` to other clients. Does nothing while another batch is in doubt."""
        if total is not None and self.before is not None and not self.found.keys() - {number}:
            self._marks.append((now, total - self.before - self.made))

    def verdict(self, more: int | None, in_doubt: int) -> str | None:
        """Describe a mismatch between new and created records; None if they agree. `in_doubt` rows may or may not exist."""
        if more is None:
            return "nobody can count whether every created row is there: the service does not say how many records it has"
        created = self.made
        if more < created:
            return f"the service accepted {created:,} rows, and has only {more:,} more records than before: {FEWER}"
        if more - created > in_doubt:
            return f"{created:,} rows were created, and the service has {more:,} more records than before: {MORE}"
        return None


CLOCK_MARGIN = 5.0
"""Assumed drift in seconds between two clocks since they were compared."""

CLOCKS_APART = 900.0
"""Extra seconds of creation time to read if the count shows unread records: the clocks of one service may differ."""

LAGS = 5
"""How many times the measured delay of the lists crmctl waits before it believes that they omit nothing."""

PLACE_PAGES, COPY_PAGES = 10, 4
"""Number of pages to read where a batch should be in a long list, and where a repeated one and its copy should be."""

FULL = MOST_PAGES * (PAGE_LIMIT - 1)
"""Number of records of the longest reading. An earlier start would show no more."""

NOTHING_NEWER = "the service's lists show nothing that was created since, and may be old"
TOO_FEW = "the service lists fewer records than there must be: its lists are old, or somebody deletes records"
TOO_MANY = "the service has more new records than can be accounted for"


@dataclass(eq=False)
class Sent:
    """A batch that was sent. `sent_at` and `known_at` are Unix times: when it left, and when its outcome became doubtful."""

    batch: Batch
    number: int = 0
    sent_at: float = 0.0
    known_at: float = 0.0

    @property
    def creates(self) -> list[Entry]:
        """Entries without an id. Updates need no search because repeating them is harmless."""
        return [entry for entry in self.batch.entries if entry.id is None]


@frozen
class Look:
    """Result of one look.

    `counted`: every new record is accounted for. `conclusive`: the lists are also newer than the batch, so rows not found are absent.
    `failed`: the read failed. `is_cut`: it ended early, because too many records are newer than the batch.
    """

    seen: RecordMatch = field(default_factory=RecordMatch)
    counted: bool = False
    conclusive: bool = False
    why: str = "the rows cannot be recognised"
    failed: bool = False
    hopeless: bool = False
    is_cut: bool = False


class FinalCount(NamedTuple):
    """Comparison at the end of a job.

    `left`: number of records beyond the known ones, None without a total. `is_current`: the list shows the last confirmed batch. `records`:
    the new records on the newest page. `is_whole`: that page holds all new records. `why`: the mismatch, if any.
    """

    left: int | None
    in_doubt: int
    is_current: bool
    records: Sequence[Record]
    is_whole: bool
    why: str | None

    @property
    def fits(self) -> bool:
        return self.is_current and (self.left is None or 0 <= self.left <= self.in_doubt)

    @property
    def is_conclusive(self) -> bool:
        """Whether there are more surplus records than rows in doubt. Waiting cannot change that."""
        return self.is_current and self.left is not None and self.left > self.in_doubt


class Evidence:
    """Looks for rows in doubt on request.

    Before counting, the caller must wait for all requests in flight. `again` reads all rows of the job again.
    """

    def __init__(self, reader: Reader, journal: Journal, again: Callable[[], Iterable[Entry]], clock: Clock) -> None:
        self._reader = reader
        self._journal = journal
        self._again = again
        self._clock = clock
        self._baseline = Baseline.from_document(journal.recall("baseline"))
        self._confirmed: Confirmed | None = None
        self._newest_sent = float("-inf")
        self._twins: dict[tuple[int, frozenset[str]], Mapping[str, Sequence[tuple[str, int]]]] = {}
        self._refused: set[int] = set()
        """Set for rows that may never have been sent: the lists need not show anything newer."""
        self.was_doubted = False
        self.methods = methods(journal)
        self.count = RecordCount(journal, self._baseline.total if self._baseline is not None else None)

    # -- known records ---------------------------------------------------------------------------------------------------------------

    def confirm(self, entries: Sequence[Entry], sent_at: float, at: float) -> None:
        """Record a batch whose rows were all created, just now or in an earlier run."""
        self._confirmed = Confirmed(entries, sent_at, at)
        self._newest_sent = max(self._newest_sent, sent_at)
        self._refused.clear()

    def doubt(self, sent: Sent) -> None:
        """Record that a batch is in doubt."""
        self.was_doubted = True
        self.count.found.setdefault(sent.number, 0)

    def conclude(self, sent: Sent, ordinals: Collection[int]) -> None:
        """Record that a batch is no longer in doubt and that its rows in `found` exist."""
        self.count.found.pop(sent.number, None)
        if ordinals:
            self._newest_sent = max(self._newest_sent, sent.sent_at)

    @property
    def confirmed_at(self) -> float:
        """Unix time of the last confirmed batch; 0 if there is none."""
        return self._confirmed.at if self._confirmed is not None else 0.0

    @property
    def lag(self) -> float:
        """Measured delay in seconds until a record shows up, in this run or an earlier one."""
        return self.note_lag(max(method.lag for method in self.methods))

    def note_lag(self, seconds: float) -> float:
        """Store a measured delay for later runs, and return the longest so far."""
        lag = float(self._journal.recall("lag") or 0.0)
        if seconds > lag:
            self._journal.remember("lag", seconds)
        return max(lag, seconds)

    def is_newer(self, sent: Sent) -> bool:
        """Whether a known record was sent after this batch fell in doubt, and after each acknowledged batch that the lists hide."""
        hidden = (batch.sent_at for batch in doubtful(self._journal) if batch.was_acknowledged)
        return self._newest_sent >= max([sent.known_at, *hidden])

    @property
    def can_count(self) -> bool:
        """Whether crmctl knows the records that existed before the job."""
        return self._baseline is not None

    @property
    def last_confirmed(self) -> Sequence[Entry]:
        return self._confirmed.entries if self._confirmed is not None else ()

    def final_count(self) -> FinalCount:
        """Compare the newest page and the total with the job's own count. Sends one request, two without totals. Raises their errors."""
        page = self._reader.page()
        new = [record for record in page.items if self._is_new(record)]
        in_doubt, created = self._journal.counts()[RowState.IN_DOUBT], self.count.made
        is_whole = len(new) < len(page.items) or len(page.items) < SMALLEST_PAGE
        if page.total is not None and self.count.before is not None:
            more: int | None = page.total - self.count.before
        elif not _in_order(page.items) and (len(new) < len(page.items) or not _is_sorted(page.items)):
            more = None
        else:
            more = len(new) if is_whole else self._count_by_place(created, len(page.items))
        surplus = more - created if more is not None else None
        return FinalCount(surplus, in_doubt, self._is_current(page.items), new, is_whole, self.count.verdict(more, in_doubt))

    def _count_by_place(self, made: int, page_size: int) -> int:
        """Return the place of the newest old record in the list, which is the number of new ones, or the nearest place read."""
        first = max(0, made - page_size // 2)
        items = self._reader.page(first).items
        return first + next((place for place, record in enumerate(items) if not self._is_new(record)), len(items))

    def _is_current(self, records: Sequence[Record]) -> bool:
        """Whether the newest records include the last confirmed batch, as sent or as altered by the service."""
        if self._confirmed is None or (records and not _in_order(records)):
            return True
        entries = self._confirmed.entries[-len(records) :]
        return self.methods[-1].shows(entries, records) or altered_attributes(entries, records) is not None

    # -- looking ---------------------------------------------------------------------------------------------------------------------

    def look(self, sent: Sent, *, thoroughly: bool) -> Look:
        """Return the first conclusive look, or else the first one.

        Only a thorough look can prove rows absent. Others read few pages, because the records move further down with each later batch.
        """
        views: list[Look] = []
        for method in self.methods:
            try:
                if not method.fits(sent.creates):
                    continue
                view = self._by(method, sent, thoroughly=thoroughly)
            except Unusable as error:
                method.broken = str(error)
                continue
            except CrmctlError as error:
                hopeless = isinstance(error, DeniedError)
                return Look(why=f"it cannot be read back: {error.message}", failed=True, hopeless=hopeless)
            self.count.found[sent.number] = len(view.seen.found)
            is_told = view.conclusive and not any(earlier.seen.taken for earlier in views)
            if is_told or len(view.seen.found) == len(sent.creates):
                return view
            views.append(view)
            if view.is_cut:
                break  # the other methods would read the same pages
        return views[0] if views else Look()

    def can_judge_refusal(self, sent: Sent, *, more_to_come: bool) -> bool:
        """Whether a list can settle a refusal now.

        It can if it would show newer records, if no newer records will come, or if several batches were refused in a row.
        """
        self._refused.add(sent.number)
        return self.is_newer(sent) or not more_to_come or len(self._refused) > 1

    def believes_refusal(self, sent: Sent) -> bool:
        """Whether the service did not carry out a batch that it refused as a whole.

        True if none of its rows exist and the number of records is unchanged. Usually takes one request; none while the lists may be late.
        """
        if self._clock.now() < sent.known_at + LAGS * self.lag:
            return False
        created, is_parked = self.count.made, sent.number in self.count.found
        try:
            page = self._reader.page()
        except CrmctlError:
            return False
        if self.count.left(page.total, created, sent.sent_at) == 0 and not self._shows(page.items, sent):
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
        method.try_out(self._reader, self._confirmed, self._earliest, self._clock.now())
        reading = self._read(method, sent, thoroughly=thoroughly)
        recognition = method.recognition_of(sent.creates)
        seen = self._match(recognition, sent, self._new(reading))
        if len(seen.found) == len(sent.creates) or not thoroughly:
            return Look(seen, is_cut=not reading.complete and len(reading.records) > (LONG_READ - 1) * (PAGE_LIMIT - 1))
        if reading.total is None or self.count.before is None:
            return self._weigh_uncounted(method, sent, reading)
        return self._weigh_counted(method, sent, reading)

    def _weigh_counted(self, method: Method, sent: Sent, reading: ReadResult) -> Look:
        """Read further back until every new record is accounted for."""
        recognition = method.recognition_of(sent.creates)
        windows = self._windows(method, sent)
        while True:
            new = self._new(reading)
            seen = self._match(recognition, sent, new)
            unaccounted = self._unaccounted(sent, seen, reading)
            if len(seen.found) == len(sent.creates):
                return Look(seen)
            if unaccounted < 0:
                return Look(seen, why=TOO_FEW)
            if unaccounted == 0:
                return self._all_told(sent, seen, reading)
            seen, visible = self._explain(method, sent, seen, new)
            unaccounted = self._unaccounted(sent, seen, reading)
            if len(seen.found) == len(sent.creates):
                return Look(seen)
            is_told = method.works and reading.complete and method.ahead is not None
            if unaccounted == 0 or (is_told and visible >= unaccounted > 0):
                return self._all_told(sent, seen, reading)
            if not windows or len(reading.records) >= FULL:
                return self._weigh_all(method, sent, reading, seen, unaccounted)
            reading = read_newest(self._reader, self._baseline, windows.pop(0))

    def _unaccounted(self, sent: Sent, seen: RecordMatch, reading: ReadResult) -> int:
        """Return how many records are neither old nor known rows of the job, counting the rows just seen."""
        self.count.found[sent.number] = len(seen.found)
        extra = sum(map(len, seen.extra.values()))
        return (self.count.left(reading.total, self.count.made, sent.sent_at) or 0) - extra

    def _explain(self, method: Method, sent: Sent, seen: RecordMatch, new: Sequence[Record]) -> tuple[RecordMatch, int]:
        """Pair unrecognised rows with new records that the service may have altered.

        Also return how many new records belong to no known row.
        """
        recognition = replace(method.recognition_of(sent.creates), altered=self.methods[-1].altered)
        return explain(self._journal, sent.creates, seen, new, recognition, lambda: self._rows_elsewhere(sent))

    def _weigh_all(self, method: Method, sent: Sent, reading: ReadResult, seen: RecordMatch, unaccounted: int) -> Look:
        """Decide once everything that may be newer than the job has been read. Some new records may remain unexplained."""
        assert reading.total is not None
        assert self.count.before is not None
        unread = reading.total - self.count.before - len(self._new(reading))
        old = self._match(method.recognition_of(sent.creates), sent, self._not_new(reading))
        behind = {ordinal: record_id for ordinal, record_id in old.found.items() if ordinal not in seen.found}
        if not reading.complete:
            is_cut = len(reading.records) >= FULL
            return Look(
                seen, why="more records have been created since than can be read back", failed=is_cut, hopeless=is_cut, is_cut=is_cut
            )
        if behind and len(behind) in (unread, unaccounted) and not old.extra:
            # The number of surplus records equals the number of old-looking matches: a clock far behind created them.
            seen = replace(seen, found={**seen.found, **behind})
            return self._all_told(sent, seen, reading)
        if unread:
            return Look(seen, why=TOO_MANY if unread > 0 else TOO_FEW)
        if not method.works and seen.ambiguous:
            return Look(seen, why="there are new records that may or may not be these rows")
        return self._all_told(sent, seen, reading)

    def _all_told(self, sent: Sent, seen: RecordMatch, reading: ReadResult) -> Look:
        self.count.found[sent.number] = len(seen.found)
        self.count.mark(sent.number, reading.total, self._clock.now())
        has_times = self.methods[-1].ahead is not None
        return self._fresh(sent, seen, counted=True, shown=reading.records if has_times else None)

    def _weigh_uncounted(self, method: Method, sent: Sent, reading: ReadResult) -> Look:
        """Decide without a total: rely on whether the lists show recently confirmed records."""
        recognition = method.recognition_of(sent.creates)
        if self.count.before is not None:
            reading = read_newest(self._reader, self._baseline, self._windows(method, sent)[0])
        new = self._new(reading)
        seen = self._match(recognition, sent, new)
        if len(seen.found) == len(sent.creates):
            return Look(seen)
        if not reading.complete or self._match(recognition, sent, self._not_new(reading)).found:
            return Look(seen, why="the service does not say how many records it has, and there are older ones like these rows")
        seen, _ = self._explain(method, sent, seen, new)
        if len(seen.found) == len(sent.creates):
            return Look(seen)
        if not method.works:
            return self._fresh(sent, seen, counted=not seen.ambiguous, why="there are new records that may or may not be these rows")
        shown = self._confirmed is not None and showing(self._confirmed.entries, method.recognition_of(self._confirmed.entries))(new, None)
        return self._fresh(sent, seen, counted=shown, why=NOTHING_NEWER)

    def _fresh(self, sent: Sent, seen: RecordMatch, *, counted: bool, why: str = "", shown: Sequence[Record] | None = None) -> Look:
        """Return a look that is conclusive only if the list shows something newer than the batch.

        A later batch must be among the records in `shown`.
        """
        if not counted:
            return Look(seen, why=why)
        newer = bool(seen.found) or (self.is_newer(sent) and self._shows_later(sent, shown))
        return Look(seen, counted=True, conclusive=newer, why=why if newer else NOTHING_NEWER)

    def _shows_later(self, sent: Sent, records: Sequence[Record] | None) -> bool:
        """Whether the records include most rows of the last confirmed batch. True if that batch was sent before this one."""
        later = self._confirmed
        if records is None or later is None or later.sent_at < sent.known_at:
            return True
        recognition = self.methods[-1].recognition_of(later.entries)
        keys = Counter(recognition.keys(later.entries).values())
        missing = keys - Counter(recognition.key(record.data) for record in records)
        return 2 * missing.total() <= keys.total()

    # -- reading ---------------------------------------------------------------------------------------------------------------------

    def _read(self, method: Method, sent: Sent, *, thoroughly: bool) -> ReadResult:
        recognition = method.recognition_of(sent.creates)
        created = self.count.made - self.count.found.get(sent.number, 0)

        def read(since: float | None) -> ReadResult:
            shows: Enough = showing(sent.creates, recognition) if recognition.unique else lambda *_: False
            pages, placed = count(1), dict[str, Record]()
            matched = 0

            def enough(news: Sequence[Record], total: int | None) -> bool:
                nonlocal matched
                page = next(pages)
                if page >= LONG_READ and not thoroughly:
                    return True
                # Without usable times, only the count tells whether to keep reading. It also ends a long read.
                is_timed = thoroughly and method.ahead is not None
                surplus = None if is_timed and page < LONG_READ else self.count.left(total, created, sent.sent_at)
                if page == LONG_READ and surplus is not None and surplus > 0:
                    new = (total or 0) - (self.count.before or 0)
                    placed.update((record.id, record) for record in self._at_place(sent, new, PLACE_PAGES))
                    matched = len(self._match(recognition, sent, [record for record in placed.values() if self._is_new(record)]).found)
                return shows([record for record in news if self._is_new(record)], total) or (surplus is not None and surplus <= matched)

            reading = read_newest(self._reader, self._baseline, since, enough)
            records = {record.id: record for record in (*reversed(placed.values()), *reading.records)}
            return replace(reading, records=[*records.values()])

        is_uncounted = thoroughly and self.count.before is None  # then the lists alone decide, and are read further back
        if method.ahead is not None and self._confirmed is not None:
            since = max(sent.sent_at + method.ahead - CLOCK_MARGIN, self._beginning or 0.0)
            reading = read(self._windows(method, sent)[0] if is_uncounted else since)
            if reading.newest is not None and reading.newest >= self._confirmed.sent_at + method.ahead - CLOCK_MARGIN - CLOCKS_APART:
                return reading
            method.ahead = None  # creation times do not advance, so they are useless
        return read(self._earliest if is_uncounted else self._beginning)

    def has_copies(self, sent: Sent) -> bool:
        """Whether the list holds more records than rows of a batch around its place. Assumes that only the job created records."""
        records = {record.id: record for record in self._at_place(sent, self.count.made, COPY_PAGES) if self._is_new(record)}
        return bool(self._match(self.methods[-1].recognition_of(sent.creates), sent, [*reversed(records.values())]).extra)

    def _at_place(self, sent: Sent, new: int, pages: int) -> Iterator[Record]:
        """Yield the records around the place of a batch that was carried out at once. `new`: number of records since the job began."""
        earlier = sum(batch.created for batch in self._journal.batches() if batch.sent_at < sent.sent_at)
        first = max(0, new - earlier - pages // 2 * PAGE_LIMIT)
        for number in range(pages):
            yield from self._reader.page(first + number * (PAGE_LIMIT - 1)).items

    def _windows(self, method: Method, sent: Sent) -> list[float | None]:
        """Return ever earlier starts by the service's clock: from the send, then from the beginning of the job."""
        return [*([sent.sent_at + method.ahead - CLOCKS_APART] if method.ahead is not None else []), self._earliest]

    @property
    def _beginning(self) -> float | None:
        return self._baseline.newest if self._baseline is not None else None

    @property
    def _earliest(self) -> float | None:
        """Earliest possible creation time of the job's records, by any clock of the service."""
        return None if self._beginning is None else self._beginning - CLOCKS_APART

    def _is_new(self, record: Record) -> bool:
        return self._baseline is not None and self._baseline.is_new(record)

    def _new(self, reading: ReadResult) -> list[Record]:
        return [record for record in reading.records if self._is_new(record)]

    def _not_new(self, reading: ReadResult) -> list[Record]:
        return [record for record in reading.records if not self._is_new(record)]

    # -- rows with equal values ------------------------------------------------------------------------------------------------------

    def _match(self, recognition: Recognition, sent: Sent, records: Sequence[Record]) -> RecordMatch:
        return match(
            sent.creates, records, recognition, known(self._journal, sent.creates, lambda keys: self._others(keys, sent, recognition))
        )

    def _others(self, keys: Collection[str], sent: Sent, recognition: Recognition) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Return form and ordinal of the matching rows outside the batch, by key."""
        if not keys:
            return {}
        at = (sent.number, recognition.slugs)
        if at not in self._twins:
            row_keys = set(recognition.keys(sent.creates).values())
            twins: dict[str, list[tuple[str, int]]] = {}
            for entry in self._rows_elsewhere(sent):
                if (key := recognition.key(entry.data)) is not None and key in row_keys:
                    twins.setdefault(key, []).append((recognition.form(entry.data), entry.ordinal))
            self._twins[at] = twins
        return {key: self._twins[at].get(key, ()) for key in keys}

    def _rows_elsewhere(self, sent: Sent) -> Iterator[Entry]:
        mine = set(sent.batch.ordinals)
        return (entry for entry in self._again() if entry.id is None and entry.ordinal not in mine)


def _in_order(records: Sequence[Record]) -> bool:
    """Whether the records come newest first, and not all at one moment."""
    return _is_sorted(records) and len({record.created_at for record in records}) > 1


def _is_sorted(records: Sequence[Record]) -> bool:
    moments = [moment_of(record) for record in records]
    return None not in moments and moments == sorted(filter(None, moments), reverse=True)
