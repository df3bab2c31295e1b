"""Apply a folder to a service: one plan, then schema, records in the order of their references, and activities, as one job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count
from pathlib import Path

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, DeniedError, NotFoundError, PartialError, RejectedError, UsageError, reason
from crmctl.files.whole_files import whole_file
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import document_of
from crmctl.org.compare import OrgComparison, Side, service_compared
from crmctl.org.folder import ACTIVITY_ROWS, SECTIONS, OrgFolder, OrgRow, references_of, source_digest
from crmctl.org.jobs import (
    AppliedRecords,
    OrgStep,
    applied_records,
    begin_apply,
    begin_step,
    continue_steps,
    raise_unfinished,
    steps_of,
    unfinished,
)
from crmctl.org.organization import activity_to_send, current_entry, read_sections, send_entry, takes_sections, to_send
from crmctl.plan.changes import Selection
from crmctl.plan.deletions import DeleteRequest, delete
from crmctl.plan.final_count import LOOKS, NOTED_LOOKS
from crmctl.plan.import_records import import_records
from crmctl.plan.requests import ImportRequest, store_of
from crmctl.schema.apply import ChangeAction, SchemaChange, refuse_conflicts
from crmctl.schema.apply import apply as apply_schema
from crmctl.schema.schema_document import read_service
from crmctl.values.object_spec import ObjectSpec
from crmctl.write.database import JobState, RowState
from crmctl.write.journal import Journal
from crmctl.write.send_context import SETTLE_SECONDS

LISTED = 100
"""Most entries of a list in an error; the result lists all."""


@dataclass
class ApplyPlan:
    """The changes of an apply and their outcome.

    `records` and `others` count what is to create, update, delete and unchanged: records of each object; activities, and the sections of
    the folder that the service takes. `coverage`: the rows of the folder's table for content that it lacks. `left`: what is not applied,
    each with the reason.
    """

    folder: Path
    schema: list[SchemaChange]
    coverage: Sequence[Json]
    records: dict[str, dict[str, int]] = field(default_factory=dict)
    others: dict[str, dict[str, int]] = field(default_factory=dict)
    job: str | None = None
    left: list[Json] = field(default_factory=list)

    @property
    def changes(self) -> int:
        counts = (*self.records.values(), *self.others.values())
        return sum(count["create"] + count["update"] + count["delete"] for count in counts) + len(self.schema)

    @property
    def deletions(self) -> int:
        return sum(count["delete"] for count in self.records.values())

    def leave(self, place: str, problem: str) -> None:
        self.left.append({"place": place, "problem": problem})

    def leave_copies(self, copies: Mapping[str, tuple[str, str]]) -> None:
        """Name second records of the service."""
        for record_id, (slug, source) in sorted(copies.items()):
            self.leave(f"{slug} {source}", f"created twice: {record_id} is a copy; crmctl records delete {slug} {record_id} deletes it")

    def raise_for_error(self) -> None:
        if self.left:
            problem = f"{len(self.left):,} left, such as {self.left[0]['place']}: {self.left[0]['problem']}"
            raise PartialError(f"not everything was applied: {problem}", details={"left": self.left[:LISTED]})

    def to_document(self) -> Json:
        """Return the JSON form. Every key is present."""
        schema = [change.wire() for change in self.schema]
        lacking = [row.get("content") for row in self.coverage]
        return document_of(self, "job folder changes schema records left", schema=schema) | self.others | {"notContained": lacking}


def apply(
    context: BulkContext, path: Path, approve: Callable[[ApplyPlan], None], *, matches: Iterable[str], map_file: Path | None,
    max_changes: int | None, settle: float, dry_run: bool, prune: bool, new: bool, edited: bool, is_protected: bool,
) -> ApplyPlan:  # fmt: skip
    """Compare the folder with the service, pass the plan to `approve`, and carry it out as one job. `approve` raises to cancel.

    `new`: create records although none can be matched. `is_protected`: the profile refuses masked data. `settle`: seconds that a request
    with a lost answer is watched. An interrupted apply of the folder is continued. Raises RejectedError for a damaged folder before the
    first request, and for a schema that the service cannot get before the first write.
    """
    folder = OrgFolder(path)
    _refuse_masked(folder, context.origin, prune=prune, is_protected=is_protected)
    store_of(context).prepare()
    id_map = _read_map(map_file)
    with ExitStack() as stack:
        job = None if dry_run else unfinished(context, path)
        if job is not None:
            _hold(stack, job)
            continue_steps(context, job, settle, new=new)
        known = applied_records(context, named=True)
        comparing = partial(service_compared, context, folder, matches, id_map | known.ids, edited=edited)
        compared = stack.enter_context(_settled(context, comparing, known))
        plan = plan_of(compared, {} if new else known.unsure, max_changes, prune=prune, new=new, takes_sections=takes_sections(context))
        listed = {row_id for slug in folder.objects for row_id in compared.unpaired_ids(Side.LEFT, slug) if known.copies and not prune}
        plan.leave_copies({row_id: row for row_id, row in known.copies.items() if row_id in listed})
        approve(plan)
        if dry_run:
            return plan
        if plan.changes or job is not None:
            if job is None:
                job = begin_apply(context, path)
                _hold(stack, job)
            plan.job = job.header.job
            try:
                _Run(context, compared, job, plan, settle).carry_out(prune=prune)
            except CrmctlError as error:
                error.hint = error.hint if isinstance(error, (PartialError, RejectedError)) else f"crmctl org apply {path} continues"
                raise
            job.state = JobState.FINISHED
            plan.leave_copies(dict(AppliedRecords.of(steps_of(job)).copies.items() - known.copies.items()))
        if map_file is not None:
            with whole_file(map_file, mode=0o600) as file:
                file.write(jsontext.dumps(id_map | applied_records(context).ids, indent=0, sort_keys=True) + "\n")
    return plan


@contextmanager
def _settled(
    context: BulkContext, comparing: Callable[[], AbstractContextManager[OrgComparison]], known: AppliedRecords
) -> Iterator[OrgComparison]:
    """Compare, again and again while the service's lists do not show records that crmctl has just created: the lists may be old.

    Records that are not listed a settle time after their creation were deleted.
    """
    for number in count(1):
        with comparing() as compared:
            kinds = (*compared.folder.objects, ACTIVITY_ROWS)
            hidden = known.ids.keys() & {row_id for kind in kinds for row_id in compared.unpaired_ids(Side.RIGHT, kind)}
            until = max((known.sent_at[row_id] for row_id in hidden), default=0.0) + SETTLE_SECONDS
            wait = min(until - context.clock.now(), LOOKS.gap(number))
            if wait <= 0:
                yield compared
                return
        if number == NOTED_LOOKS:
            context.listener.note(f"waiting up to {SETTLE_SECONDS:.0f} s for the service's lists to show what crmctl created")
        context.clock.sleep(wait)


def _hold(stack: ExitStack, job: Journal) -> None:
    stack.enter_context(closing(job))
    stack.enter_context(job.hold())


def _refuse_masked(folder: OrgFolder, origin: str, *, prune: bool, is_protected: bool) -> None:
    manifest = folder.manifest
    if manifest.masked and is_protected:
        raise UsageError(f"{folder.path} is masked, and the profile is protected", code="masked_folder")
    if manifest.masked and manifest.source == source_digest(origin):
        raise UsageError(f"{folder.path} is a masked copy of this service", hint="apply it to another service", code="masked_folder")
    if prune and (manifest.masked or manifest.subset):
        kind = "masked" if manifest.masked else "a subset"
        raise UsageError(f"{folder.path} is {kind}, so --prune would delete records that it leaves out", code="incomplete_folder")


def _read_map(path: Path | None) -> dict[str, str]:
    if path is None or not path.exists():
        return {}
    try:
        id_map = jsontext.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {reason(error)}", code="unusable_input") from error
    if not isinstance(id_map, dict) or not all(isinstance(value, str) for value in id_map.values()):
        raise UsageError(f"{path} is no id map of crmctl", code="unusable_input")
    return id_map


def plan_of(
    compared: OrgComparison, unsure: Mapping[str, str], max_changes: int | None, *, prune: bool, new: bool, takes_sections: bool
) -> ApplyPlan:
    """Return what an apply would do. `unsure`: why records of the folder are left that exist, or may exist. Raises RejectedError."""
    refuse_conflicts(compared.schema)
    folder = compared.folder
    schema = [change for change in compared.schema if change.action in (ChangeAction.CREATE, ChangeAction.UPDATE)]
    plan = ApplyPlan(folder.path, schema, [row for row in folder.manifest.coverage if not row.get("contained")])
    for slug in object_order(folder.objects):
        lost = [source for source in compared.unpaired_ids(Side.RIGHT, slug) if source in unsure]
        if lost and prune:
            raise RejectedError(f"{slug} {lost[0]}: {unsure[lost[0]]}, so --prune might delete it", code="unmatched_records")
        compared.leave_out(Side.RIGHT, slug, lost)
        for source in lost:
            plan.leave(f"{slug} {source}", unsure[source])
        counts = plan.records[slug] = _counted(compared, slug, prune=prune)
        total = compared.count(Side.LEFT, slug)
        if counts["create"] and total and not compared.lefts(slug) and not new and not compared.has_keys(slug):
            raise RejectedError(
                f"nothing tells which of the {total:,} records of {slug} in the service the folder means",
                hint=f"--match {slug}=ATTR names an attribute that identifies them; --new creates the records all the same",
                code="unmatched_records",
            )
    for part in folder.parts:
        if part == "activities" or (takes_sections and f" {part}" in compared.kinds):
            plan.others[part] = _counted(compared, f" {part}", prune=False)
        elif number := len(compared.unpaired_ids(Side.RIGHT, f" {part}")):
            plan.leave(part, f"{number:,} that this service does not take or show")
    for slug, row_id, names in compared.open_references:
        plan.leave(f"{slug} {row_id}", f"{', '.join(names)}: the record it refers to is not in the service")
    if max_changes is not None and plan.changes > max_changes:
        problem = f"{plan.changes:,} changes, --max-changes says {max_changes:,}; nothing was sent"
        raise RejectedError(problem, hint="--dry-run shows them", code="unexpected_changes", details={"changes": plan.changes})
    return plan


def _counted(compared: OrgComparison, kind: str, *, prune: bool) -> dict[str, int]:
    create = len(compared.unpaired_ids(Side.RIGHT, kind))
    update = sum(1 for _ in compared.updates(kind, strict=kind == ACTIVITY_ROWS))
    delete = len(compared.unpaired_ids(Side.LEFT, kind)) if prune else 0
    unchanged = compared.count(Side.RIGHT, kind) - create - update
    return {"create": create, "update": update, "delete": delete, "unchanged": unchanged}


def object_order(objects: Mapping[str, ObjectSpec]) -> list[str]:
    """Return the objects so that required references point backwards, and as many others as possible.

    Raises RejectedError if required references form a cycle.
    """
    waiting, order = dict(objects), list[str]()
    while waiting:
        required = {
            slug: [link.is_required for link in references_of(spec).values() if link.target in waiting and link.target != slug]
            for slug, spec in waiting.items()
        }
        chosen = min(waiting, key=lambda slug: (sum(required[slug]), len(required[slug])))
        if any(required[chosen]):
            problem = f"required references form a cycle: {', '.join(waiting)}; no record of them can be created first"
            raise RejectedError(problem, code="required_cycle")
        order.append(chosen)
        del waiting[chosen]
    return order


@dataclass
class _Run:
    """The steps of an apply. `settle`: seconds that a request with a lost answer is watched."""

    context: BulkContext
    compared: OrgComparison
    job: Journal
    plan: ApplyPlan
    settle: float

    def carry_out(self, *, prune: bool) -> None:
        self._schema()
        compared, order = self.compared, list(self.plan.records)
        for slug in order:
            self._create(slug)
        for slug in order:
            rows = ({"id": change["id"], **values} for change, values in compared.updates(slug))
            if (first := next(rows, None)) is not None:
                self._import(begin_step(self.job, "update", slug), chain([first], rows))
        for section in SECTIONS:
            self._send_entries(section)
        if self.plan.others.get("members", {}).get("create"):
            compared.match_users(read_sections(self.context, ("members",))[0]["members"].values())
        self._name_doubtful_activities()
        self._send_entries("activities")
        for slug in reversed(order) if prune else ():
            self._delete(slug)
        for activity_id in compared.unpaired_ids(Side.LEFT, ACTIVITY_ROWS) if prune else ():
            self.plan.leave(f"activity {activity_id}", "only in the service; --prune deletes records, not activities")
        for slug, row_id, names in compared.cut_unpaired_links(inside=True):
            self.plan.leave(f"{slug} {row_id}", f"{', '.join(names)}: the record it refers to was not created")

    def _schema(self) -> None:
        if changes := self.plan.schema:
            created = [[change.object, change.attribute] for change in changes if change.action is ChangeAction.CREATE]
            begin_step(self.job, "schema", "").note("", made=created)
            folder, service = self.compared.folder, self.context.service
            apply_schema(service, folder.schema, self.compared.schema, self.compared.present, lambda _: None)
            self.compared.present = read_service(service, list(folder.objects))

    def _create(self, slug: str) -> None:
        """Create the records of an object without references to records that do not exist yet: those follow as updates."""
        compared, deferred = self.compared, set[str]()
        sources = compared.unpaired_ids(Side.RIGHT, slug)
        if not sources:
            return

        def rows() -> Iterator[Json]:
            for source, data in compared.unpaired(Side.RIGHT, slug):
                translated, left_out = compared.translated(slug, data, strict=True)
                if left_out:
                    deferred.add(source)
                yield translated

        step = begin_step(self.job, "create", slug)
        self.job.remember(step.folder.name, sources)  # the ids that the rows of the step have in the folder, in their order
        self._import(step, rows())
        step.name_rows(self.context)
        created = AppliedRecords.of([step])
        for source, why in sorted(created.unsure.items()):
            self.plan.leave(f"{slug} {source}", why)
        compared.pair(slug, created.ids)
        for source in deferred & created.ids.keys():
            data, references = compared.data(Side.RIGHT, slug, source), compared.references[slug]
            values = {name: value for name, value in data.items() if name not in references}
            compared.add(Side.LEFT, OrgRow(slug, created.ids[source], values))

    def _import(self, step: OrgStep, rows: Iterable[Json]) -> None:
        request = ImportRequest(
            object=self.compared.present.objects[step.object].id, file=f"records/{step.object}.jsonl", rows=rows, mode=step.kind,
            again=True, mirror="never", on_error="continue", capture_ids=True, settle=self.settle,
            keeps_overwritten=step.kind == "update",
        )  # fmt: skip
        raise_unfinished(import_records(step.context(self.context), request), str(self.plan.folder))
        self._conclude(step)

    def _delete(self, slug: str) -> None:
        if ids := self.compared.unpaired_ids(Side.LEFT, slug):
            step = begin_step(self.job, "delete", slug)
            request = DeleteRequest(self.compared.present.objects[slug].id, Selection(ids=ids, verb="delete"))
            deletion = delete(step.context(self.context), request, lambda _: None)
            with suppress(PartialError):
                deletion.raise_for_error()
            self._conclude(step)

    def _conclude(self, step: OrgStep) -> None:
        """Count the rows of a step, and name those that were not written."""
        for number, row in step.conclude():
            if row.state in (RowState.FAILED, RowState.REJECTED, RowState.SKIPPED, RowState.IN_DOUBT):
                self.plan.leave(f"{step.object}, {step.kind}, row {number}", row.error or str(row.state))

    def _send_entries(self, section: str) -> None:
        """Create and change activities, or the entries of a section, one request each."""
        kind, compared = f" {section}", self.compared
        entries: list[tuple[str, str | None]] = [(source, None) for source in compared.unpaired_ids(Side.RIGHT, kind)]
        entries += [(change["otherId"], change["id"]) for change, _ in compared.updates(kind)]
        if section not in self.plan.others or not entries:
            return
        step = begin_step(self.job, "entries", section)
        for source, target_id in entries:
            data, left_out = compared.translated(kind, compared.data(Side.RIGHT, kind, source), strict=True)
            for name in left_out:
                self.plan.leave(f"{section} {source}", f"{name} is not in the service")
            try:
                self._send_entry(step, source, target_id, data)
            except (DeniedError, NotFoundError, RejectedError) as error:
                self.plan.leave(f"{section} {source}", error.message)

    def _send_entry(self, step: OrgStep, source: str, target_id: str | None, data: Json) -> None:
        """Send an entry or activity. The note that precedes it lets an undo find it if the program ends before the answer."""
        if step.object == "activities":
            entry_id, sent = target_id, activity_to_send(data, self.compared.present)
            before = None if target_id is None else current_entry(self.context, step.object, target_id, sent)
        else:
            entry_id, before = source, None if target_id is None else self.compared.entries[step.object][target_id]
            sent = to_send(step.object, data, before)
        step.note(source, id=entry_id, sent=sent, before=before, at=self.context.clock.now())
        entry_id, stored = send_entry(self.context, step.object, entry_id, sent, self.compared.folder.path)
        step.note(source, id=entry_id, sent=stored, before=before, at=self.context.clock.now())

    def _name_doubtful_activities(self) -> None:
        """Note the ids of activities that an interrupted run created without hearing of it: they have been matched by their content."""
        pairs = self.compared.lefts(ACTIVITY_ROWS)
        for step in steps_of(self.job):
            for source, note in step.notes().items() if step.object == "activities" else ():
                if note["id"] is None and source in pairs:
                    sent = current_entry(self.context, "activities", pairs[source], note["sent"])
                    step.note(source, **{**note, "id": pairs[source], "sent": sent})
