"""Taking back a deletion: what its backup holds is shown, and created again when somebody agrees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.interrupts import watch_interrupts
from crmctl.bulk.journal.states import JobState
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.run.job_start import ImportJob
from crmctl.bulk.run.request_limit import current_limit
from crmctl.bulk.send.context import DeliveryOptions, SendContext
from crmctl.bulk.undo import referrers, relink
from crmctl.bulk.undo.recreate import IDS_NAME, DeletedRecords, Recreated, recreate
from crmctl.bulk.usecases.results import service_words
from crmctl.bulk.usecases.targets import referring_attributes
from crmctl.errors import CrmctlError, PartialError, UsageError
from crmctl.models.records import BULK_LIMIT, PAGE_LIMIT

LEFT = {
    "failed": "refused by the service",
    "unknown": "there, and not to be told from others",
    "unlinked": "activities not linked again",
    "unreferenced": "other records still refer to the old ids",
}
"""What may be left, in words."""


@dataclass
class Recreation:
    """What taking back a deletion would do, or did. `found`: records to create; `done`: those that earlier runs created; `finding`: the
    requests that look for their ids, and for what named the old ones."""

    job: str
    object: str
    found: int = 0
    done: int = 0
    seconds: float = 0.0
    finding: int = 0
    ids: Path | None = None
    result: Recreated | None = None

    @property
    def work(self) -> int:
        return self.found

    @property
    def carried_out(self) -> bool:
        return self.result is not None

    @property
    def requests(self) -> int:
        """How many requests it took; before that, about how many it takes."""
        return -(-self.found // BULK_LIMIT) + self.finding if self.result is None else self.result.requests

    @property
    def left(self) -> dict[str, int]:
        """What of the job is not taken back, by why; empty when all is."""
        result = self.result or Recreated()
        found = {"failed": len(result.failed), "unknown": result.unknown}
        found |= {"unlinked": result.unlinked, "unreferenced": result.unreferenced}
        return {name: count for name, count in found.items() if count}

    @property
    def outcome(self) -> CrmctlError | None:
        """The error that says why not everything is taken back; None when all is, and before anything was done."""
        if self.result is None:
            return None
        if self.result.error is not None:
            self.result.error.hint = self.result.error.hint or f"crmctl bulk undo {self.job} goes on with it"
            return self.result.error
        said = ", ".join(f"{count:,} {LEFT[name]}" for name, count in self.left.items()) + service_words(self.result.failed.values())
        return PartialError(f"not everything the job deleted is there again: {said}", details=self.left) if self.left else None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        result = self.result or Recreated()
        return {
            "job": self.job,
            "object": self.object,
            "found": self.found,
            "created": result.created,
            "undoneBefore": self.done,
            "failed": len(result.failed),
            "unknown": result.unknown,
            "activities": result.activities,
            "unlinked": result.unlinked,
            "references": result.references,
            "unreferenced": result.unreferenced,
            "requests": self.requests,
            "estimatedSeconds": round(self.seconds, 1),
            "ids": str(self.ids) if self.ids is not None else None,
            "rows": {"failed": [{"row": row, "error": why} for row, why in sorted(result.failed.items())]},
        }


def recreate_deleted(
    context: BulkContext, job: ImportJob, approve: Callable[[Recreation], None], *, dry_run: bool, estimates: bool
) -> Recreation:
    """Find what a job deleted, show that to `approve`, which raises to leave it, and create it again; a dry run stops before that.

    What is left, and why, is in the result. Raises UsageError for a job that deleted nothing or kept no copy, and what reading raises.
    """
    header = job.journal.header
    attributes = context.directory.attributes(header.object_id, refresh=True)
    with closing(job.journal) as journal, closing(job.input), journal.hold(), watch_interrupts(context.listener.progress.note) as interrupt:
        deleted, plan = DeletedRecords(job, attributes), Recreation(header.job, header.object)
        count = deleted.find(Reader(context.service, header.object_id))
        if not count:
            raise UsageError(f"job {header.job} deleted nothing", code="nothing_to_undo")
        plan.done = count if journal.state is JobState.UNDONE else 0
        plan.found = count - plan.done
        referring = referring_attributes(context, header.object_id) if plan.found else {}
        if plan.found:
            reading = referrers.reading_price(context.service, referring, count) + relink.reading_price(context.service)
            plan.finding = 1 + -(-plan.found // PAGE_LIMIT) + reading
        plan.seconds = current_limit(context).time_for(plan.requests) if estimates else 0.0
        if dry_run or not plan.found:
            plan.result = None if dry_run else Recreated()
            return plan
        approve(plan)
        run = SendContext(context.service, journal, DeliveryOptions(), context.clock, context.listener.progress, interrupt=interrupt)
        plan.result, new = recreate(deleted, run, count)
        if plan.result.error is None:
            try:
                referrers.link_referrers(context.service, referring, new, plan.result)
                relink.link_activities(context.service, new, plan.result)
            except CrmctlError as error:
                plan.result.error = error
        for note in plan.result.notes:
            context.listener.note(note)
        plan.ids = journal.folder / IDS_NAME if new else None
        if plan.outcome is None:
            journal.set_state(JobState.UNDONE)
    return plan
