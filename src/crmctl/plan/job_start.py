"""Start a job: open the input and create its journal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from crmctl.client.directory import Getter
from crmctl.errors import UsageError
from crmctl.files.mapping import Mode, schema_digest
from crmctl.files.sources import COPY_NAME, GivenInput, copy_stream, is_stream
from crmctl.files.spills import chunks
from crmctl.files.validation import Entry, Payload, SendableRow
from crmctl.frozen import frozen
from crmctl.models.findings import Finding
from crmctl.models.resources import Attribute
from crmctl.plan.import_plan import Guard, ImportPlan, PlannedInput, file_digest, open_input
from crmctl.version import __version__
from crmctl.write.database import JobKind
from crmctl.write.jobs import JobStore
from crmctl.write.journal import Header, Journal
from crmctl.write.send_context import SendContext

if TYPE_CHECKING:
    from crmctl.client.answers import Page
    from crmctl.match.key_lookups import Lookup
    from crmctl.match.keys import AtHand
    from crmctl.models.resources import Record
    from crmctl.plan.job_run import JobHooks
    from crmctl.plan.row_actions import Resolver


PLAN_NAME = "plan.jsonl"
"""The copy of the applied plan in a job's folder."""

Newest = Callable[[], "Page[Record] | None"]
"""Returns the records of the object that changed last, if they were just read."""


@frozen
class ImportTarget:
    """The target of an import: an object with its attributes, the origin of the service, and the client that reads from it."""

    object: str
    object_id: str
    origin: str
    attributes: Sequence[Attribute]
    service: Getter
    newest: Newest = lambda: None
    at_hand: AtHand | None = None
    """Returns records from the mirror."""
    tell: Callable[[str], None] = lambda _: None
    """Receives the reason for many requests before they are sent."""


@frozen
class JobOptions:
    """Decisions made when a job is created.

    `again` allows content that was already imported. `plan_file` is a saved plan. With `keeps_overwritten`, the job reads the records that
    rows name by id, and keeps the values it overwrites. `shown` is the edited record as the user saw it.
    """

    plan: ImportPlan
    again: bool = False
    plan_file: Path | None = None
    keeps_overwritten: bool = False
    kind: JobKind = JobKind.IMPORT
    guard: Guard = field(default_factory=Guard)
    shown: dict[str, Any] | None = None


@frozen
class ImportJob:
    """A job ready to run: its journal and its input."""

    journal: Journal
    input: PlannedInput
    newest: Newest = lambda: None
    at_hand: AtHand | None = None
    _versions: set[tuple[int, int, int]] = field(default_factory=set)
    """Inode, size and time of the file for which its content was compared with the job's."""

    @property
    def id(self) -> str:
        return self.journal.header.job

    def rows(self) -> Iterator[Payload | Entry]:
        """Yield all rows of the input as sent. Raises UsageError if the file changed since the job began."""
        for chunk in chunks(self.input.to_send()):
            self.check_input()
            yield from chunk

    def check_input(self) -> None:
        """Raise UsageError if the file is not the one the job began with: its rows would not be those of the journal."""
        header, path = self.journal.header, Path(self.journal.header.path)
        status = path.stat() if path.exists() else None
        version = (status.st_ino, status.st_size, status.st_mtime_ns) if status is not None else (0, 0, 0)
        if version in self._versions:
            return
        if file_digest(path, header.input) != (header.sha256, header.size):
            hint = f"put the file back as it was, then: crmctl bulk resume {self.id}"
            raise UsageError(f"{header.input} was changed during job {self.id}", hint=hint, code="job_changed")
        self._versions.add(version)


def start_import(store: JobStore, target: ImportTarget, source: GivenInput, options: JobOptions) -> ImportJob:
    """Create a job for a file, or for the copy of a stream, which moves to the job's folder. Writes nothing to the service.

    crmctl looks up references given by key in the service. Raises UsageError for an input that cannot be opened or mapped. Without `again`,
    also raises it in create mode for content already imported into the same object.
    """
    folder = store.new_folder()
    with ExitStack() as unless_made:
        unless_made.callback(shutil.rmtree, folder, ignore_errors=True)
        path = source.path.replace(folder / COPY_NAME) if source.is_copy else source.path.absolute()
        frozen = options.plan.frozen(target.attributes)
        _key_attributes(frozen, target.attributes)
        planned = open_input(frozen, path, source.name, target.attributes)
        header = header_of(target, planned, options, store.clock.now(), folder.name)
        planned = with_references(planned, target, folder)
        unless_made.callback(planned.close)
        if frozen.feed is not None:
            from crmctl.plan.feed import KeptValues

            planned = replace(planned, kept=KeptValues(folder))
            unless_made.callback(planned.close)
        if options.plan_file is not None:
            keep_plan(options.plan_file, folder)
        journal = _register(store, folder, header, again=options.again)
        unless_made.enter_context(closing(journal))
        unless_made.pop_all()
        return ImportJob(journal, planned.of_job(journal), target.newest, target.at_hand)


def keep_plan(path: Path, folder: Path) -> Path:
    copy = folder / PLAN_NAME
    copy.touch(mode=0o600)
    shutil.copyfile(path, copy)
    return copy


