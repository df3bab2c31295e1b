"""Find duplicates and carry out a merge plan."""

from __future__ import annotations

import heapq
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.bulk_context import BulkContext, showing, watch_interrupts
from crmctl.dedupe.candidates import MatchCandidates
from crmctl.dedupe.merge_plan import (
    KIND,
    MOST_ACTIVITIES,
    OLDEST,
    UNION,
    GroupCounts,
    KeepRules,
    MatchGroup,
    MatchReason,
    MergedValue,
    MergePlanFile,
    MergePlanHeader,
    MergeRecord,
    PlannedMerge,
    choose_survivor,
    find_groups,
    merge_values,
    parse_keep,
    write_merge_plan,
)
from crmctl.dedupe.rules import parse_rules
from crmctl.errors import CrmctlError, PartialError, RejectedError, UsageError
from crmctl.files.mapping import schema_digest
from crmctl.files.whole_files import check_place
from crmctl.frozen import frozen
from crmctl.mirror.local_copy import MAX_AGE, LocalCopy, fresh_copy
from crmctl.models.resources import BULK_LIMIT, Attribute, Record, document_of
from crmctl.plan.import_plan import file_digest
from crmctl.plan.job_run import requests_made, seconds_for
from crmctl.plan.job_start import keep_plan
from crmctl.plan.merge_run import MergeJob, Survey
from crmctl.plan.merge_steps import (
    MODE,
    GroupState,
    MergeJournal,
    MergeSchema,
    MergeSender,
    contested_values,
    group_counts,
    moved_record,
    survivors,
)
from crmctl.plan.plan_file import check_service as check_plan_service
from crmctl.plan.requests import referring_attributes, resolve_target, store_of, takes_turn
from crmctl.plan.resume import check_service
from crmctl.plan.undo_deletions import reading_price
from crmctl.read.records import count_links, scan
from crmctl.read.stable_pages import Listing
from crmctl.values.moments import MICROS, to_timestamp
from crmctl.version import __version__
from crmctl.write.database import JobState
from crmctl.write.jobs import JobInfo, effort, refuse_running
from crmctl.write.journal import Header
from crmctl.write.steps import MERGE_ORDER, StepKind, StepState

if TYPE_CHECKING:
    from crmctl.plan.import_records import ApplyRequest


MANY_REQUESTS = 100
"""Number of requests above which crmctl announces the cost: more take over a minute."""

LISTED = 1000
"""Maximum number of groups of each kind in a result; the counts are exact."""

IN_WORDS = {"refused": "not as planned any more", "failed": "refused by the service", "unsent": "not begun"}


@dataclass
class MergeResult:
    """Outcome of a merge job. `ended`: the error that ended it early."""

    job: str
    object: str
    counts: dict[GroupState, int]
    steps: dict[tuple[StepKind, StepState], int]
    left: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    requests: int = 0
    elapsed: float = 0.0
    ended: CrmctlError | None = None

    def to_document(self) -> dict[str, Any]:
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

    def raise_for_error(self) -> None:
        if self.ended is not None:
            self.ended.hint = self.ended.hint or f"crmctl bulk resume {self.job}"
            raise self.ended
        document = self.to_document()
        others = {name: document[name] for name in IN_WORDS if document[name]}
        if not others:
            return
        counts = ", ".join(f"{count:,} {IN_WORDS[name]}" for name, count in others.items())
        first = next((row for name in ("refused", "failed") for row in self.left.get(name, ())), None)
        why = f"; group {first['group']}: {first['error']}" if first else ""
        hint = "crmctl bulk dedupe again makes a plan of what there is now" if "refused" in others else None
        details = {**others, "rows": document["rows"]}
        if document["merged"] or self.counts[GroupState.PARTLY]:
            raise PartialError(f"not every group was merged: {counts}{why}", hint=hint, details=details)
        raise RejectedError(f"no group was merged: {counts}{why}", hint=hint, code="refused_groups", details=details)

    def _done(self, kind: StepKind) -> int:
        return self.steps.get((kind, StepState.DONE), 0)


