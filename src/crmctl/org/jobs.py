"""The job of one apply: a journal whose steps are ordinary jobs in folders of their own, and its undo."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from crmctl.bulk_context import BulkContext
from crmctl.errors import PartialError, RejectedError, UsageError
from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.org.organization import take_back
from crmctl.plan.audit import capture_ids
from crmctl.plan.import_run import rows_of
from crmctl.plan.requests import store_of
from crmctl.plan.results import ImportResult
from crmctl.plan.resume import ResumeRequest, check_service, reopen_finished, resume
from crmctl.plan.undo import UndoRequest, undo
from crmctl.read.read_back import Reader
from crmctl.schema.schema_document import read_service
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.version import __version__
from crmctl.write.database import JobState, RowState
from crmctl.write.jobs import JobInfo, JobStore, refuse_running
from crmctl.write.journal import UNDONE, Header, Journal, RowEntry, last_sent_at, records_made, surplus_records

MODE = "org"
"""Mode of an apply in its header."""

ALIKE = "records alike"
"""Journal fact of a step: crmctl has seen all its records, and cannot tell which is which."""


class _StepContext:
    """A context whose jobs live in the folder `state`."""

    def __init__(self, context: BulkContext, state: Path) -> None:
        self._context = context
        self.state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


@frozen
class OrgStep:
    """A step of an apply. `kind`: schema, create, update, delete, or entries. `object` is a slug, `activities`, or a section.

    `apply` is the journal of the apply; it keeps the notes of the step. The step's own job lives in `folder`.
    """

    apply: Journal
    folder: Path
    kind: str
    object: str

    def context(self, context: BulkContext) -> BulkContext:
        """Return the context for the step's job."""
        return cast(BulkContext, _StepContext(context, self.folder))

    def job(self) -> JobInfo | None:
        """Return the step's job, if it has begun."""
        return next(iter(JobStore(self.folder, self.apply.clock).list()), None)

    def conclude(self) -> list[tuple[int, RowEntry]]:
        """Add the outcome of the finished step to the rows of the apply, which lists show. Return number and outcome of each row."""
        offset, job = sum(self.apply.counts().values()), self.job()
        assert job is not None
        with closing(Journal(job.folder, self.apply.clock)) as journal:
            rows = _rows_left(journal, job)
        self.apply.conclude(((offset + number, row.state, row.record_id, row.error) for number, row in rows), len(rows))
        return rows

    def note(self, source: str, **facts: Any) -> None:
        """Write to disk at once what the step does with an entry. Notes may hold secrets, such as headers of requests."""
        self.apply.remember(f"{self.folder.name} {source}", facts)

    def notes(self) -> dict[str, Json]:
        """Return the last note about each entry."""
        start = f"{self.folder.name} "
        return {name.removeprefix(start): facts for name, facts in self.apply.kept("", start, f"{start}\U0010ffff").items()}

    def name_rows(self, context: BulkContext) -> None:
        """Find the ids that earlier readings have not found: they failed, or the lists were old. Raises what requests raise."""
        job = self.job()
        if job is None or job.is_running or UNSURE[RowState.CREATED] not in AppliedRecords.of([self]).unsure.values():
            return
        opened = reopen_finished(self.context(context), job.id)
        with closing(opened.journal) as journal, closing(opened.input):
            reader = Reader(context.service, journal.header.object_id)
            if not journal.recall(ALIKE):
                capture_ids(journal, reader, rows_of(journal, opened.rows))
                journal.remember(ALIKE, reader.new_records >= records_made(journal))


UNSURE = {
    RowState.CREATED: "created, but crmctl cannot tell which record it is; --match OBJECT=ATTR identifies it, --new creates it again",
    RowState.IN_DOUBT: "sent by an apply that has not finished, and may exist; --new creates it again",
}
"""Why crmctl does not know the record of a row in this state."""


