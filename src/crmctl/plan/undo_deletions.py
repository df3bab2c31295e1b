"""Undo deletions: recreate records and point references at their new ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crmctl.bulk_context import BulkContext, watch_interrupts
from crmctl.client.crm import Crm
from crmctl.client.directory import ReadService
from crmctl.errors import CrmctlError, DeniedError, ForbiddenError, NotFoundError, RejectedError, UsageError
from crmctl.files.validation import Entry
from crmctl.files.whole_files import whole_file
from crmctl.frozen import frozen
from crmctl.match.references import Referrers, asks, moved_references, replace_ids
from crmctl.models import jsontext
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, Attribute, AttributeType, Record, document_of
from crmctl.plan.audit import capture_ids
from crmctl.plan.deletions import KeptRecords
from crmctl.plan.job_run import seconds_for
from crmctl.plan.job_start import ImportJob
from crmctl.plan.relations import begin_phase, phase_context, send_phase
from crmctl.plan.requests import referring_attributes
from crmctl.plan.undo_updates import UndoReport
from crmctl.read.read_back import Reader
from crmctl.read.records import PAGE_STEP, all_activities, fetch, swap_links
from crmctl.read.stable_pages import SeenIds
from crmctl.values.equality import as_sent, canonical
from crmctl.write.database import JobState, RowState
from crmctl.write.journal import FILE_NAME, entries_of, mark_undone
from crmctl.write.send_context import DeliveryOptions, SendContext
from crmctl.write.steps import Step, StepKind, StepSender, StepState

FOLDER, LINKS_FOLDER = "undo", "undo-links"
LIST_NAME, IDS_NAME = "recreate.jsonl", "recreated.csv"


@frozen
class LostRecords:
    """Deleted records, in a file in the folder of their job. They are the rows of the phase that recreates them.

    `object_id`: references to its records are set once all of them exist.
    """

    folder: Path
    object_id: str
    attributes: Sequence[Attribute]

    def keep(self, records: Iterable[Record]) -> int:
        """Write the records, unless an earlier run began to recreate them, and return their number.

        Until then the job may go on and delete more, so an older list may lack records.
        """
        path = self.folder / LIST_NAME
        if not (path.exists() and (self.folder / FOLDER / FILE_NAME).exists()):
            with whole_file(path, mode=0o600) as file:
                file.writelines(f"{jsontext.dumps(record.wire)}\n" for record in records)
        return sum(1 for _ in self.records())

    def records(self) -> Iterator[Record]:
        with (self.folder / LIST_NAME).open(encoding="utf-8") as file:
            yield from (Record.parse(jsontext.loads(line)) for line in file)

    def entries(self) -> Iterator[Entry]:
        """Yield the records to create, without references to records of their object."""
        for number, record in enumerate(self.records(), 1):
            yield Entry.of(number, self._split(record)[0])

    def links(self, new: Mapping[str, str]) -> Iterator[Entry]:
        """Yield the references to records of their object, with new ids."""
        for number, record in enumerate(self.records(), 1):
            if (links := self._split(record)[1]) and (new_id := new.get(record.id.lower())):
                data = {slug: replace_ids(value, new) for slug, value in links.items()}
                yield Entry.of(number, data, new_id)

    def _split(self, record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {}
        links: dict[str, Any] = {}
        for attribute in self.attributes:
            value = as_sent(attribute, record.data.get(attribute.slug))
            if attribute.is_active is False or canonical(value) is None:
                continue
            is_link = attribute.type == AttributeType.REFERENCE and attribute.target_object_id in (None, self.object_id)
            (links if is_link and not attribute.is_required else data)[attribute.slug] = value
        return data, links


def deleted_records(job: ImportJob, reader: Reader) -> Iterator[Record]:
    """Yield the records that a job deleted, from its backup. Raises UsageError without a backup, and read errors."""
    journal = job.journal
    backup = KeptRecords.of(journal)
    rows = (row for row in job.input.payloads() if row.id is not None)
    last = journal.last_sent
    with SeenIds() as gone, SeenIds() as doubtful, SeenIds() as existing:
        for row, entry in entries_of(journal, rows):
            # The service may have carried out a request that it refused for now: its rows are unsent.
            state = entry.state if entry is not None else RowState.IN_DOUBT if row.ordinal <= last else None
            if state in (RowState.UPDATED, RowState.IN_DOUBT):
                (gone if state is RowState.UPDATED else doubtful).add(str(row.id).lower())
        for record in chain.from_iterable(fetch(reader, doubtful)):
            existing.add(record.id.lower())
        for record_id in chain.from_iterable(doubtful.chunks()):
            if record_id not in existing:
                gone.add(record_id)
        if backup is None and len(gone):
            raise UsageError(f"job {journal.header.job} kept no copy of what it deleted", code="no_backup")
        yield from (record for record in (backup.records() if backup is not None else ()) if record.id.lower() in gone)


@dataclass
class Recreation(UndoReport):
    """Undo of a deletion.

    `found`: records to create; `done`: records that earlier runs created. `failed`: rows the service refused, and why; `lost`: their
    old ids. `unknown`: recreated records whose new id crmctl cannot find. `activities` and `references` of other records were linked again;
    `unlinked` activities and `unreferenced` references could not be.
    """

    found: int = 0
    done: int = 0
    ids: Path | None = None
    created: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    unknown: int = 0
    activities: int = 0
    unlinked: int = 0
    references: int = 0
    unreferenced: int = 0
    notes: list[str] = field(default_factory=list)
    unlinked_records: list[tuple[str, str]] = field(default_factory=list)

    def leave(self, record_id: str, why: str) -> None:
        self.unreferenced += 1
        if self.unreferenced <= NAMED:
            self.notes.append(f"record {record_id} still refers to a record that is gone: {why}")

    @property
    def work(self) -> int:
        return self.found

    @property
    def refusals(self) -> Iterable[str]:
        return self.failed.values()

    def to_document(self) -> dict[str, Any]:
        names = (
            "job object found created undone_before failed unknown activities unlinked references unreferenced requests "
            "estimated_seconds ids rows"
        )
        rows = {"failed": [{"row": row, "id": self.lost[row], "error": why} for row, why in sorted(self.failed.items())]}
        seconds = round(self.seconds, 1)
        return document_of(self, names, undoneBefore=self.done, failed=len(self.failed), estimatedSeconds=seconds, rows=rows)


def recreate(deleted: LostRecords, run: SendContext, count: int, done: Recreation) -> dict[str, str]:
    """Create the records, find their ids and link them to each other. Return new ids by old id. Call it again after an error."""
    header = run.journal.header
    unique = next((attribute.slug for attribute in deleted.attributes if attribute.is_unique and not attribute.is_list), None)
    run.journal.state = JobState.FINISHED  # rows not sent yet keep their state, and no other one is sent
    with phase_context(run, FOLDER, mode="create", kind="recreate", unique=unique) as phase:
        refused = [n for n, row in phase.journal.rows(1, count).items() if row.state is RowState.FAILED]
        phase.journal.conclude((n, RowState.UNSENT, None, None) for n in refused)  # the user may have removed the reason
        try:
            send_phase(phase, count, deleted.entries, f"records of {header.object}")
        finally:
            rows = phase.journal.rows(1, count)
            done.created = sum(row.state is RowState.CREATED for row in rows.values())
            done.failed = {n: row.error or "refused" for n, row in rows.items() if row.state is RowState.FAILED}
            done.lost = {n: record.id for n, record in enumerate(deleted.records(), 1) if n in done.failed}
        phase.journal.state = JobState.FINISHED  # otherwise the next import by key waits for records that were deleted again
        reader = Reader(run.service, header.object_id, lambda: run.interrupt.requested)
        done.unknown = capture_ids(phase.journal, reader, deleted.entries)
        named = phase.journal.rows(1, count)
        pairs = zip(deleted.records(), range(1, count + 1), strict=True)
        new = {old.id.lower(): str(row.record_id) for old, n in pairs if (row := named.get(n)) is not None and row.record_id}
        with whole_file(run.journal.folder / IDS_NAME, mode=0o600) as file:
            file.write("old,new\n")
            file.writelines(f"{old},{new_id}\n" for old, new_id in new.items())
        mark_undone(run.journal, new)
    if linked := sum(1 for _ in deleted.links(new)):
        with phase_context(run, LINKS_FOLDER, mode="upsert", kind="update") as phase:
            begin_phase(phase.journal, linked)
            phase.journal.conclude((), linked - sum(phase.journal.counts().values()))  # an earlier run knew fewer ids
            send_phase(phase, linked, lambda: deleted.links(new), "references")
            for row in phase.journal.rows(1, count).values():
                if row.state is RowState.FAILED:
                    done.unlinked_records.append((str(row.record_id), row.error or "refused"))
            for record_id, why in done.unlinked_records:
                done.leave(record_id, why)
    return new


NAMED = 5


def reading_price(
    service: ReadService, slugs: Mapping[str, Sequence[str]], count: int, members: Mapping[str, int] = MappingProxyType({})
) -> int:
    """Estimate the requests needed to find all references to that many records. The estimate costs one request per object.

    `slugs`: the reference attributes by object; `members`: the number of other records to read. Skips objects that the key may not read.
    Raises all other read errors.
    """
    requests = 0
    for object_id, names in slugs.items():
        with suppress(DeniedError):
            total = service.list_records(object_id, sort="updated_at", order="desc", limit=1).total or 0
            others = members.get(object_id, 0)
            asked = len(names) * (count + 1) + others
            requests += 1 + (asked if asks(names, range(count), others, total) else -(-total // PAGE_STEP) + 2)
    return requests


def link_referrers(run: SendContext, referring: Mapping[str, Sequence[Attribute]], new: Mapping[str, str], done: Recreation) -> None:
    """Point references to old ids at the new ids. `referring`: the reference attributes by object id.

    Counts what the service refuses, and notes a missing scope. Raises other errors.
    """
    sender = StepSender(run.service, run.clock, run.interrupt)

    def mark(steps: Sequence[Step], state: StepState, why: str | None) -> None:
        done.references += len(steps) * (state is StepState.DONE)
        if state is StepState.FAILED:
            done.leave(steps[0].target, why or "refused")

    def see(steps: dict[str, Step], object_id: str, by_slug: Mapping[str, Attribute], records: Iterable[Record]) -> None:
        for record in records:
            before, after = moved_references(record.data, by_slug.values(), new)
            if after:
                steps.setdefault(record.id.lower(), Step(StepKind.REFERENCE, object_id, record.id, before, after, len(steps)))

    try:
        for object_id, attributes in referring.items() if new else ():
            by_slug = {attribute.slug: attribute for attribute in attributes}
            sender.attributes = {object_id: by_slug}
            steps: dict[str, Step] = {}
            newest = run.service.list_records(object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
            referrers, sink = Referrers(run.service, object_id, list(by_slug), list(new), newest), partial(see, steps, object_id, by_slug)
            if not referrers.ask(sink):
                referrers.read_all(sink)
            sender.update(steps.values(), mark)  # after all records are found, because writes reorder the lists
    except ForbiddenError as error:
        done.notes.append(f"references of other records stay as they are: {error.message}")


def relink_price(service: ReadService) -> int:
    """Return how many requests it takes to read all activities. The estimate costs one request."""
    try:
        page = service.list_activities(limit=1)
    except DeniedError:
        return 0
    return max(1, -(-(page.total or len(page.items)) // PAGE_LIMIT))


def link_activities(service: Crm, new: Mapping[str, str], done: Recreation) -> None:
    """Point links and participants of activities at the new ids. Reads all activities, because no filter finds participants."""
    if not new:
        return
    try:
        named = {activity.id: links for page in all_activities(service) for activity in page if (links := swap_links(activity.wire, new))}
        for activity_id, links in named.items():
            try:
                service.update_activity(activity_id, links)
                done.activities += 1
            except (RejectedError, NotFoundError):
                done.unlinked += 1
    except ForbiddenError as error:
        done.notes.append(f"links of activities stay as they are: {error.message}")


def recreate_deleted(context: BulkContext, job: ImportJob, approve: Callable[[Recreation], None], *, dry_run: bool) -> Recreation:
    """Find the records a job deleted, pass them to `approve`, and recreate them. `approve` raises to cancel.

    A dry run only finds the records. The result says what was not restored and why. Raises UsageError if the job deleted nothing or has no
    backup, and read errors.
    """
    header = job.journal.header
    attributes = context.directory.attributes(header.object_id, refresh=True)
    with closing(job.journal) as journal, closing(job.input), journal.hold(), watch_interrupts(context.listener.progress.note) as interrupt:
        deleted, plan = LostRecords(journal.folder, header.object_id, attributes), Recreation(header.job, header.object)
        count = deleted.keep(deleted_records(job, Reader(context.service, header.object_id)))
        if not count:
            raise UsageError(f"job {header.job} deleted nothing", code="nothing_to_undo")
        plan.done = count if journal.state is JobState.UNDONE else 0
        plan.found = count - plan.done
        referring = referring_attributes(context, header.object_id) if plan.found else {}
        if plan.found:
            slugs = {object_id: [attribute.slug for attribute in attributes] for object_id, attributes in referring.items()}
            reading = reading_price(context.service, slugs, count) + relink_price(context.service)
            plan.requests = -(-plan.found // BULK_LIMIT) + 1 + -(-plan.found // PAGE_LIMIT) + reading
        plan.seconds = seconds_for(context, plan.requests)
        if dry_run or not plan.found:
            plan.carried_out = not dry_run
            return plan
        approve(plan)
        run = SendContext(context.service, journal, DeliveryOptions(), context.clock, context.listener.progress, interrupt=interrupt)
        plan.carried_out = True
        try:
            new = recreate(deleted, run, count, plan)
            link_referrers(run, referring, new, plan)
            link_activities(context.service, new, plan)
        except CrmctlError as error:
            plan.error = error
        for note in plan.notes:
            context.listener.note(note)
        plan.ids = path if (path := journal.folder / IDS_NAME).exists() else None
        if plan.error is None and not plan.left:
            journal.state = JobState.UNDONE
    return plan