def header_of(target: ImportTarget, planned: PlannedInput, options: JobOptions, now: float, job: str = "") -> Header:
    """Return the header of a job, or of a saved plan. The input must have been opened with a frozen plan."""
    plan, source = planned.plan, planned.source
    keys = _key_attributes(plan, planned.attributes)
    path = source.path.absolute()
    sha256, size = file_digest(path, source.name)
    whole = (column.attribute for column in planned.mapping.columns if column.attribute is not None and column.part is None)
    unique = next((attribute.slug for attribute in whole if attribute.is_unique and not attribute.is_list), None)
    return Header(
        job=job,
        object=target.object,
        object_id=target.object_id,
        origin=target.origin,
        mode=str(plan.mapping.mode),
        input=source.name,
        path=str(path),
        sha256=sha256,
        size=size,
        mapping=planned.mapping.digest,
        schema=schema_digest(target.attributes),
        created_at=now,
        version=__version__,
        plan=plan.to_document(),
        unique=unique,
        keys=[attribute.slug for attribute in keys],
        key_types=[str(attribute.type) for attribute in keys],
        keeps_overwritten=options.keeps_overwritten,
        kind=str(options.kind),
        guard=asdict(options.guard),
        attributes=[attribute.wire for attribute in target.attributes],
        shown=options.shown,
    )


def with_references(planned: PlannedInput, target: ImportTarget, folder: Path | None = None) -> PlannedInput:
    """Look up the references of an input, and store them in `folder`."""
    plan, mapping = planned.plan, planned.mapping
    if not plan.references:
        return planned
    from crmctl.match.key_lookups import Lookup
    from crmctl.match.references import OwnRows, ReferenceMap

    references = ReferenceMap(plan.references, folder, missing=plan.missing_references)
    own = None
    if mapping.options.mode is not Mode.UPDATE:
        own = OwnRows(target.object_id, mapping.options.mode is Mode.CREATE, mapping.options.keys, mapping.options.on_duplicate_key)

    def lookup(object_id: str) -> Lookup:
        return Lookup(target.service, object_id, tell=target.tell, at_hand=target.at_hand)

    with ExitStack() as unless_learned:
        unless_learned.enter_context(closing(references))
        references.learn(planned.payloads, lookup, own)
        unless_learned.pop_all()
    return replace(planned, references=references)


@contextmanager
def temporary_input(store: JobStore, file: str, stdin: BinaryIO) -> Iterator[GivenInput]:
    """Provide a file in place, or a temporary copy of stdin (`-`) or another stream."""
    if not is_stream(file):
        yield GivenInput(file, Path(file))
        return
    with temporary_table(store, file, lambda copy: copy_stream(file, stdin, copy)) as source:
        yield source


@contextmanager
def temporary_table(store: JobStore, name: str, spool: Callable[[Path], object]) -> Iterator[GivenInput]:
    """Provide a temporary file that `spool` writes, and that a job may take over. `name` is the origin of its rows."""
    folder = store.new_folder()
    try:
        spool(folder / COPY_NAME)
        yield GivenInput(name, folder / COPY_NAME, is_copy=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _key_attributes(plan: ImportPlan, attributes: Sequence[Attribute]) -> Sequence[Attribute]:
    if not plan.mapping.keys:
        return ()
    from crmctl.match.keys import key_rule

    return key_rule(plan.mapping.keys, attributes).attributes


def _register(store: JobStore, folder: Path, header: Header, *, again: bool) -> Journal:
    """Look for an earlier job and create this one, atomically. From then on, the content counts as being imported."""
    with store.registering():
        if header.mode == "create" and not again:
            _refuse_repetition(store, header)
        with ExitStack() as unless_claimed:
            journal = unless_claimed.enter_context(closing(Journal.create(folder, header, store.clock)))
            journal.claim()
            unless_claimed.pop_all()
        return journal


def _refuse_repetition(store: JobStore, header: Header) -> None:
    earlier = store.earlier_creation(header.sha256, header.object_id, header.origin)
    if earlier is None:
        return
    state = "is being imported" if earlier.is_running else "was already imported"
    hint = f"crmctl bulk resume {earlier.id} goes on with it; " if earlier.is_resumable else ""
    raise UsageError(
        f"the content of {header.input} {state} into {header.object} by job {earlier.id}",
        hint=f"{hint}--again creates the records a second time",
        code="already_imported",
        details={"job": earlier.id},
    )


InputRows = Callable[[], Iterable[SendableRow]]
"""Reads the input from the start. In an import by key, every row is a `Payload`."""


@frozen(kw_only=True)
class ImportRun(SendContext):
    """The context of one run.

    `report` receives every finding of the check. `resolver` finds the record of each row by key. `hooks` are the other steps of the job.
    With `stop_on_error`, one invalid row stops the job before anything is sent. `guard` limits the changes. `at_hand` returns records from
    the mirror.
    """

    rows: InputRows
    hooks: JobHooks
    report: Callable[[Finding], None] = lambda _: None
    resolver: Resolver | None = None
    stop_on_error: bool = True
    guard: Guard = field(default_factory=Guard)
    at_hand: AtHand | None = None
