"""Beginning an import: the input is opened, its content known, the job's journal made. And the dry run, which makes nothing."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from crmctl import __version__
from crmctl.bulk.findings import Finding
from crmctl.bulk.imports.before import BeforeImages, must_be_read
from crmctl.bulk.imports.plan import ImportPlan, PlannedInput, file_digest, open_input
from crmctl.bulk.imports.resolving import AMBIGUOUS, Action, Outcome, resolver_of
from crmctl.bulk.journal.jobs import JobStore
from crmctl.bulk.journal.journal import Header, Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.journal.summary import Summary
from crmctl.bulk.keys.index import KeyIndex, Wanted
from crmctl.bulk.keys.references import ReferenceMap
from crmctl.bulk.keys.rules import key_rule
from crmctl.bulk.payloads.batches import Batcher, Entry, entry_of
from crmctl.bulk.payloads.mapping import Column, Mode, schema_digest
from crmctl.bulk.payloads.markers import check_marker
from crmctl.bulk.payloads.validation import Payload, ValidationReport, validate
from crmctl.bulk.progress import Progress
from crmctl.bulk.records.fetching import reading_cost
from crmctl.bulk.records.listing import Lister
from crmctl.clock import Clock
from crmctl.errors import ExitCode, UsageError
from crmctl.models.attributes import Attribute, AttributeType

STDIN = "-"


@dataclass(frozen=True)
class Target:
    """Where records go: the object, and the origin of the service."""

    object: str
    object_id: str
    origin: str


@dataclass(frozen=True)
class Limit:
    """The request rate: `requests` per `seconds`, of which `remaining` may go at once."""

    requests: int = 100
    seconds: float = 60.0
    remaining: int = 0

    def time_for(self, requests: int) -> float:
        """Seconds until so many requests may have gone."""
        return max(0, requests - self.remaining) * self.seconds / self.requests if self.requests > 0 else 0.0


@dataclass(frozen=True)
class Job:
    """A job that can be run: its journal and its input."""

    journal: Journal
    input: PlannedInput

    @property
    def id(self) -> str:
        return self.journal.header.job


@dataclass(frozen=True)
class DryRun:
    """What an import would do. Its summary counts rows that would be written as unsent; `requests` is exact unless the service refuses
    something. `predicted` counts rows by what they would do; without a key nothing is known of records that are there."""

    summary: Summary
    report: ValidationReport
    seconds: float
    predicted: Mapping[str, int] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        return self.summary.counts[RowState.UNSENT]

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.REJECTED if self.report.rejected else ExitCode.OK

    def to_document(self) -> dict[str, Any]:
        """The keys of a summary, and `dryRun`, `estimatedSeconds`, `predicted`, `report`."""
        return {
            **self.summary.to_document(),
            "dryRun": True,
            "estimatedSeconds": round(self.seconds, 1),
            "predicted": dict(self.predicted),
            "report": self.report.to_document(),
        }


def start_import(
    store: JobStore,
    target: Target,
    attributes: Sequence[Attribute],
    plan: ImportPlan,
    file: str,
    stdin: BinaryIO,
    clock: Clock,
    *,
    again: bool = False,
    marker: str | None = None,
    lister: Lister | None = None,
    before_images: str = BeforeImages.AUTO,
) -> Job:
    """Make a job for a file, or for stdin (`-`), whose bytes are copied into the job's folder. Sends nothing.

    References that are not given by id are looked up through `lister`. `marker` is the text attribute that is to hold each new record's
    import marker. `before_images`: whether what updates overwrite is kept.

    Raises UsageError for an input that cannot be opened or mapped, and for content that was already imported into the same object in create
    mode, unless `again`.
    """
    folder = store.new_folder()
    try:
        path = spool(stdin, folder) if file == STDIN else Path(file).absolute()
        frozen = plan.frozen(attributes)
        key_rule(frozen.mapping.keys, attributes)
        planned = open_input(frozen, path, file, attributes)
        if marker is not None:
            check_marker(marker, attributes, [*planned.mapping.constants, *map(_slug_of, planned.mapping.columns)])
        sha256, size = file_digest(path, file)
        requests = 0
        if lister is not None:
            planned, requests = with_references(planned, frozen, lister, folder)
        if plan.mapping.mode is Mode.CREATE and not again:
            _refuse_repetition(store, sha256, target, file)
        facts = _facts(target, planned, frozen) | {"marker": marker, "schema": schema_digest(attributes), "created_at": clock.now()}
        facts["before_images"] = before_images
        header = Header(job=folder.name, input=file, path=str(path), sha256=sha256, size=size, **facts)
        journal = Journal.create(folder, header, clock)
        journal.add_effort(requests, 0.0)
        return Job(journal, planned)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _facts(target: Target, planned: PlannedInput, plan: ImportPlan) -> dict[str, Any]:
    """What a journal's header says of where rows go and what becomes of them."""
    return {
        "object": target.object,
        "object_id": target.object_id,
        "origin": target.origin,
        "mode": str(plan.mapping.mode),
        "mapping": planned.mapping.digest,
        "version": __version__,
        "plan": plan.to_document(),
        "unique": _unique_attribute(planned),
        "keys": list(plan.mapping.keys),
    }