@dataclass
class AppliedRecords:
    """The records and activities that applies to a service created, by their ids in folders.

    `ids`: their ids in the service. `unsure`: why the others have none, although they exist or may exist. `sent_at`: when they were last
    sent (Unix time). `copies`: object and id in the folder of second records, by their ids in the service.
    """

    ids: dict[str, str] = field(default_factory=dict)
    unsure: dict[str, str] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)
    copies: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Iterable[OrgStep]) -> AppliedRecords:
        applied = cls()
        for step in steps:
            if step.object == "activities":
                notes = step.notes().items()
                applied.sent_at |= {source: note["at"] for source, note in notes}
                applied.ids |= {source: note["id"] for source, note in notes if note["id"] is not None}
            elif (sources := step.apply.recall(step.folder.name)) and (job := step.job()) is not None:
                with closing(Journal(job.folder, step.apply.clock)) as journal:
                    applied.sent_at |= dict.fromkeys(sources, last_sent_at(journal))
                    for number, row in _rows_left(journal, job):
                        if row.record_id is not None:
                            applied.ids[sources[number - 1]] = row.record_id
                        elif row.state in UNSURE and job.state is not JobState.UNDONE:
                            applied.unsure[sources[number - 1]] = UNSURE[row.state]
                    for number, ids in surplus_records(journal).items():
                        applied.copies |= dict.fromkeys(ids, (step.object, sources[number - 1]))
        return applied


def _rows_left(journal: Journal, job: JobInfo) -> list[tuple[int, RowEntry]]:
    """Return number and outcome of the rows of a job that were not undone."""
    undone, rows = journal.kept(UNDONE), journal.rows(1, sum(job.counts.values()))
    return [(number, row) for number, row in sorted(rows.items()) if (row.record_id or "").lower() not in undone]


def begin_apply(context: BulkContext, path: Path) -> Journal:
    """Create the job of a folder. Its own folder holds one for each step, such as `steps/0002-create-people`."""
    folder = store_of(context).new_folder()
    header = Header(
        job=folder.name, object="organization", object_id="", origin=context.origin, mode=MODE, input=str(path),
        path=str(path.resolve()), sha256="", size=0, mapping="", schema="", created_at=context.clock.now(), version=__version__,
    )  # fmt: skip
    journal = Journal.create(folder, header, context.clock)
    journal.state = JobState.OPEN
    return journal


def begin_step(apply: Journal, kind: str, slug: str) -> OrgStep:
    folder = apply.folder / "steps" / f"{len(steps_of(apply)) + 1:04}-{kind}-{slug}"
    folder.mkdir(parents=True, mode=0o700)
    return OrgStep(apply, folder, kind, slug)


def steps_of(apply: Journal) -> list[OrgStep]:
    return [OrgStep(apply, place, *place.name.split("-", 2)[1:]) for place in sorted((apply.folder / "steps").glob("*"))]


def org_jobs(context: BulkContext) -> list[JobInfo]:
    """Return the applies to the service, oldest first."""
    jobs = reversed(store_of(context).list())
    return [job for job in jobs if job.header.mode == MODE and job.header.origin == context.origin]


def unfinished(context: BulkContext, path: Path) -> Journal | None:
    """Return the newest unfinished apply of this folder to this service. Raises UsageError if it is running."""
    jobs = [job for job in org_jobs(context) if job.state is JobState.OPEN and job.header.path == str(path.resolve())]
    if not jobs:
        return None
    refuse_running(jobs[-1])
    return Journal(jobs[-1].folder, context.clock)


def _every_step(context: BulkContext) -> Iterator[OrgStep]:
    for job in org_jobs(context):
        with closing(Journal(job.folder, context.clock)) as apply:
            yield from steps_of(apply)


def applied_records(context: BulkContext, *, named: bool = False) -> AppliedRecords:
    """Return what applies to the service created. `named`: look first for ids that no earlier reading found; raises what requests raise."""
    applied = AppliedRecords.of(_every_step(context))
    if not named or not applied.unsure:
        return applied
    for step in _every_step(context):
        step.name_rows(context)
    return AppliedRecords.of(_every_step(context))


def continue_steps(context: BulkContext, apply: Journal, seconds: float, *, new: bool) -> None:
    """Continue the step that an interrupted apply left; watch requests with a lost answer for so many seconds.

    `new`: send rows in doubt again that the service's lists do not show. Raises the error that ends it early.
    """
    for step in steps_of(apply):
        doubtful = [note["at"] for note in step.notes().values() if step.object == "activities" and note["id"] is None]
        wait = max(doubtful, default=0.0) + seconds - context.clock.now()
        if wait > 0:
            context.listener.note(f"an activity may still arrive: waiting {wait:.0f} s")
            context.clock.sleep(wait)
        info = step.job()
        if info is not None and info.is_resumable:
            result = resume(step.context(context), ResumeRequest(job=info.id, capture_ids=True, settle=seconds, trusts_lists=new))
            raise_unfinished(result, apply.header.input)
            step.conclude()


