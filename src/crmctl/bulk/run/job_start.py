"""Beginning an import: the input is opened, its content known, the job's journal made."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from crmctl.bulk.journal.jobs import JobStore
from crmctl.bulk.journal.journal import Header, Journal
from crmctl.bulk.journal.states import JobKind
from crmctl.bulk.match.at_hand import AtHand, nothing_at_hand
from crmctl.bulk.match.keys import key_rule
from crmctl.bulk.rows.mapping import MappedColumn, Mode, schema_digest
from crmctl.bulk.rows.markers import check_marker
from crmctl.bulk.run.before_images import BeforeImages
from crmctl.bulk.run.feed import KeptValues
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.part_merges import MergedRows
from crmctl.bulk.run.plan import ImportPlan, PlannedInput, file_digest, open_input
from crmctl.bulk.sources.given_input import COPY_NAME, GivenInput, copy_stream, is_stream
from crmctl.bulk.sources.spooled_rows import spool_ids, spool_rows
from crmctl.client.record_lists import Getter
from crmctl.errors import UsageError
from crmctl.models.attributes import Attribute
from crmctl.version import __version__

if TYPE_CHECKING:
    from crmctl.bulk.match.key_lookups import Lookup
    from crmctl.bulk.read.newest_page import NewestPage

PLAN_NAME = "plan.jsonl"
"""The file of a job that holds the plan it carries out."""


@dataclass(frozen=True)
class ImportTarget:
    """Where records go: the object with its attributes, the origin of the service, and the calls that read from it."""

    object: str
    object_id: str
    origin: str
    attributes: Sequence[Attribute]
    service: Getter
    newest: NewestPage | None = None
    """The records of it that changed last, where they were read already."""
    at_hand: AtHand = nothing_at_hand
    """Where records may be without asking the service."""
    tell: Callable[[str], None] = lambda _: None
    """Hears what many requests are for before they are made."""


@dataclass(frozen=True)
class JobOptions:
    """What is decided when a job is made. `again`: this content may have been imported before. `marker`: the text attribute that is to
    hold each new record's import marker. `before_images`: whether what updates overwrite is kept. `plan_file`: a saved plan.
    `kind`: what the job does. `guard`: how much it may change. `shown`: the record that was edited, as it was shown."""

    plan: ImportPlan
    again: bool = False
    marker: str | None = None
    before_images: str = BeforeImages.AUTO
    plan_file: Path | None = None
    kind: JobKind = JobKind.IMPORT
    guard: Guard = field(default_factory=Guard)
    shown: dict[str, Any] | None = None


@dataclass(frozen=True)
class ImportJob:
    """A job that can be run: its journal and its input."""

    journal: Journal
    input: PlannedInput
    newest: NewestPage | None = None
    at_hand: AtHand = nothing_at_hand

    @property
    def id(self) -> str:
        return self.journal.header.job


def start_import(store: JobStore, target: ImportTarget, given: GivenInput, options: JobOptions) -> ImportJob:
    """Make a job for a file, or for the copy of a stream, which is the job's from then on. Sends nothing.

    References that are not given by id are looked up in the service. Raises UsageError for an input that cannot be opened or mapped, and
    for content that was already imported into the same object in create mode, unless `again`.
    """
    folder = store.new_folder()
    with ExitStack() as unless_made:
        unless_made.callback(shutil.rmtree, folder, ignore_errors=True)
        path = given.path.replace(folder / COPY_NAME) if given.is_copy else given.path.absolute()
        frozen = options.plan.frozen(target.attributes)
        key_rule(frozen.mapping.keys, target.attributes)
        planned = open_input(frozen, path, given.name, target.attributes)
        if options.marker is not None:
            check_marker(options.marker, target.attributes, [*planned.mapping.constants, *map(_slug_of, planned.mapping.columns)])
        sha256, size = file_digest(path, given.name)
        planned, requests = with_references(planned, target, folder)
        unless_made.callback(planned.close)
        if planned.may_merge:
            planned = replace(planned, merged=MergedRows(folder))
            unless_made.callback(planned.close)
        if frozen.feed is not None:
            planned = replace(planned, kept=KeptValues(folder))
            unless_made.callback(planned.close)
        if options.plan_file is not None:
            keep_plan(options.plan_file, folder)
        facts = _facts(target, planned) | {"marker": options.marker, "before_images": options.before_images}
        facts |= {"created_at": store.clock.now(), "kind": str(options.kind), "guard": asdict(options.guard), "shown": options.shown}
        header = Header(job=folder.name, input=given.name, path=str(path), sha256=sha256, size=size, **facts)
        journal = _register(store, folder, header, again=options.again)
        unless_made.enter_context(closing(journal))
        journal.add_effort(requests, 0.0)
        unless_made.pop_all()
        return ImportJob(journal, planned, target.newest, target.at_hand)


def keep_plan(path: Path, folder: Path) -> Path:
    """Copy a plan into the folder of the job that carries it out; says where it is."""
    copy = folder / PLAN_NAME
    copy.touch(mode=0o600)
    shutil.copyfile(path, copy)
    return copy


def _facts(target: ImportTarget, planned: PlannedInput) -> dict[str, Any]:
    """What a journal's header says of where rows go and what becomes of them."""
    plan = planned.plan
    rule = key_rule(plan.mapping.keys, planned.attributes)
    return {
        "object": target.object,
        "object_id": target.object_id,
        "origin": target.origin,
        "schema": schema_digest(target.attributes),
        "mode": str(plan.mapping.mode),
        "mapping": planned.mapping.digest,
        "version": __version__,
        "plan": plan.to_document(),
        "unique": _unique_attribute(planned),
        "keys": list(rule.slugs),
        "key_types": [str(attribute.type) for attribute in rule.attributes],
    }


