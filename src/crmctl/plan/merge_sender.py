"""Carry out the steps of a merge, and read the records that they wrote."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from crmctl.client.directory import ReadService
from crmctl.dedupe.merge_plan import PlannedMerge, is_empty
from crmctl.errors import NotFoundError, RejectedError
from crmctl.match.key_lookups import Lookup
from crmctl.match.references import as_sent
from crmctl.plan.merge_steps import MergeJournal, MergeSchema, UniqueValue, unique_value
from crmctl.read.read_back import Reader
from crmctl.read.records import KnownRecords, fetch, reading_cost, swap_links
from crmctl.read.stable_pages import SeenIds
from crmctl.write.effect import StepStanding, is_same, standing
from crmctl.write.steps import Mark, Step, StepKind, StepSender, StepState


@dataclass
class MergeSender(StepSender):
    """Carry out and undo the steps of one merge job, and journal them."""

    journal: MergeJournal = field(kw_only=True)
    refused: dict[int, str] = field(default_factory=dict, kw_only=True)
    """Error message of the service for each step it refused to undo, by step number."""

    def write(self, steps: Iterable[Step], *, back: bool = False) -> None:
        """Write the values of the steps. With `back`, restore the old values, last step first."""
        ordered = sorted(sorted(steps, key=attrgetter("number"), reverse=back), key=attrgetter("object_id"))
        self.update((replace(step, before=step.after, after=step.before) if back else step for step in ordered), self._log(back=back))

    def delete_all(self, steps: Iterable[Step]) -> None:
        self.delete(steps, self._log(back=False))

    def settle(self, steps: Sequence[Step]) -> None:
        """Find out which steps in doubt were carried out. The other ones can be sent."""
        for _, of_kind in groupby(steps, key=lambda step: (step.object_id, step.kind is StepKind.DELETE)):
            left = self.unsettled(list(of_kind), self._log(back=False))
            self.journal.mark_steps([step.number for step in left], StepState.PLANNED)

    def restorable(self, step: Step, data: Mapping[str, Any], *, include_changed: bool = False) -> tuple[Step | None, list[str]]:
        """Return a step with the values to restore, None if there are none; and the attributes that changed since, which stay."""
        attributes = self.attributes.get(step.object_id, {})
        state, changed = standing(step.before, step.after, data, attributes)
        if state is StepStanding.BEFORE:
            self.journal.mark_steps([step.number], StepState.UNDONE)
            return None, []
        kept = [] if include_changed else changed
        current = {slug: data.get(slug) for slug in step.before}
        restored = {
            slug: value
            for slug, value in step.before.items()
            if slug not in kept and not is_same(attributes.get(slug), value, current[slug])
        }
        return replace(step, before=restored) if restored else None, kept

    def _log(self, *, back: bool) -> Mark:
        def mark(steps: Sequence[Step], state: StepState, why: str | None) -> None:
            if state is StepState.FAILED:
                self._refused(steps[0], why or "", back=back)
            elif state is StepState.DONE or not back:
                self.journal.mark_steps([step.number for step in steps], StepState.UNDONE if back else state)

        return mark

    def _refused(self, step: Step, why: str, *, back: bool) -> None:
        """Mark a refused step. If the record that held the reference was deleted meanwhile, the step counts as done."""
        state = StepState.DONE if back else StepState.FAILED
        if step.kind is StepKind.REFERENCE:
            self.begin()
            try:
                self.service.get_record(step.object_id, step.target)
            except NotFoundError:
                state, why = (StepState.UNDONE if back else StepState.DONE), ""
        self.journal.mark_steps([step.number], state, why or None)
        if state is StepState.DONE and why:
            self.refused[step.number] = why

    def relink(self, step: Step, away: Mapping[str, str]) -> None:
        """Point the links of an activity at survivors. Read it first, because it may have changed since it was listed."""
        self.begin()
        try:
            activity = self.service.get_activity(step.target)
            change = swap_links(activity.wire, away)
        except NotFoundError:
            change = {}
        if not change:
            # The links are already right or the activity was deleted, so an undo has nothing to restore.
            self.journal.mark_steps([step.number], StepState.DONE if step.state is StepState.SENDING else StepState.UNDONE)
            return
        # The change has not been applied yet, so an undo restores the current links.
        links = {name: activity.wire.get(name) for name in change}
        self.journal.change_step(step.number, before=links, after=change, state=StepState.SENDING)
        self._patch(step, change)

    def links(self, step: Step) -> dict[str, Any] | None:
        """Return the current links of an activity that a step changed; None if it was deleted."""
        self.begin()
        try:
            activity = self.service.get_activity(step.target)
        except NotFoundError:
            return None
        return {name: activity.wire.get(name) for name in step.after}

    def put_links_back(self, step: Step, links: Mapping[str, Any]) -> None:
        self._patch(step, links, back=True)

    def _patch(self, step: Step, links: Mapping[str, Any], *, back: bool = False) -> None:
        self.begin()
        try:
            self.service.update_activity(step.target, links)
        except RejectedError as error:
            self.journal.mark_steps([step.number], StepState.DONE if back else StepState.FAILED, error.message)
            if back:
                self.refused[step.number] = error.message
            return
        except NotFoundError:
            pass  # deleted since, so it links no record
        self.journal.mark_steps([step.number], StepState.UNDONE if back else StepState.DONE)


def contested_values(merges: Callable[[], Iterable[PlannedMerge]], schema: MergeSchema) -> dict[int, str]:
    """Return, by group, why its survivor cannot take a unique value that belongs to another group.

    Only plans edited by hand contain such values. The plan is read a second time only if some survivor gets a value from outside its group.
    """
    takers: dict[UniqueValue, list[int]] = defaultdict(list)
    for merge in merges():
        held_values = {value for record in (merge.survivor, *merge.losers) for value in _unique(merge.record(record).data, schema)}
        planned = {slug: value.value for slug, value in merge.values.items()}
        for value in {*_unique(planned, schema)} - held_values:
            takers[value].append(merge.group)
    refused = {
        group: f"group {groups[0]} gets the {value.slug} {value.text} too" for value, groups in takers.items() for group in groups[1:]
    }
    for merge in merges() if takers else ():
        for record_id in (merge.survivor, *merge.losers):
            for value in _unique(merge.record(record_id).data, schema):
                for group in takers.get(value, ()):
                    why = f"record {record_id} of group {merge.group} has the {value.slug} {value.text}"
                    refused[group] = f"{why}; merge that group first, then plan this one again"
    return refused


def _unique(data: Mapping[str, Any], schema: MergeSchema) -> Iterator[UniqueValue]:
    for attribute in schema.unique:
        if not is_empty(value := as_sent(attribute, data.get(attribute.slug))):
            yield unique_value(attribute.slug, value)


class CurrentRecords(ExitStack):
    """Current data of chosen records. Call `want` for each record, then `fill`, and `refresh` before writing."""

    def __init__(self, service: ReadService) -> None:
        super().__init__()
        self._service = service
        self._wanted: dict[str, SeenIds] = {}
        self._whole: dict[str, tuple[Lookup, KnownRecords]] = {}

    def want(self, object_id: str, record_id: str) -> None:
        if object_id not in self._wanted:
            self._wanted[object_id] = self.enter_context(SeenIds())
        self._wanted[object_id].add(record_id.lower())

    def fill(self) -> None:
        """Read the wanted records of objects that are cheaper to read as a whole. Raises read errors."""
        for object_id, ids in self._wanted.items():
            if reading_cost(self._service, object_id, len(ids)).as_a_whole:
                lookup, known = Lookup(self._service, object_id), self.enter_context(KnownRecords())
                lookup.begin()
                for page in fetch(Reader(self._service, object_id), ids):
                    known.add(page)
                self._whole[object_id] = (lookup, known)

    def refresh(self) -> None:
        """Read the records changed since. If the service cannot list changes, read records one at a time from now on."""
        for object_id, (lookup, known) in list(self._whole.items()):
            if not lookup.refresh(known.add):
                del self._whole[object_id]

    def data(self, object_id: str, record_id: str) -> Mapping[str, Any] | None:
        """Return the data of a record; None if it was deleted."""
        record = self._whole[object_id][1].get(record_id) if object_id in self._whole else None
        try:
            return (record or self._service.get_record(object_id, record_id)).data
        except NotFoundError:
            return None
