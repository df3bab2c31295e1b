"""The options of bulk commands as typed values, and the object and jobs they name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from crmctl.bulk_context import BulkContext
from crmctl.client.directory import active_ones
from crmctl.errors import ForbiddenError, UsageError
from crmctl.files.cell_values import ValueOptions, check_region
from crmctl.files.column_names import parse_blanks, parse_date_formats, parse_decimal_marks, parse_replacements, read_map_file
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.rows import SourceOptions
from crmctl.files.sources import is_stream
from crmctl.files.whole_files import check_place
from crmctl.frozen import frozen
from crmctl.mirror.place import mirror_path
from crmctl.models.ids import check_choice
from crmctl.models.resources import PAGE_LIMIT, Attribute, AttributeType
from crmctl.plan.import_plan import FeedPlan, Guard, ImportPlan
from crmctl.plan.job_start import ImportTarget
from crmctl.values.attribute_types import COMPOSITE_TYPES
from crmctl.values.composites import currency_code
from crmctl.values.moments import MICROS
from crmctl.write.jobs import JobStore
from crmctl.write.send_context import DeliveryOptions

if TYPE_CHECKING:
    from crmctl.client.answers import Page
    from crmctl.models.resources import Record
    from crmctl.plan.mirrored_records import MirroredRecords


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("create", "upsert", "update"),
    "on_duplicate_key": ("error", "first", "last"),
    "on_missing_ref": ("error", "null", "create"),
    "on_error": ("stop", "continue"),
    "mirror": ("auto", "never", "only"),
}


class Taken:
    """A request built from the parameters of a command."""

    @classmethod
    def taken(cls, values: Mapping[str, Any], **more: Any) -> Self:
        """Build the request from options by name. Ignore options without a field, and options that are None."""
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in values.items() if name in names and value is not None}, **more)


@frozen(kw_only=True)
class RunRequest(Taken):
    """Options for running any job. `failed`: path for a copy of failed and rejected rows. `settle`, `lock_wait` in seconds."""

    failed: str | Path | None = None
    max_failures: int | None = None
    concurrency: int = 2
    settle: float = 120.0
    capture_ids: bool = False
    lock_wait: float = 3600.0

    @property
    def failed_copy(self) -> Path | None:
        return Path(self.failed) if self.failed else None

    def delivery(self) -> DeliveryOptions:
        return DeliveryOptions(
            concurrency=self.concurrency, max_failures=self.max_failures, settle=self.settle, capture_ids=self.capture_ids
        )


@frozen(kw_only=True)
class GuardedRequest(RunRequest):
    """Options for running a job that may change only so many records."""

    expect: int | None = None
    max_changes: str | None = None

    def guard(self) -> Guard:
        return Guard.parse(self.expect, self.max_changes)


@frozen(kw_only=True)
class ReadRequest(Taken):
    """Options for reading a file, where its name and content do not decide."""

    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    sheet: str | None = None
    excel_safe: bool = False

    def source(self) -> SourceOptions:
        return SourceOptions(self.format, self.encoding, self.delimiter, self.sheet, excel_safe=self.excel_safe)


@frozen(kw_only=True)
class ImportRequest(GuardedRequest, ReadRequest):
    """An import of `file` (a path, or `-` for stdin) into `object` (a slug or an id).

    With `rows`, `file` is only their name. The other fields are the options of `crmctl bulk import`.
    """

    object: str
    file: str
    rows: Iterable[Mapping[str, Any]] | None = None
    mode: str | None = None
    keys: Sequence[str] = ()
    on_duplicate_key: str = "error"
    references: Sequence[str] = ()
    on_missing_ref: str = "error"
    plan_file: str | Path | None = None
    map_pairs: Sequence[str] = ()
    map_file: str | Path | None = None
    value_map: Sequence[str] = ()
    set_values: Sequence[str] = ()
    ignore_unknown: bool = False
    on_error: str = "stop"
    again: bool = False
    blank: Sequence[str] = ()
    null_strings: Sequence[str] = ()
    clear_tokens: Sequence[str] = ()
    list_separator: str = ";"
    decimal_comma: bool = False
    decimal_marks: Sequence[str] = ()
    date_formats: Sequence[str] = ()
    default_region: str | None = None
    currency: str | None = None
    feed: str | None = None
    on_conflict: str | None = None
    mirror: str = "auto"
    keeps_overwritten: bool = False

    @property
    def plan_path(self) -> Path | None:
        return Path(self.plan_file) if self.plan_file else None

    def source(self) -> SourceOptions:
        return super().source() if self.rows is None else SourceOptions(format="jsonl")

    def plan(self) -> ImportPlan:
        """Return the plan that turns rows into records. Raises UsageError for invalid options or combinations."""
        if self.keys and self.mode == "create":
            raise UsageError("--key updates records that are there, and --mode create never does", hint="leave out one of the two")
        if self.mode == "update" and self.on_missing_ref == "create":
            raise UsageError(
                "--mode update creates nothing, and --on-missing-ref create does", hint="--on-missing-ref null, or --mode upsert"
            )
        mode = self.mode or ("upsert" if self.keys else "create")
        for name, choices in _CHOICES.items():
            check_choice(f"--{name.replace('_', '-')}", mode if name == "mode" else getattr(self, name), choices)
        stops = self.on_error == "stop"
        mapping = MappingOptions(
            Mode(mode),
            tuple(self.map_pairs),
            Path(self.map_file) if self.map_file else None,
            tuple(self.set_values),
            self.ignore_unknown,
            tuple(self.keys),
            self.on_duplicate_key,
        )
        return ImportPlan(self.source(), mapping, self._values(), stops, (), self.on_missing_ref, self._feed())

    def _feed(self) -> FeedPlan | None:
        if self.feed is None and self.on_conflict is None:
            return None
        if not self.keys:
            raise UsageError("--feed and --on-conflict need --key, which identifies a row from one import to the next")
        if self.feed is not None and not self.feed.strip():
            raise UsageError("--feed needs a name", hint="for example --feed erp")
        from crmctl.plan.feed import Policy

        Policy.parse(self.on_conflict)
        return FeedPlan(self.feed or Path(self.file).name, self.on_conflict or "keep")

    def _values(self) -> ValueOptions:
        if not self.list_separator:
            raise UsageError("--list-separator needs a character", hint="for example --list-separator ,")
        replacements = read_map_file(Path(self.map_file))[1] if self.map_file else {}
        for column, values in parse_replacements(self.value_map).items():
            replacements[column] = replacements.get(column, {}) | values
        return ValueOptions(
            blank=parse_blanks(self.blank),
            null_strings=tuple(self.null_strings),
            clear_tokens=tuple(self.clear_tokens),
            list_separator=self.list_separator,
            decimal_marks=parse_decimal_marks(self.decimal_marks, comma=self.decimal_comma),
            date_formats=parse_date_formats(self.date_formats),
            default_region=check_region(self.default_region),
            currency=currency_code(self.currency),
            replacements=replacements,
        )


SAMPLE_RECORDS = 20
"""Number of existing records read to learn the form of composite values."""

STILL_NEW = 10.0
"""Seconds for which a page of records counts as current."""


def store_of(context: BulkContext) -> JobStore:
    return JobStore(context.state, context.clock)


def resolve_target(context: BulkContext, object_name: str, mirror: MirroredRecords | None = None) -> ImportTarget:
    """Return the object with its attributes, read without a cache; the mirror gets them. Raises NotFoundError and read errors."""
    tell = context.listener.progress.note
    if mirror is None:
        attributes = context.directory.attributes(object_name, refresh=True)
        object_id = context.directory.object_id(object_name)
        return ImportTarget(object_name, object_id, context.origin, attributes, context.service, tell=tell)
    now = int(context.clock.now() * MICROS)
    object_id, every = context.directory.every_attribute(object_name)
    mirror.has_read(object_id, every, now)
    return ImportTarget(object_name, object_id, context.origin, active_ones(every), context.service, at_hand=mirror, tell=tell)


def newest_page(context: BulkContext, target: ImportTarget) -> Callable[[], Page[Record] | None]:
    """Read the records changed last. Return a function that returns them while they are current; None if the key may not read them."""
    clock, read_at = context.clock, context.clock.monotonic()
    try:
        page = context.crm.list_records(target.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
    except ForbiddenError:
        return lambda: None
    return lambda: page if clock.monotonic() - read_at <= STILL_NEW else None


def sample_records(context: BulkContext, target: ImportTarget) -> tuple[dict[str, Any], ...]:
    """Return a few existing records, whose composite values serve as a model; none if the API key may not read them."""
    if (newest := target.newest()) is not None:
        return tuple(record.data for record in newest.items[:SAMPLE_RECORDS])
    if not any(attribute.type in COMPOSITE_TYPES for attribute in target.attributes):
        return ()
    try:
        page = context.crm.list_records(target.object_id, limit=SAMPLE_RECORDS)
    except ForbiddenError:
        return ()
    return tuple(record.data for record in page.items)


def check_places(failed: Path | None, *files: str | Path | None) -> None:
    """Raise UsageError if the copy of failed rows cannot be written. Call this before the first request."""
    sources = [Path(file) for file in files if file is not None and not is_stream(str(file))]
    if failed is not None:
        check_place(failed)
        for source in sources:
            check_place(failed, source)


def mirror_of(context: BulkContext, wish: str) -> MirroredRecords | None:
    """Return the mirrored records; None if the user does not want the mirror or there is none."""
    check_choice("--mirror", wish, _CHOICES["mirror"])
    if wish == "never" or (wish == "auto" and not mirror_path(context.state, context.origin, context.key).exists()):
        return None
    from crmctl.plan.mirrored_records import MirroredRecords

    return MirroredRecords(context, wish)


def takes_turn(context: BulkContext, target: ImportTarget, patience: float, *, by_key: bool) -> AbstractContextManager[None]:
    """Let only one import by key at a time write to an object. Raises PendingError after `patience` seconds."""
    if not by_key:
        return nullcontext()
    return store_of(context).object_turn(target.object_id, target.object, context.listener.note, patience)


def note_if_empty(context: BulkContext, file: str, rows: int) -> None:
    """Tell the user about a file without rows. It is not an error: a nightly run may have nothing to do."""
    if not rows:
        context.listener.note(f"{'stdin' if file == '-' else file} holds no rows: nothing to import")


def referring_attributes(context: BulkContext, object_id: str) -> dict[str, list[Attribute]]:
    """Return the reference attributes that may name records of an object, by the id of the object that has them."""
    referring: dict[str, list[Attribute]] = {}
    for crm_object in context.service.list_objects():
        for attribute in context.directory.attributes(crm_object.id, refresh=True):
            is_mine = attribute.target_object_id is None or attribute.target_object_id.lower() == object_id.lower()
            if attribute.type == AttributeType.REFERENCE and is_mine and attribute.is_active is not False:
                referring.setdefault(crm_object.id, []).append(attribute)
    return referring
