"""Taking merges apart: survivors get back what they held, losers are made again, references and links return to them. Where somebody has
changed something since, that stays, and is reported. It can be done again: what is undone is remembered, or seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from crmctl.bulk.match.reference_values import ids_only, moved_references, replace_ids
from crmctl.bulk.merge.current_records import CurrentRecords
from crmctl.bulk.merge.merge_journal import EXCHANGING, GroupEntry, GroupState, LostRecord, MergeJournal
from crmctl.bulk.merge.remake import Remaker
from crmctl.bulk.merge.step_sender import StepSender
from crmctl.bulk.merge.step_status import StepStanding, data_standing, differing
from crmctl.bulk.merge.steps import MergeSchema, MergeStep, StepKind, StepState
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.linked_activities import swap_links
from crmctl.bulk.read.records_by_id import FEW
from crmctl.errors import NotFoundError, RejectedError
from crmctl.models.records import BULK_LIMIT

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


def most_requests(journal: MergeJournal) -> int:
    """So many an undo takes at most, where nobody has changed anything since and nothing is refused."""
    waves = _undoable_waves(journal)
    gone = {lost.id: "" for wave in waves for group in wave for lost in journal.lost_records(group.number)}
    count, looks = 1, Counter[str]()  # since when records are made again
    turns = 0
    for wave in waves:
        steps = [step for group in wave for step in journal.steps(group.number, StepState.DONE, StepState.SENDING)]
        deleted, lost = _deleted(steps), [one for group in wave for one in journal.lost_records(group.number)]
        count += sum(one.new_id is None and one.id in deleted for one in lost)
        count += sum(step.kind is StepKind.DELETE and step.state is StepState.SENDING for step in steps)
        count += 2 * sum(step.kind is StepKind.ACTIVITY for step in steps)
        again = sum(bool(moved_references(one.data, gone)) for one in lost)
        count += again + -(-again // BULK_LIMIT)
        for kinds in ((StepKind.SURVIVOR, StepKind.CLAIM), (StepKind.FREE,), (StepKind.REFERENCE,)):
            for part in _last_first(step for step in _written(steps) if step.kind in kinds):
                # Each record is looked at; what is written travels in common.
                sizes = Counter(step.object_id for step in part)
                looks, turns = looks + sizes, turns + 1
                count += sum(-(-size // BULK_LIMIT) for size in sizes.values())
    # An object that is read as a whole costs no more than its looks, the words before and after, and in each turn what has changed.
    return count + looks.total() + (turns + WHOLE) * sum(size > FEW for size in looks.values())


WHOLE = 5
"""Requests around the reading of a whole object."""

AT_ONCE = 100
"""So many groups are taken apart together: what they write travels in common requests."""


@dataclass
class Unmerge:
    """One run of an undo. `records` knows how those stand that were written."""

    sender: StepSender
    schema: MergeSchema
    progress: Progress
    records: CurrentRecords
    result: Unmerged = field(default_factory=Unmerged)

    def run(self) -> Unmerged:
        """Raises what ends it early; what was done until then is in the journal."""
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
        # Only now everybody is there whom a reference or a link may name.
        for wave in waves:
            self._point_back([group for group in wave if group.number in whole], remaker)
            self.progress.advance(len(wave))
        self.progress.finish()
        return self.result

    def _remake_all(self, wave: Sequence[GroupEntry], remaker: Remaker) -> set[int]:
        """Survivors give back what they got, and losers are made again; the numbers of the groups that have all of theirs."""
        journal = self.sender.journal
        for group in wave:
            self._settle_deletions(group)
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
        """References and links name the losers again."""
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
        self.result.groups += len(wave)

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

    def _restore(self, steps: Iterable[MergeStep]) -> dict[int, set[str]]:
        """Records get back what they held, in all that is still as it was written; by group the attributes that are not."""
        kept: dict[int, set[str]] = {}
        for some in _last_first(steps):
            self.records.refresh()
            changed: dict[int, list[str]] = {}
            back = [left for step in some if (left := self._still_ours(step, changed)) is not None]
            self.sender.write(back, back=True)
            # What stays changed is looked at, and said, again.
            self.sender.journal.mark_steps(changed, StepState.DONE)
            for step in some:
                kept.setdefault(step.group, set()).update(changed.get(step.number, ()))
            for step in back:
                self._count(step, self.sender.refused.pop(step.number, None))
        return kept

    def _still_ours(self, step: MergeStep, kept: dict[int, list[str]]) -> MergeStep | None:
        """A step with what is still to be put back; None where that is nothing. Adds to `kept`, by step, what somebody changed."""
        data = self.records.data(step.object_id, step.target)
        if data is None:
            self._is_gone(step)
            return None
        standing, changed = data_standing(self.schema, step, data)
        if standing is StepStanding.BEFORE:
            self.sender.journal.mark_steps([step.number], StepState.UNDONE)
            return None
        if changed:
            kept[step.number] = changed
            self.result.conflicts.append({"group": step.group, "id": step.target, "attributes": changed})
        wrong = differing(self.schema, step, step.before, data)
        restored = {slug: value for slug, value in step.before.items() if slug in wrong and slug not in changed}
        return replace(step, before=restored) if restored else None

    def _is_gone(self, step: MergeStep) -> None:
        self.result.gone.append({"group": step.group, "id": step.target})

    def _count(self, step: MergeStep, error: str | None) -> None:
        """What became of a step that was sent back."""
        if error is None:
            self.result.references += step.kind is StepKind.REFERENCE
            self.result.survivors += step.kind is StepKind.SURVIVOR
            return
        self.sender.requests += 1
        try:
            self.sender.writer.get_record(step.object_id, step.target)
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

    def _unlink(self, step: MergeStep, new: Mapping[str, str]) -> None:
        """The links of an activity, where they are still as they were written."""
        links = self.sender.links(step)
        if links is None:
            self._is_gone(step)
            return
        before, after = ({**then, **swap_links(then, new)} for then in (step.before, step.after))
        if links == before:
            self.sender.journal.mark_steps([step.number], StepState.UNDONE)
        elif links == after:
            self.sender.put_links_back(step, before)
            self.result.activities += 1
        elif step.state is StepState.DONE:
            self.result.conflicts.append({"group": step.group, "id": step.target, "attributes": sorted(links)})

    def _link_again(self, wave: Sequence[GroupEntry], remaker: Remaker) -> None:
        """Losers that referred to losers refer to what these are now."""
        steps: list[MergeStep] = []
        for lost in (lost for group in wave for lost in self.sender.journal.lost_records(group.number)):
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


def _undoable_waves(journal: MergeJournal) -> list[list[GroupEntry]]:
    return list(_waves(list(undoable(journal))[::-1], journal.recall(EXCHANGING) or ()))


def _waves(groups: Sequence[GroupEntry], exchanging: Iterable[Sequence[int]]) -> Iterator[list[GroupEntry]]:
    """The groups, so many at once; those that exchanged unique values are taken apart together."""
    with_whom = {number: unit for unit in exchanging for number in unit}
    known = {group.number: group for group in groups}
    wave: list[GroupEntry] = []
    for group in groups:
        if group.number in known:
            wave += [known.pop(number) for number in reversed(with_whom.get(group.number, (group.number,))) if number in known]
        if len(wave) >= AT_ONCE:
            yield wave
            wave = []
    if wave:
        yield wave


def _last_first(steps: Iterable[MergeStep]) -> list[list[MergeStep]]:
    """The steps, the last one first, in parts of which none writes a record twice."""
    parts: list[list[MergeStep]] = []
    often: Counter[str] = Counter()
    for step in sorted(steps, key=attrgetter("number"), reverse=True):
        turn = often[step.target.lower()]
        often[step.target.lower()] += 1
        if turn == len(parts):
            parts.append([])
        parts[turn].append(step)
    return parts


def _written(steps: Sequence[MergeStep]) -> list[MergeStep]:
    """The steps whose records an undo looks at."""
    deleted = _deleted(steps)
    kinds = (StepKind.SURVIVOR, StepKind.CLAIM, StepKind.REFERENCE, StepKind.FREE)
    return [step for step in steps if step.kind in kinds and step.target.lower() not in deleted]


def _deleted(steps: Iterable[MergeStep]) -> set[str]:
    return {step.target.lower() for step in steps if step.kind is StepKind.DELETE}


def _with_ids(step: MergeStep, new: Mapping[str, str]) -> MergeStep:
    """A step whose record referred to losers, or was one, with the ids they have now."""
    before, after = ({slug: replace_ids(value, new) for slug, value in data.items()} for data in (step.before, step.after))
    return replace(step, target=new.get(step.target.lower(), step.target), before=before, after=after)
