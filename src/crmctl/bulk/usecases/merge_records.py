"""Carrying out a merge plan, or what is left of it: what the job did, group by group, is in the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.dedupe.merge_plan import MergePlanFile, PlannedMerge, is_merge_plan
from crmctl.bulk.interrupts import watch_interrupts
from crmctl.bulk.journal.jobs import JobInfo, refuse_running
from crmctl.bulk.journal.journal import Header
from crmctl.bulk.journal.states import JobState
from crmctl.bulk.match.key_lookups import PAGE_STEP
from crmctl.bulk.match.reference_questions import asks
from crmctl.bulk.merge.exchanges import find_exchanges
from crmctl.bulk.merge.merge_journal import MODE, GroupState, MergeJournal
from crmctl.bulk.merge.merge_run import MergeJob
from crmctl.bulk.merge.step_sender import StepSender
from crmctl.bulk.merge.steps import MergeSchema, StepKind, StepState, is_as_planned
from crmctl.bulk.merge.survey import Survey
from crmctl.bulk.rows.mapping import schema_digest
from crmctl.bulk.run.job_start import keep_plan
from crmctl.bulk.run.plan import file_digest
from crmctl.bulk.run.request_limit import current_limit
from crmctl.bulk.usecases.resume import check_service
from crmctl.bulk.usecases.targets import referring_attributes, resolve_target, store_of, takes_turn
from crmctl.errors import CrmctlError, PartialError, RejectedError, UsageError
from crmctl.mirror.local_copy import LocalCopy, fresh_copy
from crmctl.models.records import BULK_LIMIT
from crmctl.version import __version__

if TYPE_CHECKING:
    from crmctl.bulk.usecases.apply_plan import ApplyRequest

MANY_REQUESTS = 100
"""More take longer than a minute, and are said beforehand."""

LISTED = 1000
"""How many groups of a kind a result lists; the counts are exact."""

IN_WORDS = {"refused": "not as planned any more", "failed": "refused by the service", "unsent": "not begun"}


@dataclass
class MergeResult:
    """What became of the groups of a plan. `error` ended the job early."""

    job: str
    object: str
    counts: dict[GroupState, int]
    steps: dict[tuple[StepKind, StepState], int]
    left: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    requests: int = 0
    elapsed: float = 0.0
    ended: CrmctlError | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        counts = self.counts
        return {
            "job": self.job,
            "object": self.object,
            "mode": MODE,
            "groups": sum(counts.values()),
            "merged": counts[GroupState.MERGED],
            "refused": counts[GroupState.REFUSED],
            "failed": counts[GroupState.FAILED] + counts[GroupState.PARTLY],
            "unsent": counts[GroupState.PLANNED] + counts[GroupState.MERGING],
            "undone": counts[GroupState.UNDONE],
            "deleted": self._done(StepKind.DELETE),
            "references": self._done(StepKind.REFERENCE),
            "activities": self._done(StepKind.ACTIVITY),
            "requests": self.requests,
            "elapsedSeconds": round(self.elapsed, 3),
            "rows": {name: self.left.get(name, []) for name in ("refused", "failed")},
        }

    @property
    def error(self) -> CrmctlError | None:
        """Why not every group is merged; None when all are."""
        if self.ended is not None:
            self.ended.hint = self.ended.hint or f"crmctl bulk resume {self.job}"
            return self.ended
        document = self.to_document()
        left = {name: document[name] for name in IN_WORDS if document[name]}
        if not left:
            return None
        said = ", ".join(f"{count:,} {IN_WORDS[name]}" for name, count in left.items())
        first = next((row for name in ("refused", "failed") for row in self.left.get(name, ())), None)
        why = f"; group {first['group']}: {first['error']}" if first else ""
        hint = "crmctl bulk dedupe again makes a plan of what there is now" if "refused" in left else None
        if document["merged"] or self.counts[GroupState.PARTLY]:
            return PartialError(f"not every group was merged: {said}{why}", hint=hint, details={**left, "rows": document["rows"]})
        return RejectedError(
            f"no group was merged: {said}{why}", hint=hint, code="refused_groups", details={**left, "rows": document["rows"]}
        )

    def _done(self, kind: StepKind) -> int:
        return self.steps.get((kind, StepState.DONE), 0)


PlannedGroup = tuple[int, str, list[str]]
"""Number, survivor and losers."""


@dataclass(frozen=True)
class MergePreview:
    """What carrying out a plan would do now. `moved`: groups that are not as they were planned, and why; `requests`: so many or so it
    takes, those for activities aside, and `seconds`, where they are many, at the rate of the service."""

    path: Path
    object: str
    groups: int
    losers: int
    moved: list[dict[str, Any]]
    requests: int = 0
    seconds: float = 0.0

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "dryRun": True, "plan": str(self.path), "object": self.object, "mode": MODE, "groups": self.groups, "duplicates": self.losers,
            "refused": len(self.moved), "requests": self.requests, "estimatedSeconds": round(self.seconds, 1),
            "rows": {"refused": self.moved[:LISTED]},
        }  # fmt: skip


def holds_merges(file: str) -> bool:
    """Whether a plan is one of merges."""
    return file != "-" and is_merge_plan(Path(file))


def example_merge() -> dict[str, Any]:
    """A result as a program gets it, without anything in it."""
    return MergeResult("", "", dict.fromkeys(GroupState, 0), {}).to_document()


def merge_records(context: BulkContext, request: ApplyRequest, approve: Callable[[MergePreview], None]) -> MergeResult:
    """Check a merge plan, show what it would do to `approve`, which raises to leave it, and do it.

    Raises UsageError for a plan that is none, or of another service. What happens to groups is in the result.
    """
    guard = request.guard()
    plan = MergePlanFile(Path(request.file))
    schema, merges = _opened(context, plan)
    listed = list_groups(plan, merges)
    preview = _preview(context, plan, schema, listed, [])
    guard.check(len(listed), len(listed))
    if listed:
        approve(preview)
    store = store_of(context)
    store.prepare()
    target = resolve_target(context, plan.header.object_id)
    with takes_turn(context, target, request.lock_wait, by_key=True):
        folder = store.new_folder()
        with ExitStack() as unless_made:
            unless_made.callback(shutil.rmtree, folder, ignore_errors=True)
            copy = keep_plan(plan.path, folder)
            sha256, size = file_digest(copy, request.file)
            _refuse_repetition(store.list(), sha256)
            header = Header(
                job=folder.name, object=plan.header.object, object_id=plan.header.object_id, origin=context.origin, mode=MODE,
                input=request.file, path=str(copy), sha256=sha256, size=size, mapping="", schema=schema_digest(schema.attributes),
                created_at=context.clock.now(), version=__version__,
            )  # fmt: skip
            MergeJournal.create(folder, header, context.clock).close()
            unless_made.pop_all()
        with closing(MergeJournal(folder, context.clock)) as journal, journal.hold():
            journal.list_groups(listed)
            return _run(context, journal, schema, lambda: MergePlanFile(copy).merges(schema.attributes))


def preview_merges(context: BulkContext, request: ApplyRequest) -> MergePreview:
    """Compare a merge plan with what is there now. Sends nothing."""
    plan = MergePlanFile(Path(request.file))
    schema, merges = _opened(context, plan)
    listed = list_groups(plan, merges)
    moved: list[dict[str, Any]] = []
    with Survey(context.service, schema) as survey:
        for _, survivor, losers in listed:
            survey.want(survivor, losers)
        survey.fill_members()
        refused = find_exchanges(merges, schema).refused
        for merge in merges():
            if merge.group in refused:
                moved.append({"group": merge.group, "id": merge.survivor, "error": refused[merge.group]})
                continue
            for record_id in (merge.survivor, *merge.losers):
                there = survey.member(record_id)
                if there is None or not is_as_planned(schema.attributes, merge.record(record_id).data, there, {}):
                    what = "is not there any more" if there is None else "has changed since the plan was made"
                    moved.append({"group": merge.group, "id": record_id, "error": f"record {record_id} {what}"})
                    break
    return _preview(context, plan, schema, listed, moved)


def _preview(
    context: BulkContext, plan: MergePlanFile, schema: MergeSchema, listed: Sequence[PlannedGroup], moved: list[dict[str, Any]]
) -> MergePreview:
    losers = sum(len(group) for _, _, group in listed)
    waves = -(-losers // BULK_LIMIT)
    # Each survivor is looked at before its losers go; a wave looks twice for changes of each object, and sends each kind of step.
    count = _reading(context, schema, listed) + len(listed) + waves * (2 * len({schema.object_id, *schema.referring}) + len(StepKind))
    return MergePreview(plan.path, plan.header.object, len(listed), losers, moved, count, seconds_for(context, count))


def seconds_for(context: BulkContext, requests: int) -> float:
    """How long so many requests take at the rate of the service; 0 where they are few, and nobody has to be told."""
    return current_limit(context).time_for(requests) if requests > MANY_REQUESTS else 0.0


def _reading(context: BulkContext, schema: MergeSchema, listed: Sequence[PlannedGroup]) -> int:
    """About how many requests it takes to know what refers to the records of a plan, activities aside, which nobody counts; said where
    they are many. One request for each object tells."""
    found = LocalCopy.find(context)
    objects = {schema.object_id, *schema.referring}
    if found is not None:
        with found:
            if all(found.state(object_id) is not None for object_id in objects):
                return 0
    losers = [loser for _, _, group in listed for loser in group]
    members = len(losers) + len(listed)
    count = 0
    for object_id in objects if listed else ():
        total = context.service.list_records(object_id, limit=1).total
        slugs = schema.referring.get(object_id, ())
        others = members if object_id == schema.object_id else 0
        pages = -(-(total or 0) // PAGE_STEP) + 2
        count += 1 + (len(slugs) * (len(losers) + 1) + others if asks(slugs, losers, others, total) else pages)
    if count > MANY_REQUESTS:
        context.listener.note(
            f"about {count:,} requests before the first group is merged; crmctl mirror sync first, and later ones are few"
        )
    return count


def resume_merges(context: BulkContext, job: JobInfo) -> MergeResult:
    """Go on with a job that merges; one that is finished only gives its result again."""
    refuse_running(job)
    with closing(MergeJournal(job.folder, context.clock)) as journal:
        if journal.state in (JobState.FINISHED, JobState.UNDONE):
            return result_of(journal)
        check_service(journal.header, context.origin)
        copy = Path(journal.header.path)
        schema = merge_schema(context, journal.header.object_id)
        target = resolve_target(context, journal.header.object_id)
        with takes_turn(context, target, 3600.0, by_key=True), journal.hold():
            if journal.state is JobState.CHECKING:
                plan = MergePlanFile(copy)
                journal.list_groups(list_groups(plan, lambda: plan.merges(schema.attributes)))
            return _run(context, journal, schema, lambda: MergePlanFile(copy).merges(schema.attributes))


def list_groups(plan: MergePlanFile, merges: Callable[[], Iterable[PlannedMerge]]) -> list[PlannedGroup]:
    """The groups by number: survivor and losers. Raises UsageError for a number, or a record, that comes twice."""
    homes: dict[str, tuple[int, int]] = {}
    numbers: dict[int, int] = {}
    listed: list[PlannedGroup] = []
    for merge in merges():
        if (line := numbers.setdefault(merge.group, merge.line)) != merge.line:
            message = f"{plan.path}, line {merge.line}: line {line} is group {merge.group} too"
            raise UsageError(message, hint="delete one of them, or give it another number", code="malformed_plan")
        for record_id in (merge.survivor, *merge.losers):
            group, line = homes.setdefault(record_id.lower(), (merge.group, merge.line))
            if line != merge.line:
                where = f"in group {group} (line {line}) and in group {merge.group}"
                message = f"{plan.path}, line {merge.line}: record {record_id} is {where}"
                raise UsageError(message, hint="leave it in one of them", code="malformed_plan")
        listed.append((merge.group, merge.survivor, list(merge.losers)))
    return listed


def merge_schema(context: BulkContext, object_id: str) -> MergeSchema:
    """The object, and which attributes of which objects refer to its records."""
    referring = {one: [each.slug for each in found] for one, found in referring_attributes(context, object_id).items()}
    return MergeSchema(object_id, context.directory.attributes(object_id, refresh=True), referring)


def result_of(journal: MergeJournal, ended: CrmctlError | None = None) -> MergeResult:
    """What a journal says of its groups."""
    requests, elapsed = journal.effort()
    left: dict[str, list[dict[str, Any]]] = {"refused": [], "failed": []}
    for group in journal.groups(GroupState.REFUSED, GroupState.FAILED, GroupState.PARTLY):
        rows = left["refused" if group.state is GroupState.REFUSED else "failed"]
        if len(rows) < LISTED:
            rows.append({"group": group.number, "id": group.survivor, "error": group.error})
    header = journal.header
    return MergeResult(header.job, header.object, journal.group_counts(), journal.step_counts(), left, requests, elapsed, ended)


def _opened(context: BulkContext, plan: MergePlanFile) -> tuple[MergeSchema, Callable[[], Iterator[PlannedMerge]]]:
    if plan.header.origin != context.origin:
        raise UsageError(
            f"{plan.path} belongs to {plan.header.origin}, and this profile to {context.origin}",
            hint="crmctl auth switch PROFILE, or --profile",
            code="plan_outdated",
        )
    schema = merge_schema(context, plan.header.object_id)
    return schema, lambda: plan.merges(schema.attributes)


def _run(context: BulkContext, journal: MergeJournal, schema: MergeSchema, merges: Callable[[], Iterable[PlannedMerge]]) -> MergeResult:
    begun = context.clock.monotonic()
    ended: CrmctlError | None = None
    requests = 0
    with ExitStack() as stack:
        sender = stack.enter_context(sending(context, journal))
        survey = stack.enter_context(Survey(context.service, schema))
        try:
            found = fresh_copy(context, survey.objects, 0.0)
            if found is not None:
                stack.enter_context(found[0])
                requests = found[1].requests if found[1] is not None else 0
            copy = found[0] if found is not None else None
            MergeJob(journal, merges, schema, survey, sender, context.listener.progress, copy).run()
        except CrmctlError as error:
            ended = error
            context.listener.progress.finish()
        journal.add_effort(requests + sender.requests + survey.requests, context.clock.monotonic() - begun)
    return result_of(journal, ended)


@contextmanager
def sending(context: BulkContext, journal: MergeJournal) -> Iterator[StepSender]:
    """What takes steps, and stops between two requests when it is interrupted."""
    with watch_interrupts(context.listener.progress.note) as interrupt:
        yield StepSender(context.service, journal, interrupt)


def _refuse_repetition(jobs: Iterable[JobInfo], sha256: str) -> None:
    for job in jobs:
        if job.header.mode == MODE and job.header.sha256 == sha256 and job.is_resumable:
            hint = f"crmctl bulk resume {job.id}"
            raise UsageError(f"job {job.id} is carrying out this plan and is not finished", hint=hint, code="already_begun")
