"""Steps of a job before and after its rows are sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, RejectedError, StorageError, UsageError, reason
from crmctl.files.mapping import Mode
from crmctl.files.validation import Payload
from crmctl.files.whole_files import chunks, whole_bytes
from crmctl.frozen import frozen
from crmctl.match.keys import is_unchanged
from crmctl.models import jsontext
from crmctl.models.findings import Finding
from crmctl.models.resources import Attribute, Record
from crmctl.plan.import_plan import (
    PlannedInput,
    RowAction,
    Target,
    before_image,
    file_digest,
    finding_of_merge,
)
from crmctl.plan.import_run import rows_of, skip_missing
from crmctl.plan.job_start import PLAN_NAME, ImportJob, ImportRun
from crmctl.read.records import KnownRecords, read_known, read_one
from crmctl.values.composites import Merger
from crmctl.write.database import JobState, RowState
from crmctl.write.in_flight import WriteBatch, write_requests
from crmctl.write.journal import BEFORE, SEEN, TARGET, WHOLE, Journal, RowEntry, entries_of

if TYPE_CHECKING:
    from crmctl.match.keys import KeyIndex
    from crmctl.plan.plan_file import Decisions
    from crmctl.plan.row_actions import Resolution
    from crmctl.write.deletion import Editing


@frozen
class JobHooks:
    """The steps of an import job around the sending of its rows. An error of a step stops the run."""

    job: ImportJob

    def writer(self, service: Crm) -> WriteBatch | None:
        return None

    @property
    def changes_rows(self) -> bool:
        """Whether rows are completed after the check."""
        return self._makes_parents or self.job.input.merged is not None

    @property
    def _makes_parents(self) -> bool:
        references = self.job.input.references
        return references is not None and bool(references.groups())

    @property
    def unlinked(self) -> int:
        references = self.job.input.references
        return references.unlinked_count if references is not None else 0

    def approve(self, run: ImportRun) -> None:
        """Approve the valid rows after the check, before anything is sent."""
        journal, merged = self.job.journal, self.job.input.merged
        self._check_plan(lambda now: now.add_rows(self.job.input, run.reader()))
        if merged is not None or journal.header.keeps_overwritten:
            rejected = self._merge(run, self._valid, lambda row: row.id, keeps_all=journal.header.keeps_overwritten)
            if rejected and journal.header.plan["stop_on_error"]:
                journal.state = JobState.REJECTED

    def approve_keys(self, run: ImportRun, index: KeyIndex) -> None:
        resolver = run.resolver
        assert resolver is not None
        if self.job.input.kept is not None:
            self.job.input.kept.restart()
        self._check_plan(lambda now: now.add_outcomes(resolver, index))

    def _check_plan(self, add: Callable[[Decisions], None]) -> None:
        """Reject the job if its rows differ from its saved plan, if it has one. Raises RejectedError."""
        path = self.job.journal.folder / PLAN_NAME
        if not path.exists():
            return
        from crmctl.plan.plan_file import check_rows

        try:
            check_rows(path, add)
        except RejectedError:
            self.job.journal.state = JobState.REJECTED
            raise

    def before_rows(self, run: ImportRun) -> None:
        references = self.job.input.references
        if references is not None and self._makes_parents:
            from crmctl.plan.relations import make_parents

            make_parents(run, references)

    def compare_unsent(self, run: ImportRun) -> None:
        """Merge the unsent rows of a resumed job into the current values of their records. Fail other rows whose records changed."""
        from crmctl.plan.undo_updates import fail_changed

        journal = self.job.journal
        if self.job.input.merged is not None:
            target: Target = (lambda row: journal.recall(row.ordinal, TARGET)) if journal.header.keys else (lambda row: row.id)
            self._merge(run, self._unsent, target)
        fail_changed(self.job, run.reader(), run.progress.note)

    def _merge(self, run: ImportRun, rows: Callable[[], Iterator[Payload]], target: Target, *, keeps_all: bool = False) -> bool:
        """Complete the values of rows that give parts, and keep before images of these rows, with `keeps_all` of all rows.

        Return whether a row was rejected because its parts do not fit the current value. Repeatable; raises reading errors. Nothing is
        stored for a missing record, because the service will refuse its row.
        """
        journal, references, rejected = self.job.journal, self.job.input.references, False
        later = references.later_slugs if references is not None else lambda _: ()
        ids = (target(row) for row in rows() if row.parts or keeps_all)
        with read_known(run.reader(), filter(None, ids), run.progress) as records:
            for chunk in chunks(rows()) if len(records) else ():
                images, wholes = [], []
                for row in chunk:
                    record = records.get(target(row) or "") if row.parts or keeps_all else None
                    if record is None:
                        continue
                    try:
                        values = self.job.input.merger.merge_all(row.parts, record.data)
                    except RejectedError as error:
                        finding = finding_of_merge(error).at(row.ordinal, row.first_line, row.last_line)
                        run.report(finding)
                        journal.conclude([(row.ordinal, RowState.REJECTED, None, finding.message)])
                        rejected = True
                        continue
                    wholes += [(row.ordinal, values)] if values else []
                    images.append((row.ordinal, before_image(row.data | values, record.data, later(row.ordinal))))
                journal.keep(BEFORE, images)
                journal.keep(WHOLE, wholes)
        return rejected

    def _valid(self) -> Iterator[Payload]:
        return (row for row in self.job.input.payloads() if not row.rejected)

    def _ids(self) -> Iterator[str]:
        return (row.id for row in self._valid() if row.id is not None)

    def _unsent(self) -> Iterator[Payload]:
        return (row for row, entry in entries_of(self.job.journal, self._valid()) if row.parts and entry is None)

    def frees_rows(self, run: ImportRun) -> bool:
        """Whether refused rows may be sent again after all rows were sent."""
        journal = self.job.journal
        try:
            if run.resolver is not None:
                from crmctl.plan.row_actions import free_refused

                return free_refused(run.resolver, journal, run.reader(), self.job.input.payloads(in_full=True)) > 0
            if journal.header.mode == Mode.UPDATE:
                skip_missing(journal, run.reader(), self.job.input.payloads(), run.report)
        except CrmctlError:
            pass  # the refused rows stay as the service left them
        return False

    def after_rows(self, run: ImportRun) -> None:
        references = self.job.input.references
        if references is not None and references.link_count:
            from crmctl.plan.relations import link_rows

            link_rows(run, references, rows_of(self.job.journal, self.job.input.to_send))


BACKUP_NAME = "backup.jsonl"
PLACE = "backup to"
"""Journal fact: the path the backup will have; None for no backup."""

BACKUP = "backup"
"""Journal fact: the path of the backup and its SHA-256."""


class KeptRecords(NamedTuple):
    """A complete backup."""

    path: Path
    sha256: str

    @classmethod
    def of(cls, journal: Journal) -> KeptRecords | None:
        backup = journal.recall(BACKUP)
        return cls(Path(backup["path"]), backup["sha256"]) if backup else None

    def records(self) -> Iterator[Record]:
        """Yield every record of the backup. Raises UsageError if the file is missing or was changed."""
        digest = hashlib.sha256()
        try:
            with self.path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() != self.sha256:
                raise UsageError(f"the backup {self.path} is not what was written", hint="put it back as it was", code="backup_changed")
            with self.path.open("rb") as file:
                yield from (Record.parse(jsontext.loads(line)) for line in file)
        except OSError as error:
            raise UsageError(f"cannot read the backup {self.path}: {reason(error)}", hint="put it back", code="backup_gone") from error


@frozen
class DeleteHooks(JobHooks):
    """The steps of a deletion. `known` holds the records if they were just read; a resumed job reads them again."""

    known: KnownRecords | None = None

    def writer(self, service: Crm) -> WriteBatch:
        from crmctl.write.deletion import Deleting

        return Deleting(service, lambda: bool(self.job.journal.recall(SEEN))).write_batch

    def approve(self, run: ImportRun) -> None:
        journal = self.job.journal
        place = journal.recall(PLACE)
        if place is None and self.known is None:
            return
        with ExitStack() as stack:
            records = self.known or stack.enter_context(read_known(run.reader(), self._ids(), run.progress))
            if place is not None:
                self._write(journal, Path(place), records)
            self._leave_out(journal, records)
        journal.remember(SEEN, True)

    def _write(self, journal: Journal, place: Path, records: KnownRecords) -> None:
        digest = hashlib.sha256()
        try:
            with whole_bytes(place, mode=0o600) as file:
                for record in records:
                    line = f"{jsontext.dumps(record.wire)}\n".encode()
                    digest.update(line)
                    file.write(line)
        except StorageError as error:
            message = f"the backup cannot be written, nothing was deleted: {error.message}"
            raise StorageError(message, code=error.code, hint=error.hint) from error
        journal.remember(BACKUP, {"path": str(place.absolute()), "sha256": digest.hexdigest()})

    def _leave_out(self, journal: Journal, records: KnownRecords) -> None:
        for chunk in chunks(self._valid()):
            absent = [row for row in chunk if records.get(row.id or "") is None]
            journal.conclude((row.ordinal, RowState.SKIPPED, row.id, "there is no such record") for row in absent)

    def compare_unsent(self, run: ImportRun) -> None:
        """Fail open rows whose records changed since they were copied: an undo would lose the change. Raises read errors."""
        journal, backup = self.job.journal, KeptRecords.of(self.job.journal)
        if backup is None:
            return
        with read_known(run.reader(), (str(row.id) for row, _ in self._open_rows()), run.progress) as records:
            changed = {old.id.lower() for old in backup.records() if (now := records.get(old.id)) is not None and now.data != old.data}
        rows = [(row, entry) for row, entry in self._open_rows() if str(row.id).lower() in changed]
        rows = [(row, entry) for row, entry in rows if entry is None or read_one(run.reader(), str(row.id)) is not None]
        for row, entry in rows:
            if entry is not None:  # in doubt, but not deleted
                journal.resolve(journal.batches_of(row.ordinal, row.ordinal)[row.ordinal], {}, (row.ordinal,))
        journal.conclude((row.ordinal, RowState.FAILED, row.id, "not deleted: it changed since the job began") for row, _ in rows)

    def _open_rows(self) -> Iterator[tuple[Payload, RowEntry | None]]:
        rows = entries_of(self.job.journal, self._valid())
        return ((row, entry) for row, entry in rows if row.id and (entry is None or entry.state is RowState.IN_DOUBT))


TEXT = "edited text"
"""Journal fact: the path of the edited text, and its SHA-256 when it was sent."""


def keep_text(journal: Journal, path: Path) -> None:
    journal.remember(TEXT, [str(path.absolute()), file_digest(path, str(path))[0]])


def kept_text(journal: Journal) -> str | None:
    """Return a sentence that names the edited text; None if the file is gone."""
    path, _ = journal.recall(TEXT) or ("", "")
    return f"your text is in {path}" if path and Path(path).is_file() else None


@frozen
class EditHooks(JobHooks):
    """The steps of an edit; `editing` writes the row."""

    editing: Editing

    def writer(self, service: Crm) -> WriteBatch:
        return self.editing.write_batch

    def approve(self, run: ImportRun) -> None:
        journal = self.job.journal
        if self.job.input.merged is not None:
            super().approve(run)
        else:
            journal.keep(BEFORE, ((row.ordinal, before_image(row.data, self.editing.shown.data)) for row in self._valid()))

    def after_rows(self, run: ImportRun) -> None:
        path, sha256 = self.job.journal.recall(TEXT) or ("", "")
        if path and self.job.journal.counts()[RowState.UPDATED]:
            try:
                if file_digest(Path(path), path)[0] == sha256:  # the user has not continued editing
                    Path(path).unlink(missing_ok=True)
            except (UsageError, OSError):
                pass
        super().after_rows(run)


SAMPLES = 5
"""The number of changed records a confirmation prompt shows."""

Find = Callable[[str], Record | None]
"""Returns the record with an id, or None."""


class ValueChange(NamedTuple):
    """The effect of one row.

    `sent` holds the values to send, `before` the values they overwrite, and `whole` the values completed from parts. `finding` is the
    reason for not sending the row.
    """

    ordinal: int
    action: RowAction
    record: Record | None = None
    sent: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    whole: Mapping[str, Any] | None = None
    finding: Finding | None = None

    def to_document(self) -> dict[str, Any]:
        after = {slug: value for slug, value in self.sent.items() if slug in self.before}
        return {"id": self.record.id if self.record is not None else None, "before": dict(self.before), "after": after}

    @property
    def resolution(self) -> Resolution:
        from crmctl.plan.row_actions import Resolution

        record_id, whole = self.record.id if self.record is not None else None, dict(self.whole) if self.whole is not None else None
        return Resolution(self.ordinal, self.action, record_id, self.finding, before=dict(self.before), whole=whole)


@frozen
class Changing:
    """Compares rows with the records they name by id."""

    attributes: Mapping[str, Attribute]
    merger: Merger

    @classmethod
    def of(cls, planned: PlannedInput) -> Changing:
        return cls({attribute.slug: attribute for attribute in planned.shown_attributes}, planned.merger)

    def changes(self, rows: Iterable[Payload], find: Find) -> Iterator[ValueChange]:
        return (self._change(row, find(row.id or "")) for row in rows)

    def _change(self, row: Payload, record: Record | None) -> ValueChange:
        if record is None:
            return _refused(row, Finding("no_record", "there is no such record").on("id", row.id))
        try:
            merged = self.merger.merge_all(row.parts, record.data) if row.parts else None
        except RejectedError as error:
            from crmctl.client.query.related_records import label_of  # only for a refused row: an import does without queries

            finding = finding_of_merge(error)
            label = label_of(record, self.attributes.values())
            return _refused(row, replace(finding, message=f"{label}: {finding.message}"))
        sent = row.data | (merged or {})
        if is_unchanged(sent, record.data, self.attributes):
            return ValueChange(row.ordinal, RowAction.UNCHANGED, record)
        return ValueChange(row.ordinal, RowAction.UPDATE, record, sent, before_image(sent, record.data), merged)


@dataclass
class ChangeForecast:
    """The predicted effect of changing many records.

    Of all `rows`, `changes` get a new value, `unchanged` already hold it, and `rejected` cannot be written. `samples` are the first
    changes; `attributes` determine how their values are shown.
    """

    object: str
    attributes: Sequence[Attribute] = ()
    rows: int = 0
    changes: int = 0
    unchanged: int = 0
    rejected: int = 0
    samples: list[ValueChange] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return write_requests(self.changes)

    def add(self, change: ValueChange) -> None:
        self.rows += 1
        self.changes += change.action is RowAction.UPDATE
        self.unchanged += change.action is RowAction.UNCHANGED
        self.rejected += change.action is RowAction.REJECT
        if change.action is RowAction.UPDATE and len(self.samples) < SAMPLES:
            self.samples.append(change)


def _refused(row: Payload, why: Finding) -> ValueChange:
    """Refuse a row without its place: the user's file has no such line."""
    return ValueChange(row.ordinal, RowAction.REJECT, finding=replace(why, ordinal=row.ordinal))


Approve = Callable[[ChangeForecast], None]
"""Receives the planned changes and raises CrmctlError to cancel them."""


def agree(_: object) -> None:
    """Approve without a prompt."""


@frozen
class UpdateHooks(JobHooks):
    """The steps of an update. `known` holds the records if they were just read; a resumed job reads them again."""

    approve_changes: Approve = agree
    known: KnownRecords | None = None

    def approve(self, run: ImportRun) -> None:
        from crmctl.plan.row_actions import write_down

        journal = self.job.journal
        forecast = ChangeForecast(journal.header.object, self.job.input.attributes)
        try:
            with ExitStack() as stack:
                records = self.known or stack.enter_context(read_known(run.reader(), self._ids(), run.progress))
                for chunk in chunks(Changing.of(self.job.input).changes(self._valid(), records.get)):
                    for change in chunk:
                        forecast.add(change)
                    write_down(journal, (change.resolution for change in chunk), run.report)
            if forecast.rejected and run.stop_on_error:
                journal.state = JobState.REJECTED
                return
            run.guard.check(forecast.changes, forecast.rows)
            if forecast.changes:
                self.approve_changes(forecast)
        except RejectedError:
            journal.state = JobState.REJECTED
            raise
