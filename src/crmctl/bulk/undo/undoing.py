"""Taking back what an import created. What somebody has changed since stays and is reported; what cannot be found is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from crmctl.bulk.deleting import Deleter, DeleteSummary, delete_records
from crmctl.bulk.imports.capturing import name_records
from crmctl.bulk.imports.importing import Service
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.payloads.batches import Entry
from crmctl.bulk.progress import Progress
from crmctl.bulk.records.reading import Reader
from crmctl.bulk.records.seen import SeenIds
from crmctl.clock import Clock
from crmctl.errors import UsageError

LISTED = 1000
"""How many rows of a kind a report lists; the counts are exact."""


class UndoService(Service, Deleter, Protocol):
    """The calls of the client that an undo makes."""


@dataclass
class Undo:
    """What an undo would do, or did. `conflicts`: records changed since, kept. `unknown`: created rows whose record is not found.

    `updated`: rows that changed records; what those held before was not kept, so they stay as they are.
    """

    job: str
    object: str
    found: int = 0
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    conflict_count: int = 0
    unknown: list[int] = field(default_factory=list)
    unknown_count: int = 0
    updated: int = 0
    in_doubt: int = 0
    deleted: DeleteSummary | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the job is left."""
        left = self.conflict_count + self.updated + self.in_doubt
        return not left and self.deleted is not None and self.deleted.error is None and not self.deleted.failed

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        deleted = self.deleted
        return {
            "job": self.job,
            "object": self.object,
            "found": self.found,
            "deleted": 0 if deleted is None else deleted.deleted + deleted.uncertain,
            "failed": 0 if deleted is None else deleted.failed + deleted.in_doubt + deleted.unsent,
            "conflicts": self.conflict_count,
            "unknown": self.unknown_count,
            "updatesKept": self.updated,
            "inDoubt": self.in_doubt,
            "requests": -(-self.found // 100) if deleted is None else deleted.requests,
            "rows": {"conflicts": self.conflicts, "unknown": self.unknown},
        }


def plan_undo(journal: Journal, reader: Reader, again: Callable[[], Iterable[Entry]], ids: SeenIds) -> Undo:
    """Find the records the job created; those that can be deleted go to `ids`. Changes nothing."""
    counts = journal.counts()
    undo = Undo(journal.header.job, journal.header.object, updated=counts[RowState.UPDATED], in_doubt=counts[RowState.IN_DOUBT])
    if not counts[RowState.CREATED] and not undo.updated:
        raise UsageError(f"job {undo.job} wrote nothing", code="nothing_to_undo")
    for row in name_records(journal, reader, again):
        if row.id is None:
            undo.unknown_count += 1
            undo.unknown += [row.ordinal] if len(undo.unknown) < LISTED else []
        elif row.edited:
            undo.conflict_count += 1
            undo.conflicts += [{"row": row.ordinal, "id": row.id}] if len(undo.conflicts) < LISTED else []
        else:
            for record_id in (row.id, *row.extra):
                ids.add(record_id)
    undo.found = len(ids)
    return undo


def carry_out(journal: Journal, service: UndoService, undo: Undo, ids: SeenIds, clock: Clock, progress: Progress) -> None:
    """Delete what was found. Interrupted, it can be done again: what is gone is not found a second time."""
    header = journal.header
    journal.note("undo", f"{undo.found} records")
    undo.deleted = delete_records(service, header.object, header.object_id, ids, clock, progress, were_there=True)
    if undo.is_whole:
        journal.set_state(JobState.UNDONE)