PlannedGroup = tuple[int, str, list[str]]
"""Number, survivor and losers of a group."""


@frozen
class MergePreview:
    """Effect of a merge plan if it ran now.

    `moved`: groups that no longer match the plan, and why. `requests`: the estimated number, without reading activities. `seconds`: the
    estimated duration; 0 for few requests.
    """

    path: Path
    object: str
    groups: int
    losers: int
    moved: list[dict[str, Any]]
    requests: int = 0
    seconds: float = 0.0

    def to_document(self) -> dict[str, Any]:
        return {
            "dryRun": True, "plan": str(self.path), "object": self.object, "mode": MODE, "groups": self.groups, "duplicates": self.losers,
            "refused": len(self.moved), "requests": self.requests, "estimatedSeconds": round(self.seconds, 1),
            "rows": {"refused": self.moved[:LISTED]},
        }  # fmt: skip


def is_merge_plan(file: str) -> bool:
    """Whether the first line of a file is the header of a merge plan; false for stdin and an unreadable file."""
    try:
        with Path(file).open("rb") as content:
            return file != "-" and f'"{KIND}"'.encode() in content.readline(1 << 20)
    except OSError:
        return False


def example_merge() -> dict[str, Any]:
    return MergeResult("", "", dict.fromkeys(GroupState, 0), {}).to_document()


