"""Plan the steps of a merge, journal them and send them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from crmctl.client.directory import ReadService
from crmctl.dedupe.merge_plan import PlannedMerge, held, is_empty
from crmctl.errors import NotFoundError, RejectedError
from crmctl.frozen import frozen
from crmctl.match.key_lookups import Lookup
from crmctl.match.references import moved_references, replace_ids
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, AttributeType
from crmctl.read.read_back import Reader
from crmctl.read.records import KnownRecords, fetch, reading_cost, swap_links
from crmctl.read.stable_pages import SeenIds
from crmctl.values.equality import as_sent, is_same
from crmctl.write.database import RowState
from crmctl.write.effect import StepStanding, standing
from crmctl.write.journal import Journal
from crmctl.write.steps import MERGE_ORDER, Mark, Step, StepKind, StepSender, StepState


@frozen
class Surroundings:
    """Current records around a group.

    `members`: data of its records by id. `holders`: object, id and data of each record that refers to a loser. `activities`: the activities
    that name a loser, as the service sends them.
    """

    members: Mapping[str, Mapping[str, Any]]
    holders: Sequence[tuple[str, str, Mapping[str, Any]]]
    activities: Sequence[Mapping[str, Any]]


@frozen
class MergeSchema:
    """The object to merge and its attributes. `referring`: the attributes that refer to it, by object id."""

    object_id: str
    attributes: Sequence[Attribute]
    referring: Mapping[str, Sequence[Attribute]]

    @cached_property
    def by_slug(self) -> Mapping[str, Attribute]:
        return {attribute.slug: attribute for attribute in self.attributes}

    def referring_slugs(self, object_id: str) -> list[str]:
        return [attribute.slug for attribute in self.referring.get(object_id, ())]

    @property
    def unique(self) -> list[Attribute]:
        return [attribute for attribute in self.attributes if attribute.is_unique]


def plan_steps(merge: PlannedMerge, schema: MergeSchema, around: Surroundings) -> list[Step]:
    """Return the steps of a merge, in the order in which the service accepts unique values."""
    object_id, current = schema.object_id, around.members[merge.survivor.lower()]
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for slug, merged in merge.values.items():
        value = as_sent(schema.by_slug.get(slug), current.get(slug))
        if value != merged.value and not (is_empty(value) and is_empty(merged.value)):
            before[slug], after[slug] = value, merged.value
    # Losers first clear the unique values that the survivor gets. It gets those that they require after they are deleted.
    unique = [attribute for attribute in schema.unique if after.get(attribute.slug) is not None]
    late = [attribute.slug for attribute in unique if attribute.is_required]
    steps = []
    for loser in merge.losers:
        data = around.members[loser.lower()]
        clearable = [attribute for attribute in unique if not attribute.is_required]
        freed = held({attribute.slug: as_sent(attribute, data.get(attribute.slug)) for attribute in clearable})
        if freed:
            steps.append(Step(StepKind.FREE, object_id, loser, freed, dict.fromkeys(freed)))
    own = schema.referring_slugs(object_id)
    kinds = {slug: StepKind.CLAIM if slug in late else StepKind.REFERENCE if slug in own else StepKind.SURVIVOR for slug in after}
    for kind in (StepKind.SURVIVOR, StepKind.REFERENCE, StepKind.CLAIM):
        slugs = [slug for slug in after if kinds[slug] is kind]
        if slugs:
            step = Step(kind, object_id, merge.survivor, {slug: before[slug] for slug in slugs}, {slug: after[slug] for slug in slugs})
            steps.append(step)
    steps += late_steps(merge, schema, around)
    steps += [Step(StepKind.DELETE, object_id, loser, around.members[loser.lower()]) for loser in merge.losers]
    return sorted(steps, key=lambda step: MERGE_ORDER.index(step.kind))


def late_steps(merge: PlannedMerge, schema: MergeSchema, around: Surroundings) -> list[Step]:
    """Return the steps that point references and activities of losers at the survivor."""
    steps = []
    own = {merge.survivor.lower(), *(loser.lower() for loser in merge.losers)}
    away = {loser.lower(): merge.survivor for loser in merge.losers}
    for holder_object, holder, data in around.holders:
        before, after = moved_references(data, schema.referring.get(holder_object, ()), away)
        if after and holder.lower() not in own:
            steps.append(Step(StepKind.REFERENCE, holder_object, holder, before, after))
    for activity in around.activities:
        if links := swap_links(activity, away):
            steps.append(Step(StepKind.ACTIVITY, "", str(activity["id"]), {name: activity.get(name) for name in links}, links))
    return steps


def is_as_planned(attributes: Sequence[Attribute], planned: Mapping[str, Any], current: Mapping[str, Any], away: Mapping[str, str]) -> bool:
    """Whether a record still holds the planned values. References to records merged since count as references to their survivors."""
    return _comparable(attributes, planned, away) == _comparable(attributes, current, away)


def moved_record(
    merge: PlannedMerge, schema: MergeSchema, member: Callable[[str], Mapping[str, Any] | None], away: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return the first record of a group that is no longer as planned, and why; None if all are. `member`: returns current data by id."""
    for record_id in (merge.survivor, *merge.losers):
        current = member(record_id)
        if current is None:
            return record_id, f"record {record_id} is not there any more"
        if not is_as_planned(schema.attributes, merge.record(record_id).data, current, away):
            return record_id, f"record {record_id} has changed since the plan was made"
    return None


