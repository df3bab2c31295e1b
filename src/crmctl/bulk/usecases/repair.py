"""A second look at the rows of a job that were once in doubt; what is there twice is named, and deleted when that is asked for."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.run import audit
from crmctl.bulk.run.import_run import rows_of
from crmctl.bulk.usecases.resume import reopen_finished
from crmctl.errors import PartialError


@dataclass(frozen=True)
class RepairRequest:
    """`job`: its id or a part of it. The listener is asked before anything is deleted or cleared; with `dry_run` nothing is."""

    job: str
    delete_duplicates: bool = False
    clear_marker: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class RepairResult:
    """What was found, and done: `deleted` records beyond the first of a row, `cleared` markers. `left`: extra records still there."""

    job: str
    found: audit.Audit
    deleted: int = 0
    cleared: int = 0
    left: int = 0

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
        count = len(self.found.duplicates)
        return PartialError(
            f"there more than once: {count:,} row{'' if count == 1 else 's'}",
            hint=f"crmctl bulk repair {self.job} --delete-duplicates",
            details=self.found.to_document(),
        )


def repair(context: BulkContext, request: RepairRequest) -> RepairResult:
    """Read the rows back that were in doubt, and write what is found into the journal. Raises what reading raises, and UsageError for a
    job that is running, is not there, or whose input is not what it was."""
    job = reopen_finished(context, request.job)
    deleted = cleared = 0
    with closing(job.journal) as journal, closing(job.input), journal.hold():
        reader = Reader(context.service, journal.header.object_id)
        found = audit.audit(journal, reader, rows_of(journal, job.input.payloads))
        extra = sum(len(ids) for _, ids in found.duplicates.values())
        if extra and request.delete_duplicates:
            records = f"{extra:,} record{'' if extra == 1 else 's'}"
            context.listener.confirm(f"Delete {records} that {'is' if extra == 1 else 'are'} there a second time")
            if not request.dry_run:
                deleted, extra = audit.delete_duplicates(journal, context.service, found.duplicates), 0
        if request.clear_marker:
            context.listener.confirm(f"Clear the markers of job {job.id}")
            if not request.dry_run:
                cleared = audit.clear_markers(journal, context.service, reader)
    return RepairResult(job.id, found, deleted, cleared, extra)
