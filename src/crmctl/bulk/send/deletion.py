"""Deleting many records: first every id is known and well formed, then requests of 100. Nothing is paged while it is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.send.bisection import RepeatableSender
from crmctl.bulk.send.context import ImportService
from crmctl.bulk.send.stand_in import StandIn
from crmctl.bulk.sources.open_source import open_source
from crmctl.bulk.sources.rows import Format, Source, SourceOptions
from crmctl.client.http.attempt_observer import AttemptObserver, BatchObserver
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, UsageError, reason
from crmctl.models import jsontext
from crmctl.models.ids import is_uuid
from crmctl.models.records import BULK_LIMIT, BulkFailure, BulkResult, Record

SHOWN_PROBLEMS = 20
ATTEMPTS = 3
"""How often a request of unknown outcome is sent: deleting twice leaves what deleting once does."""


class RecordDeleter(Protocol):
    """The bulk delete of the client: how many it deleted, or None when the service does not say; and what shows a record that is left."""

    def bulk_delete(self, object_id: str, ids: Sequence[str]) -> int | None: ...
    def get_record(self, object_id: str, record_id: str) -> Record: ...


class Deleter(RecordDeleter, Protocol):
    """The same, by who can see whether the object is there."""

    def get_object(self, object_id: str) -> Any: ...


@dataclass
class DeleteSummary:
    """What became of the ids. `uncertain` ones are gone, nobody can tell whether they were there before; `unsent` were not asked for."""

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
        """The JSON form, every key always present."""
        return {
            "job": self.job,
            "object": self.object,
            "deleted": self.deleted,
            "notFound": self.not_found,
            "failed": self.failed,
            "uncertain": self.uncertain,
            "inDoubt": self.in_doubt,
            "unsent": self.unsent,
            "requests": self.requests,
            "elapsedSeconds": round(self.elapsed, 3),
            "backup": str(self.backup) if self.backup is not None else None,
        }


class DeletingService(Deleter, ImportService, Protocol):
    """The calls of the client that a deletion makes as a job."""

    def bulk_delete(self, object_id: str, ids: Sequence[str], *, watch: AttemptObserver | None = None) -> int | None: ...


@dataclass(frozen=True)
class Deleting(StandIn):
    """Of a job whose rows are ids: what would be written is deleted. In its answers `updated` counts the records
    that are gone, `created` those that were gone before. `were_there`: all were read just before, so that what is gone was deleted."""

    service: DeletingService
    were_there: Callable[[], bool]
    doubted: set[str] = field(default_factory=set)

    def write_rows(self, object_id: str, rows: Sequence[Mapping[str, Any]], watch: BatchObserver | None) -> BulkResult:
        """Delete the records of these rows. Raises RejectedError for a 404 that is about one of several ids."""
        ids = [str(row["id"]) for row in rows]
        try:
            gone = self.service.bulk_delete(object_id, ids, watch=watch)
        except NotFoundError as error:
            self.service.get_object(object_id)  # a 404 may be about the object, which is another matter
            if len(ids) == 1:
                return BulkResult(created=1)
            raise RejectedError(error.message, code=error.code, status=error.status) from error
        except CrmctlError as error:
            self.doubted.update(ids if error.outcome_unknown else ())
            raise
        if gone is not None and gone < len(ids) and not self.were_there():
            return BulkResult(created=len(ids) - gone, updated=gone)
        kept = {} if self.doubted.issuperset(ids) else still_there(self.service, object_id, ids, gone)
        failed = [BulkFailure(index=index, error=said) for index, said in kept.items()]
        return BulkResult(updated=len(ids) - len(failed), failed=failed)


def still_there(deleter: RecordDeleter, object_id: str, ids: Sequence[str], gone: int | None) -> dict[int, str]:
    """Of records that were just read, and of which the service says that `gone` were deleted: those that are there all the same, by place,
    and what to say of them. No request where all are gone, or the service does not say; after a try of unknown outcome the number tells
    nothing, and nobody should ask."""
    kept: dict[int, str] = {}
    for index, record_id in enumerate(ids):
        if gone is None or len(kept) >= len(ids) - gone:
            break
        try:
            deleter.get_record(object_id, record_id)
        except NotFoundError:
            continue
        except CrmctlError:
            break  # nobody can tell of the rest: the service's answer was a success
        kept[index] = "the service deleted fewer records than it was asked for, and this one is still there"
    return kept


def read_ids(path: Path, name: str, ids: SeenIds) -> None:
    """Collect the ids of a file: one per line, a JSON array, or the `id` column of a table in any format. Blank lines, repetitions, and a
    file without any rows are fine.

    Raises UsageError for a file that holds something, but not one id; RejectedError when anything beside ids is there, with the lines.
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
    said = f"{name}, line {first['line']}: {first['value']!r} is not a record id"
    if not len(ids):
        raise UsageError(
            f"{said}, and there is none in the file", hint="one id a line, or a table with an id column", code="no_ids", details=problems
        )
    raise RejectedError(f"{said}; nothing was deleted", code="malformed_id", details=problems)


