"""A second look at the rows of a job that were once in doubt; what is there twice is named, and deleted when that is asked for."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.run import audit
from crmctl.bulk.run.import_run import rows_of
from crmctl.bulk.run.result_files import write_results
from crmctl.bulk.send.deletion import still_there
from crmctl.bulk.usecases.resume import reopen_finished
from crmctl.errors import PartialError
from crmctl.models.records import BULK_LIMIT


@dataclass(frozen=True)
class RepairRequest:
    """`job`: its id or a part of it. The listener is asked before anything is deleted or cleared; with `dry_run` nothing is."""

    job: str
    delete_duplicates: bool = False
    clear_marker: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class RepairResult:
    """What was found, and done: `deleted` records beyond the first of a row, `cleared` markers. `left`: rows that are still there more than
    once, and `way` what to do about them."""

    job: str
    found: audit.Audit
    deleted: int = 0
    cleared: int = 0
    left: int = 0
    way: str = ""

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        found = self.found
        return {
            "job": self.job, "checked": found.checked, "unreadable": found.unreadable, "final": found.final,
            "duplicates": found.to_document(), "deleted": self.deleted, "cleared": self.cleared,
        }  # fmt: skip

    @property
    def error(self) -> PartialError | None:
        """That rows are there more than once, and how to mend it."""
        if not self.left:
            return None
        said = f"there more than once: {self.left:,} row{'' if self.left == 1 else 's'}"
        return PartialError(said, hint=self.way, details=self.found.to_document())


def repair(context: BulkContext, request: RepairRequest) -> RepairResult:
    """Read the rows back that were in doubt, and write what is found into the journal. Raises what reading raises, and UsageError for a
    job that is running, is not there, or whose input is not what it was."""
    job = reopen_finished(context, request.job)
    deleted = cleared = 0
    with closing(job.journal) as journal, closing(job.input), journal.hold():
        reader, again = Reader(context.service, journal.header.object_id), rows_of(journal, job.input.payloads)
        found = audit.audit(journal, reader, again)
        way = f"crmctl bulk repair {job.id} --delete-duplicates"
        if found.duplicates:
            as_written = audit.review(journal, reader, again)
            found = replace(found, duplicates=audit.known_duplicates(journal))
            if request.delete_duplicates and found.duplicates:
                deleted = _delete(context, journal, as_written, dry_run=request.dry_run)
            if not as_written or not audit.is_provable(journal.header) or deleted:
                way = f"somebody changed them since, or made them: look at them, and crmctl bulk delete {journal.header.object} --ids FILE"
        left = len(audit.known_duplicates(journal))
        if request.clear_marker:
            context.listener.confirm(f"Clear the markers of job {job.id}")
            if not request.dry_run:
                cleared = audit.clear_markers(journal, context.service, reader)
        write_results(journal, job.input.source)
    return RepairResult(job.id, found, deleted, cleared, left, way)


def _delete(context: BulkContext, journal: Journal, as_written: Collection[str], *, dry_run: bool) -> int:
    audit.refuse_unproven(journal)
    if not as_written:
        return 0
    count = len(as_written)
    context.listener.confirm(f"Delete {count:,} record{'' if count == 1 else 's'} that {'is' if count == 1 else 'are'} there a second time")
    if dry_run:
        return 0
    left, object_id, deleted = iter(as_written), journal.header.object_id, 0
    while chunk := list(islice(left, BULK_LIMIT)):
        gone = context.service.bulk_delete(object_id, chunk)
        kept = still_there(context.service, object_id, chunk, gone)
        for index, record_id in enumerate(chunk):
            if index not in kept:
                journal.forget_duplicate(record_id)
        deleted += len(chunk) - len(kept)
    return deleted
