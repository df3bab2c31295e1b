"""Deletions and single edits through the bulk-write interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.errors import CrmctlError, DeniedError, NotFoundError, RejectedError, ServiceError, UsageError, reason
from crmctl.files.rows import Format, Source, SourceOptions
from crmctl.files.sources import open_source
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import is_uuid
from crmctl.models.resources import BulkFailure, BulkResult, Record, document_of
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.write.effect import still_there

SHOWN_PROBLEMS = 20


@dataclass
class DeleteSummary:
    """Counts by outcome. `uncertain` records are gone but may not have existed before; `unsent` ids were not requested."""

    object: str
    deleted: int = 0
    not_found: int = 0
    failed: int = 0
    uncertain: int = 0
    in_doubt: int = 0
    unsent: int = 0
    requests: int = 0
    elapsed: float = 0.0
    error: CrmctlError | None = None
    job: str | None = None
    backup: Path | None = None
    refusals: Sequence[str] = ()

    def to_document(self) -> dict[str, Any]:
        names = "job object deleted not_found failed uncertain in_doubt unsent requests elapsed_seconds backup"
        return document_of(self, names, elapsedSeconds=round(self.elapsed, 3))


@frozen
class Deleting:
    """Deletes the records of a batch, for a job whose rows are ids.

    In its results, `updated` counts deleted records and `created` those already gone. `were_there`: crmctl has just read all of them.
    """

    service: Crm
    were_there: Callable[[], bool]

    def write_batch(self, object_id: str, records: Sequence[bytes], watch: AttemptObserver) -> BulkResult:
        """Delete the records of these rows. Raises RejectedError for a 404 about one of several ids, or about none of them."""
        ids = [str(jsontext.loads(record)["id"]) for record in records]
        try:
            gone = self.service.bulk_delete(object_id, ids, watch=watch)
        except NotFoundError as error:
            self.service.get_object(object_id)  # raises if the 404 is about the object
            if len(ids) == 1 and _is_gone(self.service, object_id, ids[0]):
                return BulkResult(created=1)
            raise RejectedError(error.message, code=error.code, status=error.status) from error
        except DeniedError as error:
            # Some services refuse after carrying out the request.
            if self.were_there() and any(_is_gone(self.service, object_id, record_id) for record_id in {ids[0], ids[-1]}):
                raise ServiceError(error.message, status=error.status, outcome_unknown=True) from error
            raise
        if gone is not None and gone < len(ids) and not self.were_there():
            return BulkResult(created=len(ids) - gone, updated=gone)
        kept = still_there(Reader(self.service, object_id), self.service.session.clock, ids, gone)
        failed = [BulkFailure(index=index, error=error) for index, error in kept.items()]
        return BulkResult(updated=len(ids) - len(failed), failed=failed)


def _is_gone(service: Crm, object_id: str, record_id: str) -> bool:
    try:
        service.get_record(object_id, record_id)
    except CrmctlError as error:
        return isinstance(error, NotFoundError)
    return False


def read_ids(path: Path, name: str, ids: SeenIds) -> None:
    """Collect the ids of a file: one per line, a JSON array, or the `id` column of a table in any format.

    Ignores blank lines and repetitions, and accepts a file without rows. Raises UsageError for a file with content but no id, RejectedError
    for a file with ids and other content, with the lines.
    """
    problems: list[dict[str, Any]] = []
    for line, text in _candidates(path, name):
        if is_uuid(text):
            ids.add(text.lower())
        elif len(problems) < SHOWN_PROBLEMS:
            problems.append({"line": line, "value": text[:80]})
        elif len(ids):
            break
    if not problems:
        return
    first = problems[0]
    message = f"{name}, line {first['line']}: {first['value']!r} is not a record id"
    if not len(ids):
        raise UsageError(
            f"{message}, and there is none in the file", hint="one id a line, or a table with an id column", code="no_ids", details=problems
        )
    raise RejectedError(f"{message}; nothing was written", code="malformed_id", details=problems)


def _candidates(path: Path, name: str) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            lines = ((number, line.strip()) for number, line in enumerate(file, 1))
            filled = (line for line in lines if line[1])
            first = next(filled, None)
            if first is None or is_uuid(first[1]):
                yield from [first] if first else []
                yield from filled
                return
    except OSError as error:
        raise UsageError(f"cannot read {name}: {reason(error)}", code="unreadable_file") from error
    array = first[1].startswith("[")
    source = open_source(path, SourceOptions(format="json") if array else SourceOptions(), name=name)
    yield from (_of_json if source.dialect.format in (Format.JSON, Format.JSONL) else _of_table)(source)


def _of_json(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the ids of records, or ids given as strings."""
    for row in source.rows():
        parsed: Any = None
        if row.value is not None:
            parsed = next((value for key, value in row.value.items() if key.strip().lower() == "id"), None)
        elif row.problem is not None and row.problem.code == "not_an_object":
            parsed = jsontext.loads(row.raw)
        yield row.first_line, parsed.strip() if isinstance(parsed, str) else row.raw


