"""One run of a job that merges: groups in waves, checked just before they are written, carried out kind of step by kind of step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from crmctl.bulk.dedupe.merge_plan import PlannedMerge
from crmctl.bulk.journal.states import JobState
from crmctl.bulk.match.reference_questions import reference_ids
from crmctl.bulk.match.reference_values import replace_ids
from crmctl.bulk.merge.exchanges import WAY_OUT, Exchanges, because, find_exchanges
from crmctl.bulk.merge.merge_journal import EXCHANGING, GroupState, MergeJournal
from crmctl.bulk.merge.rollback import take_back
from crmctl.bulk.merge.step_sender import StepSender
from crmctl.bulk.merge.step_status import StepStanding, record_standing
from crmctl.bulk.merge.steps import MergeSchema, MergeStep, StepKind, StepState, Surroundings, is_as_planned, late_steps, plan_steps
from crmctl.bulk.merge.survey import Survey
from crmctl.bulk.progress import Progress
from crmctl.errors import NotFoundError
from crmctl.mirror.local_copy import LocalCopy
from crmctl.models.records import BULK_LIMIT

Merges = Callable[[], Iterable[PlannedMerge]]
"""The groups of the plan, any number of times the same."""

LOOKED = "looked again"
"""The fact of a job whose last look is over."""


@dataclass
class MergeJob:
    """`merges` reads the plan; `survey` knows what is there, at first by the mirror `copy` where there is one."""

    journal: MergeJournal
    merges: Merges
    schema: MergeSchema
    survey: Survey
    sender: StepSender
    progress: Progress
    copy: LocalCopy | None = None
    _away: dict[str, str] = field(default_factory=dict)
    _exchanges: Exchanges = field(default_factory=Exchanges)

    def run(self) -> None:
        """Carry out what is left. Raises what ends it early; what becomes of groups is in the journal."""
        self._away = self.journal.survivors()
        self.journal.set_state(JobState.OPEN)
        self._refuse_exchanges()
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
        self.journal.set_state(JobState.FINISHED)

    def _refuse_exchanges(self) -> None:
        """Know which groups get unique values of each other; those that cannot are refused."""
        self._exchanges = find_exchanges(self.merges, self.schema)
        if self._exchanges.units:
            self.journal.remember(EXCHANGING, self._exchanges.units)
        for group in self.journal.groups(GroupState.PLANNED) if self._exchanges.refused else ():
            if (why := self._exchanges.refused.get(group.number)) is not None:
                self.journal.end_merge(group.number, GroupState.REFUSED, why)

    def _units(self, numbers: Collection[int]) -> Iterator[list[PlannedMerge]]:
        """These groups, those that are merged together at once."""
        held: dict[int, PlannedMerge] = {}
        for merge in self.merges() if numbers else ():
            if merge.group in numbers:
                held[merge.group] = merge
                unit = [number for number in self._exchanges.unit(merge.group) if number in numbers]
                if all(number in held for number in unit):
                    yield [held.pop(number) for number in unit]

    def _merge_all(self, numbers: set[int]) -> None:
        waiting = self._units(numbers)
        deferred: list[list[PlannedMerge]] = []
        while wave := self._next_wave(waiting, deferred):
            self.survey.refresh()
            self._carry(self._begin([unit for unit in wave if self._is_as_planned(unit)]))
            self.progress.advance(sum(map(len, wave)))

    def _go_on(self) -> None:
        """Groups that were under way when an earlier run ended."""
        begun = {group.number: group.error for group in self.journal.groups(GroupState.MERGING)}
        for unit in self._units(begun):
            for merge in unit:
                self._settle(merge)
            if (error := next((begun[merge.group] for merge in unit if begun[merge.group] is not None), None)) is not None:
                self._take_back({merge.group: begun[merge.group] or error for merge in unit})
            else:
                self._carry(unit)

    def _settle(self, merge: PlannedMerge) -> None:
        """A step that may have been taken: what is there says whether it was."""
        for step in self.journal.steps(merge.group, StepState.SENDING):
            if step.kind is StepKind.ACTIVITY:
                continue  # looks before it writes
            standing, changed = record_standing(self.sender.writer, self.schema, step)
            self.sender.requests += 1
            if standing is StepStanding.AFTER or (standing is StepStanding.GONE and step.kind is StepKind.DELETE):
                self.journal.mark_steps([step.number], StepState.DONE)
            elif standing is StepStanding.BEFORE:
                self.journal.mark_steps([step.number], StepState.PLANNED)
            else:
                why = f"somebody changed {', '.join(changed)} meanwhile" if changed else "somebody deleted it meanwhile"
                self.journal.mark_steps([step.number], StepState.FAILED, f"{step.target}: {why}")

    # -- waves -----------------------------------------------------------------------------------------------------------------------

    def _next_wave(self, waiting: Iterator[list[PlannedMerge]], deferred: list[list[PlannedMerge]]) -> list[list[PlannedMerge]]:
        """Groups that have nothing to do with each other, with as many losers as one request deletes."""
        wave: list[list[PlannedMerge]] = []
        touched: set[str] = set()
        room = BULK_LIMIT
        later: list[list[PlannedMerge]] = []
        while room > 0:
            unit = deferred.pop(0) if deferred else next(waiting, None)
            if unit is None:
                break
            mine = set().union(*map(self._touches, unit))
            if mine & touched:
                later.append(unit)
                touched |= mine  # groups keep their order where they have to do with each other
                if len(later) >= BULK_LIMIT:
                    break
                continue
            touched |= mine
            room -= sum(len(merge.losers) for merge in unit)
            wave.append(unit)
        deferred[:0] = later
        return wave

    def _touches(self, merge: PlannedMerge) -> set[str]:
        """The ids of everything that a merge reads or writes."""
        around = self.survey.around(merge.survivor, merge.losers)
        ids = {*around.members, *(holder.lower() for _, holder, _ in around.holders), *(str(one["id"]) for one in around.activities)}
        own = self.schema.referring.get(self.schema.object_id, ())
        return ids.union(*(reference_ids(value.value) for slug, value in merge.values.items() if slug in own))

    def _is_as_planned(self, unit: Sequence[PlannedMerge]) -> bool:
        """Whether these groups can be merged now; else they are refused."""
        refused = {merge.group: why for merge in unit if (why := self._moved(merge) or self._in_common(merge, unit)) is not None}
        for merge in unit if refused else ():
            first = next(iter(refused))
            self.journal.end_merge(merge.group, GroupState.REFUSED, refused.get(merge.group) or because(first, refused[first]))
        return not refused

    def _begin(self, units: Iterable[Sequence[PlannedMerge]]) -> list[PlannedMerge]:
        """Write down every step of these groups, and what is there now."""
        merges = [merge for unit in units for merge in unit]
        begun = []
        for merge in merges:
            around = self._around(merge)
            steps = plan_steps(self._redirected(merge), self.schema, around, self._exchanges.wanted)
            images: list[tuple[str, Mapping[str, Any], str | None]] = [(merge.survivor, around.members[merge.survivor.lower()], None)]
            images += [(loser, around.members[loser.lower()], merge.survivor) for loser in merge.losers]
            begun.append((merge.group, steps, images))
        self.journal.begin_merges(begun)
        self._away.update((loser.lower(), merge.survivor) for merge in merges for loser in merge.losers)
        return merges

    def _in_common(self, merge: PlannedMerge, unit: Sequence[PlannedMerge]) -> str | None:
        """What a group writes no other one of its unit may write: a step has to know what was there before it."""
        others = [other for other in unit if other.group < merge.group and self._touches(merge) & self._touches(other)]
        if not others:
            return None
        return f"group {others[0].group} exchanges values with it, and something refers to both; {WAY_OUT}"

    def _moved(self, merge: PlannedMerge) -> str | None:
        """Why a group is not what was planned any more; None when it is."""
        for record_id in (merge.survivor, *merge.losers):
            there = self.survey.member(record_id)
            if there is None:
                return f"record {record_id} is not there any more"
            if not is_as_planned(self.schema.attributes, merge.record(record_id).data, there, self._away):
                return f"record {record_id} has changed since the plan was made"
        return None

    def _redirected(self, merge: PlannedMerge) -> PlannedMerge:
        """Values that refer to a record that was merged meanwhile refer to what became of it."""
        own = self.schema.referring.get(self.schema.object_id, ())
        values = dict(merge.values)
        for slug in set(own) & set(values):
            values[slug] = replace(values[slug], value=replace_ids(values[slug].value, self._away))
        return replace(merge, values=values)

    # -- steps -----------------------------------------------------------------------------------------------------------------------

    def _carry(self, merges: Sequence[PlannedMerge]) -> None:
        """Every step of these groups, kind by kind; a group of which one is refused is taken back."""
        left = {merge.group: merge for merge in merges}
        for kind in StepKind:
            if kind is StepKind.DELETE and left:
                self._before_deleting(left)
            steps = [step for number in left for step in self._open_steps(number) if step.kind is kind]
            self._take(kind, steps, left)
            for number in list(left):
                if number in left and self._gives_up(number, kind):
                    self._leave_out(number, left)
        for number in left:
            error = self.journal.step_error(number)
            self.journal.end_merge(number, GroupState.PARTLY if error else GroupState.MERGED, f"merged, but: {error}" if error else None)

    def _open_steps(self, number: int) -> list[MergeStep]:
        return self.journal.steps(number, StepState.PLANNED, StepState.SENDING)

    def _take(self, kind: StepKind, steps: Sequence[MergeStep], merges: Mapping[int, PlannedMerge]) -> None:
        if kind is StepKind.DELETE:
            self.sender.delete(steps)
        elif kind is StepKind.ACTIVITY:
            for step in steps:
                merge = merges[step.group]
                self.sender.relink(step, {loser.lower(): merge.survivor for loser in merge.losers})
        elif kind is StepKind.CLAIM:
            for _, some in groupby(steps, key=lambda step: len(self._exchanges.unit(step.group)) > 1 and step.number):
                self.sender.write(some)
        else:
            self.sender.write(steps)

    def _gives_up(self, number: int, kind: StepKind, error: str | None = None) -> bool:
        """Take a group back of which a step failed, and its unit, unless a loser is gone already."""
        error = error or self.journal.step_error(number)
        if error is None or kind is StepKind.CLAIM:
            return False
        unit = self._exchanges.unit(number)
        if any(step.kind is StepKind.DELETE for one in unit for step in self.journal.steps(one, StepState.DONE)):
            return False
        self._take_back({one: error if one == number else because(number, error) for one in unit})
        return True

    def _leave_out(self, number: int, left: dict[int, PlannedMerge]) -> None:
        for one in self._exchanges.unit(number):
            left.pop(one, None)

    def _take_back(self, errors: Mapping[int, str]) -> None:
        """What is decided is written down first: it holds after a crash too."""
        for number, error in errors.items():
            self.journal.end_merge(number, GroupState.MERGING, error)
        take_back(self.sender, self.schema, errors)
        for number, error in errors.items():
            self.journal.end_merge(number, GroupState.FAILED, error)
        self._away = self.journal.survivors()

    def _before_deleting(self, left: dict[int, PlannedMerge]) -> None:
        """The last look at what is about to go: a loser that somebody has changed stays, and its group with it; what refers to one since
        the steps were planned is taken along."""
        self.survey.refresh()
        for number, merge in list(left.items()):
            if number not in left:
                continue
            why = self._changed_meanwhile(merge)
            if why is not None and self._gives_up(number, StepKind.DELETE, why):
                self._leave_out(number, left)
                continue
            self._take_along(number, merge.survivor, merge.losers, (StepKind.REFERENCE,))

    def _changed_meanwhile(self, merge: PlannedMerge) -> str | None:
        """Why a group that is written should not lose its losers."""
        done = self.journal.steps(merge.group, StepState.DONE)
        if not any(step.kind is StepKind.SURVIVOR for step in done):
            self.sender.requests += 1
            try:
                self.sender.writer.get_record(self.schema.object_id, merge.survivor)
            except NotFoundError:
                return f"record {merge.survivor} is not there any more"
        for loser in merge.losers:
            freed = next((step.after for step in done if step.kind is StepKind.FREE and step.target == loser), {})
            image, there = self.journal.image(loser) or {}, self.survey.member(loser)
            if there is not None and not is_as_planned(self.schema.attributes, {**image, **freed}, there, self._away):
                return f"record {loser} was changed while it was merged"
        return None

    # -- what others did meanwhile ---------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """References to losers, and activities that name them, which somebody made while they were being merged."""
        done = list(self.journal.groups(GroupState.MERGED, GroupState.PARTLY))
        if not done:
            return
        homes = {loser.lower(): group for group in done for loser in group.losers}
        self.survey.refresh()
        self.survey.read_activities()
        for group in dict.fromkeys(homes[loser].number for loser in self.survey.still_named() if loser in homes):
            entry = next(one for one in done if one.number == group)
            self._take_along(group, entry.survivor, entry.losers, (StepKind.REFERENCE, StepKind.ACTIVITY))
            if (error := self.journal.step_error(group)) is not None:
                self.journal.end_merge(group, GroupState.PARTLY, f"merged, but: {error}")

    def _take_along(self, number: int, survivor: str, losers: Sequence[str], kinds: Sequence[StepKind]) -> None:
        merge = PlannedMerge(number, 1.0, (), survivor, tuple(losers), {}, ())
        known = {step.target.lower() for step in self.journal.steps(number, StepState.DONE) if step.kind is StepKind.REFERENCE}
        found = late_steps(merge, self.schema, self._around(merge))
        steps = [step for step in found if step.kind in kinds and step.target.lower() not in known]
        if steps:
            self.journal.add_steps(number, steps)
            added = self._open_steps(number)
            for kind in kinds:
                self._take(kind, [step for step in added if step.kind is kind], {number: merge})

    def _around(self, merge: PlannedMerge) -> Surroundings:
        """What has to do with a group, without the records that this job has merged away."""
        around = self.survey.around(merge.survivor, merge.losers)
        return replace(around, holders=[one for one in around.holders if one[1].lower() not in self._away])
