"""Undo merges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from crmctl.bulk_context import BulkContext, Progress
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, UsageError
from crmctl.match.references import ids_only, moved_references, replace_ids
from crmctl.plan.merge_records import merge_schema, seconds_for, sending
from crmctl.plan.merge_sender import CurrentRecords, MergeSender, Remaker
from crmctl.plan.merge_steps import (
    MODE,
    GroupEntry,
    GroupState,
    LostRecord,
    MergeJournal,
    MergeSchema,
)
from crmctl.plan.results import UndoReport
from crmctl.plan.resume import check_service
from crmctl.read.records import FEW, swap_links
from crmctl.write.database import JobState
from crmctl.write.effect import write_requests
from crmctl.write.jobs import JobInfo, refuse_running
from crmctl.write.steps import Step, StepKind, StepState

OPEN = (GroupState.MERGED, GroupState.PARTLY, GroupState.MERGING, GroupState.UNDONE)
"""States of groups that may still need an undo."""


LISTED = 1000


@dataclass
class Separation(UndoReport):
    """Undo of merges.

    `expected`: the maximum number of requests if no record changed since; `sent`: the number it took. `undone`: groups; `before`: groups
    of earlier runs. `remade`: new ids of losers by old id. `conflicts`: values that changed since and stay. `failed`: steps that the
    service refused. `gone`: records deleted since.
    """

    groups: int
    losers: int
    expected: int = 0
    sent: int = 0
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
    def requests(self) -> int:
        return self.sent if self.carried_out else self.expected

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
        return {
            "job": self.job,
            "object": self.object,
            "mode": MODE,
            "groups": self.groups,
            "duplicates": self.losers,
            "undone": self.undone,
            "undoneBefore": self.before,
            "recreated": len(self.remade),
            "survivors": self.survivors,
            "references": self.references,
            "activities": self.activities,
            "conflicts": len(self.conflicts),
            "failed": len(self.failed),
            "gone": len(self.gone),
            "requests": self.requests,
            "estimatedSeconds": round(self.seconds, 1),
            "rows": {
                "recreated": [{"id": old, "newId": new} for old, new in self.remade.items()],
                "conflicts": self.conflicts[:LISTED],
                "failed": self.failed[:LISTED],
                "gone": self.gone[:LISTED],
            },
        }


def undoable(journal: MergeJournal) -> Iterator[GroupEntry]:
    """Yield the groups that still have something to undo."""
    for group in journal.groups(*OPEN):
        if group.state is not GroupState.UNDONE or journal.steps(group.number, StepState.DONE, StepState.SENDING):
            yield group


def most_requests(journal: MergeJournal) -> int:
    """Return the maximum number of requests of an undo if no record changed since and the service refuses no step."""
    waves = _undoable_waves(journal)
    gone = {lost.id: "" for wave in waves for group in wave for lost in journal.lost_records(group.number)}
    count, looks = 1, Counter[str]()  # one request for the time of the newest record
    turns = 0
    for wave in waves:
        steps = [step for group in wave for step in journal.steps(group.number, StepState.DONE, StepState.SENDING)]
        deleted, lost = _deleted(steps), [one for group in wave for one in journal.lost_records(group.number)]
        count += sum(one.new_id is None and one.id in deleted for one in lost)
        count += sum(step.kind is StepKind.DELETE and step.state is StepState.SENDING for step in steps)
        count += 2 * sum(step.kind is StepKind.ACTIVITY for step in steps)
        again = sum(bool(moved_references(one.data, gone)) for one in lost)
        count += again + write_requests(again)
        for kinds in ((StepKind.SURVIVOR, StepKind.CLAIM), (StepKind.FREE,), (StepKind.REFERENCE,)):
            for part in _last_first(step for step in _written(steps) if step.kind in kinds):
                # One read per record; writes share batches.
                sizes = Counter(step.object_id for step in part)
                looks, turns = looks + sizes, turns + 1
                count += sum(write_requests(size) for size in sizes.values())
    # Reading a whole object costs at most one read per record, the requests around it, and the changes in each turn.
    return count + looks.total() + (turns + WHOLE) * sum(size > FEW for size in looks.values())


WHOLE = 5
"""Extra requests before and after reading a whole object."""

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
        """Undo all groups. Raises the error that ends it early; the journal holds the steps done by then."""
        journal = self.sender.journal
        waves = _undoable_waves(journal)
        remaker = Remaker(self.sender, self.schema, journal.survivors())
        for group in (group for wave in waves for group in wave):
            for step in _written(journal.steps(group.number, StepState.DONE, StepState.SENDING)):
                self.records.want(step.object_id, step.target)
        self.progress.start("taking apart", 2 * sum(map(len, waves)))
        self.records.fill()
        whole: set[int] = set()
        for wave in waves:
            whole |= self._remake_all(wave, remaker)
            self.progress.advance(len(wave))
        # Every record that a reference or link may name exists now.
        for wave in waves:
            self._point_back([group for group in wave if group.number in whole], remaker)
            self.progress.advance(len(wave))
        self.progress.finish()

    def _remake_all(self, wave: Sequence[GroupEntry], remaker: Remaker) -> set[int]:
        """Restore survivors and recreate losers. Return the groups whose losers all exist again."""
        journal = self.sender.journal
        for group in wave:  # recreate no existing record
            self.sender.settle([step for step in journal.steps(group.number, StepState.SENDING) if step.kind is StepKind.DELETE])
        done = [step for group in wave for step in journal.steps(group.number, StepState.DONE, StepState.SENDING)]
        deleted = _deleted(done)
        kept = self._restore(step for step in done if step.kind in (StepKind.SURVIVOR, StepKind.CLAIM))
        whole = set()
        for group in wave:
            losers = [lost for lost in journal.lost_records(group.number) if lost.id in deleted]
            made = [self._remake(group, lost, remaker, kept.get(group.number, set())) for lost in losers]
            if all(made):
                whole.add(group.number)
        self._restore(step for step in done if step.kind is StepKind.FREE and step.target.lower() not in deleted)
        return whole

    def _point_back(self, wave: Sequence[GroupEntry], remaker: Remaker) -> None:
        """Point references and links at the recreated losers."""
        journal = self.sender.journal
        steps = [step for group in wave for step in journal.steps(group.number, StepState.DONE, StepState.SENDING)]
        for step in sorted(steps, key=attrgetter("number"), reverse=True):
            if step.kind is StepKind.ACTIVITY:
                self._unlink(step, remaker.new)
        self._restore(_with_ids(step, remaker.new) for step in steps if step.kind is StepKind.REFERENCE)
        self._link_again(wave, remaker)
        deleted = _deleted(steps)
        left = [step for step in steps if step.kind is StepKind.DELETE or (step.kind is StepKind.FREE and step.target.lower() in deleted)]
        journal.mark_steps([step.number for step in left], StepState.UNDONE)
        for group in wave:
            journal.end_merge(group.number, GroupState.UNDONE)
        self.result.undone += len(wave)

    def _restore(self, steps: Iterable[Step]) -> dict[int, set[str]]:
        """Restore values that have not changed since the merge. Return the attributes that have, by group."""
        kept: dict[int, set[str]] = {}
        for some in _last_first(steps):
            self.records.refresh()
            changed: dict[int, list[str]] = {}
            back = [left for step in some if (left := self._still_ours(step, changed)) is not None]
            self.sender.write(back, back=True)
            # A later undo checks values that changed since and reports them again.
            self.sender.journal.mark_steps(changed, StepState.DONE)
            for step in some:
                kept.setdefault(step.group, set()).update(changed.get(step.number, ()))
            for step in back:
                self._count(step, self.sender.refused.pop(step.number, None))
        return kept

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
        """Count a step after the attempt to undo it."""
        if error is None:
            self.result.references += step.kind is StepKind.REFERENCE
            self.result.survivors += step.kind is StepKind.SURVIVOR
            return
        self.sender.requests += 1
        try:
            self.sender.service.get_record(step.object_id, step.target)
        except NotFoundError:
            self._is_gone(step)
        else:
            self.result.failed.append({"group": step.group, "id": step.target, "error": error})

    def _remake(self, group: GroupEntry, lost: LostRecord, remaker: Remaker, kept: set[str]) -> bool:
        try:
            new_id = remaker.remake(lost, frozenset(kept))
        except RejectedError as error:
            self.result.failed.append({"group": group.number, "id": lost.id, "error": error.message})
            return False
        self.result.remade[lost.id] = new_id
        if (without := remaker.without.get(lost.id)) is not None:
            self.result.conflicts.append({"group": group.number, "id": new_id, "attributes": without})
        return True

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
            self.sender.put_links_back(step, before)
            self.result.activities += 1
        elif step.state is StepState.DONE:
            self.result.conflicts.append({"group": step.group, "id": step.target, "attributes": sorted(links)})

    def _link_again(self, wave: Sequence[GroupEntry], remaker: Remaker) -> None:
        """Point references between losers at their new records."""
        steps: list[Step] = []
        for lost in (lost for group in wave for lost in self.sender.journal.lost_records(group.number)):
            if lost.new_id is not None and (wanted := remaker.relinked(lost)):
                self.sender.requests += 1
                try:
                    record = self.sender.service.get_record(self.schema.object_id, lost.new_id)
                except NotFoundError:
                    continue
                stood_in = {slug: replace_ids(ids_only(lost.data[slug]), remaker.away) for slug in wanted}
                left_out = remaker.without.get(lost.id, ())
                mine = {
                    slug: value for slug, value in wanted.items() if ids_only(record.data.get(slug)) == stood_in[slug] or slug in left_out
                }
                if mine:
                    # These steps are not in the journal. The sender tells them apart by their negative numbers.
                    steps.append(Step(StepKind.REFERENCE, self.schema.object_id, lost.new_id, mine, number=-1 - len(steps)))
        self.sender.write(steps, back=True)


def _undoable_waves(journal: MergeJournal) -> list[Sequence[GroupEntry]]:
    """Return the groups to undo, the last one first, in waves of AT_ONCE groups."""
    groups = list(undoable(journal))[::-1]
    return [groups[at : at + AT_ONCE] for at in range(0, len(groups), AT_ONCE)]


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


def _written(steps: Sequence[Step]) -> list[Step]:
    """Return the steps whose records an undo reads."""
    deleted = _deleted(steps)
    kinds = (StepKind.SURVIVOR, StepKind.CLAIM, StepKind.REFERENCE, StepKind.FREE)
    return [step for step in steps if step.kind in kinds and step.target.lower() not in deleted]


def _deleted(steps: Iterable[Step]) -> set[str]:
    return {step.target.lower() for step in steps if step.kind is StepKind.DELETE}


def _with_ids(step: Step, new: Mapping[str, str]) -> Step:
    """Return the step with the ids of losers replaced by their new ids."""
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
        expected = most_requests(journal) if groups else 0
        result = Separation(job.id, job.header.object, len(groups), losers, expected, seconds=seconds_for(context, expected))
        result.before = journal.group_counts()[GroupState.UNDONE] - sum(group.state is GroupState.UNDONE for group in groups)
        if not groups:
            if result.before:
                return result
            raise UsageError(f"job {job.id} merged nothing", code="nothing_to_undo")
        if dry_run:
            return result
        approve(result)
        result.carried_out = True
        schema = merge_schema(context, job.header.object_id)
        with sending(context, journal, schema) as sender, CurrentRecords(context.service) as records:
            run = Unmerge(sender, schema, context.listener.progress, records, result, include_changed)
            try:
                run.run()
            except CrmctlError as error:
                result.error = error
                context.listener.progress.finish()
            result.sent = sender.requests + records.requests
            journal.add_effort(result.sent, 0.0)
        if result.error is None and not result.left:
            journal.set_state(JobState.UNDONE)
        return result
