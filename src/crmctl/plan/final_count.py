"""Compare the records that exist at the end of a job with the rows it wrote."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

from crmctl.clock import Backoff
from crmctl.errors import CrmctlError, PartialError, ServiceError
from crmctl.files.spills import open_spill
from crmctl.files.validation import Batch, Entry
from crmctl.frozen import frozen
from crmctl.match.agreement import pair_altered
from crmctl.match.record_match import (
    Recognition,
    holds_most,
    is_untouched,
    may_be_row,
    pair_but_for_blanks,
    pair_equal,
    pair_forms,
    possible_rows,
    spellings,
)
from crmctl.models import jsontext
from crmctl.models.resources import Record
from crmctl.read.read_back import LONG_READ, Reader
from crmctl.values.equality import canonical
from crmctl.write.database import MAY_BE_THERE, BatchState, RowState
from crmctl.write.evidence import Evidence, FinalCount, Sent
from crmctl.write.journal import DUPLICATE, Journal, RowEntry, SentBatch, add_rivals, created_in, entries_of, records_made
from crmctl.write.methods import CONTROL_SECONDS, recognitions
from crmctl.write.reconcile import LONG_WAIT
from crmctl.write.send_context import SendContext, further_records, samples

LOOKS = Backoff(longest=8.0, jitter=0.0)
MOST_ALTERED = 20_000
"""The maximum number of rows or records to compare when the service may have altered values."""

MOST_DIFFERING = 200_000
"""The maximum number of differing rows or records to match in memory."""

WALKS = 4
MOST_COMPARED = 1000
"""The maximum number of records to compare although their number fits."""

NOTED_LOOKS = 3
LATE_FACTOR = 3
UNKNOWN_LAG = 10.0
"""Assumed delay in seconds of lists after a repeated request: if the lists were late, if there are more records than rows, or if all its
rows were refused."""

UNVERIFIED = "unverified"
"""Journal fact: whether crmctl still has to compare the rows it sent with the records that exist."""

TAIL = 500
"""The number of last rows to compare with the newest page first."""

UNLISTED = "the service's lists do not show what was created last"
VANISHED = "the service accepted the row, and does not list it"


@frozen
class RunResult:
    """The end of a run, or of its comparison. `sends_again`: whole batches had no effect, and their rows can be sent again."""

    error: CrmctlError | None = None
    notes: tuple[str, ...] = ()
    sends_again: bool = False


def conclude_job(context: SendContext, reader: Reader, evidence: Evidence, since: Callable[[int], Iterable[Entry]]) -> RunResult:
    """Compare the counts. If they differ, wait for lagging lists, then match each row with the new records."""
    ended = _compare(context, reader, evidence, since)
    context.journal.remember(UNVERIFIED, ended.error is not None)
    return ended


def _compare(context: SendContext, reader: Reader, evidence: Evidence, since: Callable[[int], Iterable[Entry]]) -> RunResult:
    journal = context.journal
    if not evidence.can_count or not (records_made(journal) or journal.counts()[RowState.FAILED]):
        return RunResult()
    try:
        count = _wait_for_lists(context, evidence)
        fits = count.left == count.in_doubt == 0 and _explains(journal, evidence, count, since)
        if fits and (count.is_whole or not _may_hide_copies(journal, evidence, since)):
            return RunResult()
        is_whole = count.is_whole or count.left is not None or any(map(_is_repeated, journal.batches()))
        among = None if is_whole else {entry.ordinal for entry in evidence.last_confirmed}
        with closing(_Comparison(journal, evidence.methods[-1].altered)) as comparison:
            comparison.add_rows(since(1))
            if count.is_whole or not is_whole:
                comparison.add_records(count.records)
            else:
                try:
                    _read_all(context, reader, count, comparison)
                except CrmctlError as error:
                    if count.why is None:
                        raise
                    return RunResult(PartialError(f"{count.why}; they could not be compared: {error}", code="unverified"))
            ledger, unverified = comparison.ledger(since, among), PartialError(count.why or UNLISTED, code="unverified")
            if ledger is None:
                return RunResult(unverified)  # a later run compares again
            add_rivals(journal, comparison.rivals(ledger))
        ended = _write_down(journal, ledger, among)
        if not ledger.shows_job:
            return RunResult(unverified, ended.notes)  # the lists may be old: a later run compares again, and sends nothing before
        is_told = bool(ledger.surplus) or evidence.was_doubted or (count.left is None and journal.header.keys)
        return replace(ended, notes=(count.why,)) if count.why is not None and is_told and not ended.notes else ended
    except CrmctlError as error:
        return RunResult(notes=(f"the records could not be compared with what was written: {error}",))


def _read_all(context: SendContext, reader: Reader, count: FinalCount, comparison: _Comparison) -> None:
    """Read all new records until they are as many as counted. Lists that omit records are read several times."""
    journal = context.journal
    pages = records_made(journal) // 99 + 1
    if pages > LONG_READ:
        context.progress.note(f"the number of records does not fit what was written: reading about {pages:,} pages to find out why")
    from crmctl.plan.audit import walk_new

    for walk in range(WALKS):
        try:
            read = comparison.add_records(walk_new(journal, reader))
        except ServiceError:
            if walk == WALKS - 1:
                raise
            context.clock.sleep(UNKNOWN_LAG)
            continue
        if count.left is not None and read >= count.left + records_made(journal):
            return


def _explains(journal: Journal, evidence: Evidence, count: FinalCount, since: Callable[[int], Iterable[Entry]]) -> bool:
    """Whether every new record on the newest page matches a row. If so, no foreign record hides a missing row in the count."""
    refused = refused_later(journal)
    for first in sorted({max(1, sum(journal.counts().values()) - TAIL), 1}, reverse=True):
        ledger = _Ledger(journal, evidence.methods[-1].altered)
        ledger.add(open_rows(journal, since(first), refused))
        ledger.see(count.records)
        if not ledger.unexplained and not ledger.surplus:
            return all(ledger.states[row] is not RowState.FAILED for row in ledger.found)
    return False


def _may_hide_copies(journal: Journal, evidence: Evidence, since: Callable[[int], Iterable[Entry]]) -> bool:
    """Whether a batch that was refused for now may be there twice, while another one had no effect: then the count fits all the same.

    In a short job such a batch is enough. In a longer one, look for copies of three of these batches.
    """
    refused = [batch for batch in journal.batches() if batch.attempt > 1 or batch.state is BatchState.PLANNED]
    if records_made(journal) <= MOST_COMPARED:
        return bool(refused)
    for batch in samples(refused):
        rows = takewhile(lambda entry, last=batch.last: entry.ordinal <= last, since(batch.first))  # type: ignore[misc]
        if evidence.has_copies(Sent(Batch(tuple(rows)), batch.number, batch.sent_at, batch.sent_at)):
            return True
    return False


def _wait_for_lists(context: SendContext, evidence: Evidence) -> FinalCount:
    clock, journal = context.clock, context.journal
    started, looks = clock.now(), 0
    patience = min(CONTROL_SECONDS, context.service.session.max_wait)
    count = evidence.final_count()
    # A node whose clock lags can omit the last batch from the newest page. In that case the total decides.
    while not (count.fits or count.is_conclusive or (count.left == count.in_doubt == 0 and looks == NOTED_LOOKS)):
        if clock.now() >= started + patience or context.interrupt.requested:
            return count
        looks += 1
        if looks == NOTED_LOOKS:
            context.progress.note(f"waiting up to {patience:.0f} s for the service's lists to show what was created")
        clock.sleep(min(LOOKS.gap(looks), max(0.05, started + patience - clock.now())))
        earlier, count = count, evidence.final_count()
        if _shows_more(count, earlier):
            evidence.note_lag(clock.now() - started)
    batches = journal.batches()
    is_repeated = any(map(_is_repeated, batches))
    # A delay measured after a repeated request may be that of its first attempt, which is shorter.
    is_suspicious = is_repeated and (count.is_conclusive or evidence.lag > 0 or any(map(_was_refused, batches)))
    lag = min(max(evidence.lag, UNKNOWN_LAG if is_suspicious else 0.0), patience)
    seconds_left = max((batch.sent_at for batch in batches), default=0.0) + LATE_FACTOR * lag - clock.now()
    if lag and seconds_left > 0:
        # Rows sent twice, by crmctl or a proxy, may exist twice or be refused. The records of the last request appear last.
        if seconds_left >= LONG_WAIT:
            context.progress.note(f"waiting {seconds_left:.0f} s for second copies of rows to show up in the service's lists")
        clock.sleep(seconds_left)
        later = evidence.final_count()
        return later if later.is_current or not count.is_current else count
    return count


def _shows_more(count: FinalCount, earlier: FinalCount) -> bool:
    """Whether the lists have caught up since an earlier count: they show the last batch, or more of the records they lacked."""
    was_short = earlier.left is not None and count.left is not None and earlier.left < min(count.left, 0)
    return was_short or (count.is_current and not earlier.is_current)


_TABLES = """
CREATE TABLE sent (ordinal INTEGER PRIMARY KEY, key BLOB NOT NULL, form BLOB NOT NULL, is_created INTEGER NOT NULL, name TEXT);
CREATE INDEX sent_key ON sent (key);
CREATE TABLE seen (id TEXT PRIMARY KEY, key BLOB, form BLOB, body TEXT NOT NULL, name TEXT);
CREATE INDEX seen_key ON seen (key);
"""
"""Rows that may have a record, and new records, with hashes of their values: in one spelling, and as written. `name`: the key of the
import."""

_UNEVEN = """
SELECT key FROM sent WHERE NOT is_created UNION
SELECT key FROM sent GROUP BY key HAVING COUNT(*) > 1 UNION
SELECT key FROM (SELECT key, form, 1 AS n FROM sent UNION ALL SELECT key, form, -1 FROM seen WHERE key IS NOT NULL)
GROUP BY key, form HAVING SUM(n) <> 0
"""
"""Keys to compare one by one. Rows that share a key show what the service keeps of their differences."""

_NAMES = """
CREATE TABLE names AS SELECT name, ordinal, NULL AS id FROM sent WHERE is_created UNION ALL
SELECT seen.name, ordinal, id FROM sent JOIN seen USING (key, form) WHERE is_created AND key NOT IN (SELECT key FROM uneven);
CREATE INDEX names_name ON names (name);
"""
"""The keys of created rows, as sent and as stored."""


REPEATED = frozenset({BatchState.PLANNED, BatchState.BISECT, BatchState.RECONCILED, BatchState.UNKNOWN})
"""States of batches whose rows may have been sent more than once."""


def _is_repeated(batch: SentBatch) -> bool:
    return batch.attempt > 1 or batch.state in REPEATED


def _is_whole_refusal(batch: SentBatch) -> bool:
    """Whether the service refused all rows of a batch one by one, as it does when it already has them."""
    return batch.size > 1 and batch.created + batch.updated == 0


def _was_refused(batch: SentBatch) -> bool:
    """Whether all rows of a batch were refused, or an earlier run ended after the refusal of the batch."""
    return batch.state is BatchState.PLANNED or (batch.state is BatchState.CONFIRMED and _is_whole_refusal(batch))


def refused_later(journal: Journal) -> set[int]:
    """Return the refused rows that another request may have created: an earlier attempt, or the first of two sent by a proxy."""
    batches = (batch for batch in journal.batches() if _is_repeated(batch) or _is_whole_refusal(batch))
    rows = (row for batch in batches for row in journal.rows(batch.first, batch.last).items())
    return {ordinal for ordinal, entry in rows if entry.state is RowState.FAILED}


class _Comparison:
    """Rows of the job and new records, on disk. Only those that differ are compared one by one, in memory."""

    def __init__(self, journal: Journal, altered: frozenset[str]) -> None:
        self._journal = journal
        self._altered = altered
        self._refused = refused_later(journal)
        self._slugs: set[frozenset[str]] = set()
        self._name = next((own.key for own in recognitions(journal.header) if own.key_types), lambda _: None)
        self._db = open_spill(_TABLES)

    def close(self) -> None:
        self._db.close()

    def add_rows(self, entries: Iterable[Entry]) -> None:
        for entry, row in self._open_rows(entries):
            slugs = _filled(entry, self._altered)
            self._slugs.add(slugs)
            values = (entry.ordinal, *_hashes(slugs, entry.data), row.state is RowState.CREATED, self._name(entry.data))
            self._db.execute("INSERT INTO sent VALUES (?, ?, ?, ?, ?)", values)

    def add_records(self, records: Iterable[Record]) -> int:
        widest = sorted(self._slugs, key=len, reverse=True)
        for record in records:
            hashes = (_hashes(slugs, record.data) for slugs in widest)
            is_sent = "SELECT EXISTS (SELECT 1 FROM sent WHERE key = ?)"
            own = next((pair for pair in hashes if self._db.execute(is_sent, pair[:1]).fetchone()[0]), (None, None))
            body = jsontext.dumps(record.wire)
            self._db.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?, ?, ?)", (record.id, *own, body, self._name(record.data)))
        return int(self._db.execute("SELECT COUNT(*) FROM seen").fetchone()[0])

    def ledger(self, since: Callable[[int], Iterable[Entry]], among: Collection[int] | None) -> _Ledger | None:
        """Match the rows and records that remain after those that agree in number and values.

        Without all records, only rows that have one, or are in `among`. None if there are too many of them.
        """
        self._db.execute(f"CREATE TABLE uneven AS {_UNEVEN}")
        if self._journal.header.keys:
            self._db.executescript(_NAMES)
        any_even = False
        for table in ("sent", "seen"):
            deleted = self._db.execute(f"DELETE FROM {table} WHERE key IS NOT NULL AND key NOT IN (SELECT key FROM uneven)")
            any_even = any_even or deleted.rowcount > 0
        if among is not None:
            listed = jsontext.dumps(sorted(among))
            unseen = "key NOT IN (SELECT key FROM seen WHERE key IS NOT NULL)"
            self._db.execute(f"DELETE FROM sent WHERE {unseen} AND ordinal NOT IN (SELECT value FROM json_each(?))", (listed,))
        rows = {ordinal for (ordinal,) in self._db.execute("SELECT ordinal FROM sent")}
        if max(len(rows), self._db.execute("SELECT COUNT(*) FROM seen").fetchone()[0]) > MOST_DIFFERING:
            return None
        ledger = _Ledger(self._journal, self._altered)
        ledger.add(self._open_rows(entry for entry in since(min(rows)) if entry.ordinal in rows) if rows else ())
        records = [Record.parse(jsontext.loads(body)) for (body,) in self._db.execute("SELECT body FROM seen")]
        ledger.see(sorted(records, key=lambda record: (record.created_at or "", record.id)))
        ledger.shows_job = any_even or bool(ledger.found) or not records_made(self._journal)
        return ledger

    def rivals(self, ledger: _Ledger) -> Iterator[tuple[int, str, str]]:
        """Yield rows whose key another client's record may have too, as sent or as stored: row, id and key of each record."""
        if not self._journal.header.keys:
            return
        for row, ids in ledger.surplus.items():
            record, name = ledger.found.get(row), self._name(ledger.rows[row].data)
            every = ids if record is None else [record.id, *ids]
            yield from ((row, record_id, _spelled(name)) for record_id in every)
        own = [(self._name(record.data), row, record.id) for row, record in ledger.found.items() if record is not None]
        self._db.executemany("INSERT INTO names VALUES (?, ?, ?)", own)
        for record in ledger.unexplained:
            name = self._name(record.data)
            for row, record_id in self._db.execute("SELECT ordinal, id FROM names WHERE name = ?", (name,)).fetchall():
                yield from ((row, rival_id, _spelled(name)) for rival_id in (record.id, record_id) if rival_id is not None)

    def _open_rows(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, RowEntry]]:
        return open_rows(self._journal, entries, self._refused)