def raise_unfinished(result: ImportResult, folder: str) -> None:
    """Raise the error of a step that ended early or left rows in doubt. Refused rows are no reason to stop."""
    try:
        result.raise_for_error()
    except (PartialError, RejectedError) as error:
        if result.summary.counts[RowState.IN_DOUBT]:
            error.hint = f"crmctl org apply {folder} looks again; with --new it creates the rows again that the service does not list"
            raise


# -- undo ----------------------------------------------------------------------------------------------------------------------------


def undo_apply(context: BulkContext, job: JobInfo, *, dry_run: bool, include_changed: bool = False) -> Json:
    """Undo the steps of an apply, the last one first. A dry run only counts. Raises errors that end it early; a repetition continues.

    Return how many records, activities, entries and changes of the schema it undoes, the results of its steps, and what is left and why.
    """
    refuse_running(job)
    check_service(job.header, context.origin)
    result: Json = {"job": job.id, "records": 0, "activities": 0, "entries": 0, "schema": 0, "steps": [], "left": []}
    with closing(Journal(job.folder, context.clock)) as apply, apply.hold():
        for step in reversed(steps_of(apply)):
            if step.kind == "schema":
                _undo_schema(context, step, result, dry_run=dry_run)
            elif step.kind == "entries":
                _undo_entries(context, step, result, dry_run=dry_run)
            elif (info := step.job()) is not None and info.state is not JobState.UNDONE:
                result["records"] += sum(info.counts[state] for state in (RowState.CREATED, RowState.UPDATED, RowState.FAILED))
                if not dry_run:
                    request = UndoRequest(info.id, include_changed=include_changed)
                    _undo_records(step.context(context), step.object, request, result)
        if not dry_run:
            apply.state = JobState.FINISHED if result["left"] else JobState.UNDONE
    return result


def _undo_records(context: BulkContext, slug: str, request: UndoRequest, result: Json) -> None:
    try:
        plan = undo(context, request, lambda _: None)
        result["steps"].append(plan.to_document())
        plan.raise_for_error()
    except UsageError as error:
        if error.code != "nothing_to_undo":
            raise
    except PartialError as error:
        result["left"].append(f"{slug}: {error.message}")


def _undo_entries(context: BulkContext, step: OrgStep, result: Json, *, dry_run: bool) -> None:
    """Delete created activities and entries and restore changed ones, unless somebody changed them since."""
    for source, note in step.notes().items():
        if note["id"] is not None:
            result["activities" if step.object == "activities" else "entries"] += 1
            if dry_run:
                continue
            if (why := take_back(context, step.object, note["id"], note["sent"], note["before"])) is not None:
                result["left"].append(f"{step.object} {source}: {why}")
            else:
                step.note(source, **{**note, "id": None})  # a later apply must not wait until lists show it


def _undo_schema(context: BulkContext, step: OrgStep, result: Json, *, dry_run: bool) -> None:
    """Delete created attributes and objects that hold nothing now."""
    created = [tuple(pair) for note in step.notes().values() for pair in note["made"]]
    result["schema"] += len(created)
    if dry_run or not created:
        return
    service, present = context.service, read_service(context.service)
    for slug, name in reversed(created):
        crm_object, attribute = present.objects.get(slug), present.attributes.get(slug, {}).get(name or "")
        if crm_object is None or (name is not None and (attribute is None or (slug, None) in created)):
            continue  # it is gone, or goes with its object
        filters = [Condition(name, Operator.IS_NOT_EMPTY, "true")] if name is not None else []
        if service.search_records(crm_object.id, limit=1, filters=filters).items:
            result["left"].append(f"{slug if name is None else f'{slug}.{name}'} holds values of somebody else")
        elif attribute is None:
            service.delete_object(crm_object.id)
        else:
            service.delete_attribute(crm_object.id, attribute.id)