def dry_run(
    target: Target,
    planned: PlannedInput,
    limit: Limit,
    clock: Clock,
    report: Callable[[Finding], None],
    lister: Lister | None = None,
    progress: Progress | None = None,
    plan: ImportPlan | None = None,
    before_images: str = BeforeImages.AUTO,
) -> DryRun:
    """Read and validate everything, count the requests, write nothing. `report` hears every finding.

    With a key the records are read through `lister`, as the import will.
    """
    started = clock.monotonic()
    planned, reads = with_references(planned, plan, lister) if plan is not None and lister is not None else (planned, 0)
    check = partial(validate, planned.source, planned.mapping, planned.attributes, planned.values, report=report)
    if planned.references is not None:
        check = partial(check, translate=planned.references.translate)
    forecast = _Forecast(planned)
    resolver = resolver_of(planned, target.object_id)
    if resolver is None or lister is None:
        found = check(each=forecast.write_valid)
    else:
        with KeyIndex(resolver.rule) as index:

            def keep(payload: Payload) -> None:
                if not payload.findings or not payload.rejected:
                    index.want_all([payload])

            found = check(each=keep)
            lookup = resolver.lookup(lister, lambda: False, progress)
            lookup.fill(index)
            for row, outcome in resolver.outcomes(index):
                forecast.add(row, outcome)
                if outcome.finding is not None:
                    found.reject(outcome.finding)
                    report(outcome.finding)
            reads += lookup.requests
    if lister is not None and must_be_read(before_images, planned.mapping.mode, planned.mapping.keys):
        reads += 1 + reading_cost(lister, target.object_id, forecast.updates).requests
    requests = forecast.requests + reads
    counts = dict.fromkeys(RowState, 0) | forecast.counts | {RowState.REJECTED: found.rejected}
    summary = Summary(None, target.object, str(planned.mapping.mode), counts, requests, clock.monotonic() - started, {})
    return DryRun(summary, found, limit.time_for(requests), forecast.predicted(found.rejected))


def with_references(planned: PlannedInput, plan: ImportPlan, lister: Lister, folder: Path | None = None) -> tuple[PlannedInput, int]:
    """The input with its references looked up (kept in `folder`), and how many requests that took."""
    if not plan.references:
        return planned, 0
    references = ReferenceMap(plan.references, folder, nulls=plan.null_references)
    requests = references.learn(planned.payloads, lister)
    return replace(planned, references=references), requests


class _Forecast:
    """What rows would do, and in how many requests."""

    def __init__(self, planned: PlannedInput) -> None:
        self._with_id = planned.mapping.mode is Mode.UPSERT
        self._batcher = Batcher()
        self._batches = 0
        self._actions: Counter[str] = Counter()
        self._ambiguous = 0

    def write_valid(self, payload: Payload) -> None:
        if not payload.findings or not payload.rejected:
            action = Action.UPDATE if self._with_id and payload.id else Action.CREATE
            self._write(action, entry_of(payload, with_id=self._with_id))

    def add(self, row: Wanted, outcome: Outcome) -> None:
        if outcome.action in (Action.CREATE, Action.UPDATE):
            self._write(outcome.action, entry_of(row, with_id=True, target=outcome.record_id))
            return
        self._actions[outcome.action] += 1
        self._ambiguous += outcome.finding is not None and outcome.finding.code == AMBIGUOUS

    def _write(self, action: Action, entry: Entry) -> None:
        self._actions[action] += 1
        self._batches += self._batcher.feed(entry) is not None

    @property
    def updates(self) -> int:
        return self._actions[Action.UPDATE]

    @property
    def requests(self) -> int:
        self._batches += self._batcher.flush() is not None
        return self._batches

    @property
    def counts(self) -> dict[RowState, int]:
        changes = self._actions[Action.CREATE] + self._actions[Action.UPDATE]
        return {
            RowState.UNSENT: changes,
            RowState.UNCHANGED: self._actions[Action.UNCHANGED],
            RowState.SKIPPED: self._actions[Action.SKIP],
        }

    def predicted(self, rejected: int) -> dict[str, int]:
        counted = {str(action): self._actions[action] for action in (Action.CREATE, Action.UPDATE, Action.UNCHANGED, Action.SKIP)}
        return {**counted, "invalid": rejected - self._ambiguous, "ambiguous": self._ambiguous}


@contextmanager
def temporary_input(store: JobStore, file: str, stdin: BinaryIO) -> Iterator[Path]:
    """The path of a file; for stdin (`-`) that of a copy which is gone afterwards."""
    if file != STDIN:
        yield Path(file)
        return
    folder = store.new_folder()
    try:
        yield spool(stdin, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spool(stdin: BinaryIO, folder: Path) -> Path:
    """Copy a stream into a private file that can be read more than once."""
    path = folder / "input"
    path.touch(mode=0o600)
    with path.open("wb") as copy:
        shutil.copyfileobj(stdin, copy)
    return path


def _slug_of(column: Column) -> str:
    return column.attribute.slug if column.attribute is not None else ""


def _unique_attribute(planned: PlannedInput) -> str | None:
    """A mapped attribute that tells every two rows apart, however a service spells its values."""
    keys = key_rule(planned.mapping.keys, planned.attributes).attributes
    if len(keys) == 1 and keys[0].type in (AttributeType.EMAIL, AttributeType.NUMBER, AttributeType.DATE):
        return keys[0].slug
    found = (column.attribute for column in planned.mapping.columns if column.attribute is not None and column.part is None)
    return next((attribute.slug for attribute in found if attribute.is_unique and not attribute.is_list), None)


def _refuse_repetition(store: JobStore, sha256: str, target: Target, file: str) -> None:
    earlier = store.earlier_creation(sha256, target.object_id, target.origin)
    if earlier is None:
        return
    hint = f"crmctl bulk resume {earlier.id} goes on with it; " if earlier.is_resumable else ""
    raise UsageError(
        f"the content of {file} was already imported into {target.object} by job {earlier.id}",
        hint=f"{hint}--again creates the records a second time",
        code="already_imported",
        details={"job": earlier.id},
    )