def _comparable(attributes: Sequence[Attribute], data: Mapping[str, Any], away: Mapping[str, str]) -> dict[str, Any]:
    references = {attribute.slug: attribute for attribute in attributes if attribute.type == AttributeType.REFERENCE}
    moved = {slug: replace_ids(as_sent(attribute, data[slug]), away) for slug, attribute in references.items() if slug in data}
    return held({**data, **moved})


MODE = "merge"
"""Mode of a merge job in its header."""


class GroupState(StrEnum):
    """State of a group.

    `merging`: some steps may be done. `refused`: not begun, nothing was written. `failed`: begun and taken back. `partly`: merged,
    but some step failed. `undone`: merged and then undone.
    """

    PLANNED = "planned"
    MERGING = "merging"
    MERGED = "merged"
    PARTLY = "partly"
    REFUSED = "refused"
    FAILED = "failed"
    UNDONE = "undone"


ROW_STATES = {
    GroupState.MERGED: RowState.UPDATED,
    GroupState.PARTLY: RowState.FAILED,
    GroupState.REFUSED: RowState.REJECTED,
    GroupState.FAILED: RowState.FAILED,
}
"""Row state that stands for a group in job counts."""


class GroupEntry(NamedTuple):
    """A group in the journal."""

    number: int
    survivor: str
    losers: Sequence[str]
    state: GroupState
    error: str | None