@dataclass(frozen=True)
class DeletedObject:
    """Whose records are deleted; they were just read from the service, so that what is gone was deleted. `remember` is told of the ids that
    are gone as soon as the service has said so."""

    deleter: Deleter
    slug: str
    id: str
    remember: Callable[[Sequence[str]], None] = lambda _: None


def delete_records(target: DeletedObject, ids: SeenIds, clock: Clock, progress: Progress) -> DeleteSummary:
    """Delete every id. Never raises for what the service answers: an error that ended it early is the summary's `error`."""
    summary = DeleteSummary(target.slug)
    started = clock.monotonic()
    progress.start("deleting", len(ids), BULK_LIMIT)
    RepeatableSender(_Deletion(target, summary), summary, clock, progress).send_all(ids.chunks(BULK_LIMIT))
    summary.elapsed = clock.monotonic() - started
    return summary


@dataclass
class _Deletion:
    """One request of up to 100 ids."""

    target: DeletedObject
    summary: DeleteSummary
    attempts: int = ATTEMPTS
    _object_exists: bool = False
    _doubted: set[str] = field(default_factory=set)

    def send(self, ids: Sequence[str]) -> Verdict:
        try:
            gone = self.target.deleter.bulk_delete(self.target.id, ids)
        except CrmctlError as error:
            return self._refusal(ids, error)
        kept = {} if self._doubted.issuperset(ids) else still_there(self.target.deleter, self.target.id, ids, gone)
        self.target.remember([record_id for index, record_id in enumerate(ids) if index not in kept])
        left = len(ids) - len(kept)
        return Verdict(BatchState.CONFIRMED, deleted=left if gone is None else min(gone, left), failures=kept)

    def settle(self, ids: Sequence[str], verdict: Verdict, *, doubted: bool) -> None:
        """After a doubtful try the last answer counts only what that try had left."""
        absent = len(ids) - verdict.deleted - len(verdict.failures)
        self.summary.deleted += verdict.deleted
        self.summary.failed += len(verdict.failures)
        self.summary.refusals = [*self.summary.refusals, *verdict.failures.values()][:SHOWN_PROBLEMS]
        if doubted:
            self.summary.deleted += absent
        else:
            self.summary.not_found += absent

    @staticmethod
    def halves(ids: Sequence[str]) -> Sequence[Sequence[str]]:
        middle = len(ids) // 2
        return ids[:middle], ids[middle:]

    def _refusal(self, ids: Sequence[str], error: CrmctlError) -> Verdict:
        if error.outcome_unknown:
            self._doubted.update(ids)
            return Verdict(BatchState.IN_DOUBT, reason=error.message, repeatable=True, fatal=error)
        is_absent = isinstance(error, NotFoundError)
        if is_absent and (failure := self._look_for_object()) is not None:
            return Verdict(BatchState.PLANNED, reason=failure.message, fatal=failure)
        if not is_absent and not isinstance(error, RejectedError):
            return Verdict(BatchState.PLANNED, reason=error.message, fatal=error)
        if len(ids) > 1:
            return Verdict(BatchState.BISECT, reason=error.message)
        return Verdict(BatchState.CONFIRMED, failures={} if is_absent else {0: error.message})

    def _look_for_object(self) -> CrmctlError | None:
        """Whether a 404 is about the ids: asked once. Why it is not."""
        if not self._object_exists:
            try:
                self.target.deleter.get_object(self.target.id)
            except CrmctlError as error:
                return error
            self._object_exists = True
        return None


def _candidates(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Line number and text of everything that should be an id."""
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
    """Records with an id, or ids as strings."""
    for row in source.rows():
        found: Any = None
        if row.value is not None:
            found = next((value for key, value in row.value.items() if key.strip().lower() == "id"), None)
        elif row.problem is not None and row.problem.code == "not_an_object":
            found = jsontext.loads(row.raw)
        yield row.first_line, found.strip() if isinstance(found, str) else row.raw


def _of_table(source: Source) -> Iterator[tuple[int, str]]:
    column = next((index for index, header in enumerate(source.header) if header.strip().lower() == "id"), None)
    if column is None and len(source.header) == 1:
        # A list without a header. A row that repeats its first id is none that repeats a header.
        yield 1, source.header[0].strip()
        yield from ((row.first_line, row.raw.strip().strip('"').strip()) for row in source.rows())
        return
    if column is None:
        raise UsageError(f"{source.name}, line 1: neither a record id nor the names of columns with id among them", code="unknown_format")
    for row in source.rows():
        yield row.first_line, row.raw if row.problem is not None else row.cells[column].strip() or row.raw
