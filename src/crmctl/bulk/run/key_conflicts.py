"""What others did to the keys of an import while it ran: refused rows get a second chance as what they are now, doubled keys are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.key_index import KeyIndex, Wanted
from crmctl.bulk.match.record_match import Recognition
from crmctl.bulk.read.read_back import Baseline, Reader
from crmctl.bulk.read.records_by_id import PAGE_STEP, fetch, reading_cost
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.row_actions import SINCE, Resolution, Resolver, RowAction
from crmctl.errors import ServiceError
from crmctl.models.records import BULK_LIMIT

CHUNK_ROWS = 500

RIVALS_UNKNOWN = "rivals unknown"
"""The journal's fact: why nobody can say whether somebody else used a key meanwhile."""

MOST_READS = 200
"""Refused updates whose records would take more requests to read stay refused."""


@dataclass(frozen=True)
class KeyConflicts:
    """A second look at an import by key, of which every row was sent. `payloads` reads its rows anew."""

    resolver: Resolver
    journal: Journal
    reader: Reader
    payloads: Callable[..., Iterable[Payload]]

    def free_refused(self) -> int:
        """Let rows be sent again that were refused because somebody created a record with their key, or deleted the one they update.

        Returns how many: each of them now updates the record that is there, or creates one. Raises what reading raises.
        """
        if not self.journal.counts()[RowState.FAILED]:
            return 0
        with KeyIndex(self.resolver.rule) as index, SeenIds() as updated, SeenIds() as there:
            for row, target in self._rows(RowState.FAILED, in_full=True):
                index.want(row.ordinal, row.data, row.parts)
                if target is not None:
                    updated.add(target.lower())
            if not index.key_count:
                return 0
            self._look(index)
            if len(updated) <= MOST_READS or reading_cost(self.reader, self.reader.object_id, len(updated)).requests <= MOST_READS:
                for page in fetch(self.reader, updated):
                    for record in page:
                        there.add(record.id.lower())
            else:
                for chunk in updated.chunks(CHUNK_ROWS):
                    for record_id in chunk:
                        there.add(record_id)
            freed = 0
            outcomes = (outcome for _, outcome in self.resolver.outcomes(index) if self._has_changed(outcome, there))
            while chosen := list(islice(outcomes, CHUNK_ROWS)):
                self.journal.release(outcome.ordinal for outcome in chosen)
                self.resolver.write_down(self.journal, chosen, lambda _: None)
                freed += len(chosen)
            return freed

    def find_rivals(self) -> None:
        """Name rows that created a record while somebody else created one with the same key, and learn the ids of the others.

        Raises what reading raises, and ServiceError where the service cannot list what is new.
        """
        created = self.journal.counts()[RowState.CREATED]
        if not looking_afterwards(self.resolver, created) or (_is_kept_unique(self.resolver) and not self._are_too_many()):
            return
        with KeyIndex(self.resolver.rule) as index:
            for row, target in self._rows(RowState.CREATED):
                if target is None:
                    index.want(row.ordinal, row.data)
            self._look(index)
            found = self._found(index)
            while chunk := list(islice(found, CHUNK_ROWS)):
                self.journal.name_rows({row.ordinal: records[0][0] for row, records in chunk if _is_its_own(row, records)})
                shared = [(row, records) for row, records in chunk if len(records) > 1]
                self.journal.record_rivals((row.ordinal, one[0], self._spelling(row)) for row, records in shared for one in records)

    def _are_too_many(self) -> bool:
        """Whether more records are there than there were and this import made: then the service does not keep its unique key unique."""
        before = Baseline.from_document(self.journal.recall("baseline"))
        now = self.reader.list_records(self.reader.object_id, limit=1).total
        return (
            before is not None and None not in (before.total, now) and int(now or 0) > int(before.total or 0) + self.journal.records_made()
        )

    @staticmethod
    def _found(index: KeyIndex) -> Iterator[tuple[Wanted, list[tuple[str, dict[str, Any]]]]]:
        """Every row with the records that have its key."""
        return ((row, index.found(row.key)) for row in index.rows() if row.key is not None)

    def _rows(self, state: RowState, *, in_full: bool = False) -> Iterator[tuple[Payload, str | None]]:
        """The rows in a state, each with the record it updates."""
        payloads = iter(self.payloads(in_full=True) if in_full else self.payloads())
        while chunk := list(islice(payloads, CHUNK_ROWS)):
            known = self.journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
            for row in chunk:
                if (entry := known.get(row.ordinal)) is not None and entry.state is state:
                    yield row, self.journal.target(row.ordinal)

    def _look(self, index: KeyIndex) -> None:
        """Let the index see what is new since the import looked up its keys."""
        lookup = self.resolver.lookup(self.reader, lambda: False)
        lookup.as_of = self.journal.recall(SINCE) or 0
        if not lookup.refresh(index):
            raise ServiceError("the service does not list what is new: it does not sort by time", code="unsorted")

    def _has_changed(self, outcome: Resolution, there: SeenIds) -> bool:
        """Whether a refused row would do something else now."""
        target = self.journal.target(outcome.ordinal)
        if target is None:
            # A refused row may have a record all the same, which could not be linked.
            if self.journal.rows(outcome.ordinal, outcome.ordinal)[outcome.ordinal].record_id is not None:
                return False
            return outcome.action in (RowAction.UPDATE, RowAction.UNCHANGED)
        follows = {RowAction.CREATE, RowAction.UPDATE, RowAction.UNCHANGED} | (set() if self.resolver.creates else {RowAction.SKIP})
        return target.lower() not in there and outcome.action in follows

    def _spelling(self, row: Wanted) -> str:
        return ", ".join(str(row.data.get(slug)) for slug in self.resolver.rule.slugs)


def looking_afterwards(resolver: Resolver, created: int) -> int:
    """How many requests it takes, about, to see whether somebody else used the keys of so many new records; 0 where nobody can."""
    if _is_kept_unique(resolver):
        return int(created > BULK_LIMIT)  # a count: what one request makes is checked by the service or by nobody
    return 0 if not created else -(-created // PAGE_STEP) + (created % PAGE_STEP == 0)


def _is_kept_unique(resolver: Resolver) -> bool:
    """Whether the service itself is said to refuse a second record with a key."""
    return any(attribute.is_unique for attribute in resolver.rule.attributes)


def _is_its_own(row: Wanted, records: Sequence[tuple[str, dict[str, Any]]]) -> bool:
    """Whether the one record with its key holds what the row says."""
    content = Recognition(frozenset(row.data), unique=False)
    return len(records) == 1 and content.key(row.data) == content.key(records[0][1])
