"""Survey the records of a merge plan and what refers to them, and run the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from crmctl.bulk_context import Progress
from crmctl.client.directory import ReadService
from crmctl.dedupe.merge_plan import PlannedMerge
from crmctl.errors import NotFoundError
from crmctl.files.spills import Spill
from crmctl.match.key_lookups import Lookup
from crmctl.match.references import Referrers, replace_ids
from crmctl.mirror.local_copy import LocalCopy
from crmctl.models import jsontext
from crmctl.models.ids import reference_ids
from crmctl.models.resources import BULK_LIMIT, Record
from crmctl.plan.merge_steps import (
    GroupState,
    MergeJournal,
    MergeSchema,
    MergeSender,
    Surroundings,
    contested_values,
    is_as_planned,
    late_steps,
    lost_records,
    moved_record,
    plan_steps,
    step_error,
    survivors,
)
from crmctl.read.read_back import LONG_READ, Reader
from crmctl.read.records import LINKS, all_activities, announced, fetch, named_records
from crmctl.read.stable_pages import SeenIds
from crmctl.write.database import JobState
from crmctl.write.steps import MERGE_ORDER, Step, StepKind, StepState

MANY = 10_000
"""Number of losers per mirror query."""


class Survey(Spill):
    """Current records around all groups of a plan. Call `want` for each group, then `fill`, and `refresh` before each wave."""

    TABLES = """
    CREATE TABLE member (id TEXT PRIMARY KEY, given TEXT NOT NULL, loses INTEGER NOT NULL, data TEXT) WITHOUT ROWID;
    CREATE TABLE holder (id TEXT PRIMARY KEY, object_id TEXT NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE refers (target TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (target, holder)) WITHOUT ROWID;
    CREATE TABLE activity (id TEXT PRIMARY KEY, links TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE names (target TEXT NOT NULL, activity TEXT NOT NULL, PRIMARY KEY (target, activity)) WITHOUT ROWID;
    """
    CACHE_KIB = 16_000

    def __init__(self, service: ReadService, schema: MergeSchema, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._service = service
        self._schema = schema
        self._tell = tell
        self._lookups = {object_id: Lookup(self._service, object_id, tell=tell) for object_id in {schema.object_id, *schema.referring}}
        self._ids = self.enter_context(SeenIds())

    def want(self, survivor: str, losers: Sequence[str]) -> None:
        rows = [(survivor.lower(), survivor, 0), *((loser.lower(), loser, 1) for loser in losers)]
        self._db.executemany("INSERT OR IGNORE INTO member (id, given, loses) VALUES (?, ?, ?)", rows)
        for record_id, _, _ in rows:
            self._ids.add(record_id)

    def fill_members(self) -> None:
        """Read only the wanted records, not what refers to them. Raises read errors."""
        announce = announced(self._tell, f"reading {len(self._ids):,} records of the plan", LONG_READ)
        for page in fetch(Reader(self._service, self._schema.object_id), self._ids, announce):
            self._take_all(self._schema.object_id, page)

    def fill(self, copy: LocalCopy | None = None) -> None:
        """Read everything from the mirror if it is complete, else from the service. Raises read errors."""
        if copy is not None and self._is_in(copy):
            self._fill_from(copy)
        else:
            self._fill_from_service()
        self.read_activities()

    def _is_in(self, copy: LocalCopy) -> bool:
        slugs = {object_id: self._schema.referring_slugs(object_id) for object_id in self._schema.referring}
        slugs = {self._schema.object_id: [attribute.slug for attribute in self._schema.attributes], **slugs}
        states = {object_id: copy.state(object_id) for object_id in self._lookups}
        return all(state is not None and state.proven and not {*slugs[name]} & {*state.excluded} for name, state in states.items())

    def _fill_from(self, copy: LocalCopy) -> None:
        object_id = self._schema.object_id
        for target_id, lookup in self._lookups.items():
            state = copy.state(target_id)
            lookup.as_of = (state.newest or state.as_of) if state is not None else 0
        members = self._db.execute("SELECT given, loses FROM member").fetchall()
        for record_id, _ in members:
            if (record := copy.record(object_id, record_id)) is not None:
                self.take(object_id, record)
        self._look_for_missing()
        losers = [record_id for record_id, loses in members if loses]
        for at in range(0, len(losers), MANY):
            for holder_object, record in copy.referring_to(object_id, losers[at : at + MANY]):
                self.take(holder_object, record)

    def _fill_from_service(self) -> None:
        losers = [row[0] for row in self._db.execute("SELECT given FROM member WHERE loses")]
        for object_id, lookup in self._lookups.items():
            newest, is_own, see = lookup.begin(), object_id == self._schema.object_id, partial(self._take_all, object_id)
            is_whole = False
            if object_id in self._schema.referring:
                referrers = Referrers(self._service, object_id, self._schema.referring_slugs(object_id), losers, newest)
                is_whole = not referrers.ask(see, len(self._ids) if is_own else 0)
                if is_whole:
                    lookup.price("reading all records to find those that refer to the merged ones,", None, newest)
                    referrers.read_all(see)
            if is_own and is_whole:
                self._look_for_missing()
            elif is_own:
                self.fill_members()

    def refresh(self) -> None:
        """Read the records changed since. Deletions show only when a record is written. Raises read errors."""
        for object_id, lookup in self._lookups.items():
            if not lookup.refresh(partial(self._take_all, object_id)) and object_id == self._schema.object_id:
                self.fill_members()

    def read_activities(self) -> None:
        """Read all activities and keep those that name a loser. Raises read errors."""
        for page in all_activities(self._service):
            for activity in page:
                named = [record_id for record_id in named_records(activity) if self._loses(record_id)]
                self._db.execute("DELETE FROM names WHERE activity = ?", (activity.id,))
                if named:
                    links = {"id": activity.id, **{name: activity.wire.get(name) or [] for name in LINKS}}
                    self._db.execute("INSERT OR REPLACE INTO activity VALUES (?, ?)", (activity.id, jsontext.dumps(links)))
                    self._db.executemany("INSERT OR IGNORE INTO names VALUES (?, ?)", ((record_id, activity.id) for record_id in named))

    def member(self, record_id: str) -> dict[str, Any] | None:
        row = self._db.execute("SELECT data FROM member WHERE id = ?", (record_id.lower(),)).fetchone()
        return None if row is None or row[0] is None else jsontext.loads(row[0])

    def around(self, survivor: str, losers: Sequence[str]) -> Surroundings:
        """Return the records and activities around a group."""
        members = {record_id.lower(): self.member(record_id) or {} for record_id in (survivor, *losers)}
        holders: dict[str, tuple[str, str, Mapping[str, Any]]] = {}
        activities: dict[str, Mapping[str, Any]] = {}
        for loser in losers:
            query = "SELECT holder.id, object_id, data FROM refers JOIN holder ON holder.id = holder WHERE target = ?"
            for record_id, object_id, data in self._db.execute(query, (loser.lower(),)):
                holders[record_id] = (object_id, record_id, jsontext.loads(data))
            query = "SELECT activity.id, links FROM names JOIN activity ON activity.id = activity WHERE target = ?"
            for activity_id, links in self._db.execute(query, (loser.lower(),)):
                activities[activity_id] = jsontext.loads(links)
        return Surroundings(members, list(holders.values()), list(activities.values()))

    def still_named(self) -> Iterator[str]:
        """Yield the losers that a record or activity still refers to."""
        yield from (row[0] for row in self._db.execute("SELECT target FROM refers UNION SELECT target FROM names ORDER BY 1").fetchall())

    def take(self, object_id: str, record: Record) -> None:
        record_id = record.id.lower()
        if object_id == self._schema.object_id:
            self._db.execute("UPDATE member SET data = ? WHERE id = ?", (jsontext.dumps(record.data), record_id))
        slugs = self._schema.referring_slugs(object_id)
        if not slugs:
            return
        targets = {target for slug in slugs for target in reference_ids(record.data.get(slug)) if self._loses(target)}
        self._db.execute("DELETE FROM refers WHERE holder = ?", (record_id,))
        if targets:
            self._db.execute("INSERT OR REPLACE INTO holder VALUES (?, ?, ?)", (record_id, object_id, jsontext.dumps(record.data)))
            self._db.executemany("INSERT OR IGNORE INTO refers VALUES (?, ?)", ((target, record_id) for target in targets))

    def _take_all(self, object_id: str, records: Iterable[Record]) -> None:
        for record in records:
            self.take(object_id, record)

    def _loses(self, record_id: str) -> bool:
        return self._db.execute("SELECT 1 FROM member WHERE id = ? AND loses", (record_id,)).fetchone() is not None

    def _look_for_missing(self) -> None:
        """Read missing records by id. A list alone never proves that a record is gone."""
        for (record_id,) in self._db.execute("SELECT id FROM member WHERE data IS NULL").fetchall():
            with suppress(NotFoundError):
                self.take(self._schema.object_id, self._service.get_record(self._schema.object_id, record_id))


BACKWARDS = (StepKind.CLAIM, StepKind.SURVIVOR, StepKind.FREE, StepKind.REFERENCE)
"""Survivors release unique values before the losers take them back."""


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
            waiting = (merge for merge in self.merges() if merge.group in open_groups)
            deferred: list[PlannedMerge] = []
            while wave := self._next_wave(waiting, deferred):
                self.survey.refresh()
                merges = [merge for merge in wave if self._is_as_planned(merge)]
                steps = [(merge.group, plan_steps(self._redirected(merge), self.schema, self._around(merge))) for merge in merges]
                self.journal.add_steps(steps)
                self._away.update((loser.lower(), merge.survivor) for merge in merges for loser in merge.losers)
                self._carry(merges)
                self.progress.advance(len(wave))
            self._look_again()
            self.journal.remember(LOOKED, True)
        self.progress.finish()
        self.journal.state = JobState.FINISHED

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
        ids = {
            *around.members,
            *(holder.lower() for _, holder, _ in around.holders),
            *(str(activity["id"]) for activity in around.activities),
        }
        own = self.schema.referring_slugs(self.schema.object_id)
        return ids.union(*(reference_ids(value.value) for slug, value in merge.values.items() if slug in own))

    def _is_as_planned(self, merge: PlannedMerge) -> bool:
        moved = moved_record(merge, self.schema, self.survey.member, self._away)
        if moved is not None:
            self.journal.end_merge(merge.group, GroupState.REFUSED, moved[1])
        return moved is None

    def _redirected(self, merge: PlannedMerge) -> PlannedMerge:
        """Return the merge with references to records merged so far pointed at their survivors."""
        own = self.schema.referring_slugs(self.schema.object_id)
        values = dict(merge.values)
        for slug in set(own) & set(values):
            values[slug] = replace(values[slug], value=replace_ids(values[slug].value, self._away))
        return replace(merge, values=values)

    def _carry(self, merges: Sequence[PlannedMerge]) -> None:
        """Send the steps of these groups, kind by kind. If the service refuses a step, take its group back."""
        waiting = {merge.group: merge for merge in merges}
        for kind in MERGE_ORDER:
            if kind is StepKind.DELETE and waiting:
                self._before_deleting(waiting)
            steps = [step for number in waiting for step in self._open_steps(number) if step.kind is kind]
            self._take(kind, steps, waiting)
            for number in list(waiting):
                if self._gives_up(number, kind):
                    del waiting[number]
        for number in waiting:
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
        """Undo every step of a group that was carried out. Journal the decision first, so that it survives a crash."""
        sender, done = self.sender, self.journal.steps(number, StepState.DONE)
        self.journal.end_merge(number, GroupState.MERGING, error)
        for kind in BACKWARDS:
            back = []
            for step in [step for step in done if step.kind is kind]:
                with suppress(NotFoundError):
                    back.append(sender.restorable(step, sender.service.get_record(step.object_id, step.target).data)[0])
            sender.write([step for step in back if step is not None], back=True)
        for step in done:
            if step.kind is StepKind.ACTIVITY and (links := sender.links(step)) is not None and links == dict(step.after):
                sender.patch(step, step.before, back=True)
        self.journal.end_merge(number, GroupState.FAILED, error)
        self._away = survivors(self.journal)

    def _before_deleting(self, waiting: dict[int, PlannedMerge]) -> None:
        """Take back groups whose losers changed, and move references made since planning to the survivor."""
        self.survey.refresh()
        for number, merge in list(waiting.items()):
            why = self._changed_meanwhile(merge)
            if why is not None and self._gives_up(number, StepKind.DELETE, why):
                del waiting[number]
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
            current = self.survey.member(loser)
            if current is not None and not is_as_planned(self.schema.attributes, {**images[loser.lower()], **freed}, current, self._away):
                return f"record {loser} was changed while it was merged"
        return None

    def _look_again(self) -> None:
        """Move references and activities that were pointed at losers during the merge."""
        done = list(self.journal.groups(GroupState.MERGED, GroupState.PARTLY))
        if not done:
            return
        homes = {loser.lower(): group for group in done for loser in group.losers}
        self.survey.refresh()
        self.survey.read_activities()
        for group in dict.fromkeys(homes[loser].number for loser in self.survey.still_named() if loser in homes):
            entry = next(merge for merge in done if merge.number == group)
            self._take_along(group, entry.survivor, entry.losers, (StepKind.REFERENCE, StepKind.ACTIVITY))
            if (error := step_error(self.journal, group)) is not None:
                self.journal.end_merge(group, GroupState.PARTLY, f"merged, but: {error}")

    def _take_along(self, number: int, survivor: str, losers: Sequence[str], kinds: Sequence[StepKind]) -> None:
        merge = PlannedMerge(number, 1.0, (), survivor, tuple(losers), {}, ())
        targets = {step.target.lower() for step in self.journal.steps(number, StepState.DONE) if step.kind is StepKind.REFERENCE}
        late = late_steps(merge, self.schema, self._around(merge))
        steps = [step for step in late if step.kind in kinds and step.target.lower() not in targets]
        if steps:
            self.journal.add_steps([(number, steps)])
            added = self._open_steps(number)
            for kind in kinds:
                self._take(kind, [step for step in added if step.kind is kind], {number: merge})

    def _around(self, merge: PlannedMerge) -> Surroundings:
        """Return the surroundings of a group, without the records that this job merged away."""
        around = self.survey.around(merge.survivor, merge.losers)
        return replace(around, holders=[holder for holder in around.holders if holder[1].lower() not in self._away])
