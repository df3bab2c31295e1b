"""Ways to find the rows of a job in the service's lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from crmctl.files.validation import Entry
from crmctl.frozen import frozen
from crmctl.match.agreement import pair_altered
from crmctl.match.record_match import Recognition, RecordMatch, by_content, comparable
from crmctl.models.resources import Record
from crmctl.read.read_back import Baseline, Enough, Reader, Unusable, moment_of, read_newest
from crmctl.values.equality import canonical
from crmctl.write.database import MAY_BE_THERE
from crmctl.write.journal import Header, Journal
from crmctl.write.send_context import further_records

CONTROL_SECONDS = 60.0
"""Seconds for a confirmed batch to show up. After that, the way of reading is unusable."""

CONTROL_RECORDS = 10_000


@frozen
class Confirmed:
    """A batch whose rows were all created: every way of reading must show it. `sent_at` and `at`: Unix times of send and answer."""

    entries: Sequence[Entry]
    sent_at: float
    at: float


@dataclass
class Method:
    """A recognition of rows in the lists, and its test results. Without `recognition`, rows are recognised by content.

    `works`: it has passed its control. `lag`: seconds until a record shows up. `ahead`: seconds by which the service's clock is ahead of
    the local clock; None while unknown.
    """

    baseline: Baseline | None
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
        return Recognition(every.slugs - self.altered, unique=False, spelled=self.altered)

    def fits(self, entries: Sequence[Entry]) -> bool:
        return self.broken is None and all(self.recognition_of(entries).keys(entries).values())

    def try_out(self, reader: Reader, confirmed: Confirmed | None, since: float | None, now: float) -> None:
        """Learn whether the method finds rows known to exist: the control. Raises Unusable when they do not show up in time."""
        if self.works or (confirmed is None and self.control is None):
            return
        control = self.control = self.control or confirmed
        assert control is not None
        enough = showing(control.entries, self.recognition_of(control.entries), most=CONTROL_RECORDS)
        records = read_newest(reader, self.baseline, since, enough).records
        if not self.shows(control.entries, records):
            self.waited = True
            if now >= control.at + CONTROL_SECONDS:
                raise Unusable("the lists do not show rows that are there")
            return
        self.works = True
        self.lag = now - control.at if self.waited else 0.0
        recognition = self.recognition_of(control.entries)
        keys = set(recognition.keys(control.entries).values())
        moments = [moment for record in records if recognition.key(record.data) in keys and (moment := moment_of(record)) is not None]
        self.ahead = min(moments) - control.at if moments else None

    def shows(self, entries: Sequence[Entry], records: Sequence[Record]) -> bool:
        """Whether the records include all of these existing rows.

        Later recognitions ignore attributes that come back altered, if the remaining attributes still distinguish the rows.
        """
        recognition = self.recognition_of(entries)
        is_shown = showing(entries, recognition)(records, None)
        if self.recognition is not None:
            if is_shown:  # otherwise the records with these keys may all be of other clients
                self.recognition = comparable(entries, records, recognition)
            return is_shown
        if is_shown:
            return True
        altered = altered_attributes(entries, records)
        if altered is None:
            return False
        without = replace(recognition, slugs=recognition.slugs - altered)
        if len(set(without.keys(entries).values())) < len(set(recognition.keys(entries).values())):
            return False
        self.altered |= altered
        return True


def altered_attributes(entries: Sequence[Entry], records: Sequence[Record]) -> frozenset[str] | None:
    """Return the attributes of these rows that the service altered; None unless the records include every row."""
    content = by_content(entries)
    counts = Counter(content.key(record.data) for record in records)
    missing = [entry for entry, key in zip(entries, content.keys(entries).values(), strict=True) if not counts[key]]
    keys = {*content.keys(entries).values()}
    rest = {record.id: record for record in records if content.key(record.data) not in keys}
    agreed = pair_altered(missing, [*rest.values()], entries, ()).found
    if len(agreed) < len(missing):
        return None
    pairs = [(entry.data, rest[record_id].data) for entry in missing if (record_id := agreed[entry.ordinal]) is not None]
    return frozenset(slug for data, record in pairs for slug, value in data.items() if canonical(value) != canonical(record.get(slug)))


def explain(
    journal: Journal,
    entries: Sequence[Entry],
    seen: RecordMatch,
    new: Sequence[Record],
    recognition: Recognition,
    others: Callable[[], Iterable[Entry]],
) -> tuple[RecordMatch, int]:
    """Pair rows that were sent and not `seen` with new records that the service may have altered. `others`: the job's other rows.

    Rows that are or become ambiguous are not paired. Also return how many new records belong to no known row.
    """
    known_ids = {
        *filter(None, seen.found.values()),
        *(record_id for ids in seen.extra.values() for record_id in ids),
        *further_records(journal),
    }
    pool = _without_other_rows(journal, entries, [record for record in new if record.id not in known_ids], recognition, others)
    missing = [entry for entry in entries if entry.ordinal not in seen.found and entry.ordinal not in seen.ambiguous]
    if not pool or not missing:
        return seen, len(pool)
    agreed = pair_altered(missing, pool, entries, others())
    extra = {ordinal: [*seen.extra.get(ordinal, ()), *ids] for ordinal, ids in agreed.extra.items()}
    ambiguous = seen.ambiguous | agreed.possible
    taken = seen.taken - agreed.found.keys()
    explained = replace(seen, found={**seen.found, **agreed.found}, extra={**seen.extra, **extra}, ambiguous=ambiguous, taken=taken)
    return explained, len(pool) - len(agreed.found) - sum(map(len, agreed.extra.values()))


def _without_other_rows(
    journal: Journal, entries: Sequence[Entry], pool: Sequence[Record], recognition: Recognition, others: Callable[[], Iterable[Entry]]
) -> list[Record]:
    """Return the records that no other row of the job explains."""
    if not pool:
        return []
    content = by_content(entries)
    content = replace(content, slugs=(content.slugs or recognition.slugs) - recognition.altered)
    rest: dict[str, list[Record]] = {}
    for record in pool:
        rest.setdefault(content.key(record.data) or "", []).append(record)
    for entry in others():
        if alike := rest.get(content.key(entry.data) or ""):
            row = journal.row(entry.ordinal)
            if row is not None and row.state in MAY_BE_THERE:
                alike.pop(0)
    return [record for alike in rest.values() for record in alike]


def methods(journal: Journal) -> list[Method]:
    baseline = Baseline.from_document(journal.recall("baseline"))
    return [Method(baseline, recognition) for recognition in (*recognitions(journal.header), None)]


def recognitions(header: Header) -> list[Recognition]:
    """Return the recognitions that tell a job's rows from other records, best first: unused key, unique attribute."""
    by_key = [Recognition.by_key(header.keys, header.key_types)] if header.keys else []
    unique = [Recognition(frozenset({header.unique}), unique=True)] if header.unique is not None else []
    return [*by_key, *unique]


def showing(entries: Sequence[Entry], recognition: Recognition, most: float = math.inf) -> Enough:
    """Return a predicate on successive records. It holds once they include all of these rows, or number at least `most`."""
    unmatched = Counter(recognition.keys(entries).values())
    tells = None not in unmatched
    told = 0

    def enough(news: Sequence[Record], _total: int | None) -> bool:
        nonlocal told
        told += len(news)
        unmatched.subtract(key for record in news if (key := recognition.key(record.data)) in unmatched)
        return told >= most or (tells and max(unmatched.values(), default=0) <= 0)

    return enough