def with_references(planned: PlannedInput, target: ImportTarget, folder: Path | None = None) -> tuple[PlannedInput, int]:
    """The input with its references looked up (kept in `folder`), and how many requests that took."""
    plan, mapping = planned.plan, planned.mapping
    if not plan.references:
        return planned, 0
    from crmctl.bulk.match.key_lookups import Lookup
    from crmctl.bulk.match.reference_resolution import OwnRows, ReferenceMap

    references = ReferenceMap(plan.references, folder, missing=plan.missing_references)
    own = None
    if mapping.mode is not Mode.UPDATE:
        own = OwnRows(target.object_id, mapping.mode is Mode.CREATE, mapping.keys, mapping.on_duplicate_key)

    def lookup(object_id: str) -> Lookup:
        return Lookup(target.service, object_id, tell=target.tell, at_hand=target.at_hand)

    with ExitStack() as unless_learned:
        unless_learned.enter_context(closing(references))
        requests = references.learn(planned.payloads, lookup, own)
        unless_learned.pop_all()
    return replace(planned, references=references), requests


@contextmanager
def temporary_input(store: JobStore, file: str, stdin: BinaryIO) -> Iterator[GivenInput]:
    """A file where it is; of stdin (`-`), and of whatever else is read only once, a copy which is gone afterwards."""
    if not is_stream(file):
        yield GivenInput(file, Path(file))
        return
    folder = store.new_folder()
    try:
        yield GivenInput(file, copy_stream(file, stdin, folder), is_copy=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def temporary_rows(store: JobStore, rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[GivenInput]:
    """Rows that a program gives, in a file that is gone afterwards."""
    folder = store.new_folder()
    try:
        spool_rows(rows, folder / COPY_NAME)
        yield GivenInput(name, folder / COPY_NAME, is_copy=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def temporary_ids(store: JobStore, ids: Iterable[str], name: str) -> Iterator[GivenInput]:
    """Ids of records as a file that is gone afterwards, unless it has become a job's; `name` says where they came from."""
    folder = store.new_folder()
    try:
        spool_ids(ids, folder / COPY_NAME)
        yield GivenInput(name, folder / COPY_NAME, is_copy=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _slug_of(column: MappedColumn) -> str:
    return column.attribute.slug if column.attribute is not None else ""


def _unique_attribute(planned: PlannedInput) -> str | None:
    """A mapped attribute no two records share."""
    found = (column.attribute for column in planned.mapping.columns if column.attribute is not None and column.part is None)
    return next((attribute.slug for attribute in found if attribute.is_unique and not attribute.is_list), None)


def _register(store: JobStore, folder: Path, header: Header, *, again: bool) -> Journal:
    """Look for an earlier job and make this one, with nobody in between; from then on the content counts as being imported."""
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
    what = "is being imported" if earlier.is_running else "was already imported"
    hint = f"crmctl bulk resume {earlier.id} goes on with it; " if earlier.is_resumable else ""
    raise UsageError(
        f"the content of {header.input} {what} into {header.object} by job {earlier.id}",
        hint=f"{hint}--again creates the records a second time",
        code="already_imported",
        details={"job": earlier.id},
    )