def _spelled(name: str | None) -> str:
    return ", ".join(jsontext.loads(name or "[]"))


def _filled(entry: Entry, altered: frozenset[str]) -> frozenset[str]:
    """Return the attributes that tell whose row a record is: those with a value, without `altered` ones if there are others."""
    filled = frozenset(slug for slug, value in entry.data.items() if canonical(value) is not None)
    return filled - altered or filled


def _hashes(slugs: frozenset[str], data: Mapping[str, Any]) -> tuple[bytes, bytes]:
    content = Recognition(slugs, unique=False)
    key, form = (
        hashlib.blake2b(f"{sorted(slugs)}{text}".encode(), digest_size=16).digest() for text in (content.key(data), content.form(data))
    )
    return key, form


def open_rows(journal: Journal, entries: Iterable[Entry], refused: Collection[int]) -> Iterator[tuple[Entry, RowEntry]]:
    """Yield the rows without an id that are created, in doubt, or among the `refused`, with their entries in the journal."""
    for entry, row in entries_of(journal, entries):
        if entry.id is None and row is not None and (row.state in MAY_BE_THERE or entry.ordinal in refused):
            yield entry, row


_WAYS = ((pair_equal, "all"), (pair_but_for_blanks, "all"), (pair_equal, "kept"), (pair_equal, "origin"))
PAIRINGS = (*((pair, created, compared_slugs) for pair, compared_slugs in _WAYS for created in (True, False)), (pair_forms, True, "all"))
"""Ways to pair rows with records, the surest first: a function, whether it pairs created rows, and the attributes it compares.

`all`: those that tell rows apart; `kept`: those of them whose differences the service keeps; `origin`: as `kept`, but a record counts as
the only row whose values the service can have changed into its own."""


