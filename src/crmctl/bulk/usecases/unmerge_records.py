"""Taking apart what a job has merged: what somebody changed since stays, and is in the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.jobs import JobInfo, refuse_running
from crmctl.bulk.journal.states import JobState
from crmctl.bulk.merge.current_records import CurrentRecords
from crmctl.bulk.merge.merge_journal import MODE, GroupState, MergeJournal
from crmctl.bulk.merge.unmerge import Unmerge, Unmerged, most_requests, undoable
from crmctl.bulk.usecases.merge_records import merge_schema, seconds_for, sending
from crmctl.bulk.usecases.results import service_words
from crmctl.bulk.usecases.resume import check_service
from crmctl.errors import CrmctlError, PartialError, UsageError

LISTED = 1000


LEFT = {"conflicts": "changed by somebody since, kept", "failed": "refused by the service", "gone": "deleted by somebody since"}
"""What may be left, in words."""


@dataclass
class UnmergeResult:
    """What an undo of merges would do, or did. `expected`: so many requests it takes at most, where nobody has changed anything, and
    `seconds`, where they are many, at the rate of the service."""

    job: str
    object: str
    groups: int
    losers: int
    expected: int = 0
    seconds: float = 0.0
    done: Unmerged = field(default_factory=Unmerged)
    carried_out: bool = False
    requests: int = 0
    ended: CrmctlError | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        done = self.done
        return {
            "job": self.job,
            "object": self.object,
            "mode": MODE,
            "groups": self.groups,
            "duplicates": self.losers,
            "undone": done.groups,
            "recreated": len(done.remade),
            "survivors": done.survivors,
            "references": done.references,
            "activities": done.activities,
            "conflicts": len(done.conflicts),
            "failed": len(done.failed),
            "gone": len(done.gone),
            "requests": self.requests if self.carried_out else self.expected,
            "estimatedSeconds": round(self.seconds, 1),
            "rows": {
                "recreated": [{"id": old, "newId": new} for old, new in done.remade.items()],
                "conflicts": done.conflicts[:LISTED],
                "failed": done.failed[:LISTED],
                "gone": done.gone[:LISTED],
            },
        }

    @property
    def error(self) -> CrmctlError | None:
        """Why not everything is as it was; None when it is."""
        if self.ended is not None:
            self.ended.hint = self.ended.hint or f"crmctl bulk undo {self.job} goes on with it"
            return self.ended
        document = self.to_document()
        left = {name: document[name] for name in LEFT if document[name]}
        if not left:
            return None
        said = ", ".join(f"{count:,} {LEFT[name]}" for name, count in left.items())
        why = service_words(row["error"] for row in self.done.failed)
        details = {**left, "rows": document["rows"]}
        return PartialError(f"not everything that was merged is taken apart: {said}{why}", details=details)


def unmerge_records(
    context: BulkContext, job: JobInfo, approve: Callable[[UnmergeResult], None], *, dry_run: bool = False
) -> UnmergeResult:
    """Show what would be taken apart to `approve`, which raises to leave it, and do it; a dry run stops before that. Raises UsageError
    for a job that merged nothing or is running."""
    refuse_running(job)
    check_service(job.header, context.origin)
    with closing(MergeJournal(job.folder, context.clock)) as journal, journal.hold():
        groups = list(undoable(journal))
        losers = sum(len(group.losers) for group in groups)
        expected = most_requests(journal) if groups else 0
        result = UnmergeResult(job.id, job.header.object, len(groups), losers, expected, seconds_for(context, expected))
        if not groups:
            if journal.group_counts()[GroupState.UNDONE]:
                return result
            raise UsageError(f"job {job.id} merged nothing", code="nothing_to_undo")
        if dry_run:
            return result
        approve(result)
        result.carried_out = True
        schema = merge_schema(context, job.header.object_id)
        with sending(context, journal) as sender, CurrentRecords(context.service) as records:
            run = Unmerge(sender, schema, context.listener.progress, records, result.done)
            try:
                run.run()
            except CrmctlError as error:
                result.ended = error
                context.listener.progress.finish()
            result.requests = sender.requests + records.requests
            journal.add_effort(result.requests, 0.0)
        if result.error is None:
            journal.set_state(JobState.UNDONE)
        return result
