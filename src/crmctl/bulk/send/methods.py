"""The methods by which rows of a job are found again: a way of reading and a way of recognising, and what is known of the two."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from crmctl.bulk.journal.journal import Header, Journal
from crmctl.bulk.match.record_match import Recognition, by_content, comparable, without_altered
from crmctl.bulk.read.read_back import Baseline, ByPrefix, Enough, NewestFirst, Reader, ReadStrategy, Unusable, moment_of
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.markers import Marker
from crmctl.models.filters import Operator
from crmctl.models.records import Record

CONTROL_SECONDS = 60.0
"""How long a confirmed batch may take to show up before a way of reading counts as unusable."""

CONTROL_RECORDS = 10_000


@dataclass(frozen=True)
class Confirmed:
    """A batch of which every row was created: what a way of reading must show. Unix times of the send and of the answer."""

    entries: Sequence[Entry]
    sent_at: float
    at: float


@dataclass
class Method:
    """A way of reading and of recognising, and what is known of the two. `recognition` None is by content.

    `lag`: seconds until a record shows up. `ahead`: seconds the service's clock is ahead of ours; None until that is known.
    """

    way: ReadStrategy
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

    def has_shown(self, reader: Reader, confirmed: Confirmed | None, since: float | None, now: float) -> bool:
        """Whether the method shows rows that are there: the control. Raises Unusable when it does not show them in time."""
        if self.works or (confirmed is None and self.control is None):
            return self.works
        control = self.control = self.control or confirmed
        assert control is not None
        enough = showing(control.entries, self.recognition_of(control.entries), most=CONTROL_RECORDS)
        records = self.way.read(reader, control.entries, since, enough).records
        if not self.shows(control.entries, records):
            self.waited = True
            if now >= control.at + CONTROL_SECONDS:
                raise Unusable(f"{self.way.name}: rows that are there are not found")
            return False
        self.way.probe(reader)
        self.works = True
        self.lag = now - control.at if self.waited else 0.0
        recognition = self.recognition_of(control.entries)
        keys = set(recognition.keys(control.entries).values())
        moments = [moment for record in records if recognition.key(record.data) in keys and (moment := moment_of(record)) is not None]
        self.ahead = min(moments) - control.at if moments else None
        return True

    def shows(self, entries: Sequence[Entry], records: Sequence[Record]) -> bool:
        """Whether all of these rows, which are there, are among the records. Attributes that come back altered are left out from then on,
        where the others tell the rows apart as well."""
        recognition = self.recognition_of(entries)
        if self.recognition is not None and self.recognition.shared:
            self.recognition = comparable(entries, records, recognition)
        if showing(entries, recognition)(records, None):
            return True
        if self.recognition is not None:
            return False
        without = without_altered(recognition, entries, records)
        telling = len(set(without.keys(entries).values())) == len(set(recognition.keys(entries).values()))
        if without == recognition or not telling or not showing(entries, without)(records, None):
            return False
        self.altered |= recognition.slugs - without.slugs
        return True


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
    marked = [Recognition(frozenset({header.marker}), unique=True)] if header.marker is not None else []
    unique = [Recognition(frozenset({header.unique}), unique=True, shared=True)] if header.unique is not None else []
    return [*marked, *by_key, *unique]


def showing(entries: Sequence[Entry], recognition: Recognition, most: float = math.inf) -> Enough:
    """Whether records that are told of one after the other show all of these rows, or are `most` already."""
    left = Counter(recognition.keys(entries).values())
    tells = None not in left
    told = 0

    def enough(news: Sequence[Record], _total: int | None) -> bool:
        nonlocal told
        told += len(news)
        left.subtract(key for record in news if (key := recognition.key(record.data)) in left)
        return told >= most or (tells and max(left.values(), default=0) <= 0)

    return enough
