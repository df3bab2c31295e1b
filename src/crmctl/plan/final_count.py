"""Compare the records that exist at the end of a job with the rows it wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from crmctl.clock import Backoff
from crmctl.errors import CrmctlError, PartialError
from crmctl.files.validation import Batch, Entry
from crmctl.match.agreement import pair_altered
from crmctl.match.record_match import Recognition, by_content, pair_forms
from crmctl.models import jsontext
from crmctl.models.resources import Record
from crmctl.plan.audit import walk_new
from crmctl.read.read_back import Reader, Unusable
from crmctl.write.database import RowState
from crmctl.write.evidence import Evidence, FinalCount
from crmctl.write.in_flight import SendContext, further_records
from crmctl.write.journal import Journal
from crmctl.write.methods import CONTROL_SECONDS

CHUNK_ROWS = 500
LOOKS = Backoff(longest=8.0, jitter=0.0)
LONG_READ = 20
"""Number of pages above which crmctl tells the user that it reads all new records."""

MOST_ALTERED = 20_000
"""The maximum number of rows or records to compare when the service may have altered values."""

MOST_ROWS = 200_000
"""The largest job whose rows are matched individually; more rows would not fit into memory."""

WALKS = 2

NOTED_LOOKS = 3
LATE_FACTOR = 3

UNVERIFIED = "unverified"
"""Journal fact: whether the comparison of written rows with existing records is still to be done."""

TAIL = 500
"""The number of last rows to compare with the newest page first."""

UNLISTED = "the service's lists do not show what was created last"

VANISHED = "the service accepted the row, and does not list it"


@dataclass(frozen=True)
class Conclusion:
    """The outcome of a comparison.

    `error` reports an unexplained difference. `sends_again` means that whole batches had no effect; their rows can be settled like other
    rows in doubt.
    """

    error: CrmctlError | None = None
    note: str | None = None
    sends_again: bool = False


def conclude_job(context: SendContext, reader: Reader, evidence: Evidence, since: Callable[[int], Iterable[Entry]]) -> Conclusion:
    """Compare the counts. If they differ, wait for lagging lists, then match each row with the new records."""
    journal = context.journal
    if not evidence.can_count or not (journal.records_made() or journal.counts()[RowState.FAILED]):
        return Conclusion()
    if journal.recall(UNVERIFIED):
        journal.remember(UNVERIFIED, False)
    try:
        count = _wait_for_lists(context, evidence)
        if count.adds_up and _explains(journal, evidence, count, since):
            return Conclusion()
        if journal.records_made() > MOST_ROWS:
            return _leave_open(journal, count)
        ledger = _Ledger(journal, evidence.methods[-1].altered)
        ledger.add(since(1))
        if count.left is None and not journal.was_repeated():
            records, is_whole = count.records, count.is_whole
        else:
            records, is_whole = _read_all(context, reader), True
        ledger.see(sorted(records, key=lambda record: (record.created_at or "", record.id)))
        if not ledger.found and journal.records_made():
            return _leave_open(journal, count)
        among = ledger.rows.keys() if is_whole else {entry.ordinal for entry in evidence.last_confirmed}
        ended = _write_down(journal, ledger, among)
        return replace(ended, note=ended.note or (count.why if ledger.surplus or evidence.was_doubted else None))
    except (CrmctlError, Unusable) as error:
        return Conclusion(note=f"the records could not be compared with what was written: {error}" if evidence.was_doubted else None)


def _read_all(context: SendContext, reader: Reader) -> list[Record]:
    """Read all new records twice, because an outdated list sometimes omits records."""
    pages = context.journal.records_made() // 99 + 1
    if pages > LONG_READ:
        context.progress.note(f"the number of records does not fit what was written: reading about {pages:,} pages to find out why")
    return list({record.id: record for _ in range(WALKS) for record in walk_new(context.journal, reader)}.values())


def _leave_open(journal: Journal, count: FinalCount) -> Conclusion:
    """Leave the comparison to a later run: the lists show no record of the job, or it has too many rows to match."""
    journal.remember(UNVERIFIED, True)
    return Conclusion(PartialError(count.why or UNLISTED, code="unverified"))


def _explains(journal: Journal, evidence: Evidence, count: FinalCount, since: Callable[[int], Iterable[Entry]]) -> bool:
    """Whether every new record on the newest page matches a row. If so, no foreign record hides a missing row in the count."""
    for first in sorted({max(1, sum(journal.counts().values()) - TAIL), 1}, reverse=True):
        ledger = _Ledger(journal, evidence.methods[-1].altered)
        ledger.add(since(first))
        ledger.see(count.records)
        if not ledger.unexplained and not ledger.surplus:
            return True
    return False


def _wait_for_lists(context: SendContext, evidence: Evidence) -> FinalCount:
    clock = context.clock
    started, looks = clock.now(), 0
    count = evidence.final_count()
    # A node whose clock lags can omit the last batch from the newest page. In that case the total decides.
    while not (count.fits or count.is_conclusive or (count.adds_up and looks == NOTED_LOOKS)):
        if clock.now() >= started + CONTROL_SECONDS or context.interrupt.requested:
            return count
        looks += 1
        if looks == NOTED_LOOKS:
            context.progress.note(f"waiting up to {CONTROL_SECONDS:.0f} s for the service's lists to show what was created")
        clock.sleep(LOOKS.gap(looks))
        count = evidence.final_count()
    if looks and context.journal.was_repeated():
        # The lists lag and rows sent twice may exist twice. The second copies appear last.
        clock.sleep(LATE_FACTOR * (clock.now() - started))
        count = evidence.final_count()
    return count


class _Ledger:
    """Matches rows of the job with new records by content. Rows in doubt may match a record but never count as missing."""

    def __init__(self, journal: Journal, altered: frozenset[str]) -> None:
        self._journal = journal
        self._altered = altered
        self.rows: dict[int, Entry] = {}
        self.states: dict[int, RowState] = {}
        self.found: dict[int, Record] = {}
        self.surplus: dict[int, list[str]] = defaultdict(list)
        self.unexplained: list[Record] = []
        self._names: dict[str, int] = {}
        self._by_key: dict[frozenset[str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))

    def add(self, entries: Iterable[Entry]) -> None:
        rows = iter(entries)
        while chunk := list(islice(rows, CHUNK_ROWS)):
            known = self._journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
            for entry in chunk:
                row = known.get(entry.ordinal)
                if entry.id is not None or row is None or row.state not in (RowState.CREATED, RowState.FAILED, RowState.IN_DOUBT):
                    continue
                self.rows[entry.ordinal], self.states[entry.ordinal] = entry, row.state
                if row.record_id is not None:
                    self._names[row.record_id] = entry.ordinal
                every = by_content([entry]).slugs
                content = Recognition(every - self._altered or every, unique=False)
                self._by_key[content.slugs][content.key(entry.data) or ""].append(entry.ordinal)

    def see(self, records: Iterable[Record]) -> None:
        """Match each record with a row: by known id, then by equal content, then by altered content."""
        further = further_records(self._journal)
        rest = []
        for record in records:
            if record.id in self._names:
                self.found[self._names[record.id]] = record
            elif record.id not in further:
                rest.append(record)
        for slugs in sorted(self._by_key, key=len, reverse=True):
            rest = self._match(slugs, rest)
        self._pair_altered(self._find_surplus(rest))

    def _match(self, slugs: frozenset[str], records: Sequence[Record]) -> list[Record]:
        content, rows, alike = Recognition(slugs, unique=False), self._by_key[slugs], defaultdict[str, list[Record]](list)
        rest = []
        for record in records:
            key = content.key(record.data) or ""
            if key in rows:
                alike[key].append(record)
            else:
                rest.append(record)
        for key, group in alike.items():
            by_id = {record.id: record for record in group}
            # Created rows claim records before refused rows do.
            for created in (True, False):
                open_rows = [row for row in rows[key] if row not in self.found and (self.states[row] is RowState.CREATED) is created]
                every = Recognition(frozenset(slug for row in open_rows for slug in self.rows[row].data), unique=False)
                forms = {row: every.form(self.rows[row].data) for row in open_rows}
                pairs = pair_forms(forms, {record_id: every.form(record.data) for record_id, record in by_id.items()})
                self.found.update({row: by_id.pop(record_id) for row, record_id in pairs.items()})
            rest += by_id.values()
        return rest

    def _find_surplus(self, records: Iterable[Record]) -> list[Record]:
        """Collect duplicates, which hold the same content as a matched record. Return the other records."""
        held = {_content(record): row for row, record in self.found.items()}
        rest = []
        for record in records:
            row = held.get(_content(record))
            if row is not None and self.states[row] is RowState.CREATED:
                self.surplus[row].append(record.id)
            else:
                rest.append(record)
        return rest

    def _pair_altered(self, records: Sequence[Record]) -> None:
        self.unexplained = [*records]
        missing = [entry for row, entry in self.rows.items() if row not in self.found and self.states[row] is RowState.CREATED]
        if not missing or not records or max(len(missing), len(records)) > MOST_ALTERED:
            return
        by_id = {record.id: record for record in records}
        agreed = pair_altered(missing, records, missing, ())
        self.found.update({row: by_id.pop(record_id) for row, record_id in agreed.found.items()})
        for row, ids in agreed.extra.items():
            self.surplus[row] += ids
            for record_id in ids:
                by_id.pop(record_id)
        self.unexplained = self._find_surplus(by_id.values())


def _content(record: Record) -> str:
    return jsontext.dumps({slug: record.data[slug] for slug in sorted(record.data)})


def _write_down(journal: Journal, ledger: _Ledger, among: Collection[int]) -> Conclusion:
    """Correct the journal: record duplicates, accept refused rows that exist, and question missing rows in `among`."""
    for row, record in ledger.found.items():
        if ledger.states[row] is RowState.FAILED and journal.was_repeated():
            journal.accept(row, record.id)
    if ledger.surplus:
        journal.name_rows({row: ledger.found[row].id for row in ledger.surplus if row in ledger.found})
        journal.record_duplicates({row: sorted(set(ids)) for row, ids in ledger.surplus.items()})
    missing = [row for row in sorted(among) if row not in ledger.found and ledger.states.get(row) is RowState.CREATED]
    return _question(journal, [ledger.rows[row] for row in missing])


def _question(journal: Journal, missing: Sequence[Entry]) -> Conclusion:
    """Put acknowledged rows without a record in doubt. Only the rows of whole missing batches may be sent again."""
    if not missing:
        return Conclusion()
    batches: dict[int, list[Entry]] = defaultdict(list)
    for entry in missing:
        batches[journal.batch_of(entry.ordinal)].append(entry)
    is_whole = all(len(entries) == journal.created_in(number) for number, entries in batches.items())
    journal.question({number: Batch(tuple(entries)) for number, entries in batches.items()}, VANISHED)
    return Conclusion(note=f"{len(missing):,} rows: {VANISHED}", sends_again=is_whole)