def merge_records(context: BulkContext, request: ApplyRequest, approve: Callable[[MergePreview], None]) -> MergeResult:
    """Check a merge plan, pass its preview to `approve`, and carry it out. `approve` raises to cancel.

    Raises UsageError if the file is not a merge plan or belongs to another service. The result holds the outcome of each group.
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
    """Compare a merge plan with the current records. Write nothing to the service."""
    plan = MergePlanFile(Path(request.file))
    schema, merges = _opened(context, plan)
    listed = list_groups(plan, merges)
    moved: list[dict[str, Any]] = []
    with Survey(context.service, schema, context.listener.progress.note) as survey:
        for _, survivor, losers in listed:
            survey.want(survivor, losers)
        survey.fill_members()
        refused = contested_values(merges, schema)
        for merge in merges():
            why = refused.get(merge.group)
            change = (merge.survivor, why) if why is not None else moved_record(merge, schema, survey.member, {})
            if change is not None:
                moved.append({"group": merge.group, "id": change[0], "error": change[1]})
    return _preview(context, plan, schema, listed, moved)


def _preview(
    context: BulkContext, plan: MergePlanFile, schema: MergeSchema, listed: Sequence[PlannedGroup], moved: list[dict[str, Any]]
) -> MergePreview:
    losers = sum(len(group) for _, _, group in listed)
    waves = -(-losers // BULK_LIMIT)
    # One read per survivor before its losers are deleted. Per wave, two reads of each object's changes, and two requests per kind of step.
    per_wave = 2 * len({schema.object_id, *schema.referring}) + 2 * len(MERGE_ORDER)
    count = _reading(context, schema, listed) + len(listed) + waves * per_wave
    return MergePreview(plan.path, plan.header.object, len(listed), losers, moved, count, seconds_for(context, count))


def _reading(context: BulkContext, schema: MergeSchema, listed: Sequence[PlannedGroup]) -> int:
    """Estimate the requests to find all references to the records of a plan, without activities, and announce a large number."""
    copy = LocalCopy.find(context)
    objects = {schema.object_id, *schema.referring}
    if copy is not None:
        with copy:
            if all(copy.state(object_id) is not None for object_id in objects):
                return 0
    losers = sum(len(group) for _, _, group in listed)
    slugs = {schema.object_id: [], **{holder: schema.referring_slugs(holder) for holder in schema.referring}}
    count = reading_price(context.service, slugs, losers, {schema.object_id: losers + len(listed)}) if listed else 0
    if count > MANY_REQUESTS:
        context.listener.note(
            f"about {count:,} requests before the first group is merged; crmctl mirror sync first, and later ones are few"
        )
    return count


def resume_merges(context: BulkContext, job: JobInfo) -> MergeResult:
    """Resume a merge job. If it has finished, return its result again."""
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
    """Return number, survivor and losers of each group. Raises UsageError if a group number or a record appears twice."""
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
    return MergeSchema(object_id, context.directory.attributes(object_id, refresh=True), referring_attributes(context, object_id))


def result_of(journal: MergeJournal, ended: CrmctlError | None = None) -> MergeResult:
    requests, elapsed = effort(journal)
    unmerged: dict[str, list[dict[str, Any]]] = {"refused": [], "failed": []}
    for group in journal.groups(GroupState.REFUSED, GroupState.FAILED, GroupState.PARTLY):
        rows = unmerged["refused" if group.state is GroupState.REFUSED else "failed"]
        if len(rows) < LISTED:
            rows.append({"group": group.number, "id": group.survivor, "error": group.error})
    header = journal.header
    return MergeResult(header.job, header.object, group_counts(journal), journal.step_counts(), unmerged, requests, elapsed, ended)


def _opened(context: BulkContext, plan: MergePlanFile) -> tuple[MergeSchema, Callable[[], Iterator[PlannedMerge]]]:
    check_plan_service(plan.path, plan.header.origin, context.origin)
    schema = merge_schema(context, plan.header.object_id)
    return schema, lambda: plan.merges(schema.attributes)


def _run(context: BulkContext, journal: MergeJournal, schema: MergeSchema, merges: Callable[[], Iterable[PlannedMerge]]) -> MergeResult:
    begun = context.clock.monotonic()
    ended: CrmctlError | None = None
    with ExitStack() as stack:
        sender = stack.enter_context(sending(context, journal, schema))
        survey = stack.enter_context(Survey(context.service, schema, context.listener.progress.note))
        try:
            copy = fresh_copy(context, [*{schema.object_id, *schema.referring}], 0.0)
            if copy is not None:
                stack.enter_context(copy)
            MergeJob(journal, merges, schema, survey, sender, context.listener.progress, copy).run()
        except CrmctlError as error:
            ended = error
            context.listener.progress.finish()
        effort(journal, requests_made(context), context.clock.monotonic() - begun)
    return result_of(journal, ended)


@contextmanager
def sending(context: BulkContext, journal: MergeJournal, schema: MergeSchema) -> Iterator[MergeSender]:
    """Yield a sender of steps. After an interrupt it stops before the next request."""
    attributes = {holder: {attribute.slug: attribute for attribute in named} for holder, named in schema.referring.items()}
    attributes[schema.object_id] = dict(schema.by_slug)
    with watch_interrupts(context.listener.progress.note) as interrupt:
        yield MergeSender(context.service, context.clock, interrupt, journal=journal, attributes=attributes)


def _refuse_repetition(jobs: Iterable[JobInfo], sha256: str) -> None:
    for job in jobs:
        if job.header.mode == MODE and job.header.sha256 == sha256 and job.is_resumable:
            hint = f"crmctl bulk resume {job.id}"
            raise UsageError(f"job {job.id} is carrying out this plan and is not finished", hint=hint, code="already_begun")


REVIEWED = 50
"""Number of groups in a review: the least certain ones."""

MOST_MEMBERS = 10
"""Default maximum size of a group."""


@frozen
class DedupeRequest:
    """Search for duplicate records of `object`.

    `match`: alternative match rules; `keep`: rules for the survivor and its values; `most`: the maximum size of a group. `review` adds the
    least certain groups to the result. A mirror older than `max_age` seconds is synced first.
    """

    object: str
    match: Sequence[str]
    keep: Sequence[str] = ()
    plan: Path | None = None
    most: int = MOST_MEMBERS
    review: bool = False
    max_age: float = MAX_AGE


@dataclass
class DedupeResult:
    """Duplicates found: `groups`, and the `duplicates` that a merge would delete.

    `crowded`: values ignored because too many records share them. `windowed`: positions of records in blocks too large to compare every
    pair.
    """

    object: str
    rules: Sequence[str]
    keep: Sequence[str]
    plan: Path | None
    records: int = 0
    groups: int = 0
    duplicates: int = 0
    compared: int = 0
    crowded: int = 0
    windowed: int = 0
    counts: GroupCounts = field(default_factory=GroupCounts)
    requests: int = 0
    elapsed: float = 0.0
    as_of: str | None = None
    mirrored: bool = False
    by_rule: dict[str, int] = field(default_factory=dict)
    least_certain: list[PlannedMerge] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        names = (
            "object records groups duplicates match keep by_rule compared crowded windowed too_large cut as_of source requests "
            "elapsed_seconds plan review"
        )
        return document_of(
            self, names, match=list(self.rules), keep=list(self.keep), tooLarge=self.counts.too_large, cut=self.counts.cut,
            source="mirror" if self.mirrored else "service", elapsedSeconds=round(self.elapsed, 3),
            review=[merge.to_document() for merge in self.least_certain],
        )  # fmt: skip


def dedupe(context: BulkContext, request: DedupeRequest) -> DedupeResult:
    """Find duplicates and write the merge plan. Raises UsageError for invalid rules or a path that cannot be written."""
    if request.most < 2:
        raise UsageError("--max-group: a group has two records or more", hint="--max-group 10", code="malformed_rule")
    if request.plan is not None:
        check_place(request.plan, None)
        if request.plan.is_file():
            context.listener.confirm(f"Replace {request.plan}")
    begun = context.clock.monotonic()
    target = resolve_target(context, request.object)
    rules = parse_rules(request.match, target.attributes, request.object)
    keep = parse_keep(request.keep, target.attributes)
    result = DedupeResult(request.object, [rule.said for rule in rules], keep.said, request.plan, as_of=_now(context))
    with MatchCandidates(rules, request.most) as candidates:
        _read(context, request, target.object_id, candidates, result)
        result.records = candidates.count
        with showing(context.listener.progress, "comparing pairs") as progress:
            candidates.compare(progress.advance)
        result.compared, result.crowded, result.windowed = candidates.compared, candidates.crowded, candidates.windowed
        links: Mapping[str, int] = {}
        if keep.survivor == MOST_ACTIVITIES:
            links = count_links(context.service)
        groups = enumerate(find_groups(candidates, result.counts, request.most), 1)
        proposed = (_propose(group, number, candidates, keep, target.attributes, links) for number, group in groups)
        merges = dedupe_result(result, proposed, review=request.review)
        if request.plan is not None:
            header = MergePlanHeader(
                request.object, target.object_id, context.origin, __version__, _now(context), result.rules, keep.said,
                result.as_of,
            )  # fmt: skip
            write_merge_plan(request.plan, header, merges)
        else:
            deque(merges, maxlen=0)
    result.elapsed, result.requests = context.clock.monotonic() - begun, requests_made(context)
    return result


def propose_merge(attributes: Sequence[Attribute], records: Sequence[Record], survivor: str | None) -> PlannedMerge:
    """Propose to merge records: the oldest survives unless `survivor` is given, keeps its values, fills its blanks and unites lists."""
    listed = [MergeRecord(record.id, record.data, record.created_at, record.updated_at) for record in records]
    kept = survivor or choose_survivor(listed, OLDEST).id
    keep = KeepRules(OLDEST, {attribute.slug: UNION for attribute in attributes if attribute.holds_items})
    values = merge_values(listed, kept, keep, attributes)
    return PlannedMerge(1, 1.0, (), kept, tuple(record.id for record in listed if record.id != kept), values, tuple(listed))


def write_one_merge(context: BulkContext, object_name: str, merge: PlannedMerge, own: Mapping[str, Any], path: Path) -> PlannedMerge:
    merge = replace(merge, values={**merge.values, **{slug: MergedValue(value, (), "set") for slug, value in own.items()}})
    object_id, now = context.directory.object_id(object_name), _now(context)
    header = MergePlanHeader(object_name, object_id, context.origin, __version__, now, (), (OLDEST,), now)
    write_merge_plan(path, header, [merge])
    return merge


def dedupe_result(result: DedupeResult, merges: Iterator[PlannedMerge], *, review: bool) -> Iterator[PlannedMerge]:
    worst: list[tuple[float, int, PlannedMerge]] = []
    for number, merge in enumerate(merges):
        result.groups += 1
        result.duplicates += len(merge.losers)
        for rule in {reason.rule for reason in merge.why}:
            result.by_rule[rule] = result.by_rule.get(rule, 0) + 1
        if review:
            push = heapq.heappush if len(worst) < REVIEWED else heapq.heappushpop
            push(worst, (-merge.score, -number, merge))
        yield merge
    result.least_certain = [merge for _, _, merge in sorted(worst, reverse=True)]


def _propose(
    group: MatchGroup, number: int, candidates: MatchCandidates, keep: KeepRules, attributes: Sequence[Attribute], links: Mapping[str, int]
) -> PlannedMerge:
    records: dict[int, MergeRecord] = {}
    for member in group.members:
        record_id, (data, created_at, updated_at) = candidates.record(member)
        linked = links.get(record_id.lower(), 0) if keep.survivor == MOST_ACTIVITIES else None
        records[member] = MergeRecord(record_id, data, created_at, updated_at, linked)
    why = tuple(
        MatchReason((records[pair.a].id, records[pair.b].id), candidates.rules[pair.rule].text.strip(), pair.score) for pair in group.pairs
    )
    listed = tuple(records.values())
    survivor = choose_survivor(listed, keep.survivor).id
    losers = tuple(record.id for record in listed if record.id != survivor)
    return PlannedMerge(number, group.score, why, survivor, losers, merge_values(listed, survivor, keep, attributes), listed)


def _read(context: BulkContext, request: DedupeRequest, object_id: str, candidates: MatchCandidates, result: DedupeResult) -> None:
    """Read every record of the object: from the mirror if it is complete, else from the service."""
    copy = fresh_copy(context, [object_id], request.max_age)
    if copy is not None:
        with copy:
            state = copy.state(object_id)
            if state is not None and state.proven and not state.excluded:
                result.mirrored, result.as_of = True, to_timestamp(state.as_of)
                _take(copy.pages(object_id), candidates)
                return
        context.listener.note("the mirror leaves out attributes, or is not proven: everything is read from the service")
    with showing(context.listener.progress, "reading") as progress:
        _take(scan(context.service, Listing(object_id)), candidates, progress.advance)


def _take(pages: Iterable[Sequence[Record]], candidates: MatchCandidates, advance: Callable[[int], None] = lambda _: None) -> None:
    for page in pages:
        for record in page:
            candidates.add(record.id, record.data, [record.data, record.created_at, record.updated_at])
        advance(len(page))


def _now(context: BulkContext) -> str:
    return to_timestamp(int(context.clock.now()) * MICROS)


def survivors_of(context: BulkContext) -> dict[str, str]:
    """Map the ids of records that merges on this machine deleted, in lower case, to their survivors."""
    by_loser: dict[str, str] = {}
    for job in reversed(store_of(context).list()):
        if job.header.mode == MODE and job.header.origin == context.origin:
            with closing(MergeJournal(job.folder, context.clock)) as journal:
                by_loser.update(survivors(journal))
    return by_loser
