"""Apply a folder to a service: one plan, then schema, records in the order of their references, and activities, as one job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, DeniedError, NotFoundError, PartialError, RejectedError, UsageError, reason
from crmctl.files.whole_files import whole_file
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Object
from crmctl.org.compare import OrgComparison, service_compared
from crmctl.org.folder import OrgFolder, references_of
from crmctl.org.jobs import (
    OrgJob,
    OrgStep,
    known_ids,
    settle,
    unfinished,
    write_sources,
)
from crmctl.org.pull import source_digest
from crmctl.org.sections import read_sections, send_entry, takes_sections, to_send
from crmctl.org.tables import ACTIVITY_ROWS, SECTION_ROWS, Side
from crmctl.plan.changes import DeleteRequest, Selection, delete
from crmctl.plan.import_records import import_records
from crmctl.plan.requests import ImportRequest, store_of
from crmctl.schema.apply import ChangeAction, SchemaChange, refuse_conflicts
from crmctl.schema.apply import apply as apply_schema
from crmctl.schema.schema_document import Present, read_service
from crmctl.write.database import JobState, RowState

LISTED = 100
"""Most entries of a list in a result; the counts are exact."""


@dataclass(frozen=True)
class ApplyFolderRequest:
    """An apply of a folder. `is_protected`: the profile refuses masked data. `new`: create records although none can be matched.

    `settle`: seconds that a request with a lost answer is watched.
    """

    folder: Path
    dry_run: bool = False
    prune: bool = False
    max_changes: int | None = None
    matches: Mapping[str, str] = field(default_factory=dict)
    map_file: Path | None = None
    new: bool = False
    edited: bool = False
    is_protected: bool = False
    settle: float = 120.0


@dataclass
class ObjectPlan:
    """The changes to the records of one object."""

    create: int = 0
    update: int = 0
    delete: int = 0
    unchanged: int = 0

    @property
    def changes(self) -> int:
        return self.create + self.update + self.delete


@dataclass
class ApplyPlan:
    """The changes of an apply and their outcome.

    `others`: activities, and the sections of the folder that the service takes. `coverage`: the rows of the folder's table for content
    that it lacks. `left`: the `count` things not applied, each with the reason.
    """

    folder: Path
    schema: Sequence[SchemaChange]
    records: dict[str, ObjectPlan]
    others: dict[str, ObjectPlan]
    coverage: Sequence[Json]
    job: str | None = None
    left: list[Json] = field(default_factory=list)
    count: int = 0

    @property
    def schema_changes(self) -> list[SchemaChange]:
        return [change for change in self.schema if change.action in (ChangeAction.CREATE, ChangeAction.UPDATE)]

    @property
    def changes(self) -> int:
        return sum(plan.changes for plan in (*self.records.values(), *self.others.values())) + len(self.schema_changes)

    @property
    def deletions(self) -> int:
        return sum(plan.delete for plan in self.records.values())

    def leave(self, place: str, problem: str) -> None:
        self.count += 1
        if len(self.left) < LISTED:
            self.left.append({"place": place, "problem": problem})

    def raise_for_error(self) -> None:
        if self.count:
            first = self.left[0]
            problem = f"{self.count:,} left, such as {first['place']}: {first['problem']}"
            raise PartialError(f"not everything was applied: {problem}", details={"left": self.left})

    def to_document(self) -> Json:
        """Return the JSON form. Every key is present."""
        return {
            "job": self.job,
            "folder": str(self.folder),
            "changes": self.changes,
            "schema": [change.wire() for change in self.schema_changes],
            "records": {slug: vars(plan) for slug, plan in self.records.items()},
            **{name: vars(plan) for name, plan in self.others.items()},
            "notContained": [row["content"] for row in self.coverage],
            "left": self.left,
            "leftCount": self.count,
        }


def apply(context: BulkContext, request: ApplyFolderRequest, approve: Callable[[ApplyPlan], None]) -> ApplyPlan:
    """Compare the folder with the service, pass the plan to `approve`, and carry it out as one job. `approve` raises to cancel.

    An interrupted apply of the folder is continued. Raises RejectedError for a damaged folder before the first request, and for a schema
    that the service cannot get before the first write.
    """
    folder = OrgFolder(request.folder)
    _refuse_masked(folder, request, context.origin)
    store_of(context).prepare()
    known = _read_map(request.map_file)
    with ExitStack() as stack:
        job: OrgJob | None = None
        if not request.dry_run and (info := unfinished(context, request.folder)) is not None:
            job = _held(stack, OrgJob(info.folder, context.clock))
            settle(context, job, request.settle)
        compared, present = stack.enter_context(
            service_compared(context, folder, request.matches, known | known_ids(context), edited=request.edited)
        )
        others = {ACTIVITY_ROWS: "activities"} | (SECTION_ROWS if takes_sections(context) else {})
        plan = plan_of(
            compared, request, {slug: section for slug, section in others.items() if section in folder.parts and slug in compared.others}
        )
        approve(plan)
        if request.dry_run or (not plan.changes and job is None):
            _note_left_out(compared, plan, folder.objects)
            return plan
        job = job or _held(stack, OrgJob.begin(context, request.folder))
        plan.job = job.id
        try:
            _Run(context, compared, present, job, plan, request.settle).carry_out(request)
        except CrmctlError as error:
            error.hint = error.hint if isinstance(error, RejectedError) else f"crmctl org apply {request.folder} continues"
            raise
        job.journal.state = JobState.FINISHED
        _write_map(request.map_file, known | known_ids(context))
    return plan


def _held(stack: ExitStack, job: OrgJob) -> OrgJob:
    stack.enter_context(closing(job.journal))
    stack.enter_context(job.journal.hold())
    return job


def _refuse_masked(folder: OrgFolder, request: ApplyFolderRequest, origin: str) -> None:
    if folder.is_masked and request.is_protected:
        raise UsageError(f"{folder.path} is masked, and the profile is protected", code="masked_folder")
    if folder.is_masked and folder.manifest.get("source") == source_digest(origin):
        raise UsageError(f"{folder.path} is a masked copy of this service", hint="apply it to another service", code="masked_folder")
    if request.prune and (folder.is_masked or folder.is_subset):
        what = "masked" if folder.is_masked else "a subset"
        raise UsageError(f"{folder.path} is {what}, so --prune would delete records that it leaves out", code="incomplete_folder")


def _read_map(path: Path | None) -> dict[str, str]:
    if path is None or not path.exists():
        return {}
    try:
        known = jsontext.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {reason(error)}", code="unusable_input") from error
    if not isinstance(known, dict) or not all(isinstance(value, str) for value in known.values()):
        raise UsageError(f"{path} is no id map of crmctl", code="unusable_input")
    return known


def _write_map(path: Path | None, known: Mapping[str, str]) -> None:
    if path is not None:
        with whole_file(path, mode=0o600) as file:
            file.write(jsontext.dumps(dict(sorted(known.items())), indent=0) + "\n")


def plan_of(compared: OrgComparison, request: ApplyFolderRequest, others: Mapping[str, str]) -> ApplyPlan:
    """Return what an apply would do; `others` are the rows besides records that the service takes. Raises RejectedError."""
    refuse_conflicts(compared.schema)
    folder, tables = compared.right, compared.tables
    object_order(folder)
    records = {}
    for slug in (*folder.objects, *others):
        row = ObjectPlan(
            create=sum(1 for _ in tables.unpaired(Side.RIGHT, slug)),
            update=sum(1 for change in compared.changed(slug, folder.objects) if set_values(change.values)),
            delete=sum(1 for _ in tables.unpaired(Side.LEFT, slug)) if request.prune and slug in folder.objects else 0,
        )
        row.unchanged = tables.count(Side.RIGHT, slug) - row.create - row.update
        records[slug] = row
        there = tables.count(Side.LEFT, slug)
        if row.create and there and not tables.has_pairs(slug) and not request.new and not tables.has_keys(slug) and slug in folder.objects:
            raise RejectedError(
                f"nothing tells which of the {there:,} records of {slug} in the service the folder means",
                hint=f"--match {slug}=ATTR names an attribute that identifies them; --new creates the records all the same",
                code="unmatched_records",
            )
    rest = {section: records.pop(slug) for slug, section in others.items()}
    coverage = [row for row in folder.manifest.get("coverage", ()) if not row.get("contained")]
    plan = ApplyPlan(folder.path, compared.schema, records, rest, coverage)
    if request.max_changes is not None and plan.changes > request.max_changes:
        raise RejectedError(
            f"{plan.changes:,} changes, --max-changes says {request.max_changes:,}; nothing was sent", hint="--dry-run shows them",
            code="unexpected_changes", details={"changes": plan.changes},
        )  # fmt: skip
    return plan


def set_values(values: Mapping[str, Sequence[Any]]) -> Json:
    """Return the new values of a change, without those that the folder does not hold: apply clears nothing."""
    return {name: after for name, (_, after) in values.items() if after is not None}


def object_order(folder: OrgFolder) -> list[str]:
    """Return the objects so that required references point backwards, and as many others as possible.

    Raises RejectedError if required references form a cycle.
    """
    left, order = dict(folder.objects), list[str]()
    while left:

        def waits_for(slug: str, *, required: bool) -> int:
            references = references_of(folder.objects[slug]).values()
            return sum(each.target in left and each.target != slug and (each.is_required or not required) for each in references)

        free = [slug for slug in left if not waits_for(slug, required=True)]
        if not free:
            raise RejectedError(
                f"required references form a cycle: {', '.join(left)}; no record of them can be created first", code="required_cycle"
            )
        chosen = min(free, key=lambda slug: waits_for(slug, required=False))
        order.append(chosen)
        del left[chosen]
    return order


def _note_left_out(compared: OrgComparison, plan: ApplyPlan, pending: Collection[str] = ()) -> None:
    """Name entries that the service does not take, and references to records that it does not have."""
    for slug, section in SECTION_ROWS.items():
        if section not in plan.others and (count := sum(1 for _ in compared.tables.unpaired(Side.RIGHT, slug))):
            plan.leave(section, f"{count:,} that this service does not take or show")
    for slug in compared.right.objects:
        for right, names in compared.open_references(slug, pending):
            plan.leave(f"{slug} {right}", f"{', '.join(names)}: the record it refers to is not in the service")


class _Run:
    """The steps of an apply."""

    def __init__(
        self, context: BulkContext, compared: OrgComparison, present: Present, job: OrgJob, plan: ApplyPlan, settle: float
    ) -> None:
        self._context = context
        self._settle = settle
        self._compared = compared
        self._tables = compared.tables
        self._folder = compared.right
        self._present = present
        self._job = job
        self._plan = plan
        self._deferred: dict[str, set[str]] = {}

    def carry_out(self, request: ApplyFolderRequest) -> None:
        self._schema()
        order = object_order(self._folder)
        for slug in order:
            self._create(slug)
        for slug in order:
            self._update(slug)
        for slug in SECTION_ROWS:
            self._entries(slug)
        self._activities(prune=request.prune)
        for slug in reversed(order) if request.prune else ():
            self._delete(slug)
        _note_left_out(self._compared, self._plan)

    def _schema(self) -> None:
        changes = self._plan.schema_changes
        if not changes:
            return
        step = self._job.step("schema", "")
        step.note({"made": [[change.object, change.attribute] for change in changes if change.action is ChangeAction.CREATE]})
        apply_schema(self._context.service, self._folder.schema, list(self._compared.schema), self._present, lambda _: None)
        self._present = read_service(self._context.service, list(self._folder.objects))

    def _object(self, slug: str) -> Object:
        return self._present.objects[slug]

    def _create(self, slug: str) -> None:
        sources = [record_id for record_id, _ in self._tables.unpaired(Side.RIGHT, slug)]
        if not sources:
            return
        step = self._job.step("create", slug)
        write_sources(step, sources)
        self._import(step, self._new_rows(slug))
        pairs = list(step.new_ids(self._context.clock))
        self._compared.pair(slug, pairs)

    def _new_rows(self, slug: str) -> Iterator[Json]:
        """Yield the new records without references to records that do not exist yet."""
        for record_id, data in self._tables.unpaired(Side.RIGHT, slug):
            translated, open_names = self._compared.translated(slug, data, ())
            if open_names:
                self._deferred.setdefault(slug, set()).add(record_id)
            yield translated

    def _update(self, slug: str) -> None:
        rows = ({"id": left, **values} for left, values in self._changed_values(slug) if values)
        if (first := next(rows, None)) is not None:
            self._import(self._job.step("update", slug), chain([first], rows))

    def _changed_values(self, slug: str) -> Iterator[tuple[str, Json]]:
        """Yield the id in the service and the new values of records that differ, and of new records with left out references."""
        for change in self._compared.changed(slug, ()):
            yield change.id, set_values(change.values)
        references, deferred = references_of(self._folder.objects[slug]), self._deferred.get(slug, set())
        lefts = self._compared.lefts(slug)
        for record_id, data in self._tables.rows(Side.RIGHT, slug) if deferred else ():
            if record_id in deferred and record_id in lefts:
                yield lefts[record_id], self._compared.translated(slug, {name: data[name] for name in data if name in references}, ())[0]

    def _import(self, step: OrgStep, rows: Iterable[Json]) -> None:
        request = ImportRequest(
            object=self._object(step.object).id, file=f"records/{step.object}.jsonl", rows=rows, mode=step.kind, again=True, mirror="never",
            on_error="continue", capture_ids=True, settle=self._settle, before_images="yes" if step.kind == "update" else "no",
        )  # fmt: skip
        result = import_records(step.context(self._context), request)
        with suppress(PartialError, RejectedError):
            result.raise_for_error()
        self._conclude(step)

    def _conclude(self, step: OrgStep) -> None:
        """Count the rows of a step, and name those that were not written."""
        self._job.count(step)
        for number, row in step.rows(self._context.clock):
            if row.state in (RowState.FAILED, RowState.REJECTED, RowState.SKIPPED, RowState.IN_DOUBT):
                self._plan.leave(f"{step.object}, {step.kind}, row {number}", row.error or str(row.state))

    def _entries(self, slug: str) -> None:
        """Create and change the entries of a section, one request each."""
        section, step = SECTION_ROWS[slug], None
        sources = {line.document["id"]: line.document["data"] for line in self._folder.entries(section)}
        wanted = [name for name, _ in self._tables.unpaired(Side.RIGHT, slug)]
        wanted += [change.id for change in self._compared.changed(slug) if set_values(change.values)]
        for name in wanted if section in self._plan.others else ():
            step = step or self._job.step("entries", section)
            before = self._compared.current.get(section, {}).get(name)
            entry = to_send(section, self._compared.translated(slug, sources[name])[0], before)
            step.note({"name": name, "sent": entry, "before": before})
            try:
                send_entry(self._context, section, entry, self._folder.path)
            except (DeniedError, NotFoundError, RejectedError) as error:
                self._plan.leave(f"{section} {name}", error.message)
        if step is not None and section == "members":
            self._compared.match_users(read_sections(self._context, ("members",))[0]["members"].values())

    def _activities(self, *, prune: bool) -> None:
        step: OrgStep | None = None
        service = self._context.service
        self._name_doubtful_activities()
        for source, data in self._tables.unpaired(Side.RIGHT, ACTIVITY_ROWS):
            step = step or self._job.step("activities", "")
            fields = self._activity_fields(source, data)
            step.note({"source": source, "sent": list(fields)})
            made = service.create_activity(fields)
            step.note({"source": source, "id": made.id, "sent": list(fields), "wire": made.wire, "before": None})
        for change in self._compared.changed(ACTIVITY_ROWS):
            if values := set_values(change.values):
                step = step or self._job.step("activities", "")
                fields = self._activity_fields(change.id, values)
                current = service.get_activity(change.id).wire
                changed = service.update_activity(change.id, fields)
                before = {name: current.get(name) for name in fields}
                step.note({"id": change.id, "sent": list(fields), "wire": changed.wire, "before": before})
        if prune:
            for activity_id, _ in self._tables.unpaired(Side.LEFT, ACTIVITY_ROWS):
                self._plan.leave(f"activity {activity_id}", "only in the service; --prune deletes records, not activities")

    def _name_doubtful_activities(self) -> None:
        """Note the ids of activities that an interrupted run created without hearing of it."""
        pairs = self._compared.lefts(ACTIVITY_ROWS)
        for step in self._job.steps():
            entries = step.entries()
            named = {entry.get("source") for entry in entries if "id" in entry}
            for entry in entries:
                if "source" in entry and entry["source"] not in named and (found := pairs.get(entry["source"])) is not None:
                    step.note({**entry, "id": found, "wire": self._context.service.get_activity(found).wire, "before": None})

    def _activity_fields(self, source: str, data: Json) -> Json:
        """Return the fields of a request. Links and participants that the service does not have are left out and named."""
        translated, unknown = self._compared.translated(ACTIVITY_ROWS, data, ())
        for what in unknown:
            self._plan.leave(f"activity {source}", f"{what} is not in the service")
        fields: Json = {name: translated[name] for name in ("title", "summary", "activityDate") if name in translated}
        if "links" in translated:
            pairs = [link.split("/", 1) for link in translated["links"]]
            fields["linkedRecords"] = [{"objectId": self._object(slug).id, "recordId": record_id} for slug, record_id in pairs]
        if "participants" in translated:
            fields["participants"] = translated["participants"]
        return fields

    def _delete(self, slug: str) -> None:
        ids = [record_id for record_id, _ in self._tables.unpaired(Side.LEFT, slug)]
        if not ids:
            return
        step = self._job.step("delete", slug)
        request = DeleteRequest(self._object(slug).id, Selection(ids=ids, verb="delete"))
        deletion = delete(step.context(self._context), request, lambda _: None)
        with suppress(PartialError):
            deletion.raise_for_error()
        self._conclude(step)
