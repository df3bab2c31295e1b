"""Undo merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from crmctl.bulk_context import BulkContext, Progress
from crmctl.dedupe.merge_plan import held
from crmctl.errors import CrmctlError, NotFoundError, UsageError
from crmctl.match.references import replace_ids
from crmctl.models.resources import BULK_LIMIT, Record, document_of
from crmctl.plan.job_run import seconds_for
from crmctl.plan.merge_records import merge_schema, sending
from crmctl.plan.merge_steps import (
    MODE,
    CurrentRecords,
    GroupEntry,
    GroupState,
    MergeJournal,
    MergeSchema,
    MergeSender,
    group_counts,
    lost_records,
)
from crmctl.plan.resume import check_service
from crmctl.plan.undo_deletions import LostRecords, Recreation, recreate
from crmctl.plan.undo_updates import LISTED, UndoReport
from crmctl.read.records import swap_links
from crmctl.write.database import JobState
from crmctl.write.jobs import JobInfo, refuse_running
from crmctl.write.send_context import DeliveryOptions, SendContext, write_requests
from crmctl.write.steps import Step, StepKind, StepState

OPEN = (GroupState.MERGED, GroupState.PARTLY, GroupState.MERGING, GroupState.UNDONE)
"""States of groups that may still need an undo."""

WRITING = (StepKind.SURVIVOR, StepKind.CLAIM, StepKind.REFERENCE, StepKind.FREE)
"""Kinds of steps that write values to a record."""


@dataclass
class Separation(UndoReport):
    """Undo of merges.

    `undone`: groups; `before`: groups of earlier runs. `remade`: new ids of losers by old id. `conflicts`: values that changed since and
    stay. `failed`: steps and records that the service refused. `gone`: records deleted since.
    """

    groups: int
    losers: int
    undone: int = 0
    before: int = 0
    remade: dict[str, str] = field(default_factory=dict)
    survivors: int = 0
    references: int = 0
    activities: int = 0
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)

    @property
    def work(self) -> int:
        return self.losers

    @property
    def refusals(self) -> Iterable[str]:
        return [row["error"] for row in self.failed]

    @property
    def left(self) -> dict[str, int]:
        counts = {"failed": len(self.failed), "conflicts": len(self.conflicts), "gone": len(self.gone)}
        return {name: count for name, count in counts.items() if count}

    @property
    def details(self) -> dict[str, Any]:
        return {**self.left, "rows": self.to_document()["rows"]}

    def to_document(self) -> dict[str, Any]:
        rows = {
            "recreated": [{"id": old, "newId": new} for old, new in self.remade.items()],
            "conflicts": self.conflicts[:LISTED],
            "failed": self.failed[:LISTED],
            "gone": self.gone[:LISTED],
        }
        counts = {name: len(getattr(self, name)) for name in ("conflicts", "failed", "gone")}
        names = (
            "job object mode groups duplicates undone undone_before recreated survivors references activities conflicts failed gone "
            "requests estimated_seconds rows"
        )
        return document_of(
            self, names, mode=MODE, duplicates=self.losers, undoneBefore=self.before, recreated=len(self.remade), **counts,
            estimatedSeconds=round(self.seconds, 1), rows=rows,
        )  # fmt: skip


def undoable(journal: MergeJournal) -> Iterator[GroupEntry]:
    """Yield the groups that still have something to undo."""
    for group in journal.groups(*OPEN):
        if group.state is not GroupState.UNDONE or journal.steps(group.number, StepState.DONE, StepState.SENDING):
            yield group


def likely_requests(journal: MergeJournal) -> int:
    """Estimate the requests of an undo: a read and a write per record and activity, and the reads that find the recreated records."""
    counts = journal.step_counts()
    done = Counter({kind: sum(counts.get((kind, state), 0) for state in (StepState.DONE, StepState.SENDING)) for kind in StepKind})
    written = done.total() - done[StepKind.ACTIVITY] - done[StepKind.DELETE]
    pages = -(-done[StepKind.DELETE] // BULK_LIMIT)
    return 2 * done[StepKind.ACTIVITY] + written + write_requests(written) + 4 * pages + LOOKS


LOOKS = 5
"""Requests of an undo besides: the records before and after the new ones, and their number."""

AT_ONCE = 100
"""Number of groups undone together, so that their writes share requests."""


@dataclass
class Unmerge:
    """One run of an undo. `records` holds the current data of the records that the merge wrote."""

    sender: MergeSender
    schema: MergeSchema
    progress: Progress
    records: CurrentRecords
    result: Separation
    include_changed: bool = False

    def run(self) -> None:
        """Undo all groups, the last one first. Raises the error that ends it early; the journal holds the steps done by then."""
        journal = self.sender.journal
        groups = list(undoable(journal))[::-1]
        waves = [groups[at : at + AT_ONCE] for at in range(0, len(groups), AT_ONCE)]
        for group in groups:
            # A record that is still there is not recreated.
            self.sender.settle([step for step in journal.steps(group.number, StepState.SENDING) if step.kind is StepKind.DELETE])
            deleted = _deleted(steps := self._done([group]))
            for step in steps:
                if step.kind in WRITING and step.target.lower() not in deleted:
                    self.records.want(step.object_id, step.target)
        self.progress.start("taking apart", 2 * len(groups))
        self.records.fill()
        for wave in waves:
            self._restore(step for step in self._done(wave) if step.kind in (StepKind.SURVIVOR, StepKind.CLAIM))
            self.progress.advance(len(wave))
        new = self._recreate(groups)
        # Every record that a reference or link may name exists now.
        for wave in waves:
            self._point_back(wave, new)
            self.progress.advance(len(wave))
        self.progress.finish()

    def _done(self, wave: Iterable[GroupEntry]) -> list[Step]:
        journal = self.sender.journal
        return [step for group in wave for step in journal.steps(group.number, StepState.DONE, StepState.SENDING)]

    def _lost(self, groups: Iterable[GroupEntry]) -> Iterator[Record]:
        for group in groups:
            deleted, lost = _deleted(self._done([group])), lost_records(self.sender.journal, group.number)
            yield from (Record.parse({"id": record_id, "data": held(data)}) for record_id, data in lost.items() if record_id in deleted)

    def _recreate(self, groups: Iterable[GroupEntry]) -> dict[str, str]:
        sender, journal = self.sender, self.sender.journal
        lost = LostRecords(journal.folder, self.schema.object_id, self.schema.attributes)
        count = lost.keep(self._lost(groups))
        if not count:
            return {}
        run = SendContext(sender.service, journal, DeliveryOptions(), sender.clock, self.progress, interrupt=sender.interrupt)
        recreation = Recreation(self.result.job, self.result.object)
        new = recreate(lost, run, count, recreation)
        self.result.remade = new
        homes = {loser.lower(): group.number for group in journal.groups(*OPEN) for loser in group.losers}
        for number, record in enumerate(lost.records(), 1):
            if record.id not in new:
                why = recreation.failed.get(number, "crmctl cannot tell its new id")
                self.result.failed.append({"group": homes.get(record.id), "id": record.id, "error": why})
        old = {record_id: loser for loser, record_id in new.items()}
        for record_id, why in recreation.unlinked_records:
            self.result.failed.append({"group": homes.get(old.get(record_id, "")), "id": record_id, "error": why})
        return new

    def _point_back(self, wave: Sequence[GroupEntry], new: Mapping[str, str]) -> None:
        """Give losers their unique values back, and point references and links at the recreated losers."""
        journal = self.sender.journal
        deleted = _deleted(self._done(wave))
        self._restore(step for step in self._done(wave) if step.kind is StepKind.FREE and step.target.lower() not in deleted)
        complete = [group for group in wave if _deleted(self._done([group])) <= new.keys()]
        steps = self._done(complete)
        for step in sorted(steps, key=attrgetter("number"), reverse=True):
            if step.kind is StepKind.ACTIVITY:
                self._unlink(step, new)
        self._restore(_with_ids(step, new) for step in steps if step.kind is StepKind.REFERENCE)
        steps_left = [
            step for step in steps if step.kind is StepKind.DELETE or (step.kind is StepKind.FREE and step.target.lower() in deleted)
        ]
        journal.mark_steps([step.number for step in steps_left], StepState.UNDONE)
        refused = {row["group"] for row in self.result.failed}
        for group in complete:
            if group.number not in refused:
                journal.end_merge(group.number, GroupState.UNDONE)
                self.result.undone += 1

    def _restore(self, steps: Iterable[Step]) -> None:
        """Restore values that have not changed since the merge."""
        for some in _last_first(steps):
            self.records.refresh()
            changed: dict[int, list[str]] = {}
            back = [step_left for step in some if (step_left := self._still_ours(step, changed)) is not None]
            self.sender.write(back, back=True)
            # A later undo checks values that changed since and reports them again.
            self.sender.journal.mark_steps(changed, StepState.DONE)
            for step in back:
                self._count(step, self.sender.refused.pop(step.number, None))

    def _still_ours(self, step: Step, kept: dict[int, list[str]]) -> Step | None:
        """Return a step with the values to restore; None if there are none. Add attributes that changed since to `kept`, by step."""
        data = self.records.data(step.object_id, step.target)
        if data is None:
            self._is_gone(step)
            return None
        back, changed = self.sender.restorable(step, data, include_changed=self.include_changed)
        if changed:
            kept[step.number] = changed
            self.result.conflicts.append({"group": step.group, "id": step.target, "attributes": changed})
        return back

    def _is_gone(self, step: Step) -> None:
        self.result.gone.append({"group": step.group, "id": step.target})

    def _count(self, step: Step, error: str | None) -> None:
        if error is None:
            self.result.references += step.kind is StepKind.REFERENCE
            self.result.survivors += step.kind is StepKind.SURVIVOR
            return
        try:
            self.sender.service.get_record(step.object_id, step.target)
        except NotFoundError:
            self._is_gone(step)
        else:
            self.result.failed.append({"group": step.group, "id": step.target, "error": error})

    def _unlink(self, step: Step, new: Mapping[str, str]) -> None:
        """Restore the links of an activity if they have not changed since the merge."""
        links = self.sender.links(step)
        if links is None:
            self._is_gone(step)
            return
        before, after = ({**then, **swap_links(then, new)} for then in (step.before, step.after))
        if links == before:
            self.sender.journal.mark_steps([step.number], StepState.UNDONE)
        elif links == after or self.include_changed:
            self.sender.patch(step, before, back=True)
            if error := self.sender.refused.pop(step.number, None):
                self.result.failed.append({"group": step.group, "id": step.target, "error": error})
            else:
                self.result.activities += 1
        elif step.state is StepState.DONE:
            self.result.conflicts.append({"group": step.group, "id": step.target, "attributes": sorted(links)})


def _last_first(steps: Iterable[Step]) -> list[list[Step]]:
    """Return the steps, the last one first, in parts that write each record at most once."""
    parts: list[list[Step]] = []
    often: Counter[str] = Counter()
    for step in sorted(steps, key=attrgetter("number"), reverse=True):
        turn = often[step.target.lower()]
        often[step.target.lower()] += 1
        if turn == len(parts):
            parts.append([])
        parts[turn].append(step)
    return parts


def _deleted(steps: Iterable[Step]) -> set[str]:
    return {step.target.lower() for step in steps if step.kind is StepKind.DELETE}


def _with_ids(step: Step, new: Mapping[str, str]) -> Step:
    before, after = ({slug: replace_ids(value, new) for slug, value in data.items()} for data in (step.before, step.after))
    return replace(step, target=new.get(step.target.lower(), step.target), before=before, after=after)


def separate_records(
    context: BulkContext, job: JobInfo, approve: Callable[[Separation], None], *, dry_run: bool = False, include_changed: bool = False
) -> Separation:
    """Pass the preview of an undo to `approve`, and undo the merges. `approve` raises to cancel. A dry run only returns the preview.

    `include_changed` also restores values that changed since. Raises UsageError if the job merged nothing or is running.
    """
    refuse_running(job)
    check_service(job.header, context.origin)
    with closing(MergeJournal(job.folder, context.clock)) as journal, journal.hold():
        groups = list(undoable(journal))
        losers = sum(len(group.losers) for group in groups)
        expected = likely_requests(journal) if groups else 0
        result = Separation(job.id, job.header.object, len(groups), losers, requests=expected, seconds=seconds_for(context, expected))
        result.before = group_counts(journal)[GroupState.UNDONE] - sum(group.state is GroupState.UNDONE for group in groups)
        if not groups:
            if result.before:
                return result
            raise UsageError(f"job {job.id} merged nothing", code="nothing_to_undo")
        if dry_run:
            return result
        schema = merge_schema(context, job.header.object_id)
        approve(result)
        result.carried_out = True
        with sending(context, journal, schema) as sender, CurrentRecords(context.service) as records:
            run = Unmerge(sender, schema, context.listener.progress, records, result, include_changed)
            try:
                run.run()
            except CrmctlError as error:
                result.error = error
                context.listener.progress.finish()
        if result.error is None and not result.left:
            journal.state = JobState.UNDONE
        return result