class _Copy(NamedTuple):
    """A record that equals row `owner` in the attributes that tell it from its `twins`.

    `kept`: those in which the service keeps the difference between twins; nothing shows this for the `others`.
    """

    record: Record
    owner: int
    twins: Sequence[int]
    kept: Recognition
    others: frozenset[str]


class _Ledger:
    """Matches rows of the job with new records by content. Rows in doubt may match a record but never count as missing."""

    def __init__(self, journal: Journal, altered: frozenset[str]) -> None:
        self._journal = journal
        self._altered = altered
        self._further: dict[str, int] = journal.kept(DUPLICATE)
        self.shows_job = True
        """Whether some created row has a record, if there are any."""
        self.rows: dict[int, Entry] = {}
        self.states: dict[int, RowState] = {}
        self.found: dict[int, Record | None] = {}
        self.surplus: dict[int, list[str]] = defaultdict(list)
        self.unexplained: list[Record] = []
        self._copies: list[_Copy] = []
        self.names: dict[str, int] = {}  # the rows with a known record, by its id
        self._by_key: dict[frozenset[str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))

    def add(self, rows: Iterable[tuple[Entry, RowEntry]]) -> None:
        for entry, row in rows:
            self.rows[entry.ordinal], self.states[entry.ordinal] = entry, row.state
            if row.record_id is not None:
                self.names[row.record_id] = entry.ordinal
            content = Recognition(_filled(entry, self._altered), unique=False)
            self._by_key[content.slugs][content.key(entry.data) or ""].append(entry.ordinal)

    def see(self, records: Sequence[Record]) -> None:
        """Match each record with a row: by known id, then by equal content, then by altered content."""
        known_ids = {*self.names, *self._further}
        self.found.update({self.names[record.id]: record for record in records if record.id in self.names})
        rest = [record for record in records if record.id not in known_ids]
        for slugs in sorted(self._by_key, key=len, reverse=True):
            rest = self._match(slugs, rest)
        self.unexplained = self._find_surplus(rest)
        # Created rows claim records before other rows do.
        self._pair_altered(created=True)
        self._match_keys()
        self._share_copies()
        self._pair_altered(created=False)
        self._move_surplus(record for record in records if record.id in self._further)

    def _match_keys(self) -> None:
        """Match rows with records that a person changed since: they still have the key or unique value of the row.

        A refused row may have been created by an earlier request. Then its record also holds most of its values.
        """
        for recognition in recognitions(self._journal.header):
            by_key: dict[str, list[Record]] = defaultdict(list)
            for record in self.unexplained:
                if is_untouched(record):
                    continue  # another client may have created it
                by_key[recognition.key(record.data) or ""].append(record)
            for ordinal, entry in self.rows.items():
                records = by_key.get(recognition.key(entry.data) or "", [])
                if ordinal in self.found or not records or not recognition.key(entry.data):
                    continue
                is_refused = self.states[ordinal] is RowState.FAILED and holds_most(records[0], entry)
                if is_refused or self.states[ordinal] is RowState.CREATED:
                    self.found[ordinal] = records.pop(0)
        taken = {record.id for record in self.found.values() if record is not None}
        self.unexplained = [record for record in self.unexplained if record.id not in taken]

    def _match(self, slugs: frozenset[str], records: Sequence[Record]) -> list[Record]:
        content, rows = Recognition(slugs, unique=False, spelled=self._altered), self._by_key[slugs]
        alike, rest = defaultdict[str, list[Record]](list), []
        for record in records:
            key = content.key(record.data) or ""
            if any(may_be_row(record, self.rows[row].data, content) for row in rows.get(key, ())):
                alike[key].append(record)
            else:
                rest.append(record)
        named = {key: self._forget_names(rows[key], group, content) for key, group in alike.items()}
        telling = {key: self._telling(rows[key], group) for key, group in alike.items()}
        kept = {slug for key, group in alike.items() for slug in telling[key].slugs if _differs(slug, group)}
        for key, group in alike.items():
            every = Recognition(frozenset(slug for row in rows[key] for slug in self.rows[row].data), unique=False)
            exact = {every.form(self.rows[row].data) for row in rows[key]}
            by_id = {record.id: record for record in sorted(group, key=lambda record: every.form(record.data) not in exact)}
            for pair, created, compared_slugs in PAIRINGS:
                compared = telling[key] if compared_slugs == "all" else replace(telling[key], slugs=telling[key].slugs & kept)
                if compared_slugs != "all" and not compared.slugs:
                    continue
                forms_there = {record_id: compared.form(record.data) for record_id, record in by_id.items()}
                if compared_slugs == "origin":
                    origins = spellings((compared.form(self.rows[row].data) for row in rows[key]), forms_there.values())
                    forms_there = {record_id: origins.get(form, form) for record_id, form in forms_there.items()}
                open_rows = [row for row in rows[key] if row not in self.found and (self.states[row] is RowState.CREATED) is created]
                forms = {row: compared.form(self.rows[row].data) for row in open_rows}
                pairs = pair(forms, forms_there)
                by_row = {row: by_id.pop(record_id) for row, record_id in pairs.items()}
                if created or compared_slugs != "origin":  # such a record may be that of a row in doubt, and of no other
                    self.found.update(by_row)
                if created and pair is not pair_forms:
                    rows_by_content = {_content(record): row for row, record in by_row.items()}
                    twins = rows[key], replace(compared, slugs=compared.slugs & kept), compared.slugs - kept
                    for record in [record for record in by_id.values() if _content(record) in rows_by_content]:
                        self._copies.append(_Copy(by_id.pop(record.id), rows_by_content[_content(record)], *twins))
            for row, record in named[key].items():
                if row not in self.found and record.id in by_id:
                    self.found[row] = by_id.pop(record.id)
            rest += by_id.values()
        return rest

    def _forget_names(self, rows: Sequence[int], records: list[Record], content: Recognition) -> dict[int, Record]:
        """Add the known records of rows to others with the same key, and return them. Late lists may have shown copies of one row only."""
        key = content.key(self.rows[rows[0]].data)
        named = {row: record for row in rows if (record := self.found.get(row)) is not None and content.key(record.data) == key}
        for row in named:
            del self.found[row]
        records[:] = sorted([*named.values(), *records], key=lambda record: (record.created_at or "", record.id))
        return named

    def _telling(self, rows: Sequence[int], records: Iterable[Record]) -> Recognition:
        """Return the attributes that distinguish these rows: the rows differ in them, and some record has a value."""
        kept = {slug for record in records for slug, value in record.data.items() if value is not None}
        sent = [self.rows[row].data for row in rows]
        forms = {slug: {Recognition(frozenset({slug}), unique=False).form(data) for data in sent} for data in sent for slug in data}
        return Recognition(frozenset(slug for slug, values in forms.items() if len(values) > 1 and slug in kept), unique=False)

    def _share_copies(self) -> None:
        """Decide on records that equal a found row, but may be an altered twin of it: only if the service alters what tells them apart."""
        altered = {
            slug
            for ordinal, record in self.found.items()
            for slug, value in self.rows[ordinal].data.items()
            if record is not None and record.data.get(slug) is not None
            if (own := Recognition(frozenset({slug}), unique=False)).form({slug: value}) != own.form(record.data)
        }
        for record, owner, twins, kept, others in self._copies:
            fitting = possible_rows(kept, {row: self.rows[row].data for row in twins}, record.data)
            missing = [row for row in fitting if row not in self.found and self.states[row] is RowState.CREATED]
            if missing and altered & others:
                self.found[missing[0]] = record
            else:
                self.surplus[owner].append(record.id)

    def _find_surplus(self, records: Iterable[Record]) -> list[Record]:
        """Collect duplicates, which hold the same content as a matched record. Return the other records."""
        rows_by_content = {_content(record): row for row, record in self.found.items() if record is not None}
        rest = []
        for record in records:
            row = rows_by_content.get(_content(record))
            if row is not None and self.states[row] is RowState.CREATED:
                self.surplus[row].append(record.id)
            else:
                rest.append(record)
        return rest

    def _move_surplus(self, records: Iterable[Record]) -> None:
        """Give surplus records to the rows whose records they equal: they were taken for a twin's if the row had not been sent then."""
        rows_by_content = {_content(record): row for row, record in self.found.items() if record is not None}
        for record in records:
            own, content = self.found.get(self._further[record.id]), _content(record)
            if own is not None and _content(own) != content and content in rows_by_content:
                self.surplus[rows_by_content[content]].append(record.id)

    def _pair_altered(self, *, created: bool) -> None:
        records = self.unexplained
        open_rows = [row for row in self.rows if row not in self.found]
        missing = [self.rows[row] for row in open_rows if (self.states[row] is RowState.CREATED) is created]
        others = [self.rows[row] for row in open_rows if (self.states[row] is RowState.CREATED) is not created]
        if not missing or not records or max(len(missing), len(records)) > MOST_ALTERED:
            return
        by_id = {record.id: record for record in records}
        agreed = pair_altered(missing, records, [*self.rows.values()], others)
        self.found.update({row: by_id[record_id] if record_id else None for row, record_id in agreed.found.items()})
        for row, ids in agreed.extra.items():
            self.surplus[row] += ids
        taken = agreed.ids.union(*agreed.extra.values())
        self.unexplained = self._find_surplus(record for record in records if record.id not in taken)


