"""Taking merges apart: survivors get back what they held, losers are made again, references and links return to them. Where somebody has
changed something since, that stays, and is reported. It can be done again: what is undone is remembered, or seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from crmctl.bulk.merge.merge_journal import GroupEntry, GroupState, LostRecord, MergeJournal
from crmctl.bulk.merge.remake import Remaker
from crmctl.bulk.merge.step_sender import StepSender
from crmctl.bulk.merge.step_status import StepStanding, data_standing, differing
from crmctl.bulk.merge.steps import MergeSchema, MergeStep, StepKind, StepState, ids_only, replace_ids
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.linked_activities import swap_links
from crmctl.errors import NotFoundError, RejectedError

OPEN = (GroupState.MERGED, GroupState.PARTLY, GroupState.MERGING, GroupState.UNDONE)
"""Groups of which something may be left to undo."""


@dataclass
class Unmerged:
    """What became of it. `remade`: the new ids of losers, by the old ones. `conflicts`: what somebody changed since, and stays; `failed`:
    what the service refused; `gone`: what somebody deleted."""

    groups: int = 0
    remade: dict[str, str] = field(default_factory=dict)
    survivors: int = 0
    references: int = 0
    activities: int = 0
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not (self.conflicts or self.failed or self.gone)


def undoable(journal: MergeJournal) -> Iterator[GroupEntry]:
    """The groups of which something is left to undo."""
    for group in journal.groups(*OPEN):
        if group.state is not GroupState.UNDONE or journal.steps(group.number, StepState.DONE, StepState.SENDING):
            yield group


@dataclass
class Unmerge:
    """One run of an undo."""

    sender: StepSender
    schema: MergeSchema
    progress: Progress
    result: Unmerged = field(default_factory=Unmerged)

    def run(self) -> Unmerged:
        """Raises what ends it early; what was done until then is in the journal."""
        journal = self.sender.journal
        groups = list(undoable(journal))[::-1]
        remaker = Remaker(self.sender, self.schema, journal.survivors())
        self.progress.start("taking apart", 2 * len(groups))
        whole = set()
        for group in groups:
            if self._remake_all(group, remaker):
                whole.add(group.number)
            self.progress.advance(1)
        # Only now everybody is there whom a reference or a link may name.
        new = journal.new_ids()
        for group in groups:
            if group.number in whole:
                self._point_back(group, remaker, new)
            self.progress.advance(1)
        self.progress.finish()
        return self.result

    def _remake_all(self, group: GroupEntry, remaker: Remaker) -> bool:
        """The survivor gives back what it got, and losers are made again; whether all are."""
        journal = self.sender.journal
        self._settle_deletions(group)
        done = journal.steps(group.number, StepState.DONE, StepState.SENDING)
        kept = self._restore(group, [step for step in done if step.kind in (StepKind.SURVIVOR, StepKind.CLAIM)])
        deleted = _deleted(done)
        losers = [lost for lost in journal.lost_records(group.number) if lost.id in deleted]
        made = [self._remake(group, lost, remaker, kept) for lost in losers]
        self._restore(group, [step for step in done if step.kind is StepKind.FREE and step.target.lower() not in deleted])
        return all(made)

    def _point_back(self, group: GroupEntry, remaker: Remaker, new: Mapping[str, str]) -> None:
        """References and links name the losers again."""
        journal = self.sender.journal
        done = journal.steps(group.number, StepState.DONE, StepState.SENDING)
        for step in reversed(done):
            if step.kind is StepKind.ACTIVITY:
                self._unlink(group, step, new)
        self._restore(group, [_with_ids(step, new) for step in done if step.kind is StepKind.REFERENCE])
        self._link_again(group, remaker)
        deleted = _deleted(done)
        left = [step for step in done if step.kind is StepKind.DELETE or (step.kind is StepKind.FREE and step.target.lower() in deleted)]
        journal.mark_steps([step.number for step in left], StepState.UNDONE)
        journal.end_merge(group.number, GroupState.UNDONE)
        self.result.groups += 1

    def _settle_deletions(self, group: GroupEntry) -> None:
        """A job that was interrupted while it deleted: what is there is not made again."""
        for step in self.sender.journal.steps(group.number, StepState.SENDING):
            if step.kind is StepKind.DELETE:
                self.sender.requests += 1
                try:
                    self.sender.writer.get_record(step.object_id, step.target)
                    self.sender.journal.mark_steps([step.number], StepState.PLANNED)
                except NotFoundError:
                    self.sender.journal.mark_steps([step.number], StepState.DONE)

    def _restore(self, group: GroupEntry, steps: Iterable[MergeStep]) -> set[str]:
        """Records get back what they held, in all that is still as it was written; the attributes that are not."""
        kept: set[str] = set()
        conflicting: list[int] = []
        back = []
        for step in steps:
            self.sender.requests += 1
            try:
                record = self.sender.writer.get_record(step.object_id, step.target)
            except NotFoundError:
                self.result.gone.append({"group": group.number, "id": step.target})
                continue
            standing, changed = data_standing(self.schema, step, record.data)
            if standing is StepStanding.BEFORE:
                self.sender.journal.mark_steps([step.number], StepState.UNDONE)
                continue
            if changed:
                kept.update(changed)
                conflicting.append(step.number)
                self.result.conflicts.append({"group": group.number, "id": step.target, "attributes": changed})
            wrong = differing(self.schema, step, step.before, record.data)
            if restored := {slug: value for slug, value in step.before.items() if slug in wrong and slug not in changed}:
                back.append(replace(step, before=restored))
                self._count(step.kind)
        self.sender.write(back, back=True)
        # What stays changed is looked at, and said, again.
        self.sender.journal.mark_steps(conflicting, StepState.DONE)
        for step in back:
            if (error := self.sender.refused.pop(step.number, None)) is not None:
                self.result.failed.append({"group": group.number, "id": step.target, "error": error})
        return kept

    def _count(self, kind: StepKind) -> None:
        if kind is StepKind.REFERENCE:
            self.result.references += 1
        elif kind is StepKind.SURVIVOR:
            self.result.survivors += 1

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

    def _unlink(self, group: GroupEntry, step: MergeStep, new: Mapping[str, str]) -> None:
        """The links of an activity, where they are still as they were written."""
        links = self.sender.links(step)
        if links is None:
            self.result.gone.append({"group": group.number, "id": step.target})
            return
        before, after = ({**then, **swap_links(then, new)} for then in (step.before, step.after))
        if links == before:
            self.sender.journal.mark_steps([step.number], StepState.UNDONE)
        elif links == after:
            self.sender.put_links_back(step, before)
            self.result.activities += 1
        elif step.state is StepState.DONE:
            self.result.conflicts.append({"group": group.number, "id": step.target, "attributes": sorted(links)})

    def _link_again(self, group: GroupEntry, remaker: Remaker) -> None:
        """Losers that referred to losers refer to what these are now."""
        steps: list[MergeStep] = []
        for lost in self.sender.journal.lost_records(group.number):
            if lost.new_id is not None and (wanted := remaker.relinked(lost)):
                self.sender.requests += 1
                try:
                    record = self.sender.writer.get_record(self.schema.object_id, lost.new_id)
                except NotFoundError:
                    continue
                stood_in = {slug: replace_ids(ids_only(lost.data[slug]), remaker.away) for slug in wanted}
                left_out = remaker.without.get(lost.id, ())
                mine = {
                    slug: value for slug, value in wanted.items() if ids_only(record.data.get(slug)) == stood_in[slug] or slug in left_out
                }
                if mine:
                    # None of the journal's steps; each has a number of its own all the same, by which the sender tells them apart.
                    steps.append(MergeStep(StepKind.REFERENCE, self.schema.object_id, lost.new_id, mine, number=-1 - len(steps)))
        self.sender.write(steps, back=True)


def _deleted(steps: Iterable[MergeStep]) -> set[str]:
    return {step.target.lower() for step in steps if step.kind is StepKind.DELETE}


def _with_ids(step: MergeStep, new: Mapping[str, str]) -> MergeStep:
    """A step whose record referred to losers, or was one, with the ids they have now."""
    before, after = ({slug: replace_ids(value, new) for slug, value in data.items()} for data in (step.before, step.after))
    return replace(step, target=new.get(step.target.lower(), step.target), before=before, after=after)