def _of_table(source: Source) -> Iterator[tuple[int, str]]:
    column = next((index for index, header in enumerate(source.header) if header.strip().lower() == "id"), None)
    if column is None and len(source.header) == 1:
        # A list without a header, so a row equal to the first line is an id, not a repeated header.
        yield 1, source.header[0].strip()
        yield from ((row.first_line, row.raw.strip().strip('"').strip()) for row in source.rows())
        return
    if column is None:
        raise UsageError(f"{source.name}, line 1: neither a record id nor the names of columns with id among them", code="unknown_format")
    for row in source.rows():
        yield row.first_line, row.raw if row.problem is not None else row.cells[column].strip() or row.raw


CHANGED = 412
"""Status of a write to an outdated version."""


@dataclass
class Editing:
    """Writes the one row of an edit as a PATCH, if the record is still as `shown`. `written`: the record in the answer."""

    service: Crm
    object: str
    shown: Record
    written: Record | None = None
    error: CrmctlError | None = None

    def write_batch(self, object_id: str, records: Sequence[bytes], watch: AttemptObserver) -> BulkResult:
        """Write the one record. Raises RejectedError if another client has changed it."""
        if self.error is not None and (self.error.retryable or self.error.status is None):
            raise CrmctlError(self.error.message) from self.error  # not carried out, and already repeated often enough
        watch.sending()  # from here on the journal stores the outcome, even a refusal without a write
        try:
            self.written = self.write(object_id, jsontext.loads(records[0])["data"], watch)
        except CrmctlError as error:
            self.error = error
            if isinstance(error, ServiceError) and not error.outcome_unknown:
                raise CrmctlError(error.message) from error  # the comparison failed: nothing was written, and nothing is in doubt
            raise
        return BulkResult(updated=1)

    def write(self, object_id: str, data: Mapping[str, Any], watch: AttemptObserver | None = None) -> Record:
        now, version = self.service.get_version(object_id, self.shown.id)
        self._refuse_changed(now, "nothing was sent")
        try:
            return self.service.update_record(object_id, self.shown.id, data, version=version, watch=watch)
        except RejectedError as error:
            if error.status != CHANGED or version is None:
                raise
            now, _ = self.service.get_version(object_id, self.shown.id)
            if all(now.data.get(slug) == value for slug, value in data.items()):
                return now  # an earlier attempt wrote it, and its answer was lost
            self._refuse_changed(now, "the record does not hold all that you wrote")
            raise

    def _refuse_changed(self, now: Record, outcome: str) -> None:
        """Raise RejectedError if another client changed the record during the edit."""
        shown = self.shown
        changed = [slug for slug in {**shown.data, **now.data} if shown.data.get(slug) != now.data.get(slug)]
        if changed or shown.updated_at != now.updated_at:
            slugs = f": {', '.join(changed)}" if changed else ""
            raise RejectedError(
                f"another client changed the record while you edited it{slugs}; {outcome}",
                hint=f"crmctl records edit {self.object} {shown.id} shows it as it is now",
                code="changed_meanwhile",
            )