class MergeJournal(Journal):
    """Journal of a merge job. Its rows are groups."""

    def list_groups(self, groups: Iterable[tuple[int, str, Sequence[str]]]) -> None:
        self.restart_check()
        with self._transaction():
            self._db.execute("DELETE FROM merge_group")
            rows = ((number, survivor, jsontext.dumps(losers), GroupState.PLANNED) for number, survivor, losers in groups)
            self._db.executemany("INSERT INTO merge_group (no, survivor, losers, state) VALUES (?, ?, ?, ?)", rows)
        self.conclude((), int(self._one("SELECT COUNT(*) FROM merge_group")))

    def groups(self, *states: GroupState) -> Iterator[GroupEntry]:
        """Yield the groups in these states in plan order; groups may change state meanwhile."""
        marks = ", ".join("?" * len(states))
        query = f"SELECT no, survivor, losers, state, error FROM merge_group WHERE state IN ({marks}) ORDER BY no"
        with self._lock:
            rows = self._db.execute(query, states).fetchall()
        for number, survivor, losers, state, error in rows:
            yield GroupEntry(number, survivor, jsontext.loads(losers), GroupState(state), error)

    def add_steps(self, merges: Iterable[tuple[int, Sequence[Step]]]) -> None:
        """Journal steps by group, in one transaction, before the first one is sent. Planned groups have begun then."""
        with self._transaction():
            for number, steps in merges:
                begin = "UPDATE merge_group SET state = ?, error = NULL WHERE no = ? AND state = ?"
                self._db.execute(begin, (GroupState.MERGING, number, GroupState.PLANNED))
                query = "INSERT INTO merge_step (merge, kind, object_id, target, before, after, state) VALUES (?, ?, ?, ?, ?, ?, ?)"
                for step in steps:
                    values = (jsontext.dumps(step.before), jsontext.dumps(step.after), step.state)
                    self._db.execute(query, (number, step.kind, step.object_id, step.target, *values))

    def end_merge(self, number: int, state: GroupState, error: str | None = None) -> None:
        with self._transaction(durable=False):
            self._db.execute("UPDATE merge_group SET state = ?, error = ? WHERE no = ?", (state, error, number))
            if (row := ROW_STATES.get(state)) is not None:
                columns = "INSERT OR REPLACE INTO row (ordinal, state, record_id, error)"
                self._db.execute(f"{columns} SELECT no, ?, survivor, ? FROM merge_group WHERE no = ?", (row, error, number))

    def steps(self, group: int, *states: StepState) -> list[Step]:
        marks = ", ".join("?" * len(states))
        query = f"SELECT * FROM merge_step WHERE merge = ? AND state IN ({marks}) ORDER BY no"
        with self._lock:
            rows = self._db.execute(query, (group, *states)).fetchall()
        return [
            Step(StepKind(kind), object_id, target, jsontext.loads(before), jsontext.loads(after), number, group, StepState(state), error)
            for number, _, kind, object_id, target, before, after, state, error in rows
        ]

    def step_counts(self) -> dict[tuple[StepKind, StepState], int]:
        query = "SELECT kind, merge_step.state, COUNT(*) FROM merge_step GROUP BY kind, merge_step.state"
        with self._lock:
            return {(StepKind(kind), StepState(state)): count for kind, state, count in self._db.execute(query)}

    def mark_steps(self, numbers: Iterable[int], state: StepState, error: str | None = None) -> None:
        """Change the state of steps. Flush to disk at once if they are about to be sent."""
        with self._transaction(durable=state is StepState.SENDING):
            self._db.executemany("UPDATE merge_step SET state = ?, error = ? WHERE no = ?", ((state, error, number) for number in numbers))

    def begin_step(self, number: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Store the present values and the new ones of a step just before it is sent."""
        values = (jsontext.dumps(before), jsontext.dumps(after), StepState.SENDING, number)
        with self._transaction():
            self._db.execute("UPDATE merge_step SET before = ?, after = ?, state = ? WHERE no = ?", values)


def step_error(journal: MergeJournal, group: int) -> str | None:
    return next((step.error for step in journal.steps(group, StepState.FAILED)), None)


def lost_records(journal: MergeJournal, group: int) -> dict[str, Mapping[str, Any]]:
    """Return the losers of a group as they were before the merge, by id in lower case."""
    return {step.target.lower(): step.before for step in journal.steps(group, *StepState) if step.kind is StepKind.DELETE}


def survivors(journal: MergeJournal) -> dict[str, str]:
    """Map the id of each loser, in lower case, to its survivor."""
    merged = journal.groups(GroupState.MERGED, GroupState.PARTLY, GroupState.MERGING)
    return {loser.lower(): group.survivor for group in merged for loser in group.losers}


def group_counts(journal: MergeJournal) -> dict[GroupState, int]:
    return dict.fromkeys(GroupState, 0) | Counter(group.state for group in journal.groups(*GroupState))


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
            unsettled = self.unsettled(list(of_kind), self._log(back=False))
            self.journal.mark_steps([step.number for step in unsettled], StepState.PLANNED)

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
        self.journal.begin_step(step.number, links, change)
        self.patch(step, change)

    def links(self, step: Step) -> dict[str, Any] | None:
        """Return the current links of an activity that a step changed; None if it was deleted."""
        self.begin()
        try:
            activity = self.service.get_activity(step.target)
        except NotFoundError:
            return None
        return {name: activity.wire.get(name) for name in step.after}

    def patch(self, step: Step, links: Mapping[str, Any], *, back: bool = False) -> None:
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
    takers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for merge in merges():
        held_values = {value for record in (merge.survivor, *merge.losers) for value in _unique(merge.record(record).data, schema)}
        planned = {slug: value.value for slug, value in merge.values.items()}
        for value in {*_unique(planned, schema)} - held_values:
            takers[value].append(merge.group)
    refused = {group: f"group {groups[0]} gets the {slug} {text} too" for (slug, text), groups in takers.items() for group in groups[1:]}
    for merge in merges() if takers else ():
        for record_id in (merge.survivor, *merge.losers):
            for slug, text in _unique(merge.record(record_id).data, schema):
                for group in takers.get((slug, text), ()):
                    why = f"record {record_id} of group {merge.group} has the {slug} {text}"
                    refused[group] = f"{why}; merge that group first, then plan this one again"
    return refused


def _unique(data: Mapping[str, Any], schema: MergeSchema) -> Iterator[tuple[str, str]]:
    """Yield slug and text of the values that only one record may hold. The text ignores case, because some services do."""
    for attribute in schema.unique:
        if not is_empty(value := as_sent(attribute, data.get(attribute.slug))):
            yield attribute.slug, (value if isinstance(value, str) else jsontext.dumps(value, sort_keys=True)).casefold()


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
                lookup, records = Lookup(self._service, object_id), self.enter_context(KnownRecords())
                lookup.begin()
                for page in fetch(Reader(self._service, object_id), ids):
                    records.keep(page)
                self._whole[object_id] = (lookup, records)

    def refresh(self) -> None:
        """Read the records changed since. If the service cannot list changes, read records one at a time from now on."""
        for object_id, (lookup, records) in list(self._whole.items()):
            if not lookup.refresh(records.keep):
                del self._whole[object_id]

    def data(self, object_id: str, record_id: str) -> Mapping[str, Any] | None:
        """Return the data of a record; None if it was deleted."""
        record = self._whole[object_id][1].get(record_id) if object_id in self._whole else None
        try:
            return (record or self._service.get_record(object_id, record_id)).data
        except NotFoundError:
            return None