def _differs(slug: str, records: Iterable[Record]) -> bool:
    """Whether these records with the key of one row differ in an attribute, so that the service keeps its differences."""
    value = Recognition(frozenset({slug}), unique=False)
    return len({value.form(record.data) for record in records}) > 1


def _content(record: Record) -> str:
    return jsontext.dumps({slug: record.data[slug] for slug in sorted(record.data)})


def _write_down(journal: Journal, ledger: _Ledger, among: Collection[int] | None) -> RunResult:
    """Correct the journal: record duplicates, accept refused and doubtful rows that exist, and question missing rows in `among`."""
    names = {row: record.id if record is not None else None for row, record in ledger.found.items()}
    for row, record_id in names.items():
        if ledger.states[row] is RowState.FAILED:
            journal.overrule(row, RowEntry(RowState.CREATED, record_id))
        elif ledger.states[row] is RowState.IN_DOUBT:
            journal.resolve(journal.batches_of(row, row)[row], {row: record_id}, ())
    known_ids = {row: record_id for record_id, row in ledger.names.items()}
    is_news = {row: row in ledger.surplus or known_ids.get(row, name) != name for row, name in names.items()}
    journal.name_rows({row: name for row, name in names.items() if name is not None and is_news[row]}, replaces=True)
    journal.add_duplicates({row: sorted(set(ids)) for row, ids in ledger.surplus.items()})
    further = further_records(journal)
    journal.keep(DUPLICATE, ((record_id, row) for row, ids in ledger.surplus.items() for record_id in ids if record_id in further))
    created = (row for row, state in ledger.states.items() if state is RowState.CREATED and row not in ledger.found)
    return _question(journal, [ledger.rows[row] for row in sorted(created) if among is None or row in among])


def _question(journal: Journal, missing: Sequence[Entry]) -> RunResult:
    """Put acknowledged rows without a record in doubt. Only the rows of whole missing batches may be sent again."""
    if not missing:
        return RunResult()
    batches: dict[int, list[Entry]] = defaultdict(list)
    for entry in missing:
        batches[journal.batches_of(entry.ordinal, entry.ordinal)[entry.ordinal]].append(entry)
    is_whole = all(len(entries) == created_in(journal, batch) for batch in journal.batches() if (entries := batches.get(batch.number)))
    journal.question({number: Batch(tuple(entries)) for number, entries in batches.items()}, VANISHED)
    return RunResult(notes=(f"rows that the service accepted and does not list: {len(missing):,}",), sends_again=is_whole)
