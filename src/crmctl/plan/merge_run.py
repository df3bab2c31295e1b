"""Run a merge job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from crmctl.bulk_context import Progress
from crmctl.dedupe.merge_plan import PlannedMerge
from crmctl.errors import NotFoundError
from crmctl.match.references import reference_ids, replace_ids
from crmctl.mirror.local_copy import LocalCopy
from crmctl.models.resources import BULK_LIMIT
from crmctl.plan.merge_sender import MergeSender, contested_values
from crmctl.plan.merge_steps import (
    GroupState,
    MergeJournal,
    MergeSchema,
    Surroundings,
    is_as_planned,
    late_steps,
    lost_records,
    moved_record,
    plan_steps,
    step_error,
    survivors,
)
from crmctl.plan.merge_survey import Survey
from crmctl.write.database import JobState
from crmctl.write.steps import MERGE_ORDER, Step, StepKind, StepState

BACKWARDS = (StepKind.CLAIM, StepKind.SURVIVOR, StepKind.FREE, StepKind.REFERENCE)
"""Survivors release unique values before the losers take them back."""


def take_back(sender: MergeSender, group: int) -> None:
    """Undo every step of a group that was carried out. Raises errors that end the job."""
    done = sender.journal.steps(group, StepState.DONE)
    for kind in BACKWARDS:
        back = []
        for step in [step for step in done if step.kind is kind]:
            with suppress(NotFoundError):
                back.append(sender.restorable(step, sender.service.get_record(step.object_id, step.target).data)[0])
        sender.write([step for step in back if step is not None], back=True)
    for step in done:
        if step.kind is StepKind.ACTIVITY and (links := sender.links(step)) is not None and links == dict(step.after):
            sender.put_links_back(step, step.before)


Merges = Callable[[], Iterable[PlannedMerge]]
"""Read the groups of the plan. Every call returns the same groups."""

LOOKED = "looked again"
"""Journal key: the job has checked for late references."""


@dataclass
class MergeJob:
    """One run. `merges` reads the plan; `survey` holds the current records, read first from the mirror `copy` if there is one."""

    journal: MergeJournal
    merges: Merges
    schema: MergeSchema
    survey: Survey
    sender: MergeSender
    progress: Progress
    copy: LocalCopy | None = None
    _away: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Carry out the remaining groups. Raises errors that end the job early; the outcome of groups is in the journal."""
        self._away = survivors(self.journal)
        self.journal.state = JobState.OPEN
        refused = contested_values(self.merges, self.schema)
        for group in self.journal.groups(GroupState.PLANNED) if refused else ():
            if (why := refused.get(group.number)) is not None:
                self.journal.end_merge(group.number, GroupState.REFUSED, why)
        open_groups = {group.number for group in self.journal.groups(GroupState.PLANNED)}
        self.progress.start("merging", len(open_groups))
        if not self.journal.recall(LOOKED):
            for group in self.journal.groups(GroupState.PLANNED, GroupState.MERGING, GroupState.MERGED, GroupState.PARTLY):
                self.survey.want(group.survivor, group.losers)
            self.survey.fill(self.copy)
            self._go_on()
            self._merge_all(open_groups)
            self._look_again()
            self.journal.remember(LOOKED, True)
        self.progress.finish()
        self.journal.state = JobState.FINISHED

    def _merge_all(self, numbers: set[int]) -> None:
        waiting = (merge for merge in self.merges() if merge.group in numbers)
        deferred: list[PlannedMerge] = []
        while wave := self._next_wave(waiting, deferred):
            self.survey.refresh()
            self._carry(self._begin([merge for merge in wave if self._is_as_planned(merge)]))
            self.progress.advance(len(wave))

    def _go_on(self) -> None:
        """Finish or take back the groups that an earlier run left incomplete."""
        begun = {group.number: group.error for group in self.journal.groups(GroupState.MERGING)}
        for merge in self.merges() if begun else ():
            if merge.group not in begun:
                continue
            # Moving the links of an activity reads it before it writes.
            doubtful = self.journal.steps(merge.group, StepState.SENDING)
            self.sender.settle([step for step in doubtful if step.kind is not StepKind.ACTIVITY])
            if (error := begun[merge.group]) is not None:
                self._take_back(merge.group, error)
            else:
                self._carry([merge])

    # -- waves -----------------------------------------------------------------------------------------------------------------------

    def _next_wave(self, waiting: Iterator[PlannedMerge], deferred: list[PlannedMerge]) -> list[PlannedMerge]:
        """Return groups that share no record. Their losers fit into one delete request."""
        wave: list[PlannedMerge] = []
        touched: set[str] = set()
        room = BULK_LIMIT
        later: list[PlannedMerge] = []
        while room > 0:
            merge = deferred.pop(0) if deferred else next(waiting, None)
            if merge is None:
                break
            ids = self._touches(merge)
            if ids & touched:
                later.append(merge)
                touched |= ids  # groups that share a record keep their order
                if len(later) >= BULK_LIMIT:
                    break
                continue
            touched |= ids
            room -= len(merge.losers)
            wave.append(merge)
        deferred[:0] = later
        return wave

    def _touches(self, merge: PlannedMerge) -> set[str]:
        """Return the ids of every record and activity that a merge reads or writes."""
        around = self.survey.around(merge.survivor, merge.losers)
        ids = {*around.members, *(holder.lower() for _, holder, _ in around.holders), *(str(one["id"]) for one in around.activities)}
        own = self.schema.referring.get(self.schema.object_id, ())
        return ids.union(*(reference_ids(value.value) for slug, value in merge.values.items() if slug in own))

    def _is_as_planned(self, merge: PlannedMerge) -> bool:
        moved = moved_record(merge, self.schema, self.survey.member, self._away)
        if moved is not None:
            self.journal.end_merge(merge.group, GroupState.REFUSED, moved[1])
        return moved is None

    def _begin(self, merges: list[PlannedMerge]) -> list[PlannedMerge]:
        begun = []
        for merge in merges:
            around = self._around(merge)
            steps = plan_steps(self._redirected(merge), self.schema, around)
            begun.append((merge.group, steps))
        self.journal.add_steps(begun)
        self._away.update((loser.lower(), merge.survivor) for merge in merges for loser in merge.losers)
        return merges

    def _redirected(self, merge: PlannedMerge) -> PlannedMerge:
        """Return the merge with references to records merged so far pointed at their survivors."""
        own = self.schema.referring.get(self.schema.object_id, ())
        values = dict(merge.values)
        for slug in set(own) & set(values):
            values[slug] = replace(values[slug], value=replace_ids(values[slug].value, self._away))
        return replace(merge, values=values)

    # -- steps -----------------------------------------------------------------------------------------------------------------------

    def _carry(self, merges: Sequence[PlannedMerge]) -> None:
        """Send the steps of these groups, kind by kind. If the service refuses a step, take its group back."""
        left = {merge.group: merge for merge in merges}
        for kind in MERGE_ORDER:
            if kind is StepKind.DELETE and left:
                self._before_deleting(left)
            steps = [step for number in left for step in self._open_steps(number) if step.kind is kind]
            self._take(kind, steps, left)
            for number in list(left):
                if self._gives_up(number, kind):
                    del left[number]
        for number in left:
            error = step_error(self.journal, number)
            self.journal.end_merge(number, GroupState.PARTLY if error else GroupState.MERGED, f"merged, but: {error}" if error else None)

    def _open_steps(self, number: int) -> list[Step]:
        return self.journal.steps(number, StepState.PLANNED, StepState.SENDING)

    def _take(self, kind: StepKind, steps: Sequence[Step], merges: Mapping[int, PlannedMerge]) -> None:
        if kind is StepKind.DELETE:
            self.sender.delete_all(steps)
        elif kind is StepKind.ACTIVITY:
            for step in steps:
                merge = merges[step.group]
                self.sender.relink(step, {loser.lower(): merge.survivor for loser in merge.losers})
        else:
            self.sender.write(steps)

    def _gives_up(self, number: int, kind: StepKind, error: str | None = None) -> bool:
        """Take back a group with a failed step, unless a loser is already deleted. Return whether it was taken back."""
        error = error or step_error(self.journal, number)
        if error is None or kind is StepKind.CLAIM:
            return False
        if any(step.kind is StepKind.DELETE for step in self.journal.steps(number, StepState.DONE)):
            return False
        self._take_back(number, error)
        return True

    def _take_back(self, number: int, error: str) -> None:
        """Undo a group. Journal the decision first, so that it survives a crash."""
        self.journal.end_merge(number, GroupState.MERGING, error)
        take_back(self.sender, number)
        self.journal.end_merge(number, GroupState.FAILED, error)
        self._away = survivors(self.journal)

    def _before_deleting(self, left: dict[int, PlannedMerge]) -> None:
        """Check losers again just before deleting them.

        If a loser changed, take back its group. Move references made since planning to the survivor.
        """
        self.survey.refresh()
        for number, merge in list(left.items()):
            why = self._changed_meanwhile(merge)
            if why is not None and self._gives_up(number, StepKind.DELETE, why):
                del left[number]
                continue
            self._take_along(number, merge.survivor, merge.losers, (StepKind.REFERENCE,))

    def _changed_meanwhile(self, merge: PlannedMerge) -> str | None:
        """Return why the losers of a written group must not be deleted; None if they may be."""
        done = self.journal.steps(merge.group, StepState.DONE)
        if not any(step.kind is StepKind.SURVIVOR for step in done):
            try:
                self.sender.service.get_record(self.schema.object_id, merge.survivor)
            except NotFoundError:
                return f"record {merge.survivor} is not there any more"
        images = lost_records(self.journal, merge.group)
        for loser in merge.losers:
            freed = next((step.after for step in done if step.kind is StepKind.FREE and step.target == loser), {})
            there = self.survey.member(loser)
            if there is not None and not is_as_planned(self.schema.attributes, {**images[loser.lower()], **freed}, there, self._away):
                return f"record {loser} was changed while it was merged"
        return None

    # -- concurrent changes ----------------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Move references and activities that were pointed at losers during the merge."""
        done = list(self.journal.groups(GroupState.MERGED, GroupState.PARTLY))
        if not done:
            return
        homes = {loser.lower(): group for group in done for loser in group.losers}
        self.survey.refresh()
        self.survey.read_activities()
        for group in dict.fromkeys(homes[loser].number for loser in self.survey.still_named() if loser in homes):
            entry = next(one for one in done if one.number == group)
            self._take_along(group, entry.survivor, entry.losers, (StepKind.REFERENCE, StepKind.ACTIVITY))
            if (error := step_error(self.journal, group)) is not None:
                self.journal.end_merge(group, GroupState.PARTLY, f"merged, but: {error}")

    def _take_along(self, number: int, survivor: str, losers: Sequence[str], kinds: Sequence[StepKind]) -> None:
        merge = PlannedMerge(number, 1.0, (), survivor, tuple(losers), {}, ())
        known = {step.target.lower() for step in self.journal.steps(number, StepState.DONE) if step.kind is StepKind.REFERENCE}
        found = late_steps(merge, self.schema, self._around(merge))
        steps = [step for step in found if step.kind in kinds and step.target.lower() not in known]
        if steps:
            self.journal.add_steps([(number, steps)])
            added = self._open_steps(number)
            for kind in kinds:
                self._take(kind, [step for step in added if step.kind is kind], {number: merge})

    def _around(self, merge: PlannedMerge) -> Surroundings:
        """Return the surroundings of a group, without the records that this job merged away."""
        around = self.survey.around(merge.survivor, merge.losers)
        return replace(around, holders=[one for one in around.holders if one[1].lower() not in self._away])
