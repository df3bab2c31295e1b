"""What a use case is asked for: the options of the commands as typed values, each checked when the use case begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from crmctl.bulk.rows.cell_values import ValueOptions
from crmctl.bulk.rows.column_options import parse_blanks, parse_date_formats, parse_decimal_marks
from crmctl.bulk.rows.mapping import MappingOptions, Mode
from crmctl.bulk.rows.phones import check_region
from crmctl.bulk.run.feed import FeedPlan
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.plan import ImportPlan
from crmctl.bulk.run.three_way import Policy
from crmctl.bulk.send.context import DeliveryOptions
from crmctl.bulk.sources.rows import SourceOptions
from crmctl.errors import UsageError
from crmctl.models.composites import currency_code
from crmctl.models.nearest import suggestion

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("create", "upsert", "update"),
    "on_duplicate_key": ("error", "first", "last"),
    "on_missing_ref": ("error", "null", "create"),
    "on_error": ("stop", "continue"),
    "before_images": ("auto", "yes", "no"),
    "mirror": ("auto", "never", "only"),
}


class Taken:
    """A request that can be made from the parameters of a command."""

    @classmethod
    def taken(cls, given: Mapping[str, Any], **more: Any) -> Self:
        """From options by name; those that are not among the fields are left out, None means that an option was not given."""
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in given.items() if name in names and value is not None}, **more)


@dataclass(frozen=True, kw_only=True)
class RunRequest(Taken):
    """How a job is run, whatever it does. `failed`: where to copy failed and rejected rows. `settle`, `lock_wait` in seconds."""

    failed: str | Path | None = None
    max_failures: int | None = None
    concurrency: int = 2
    settle: float = 120.0
    assume_applied: bool = False
    assume_lost: bool = False
    capture_ids: bool = False
    lock_wait: float = 3600.0

    @property
    def failed_copy(self) -> Path | None:
        return Path(self.failed) if self.failed else None

    def delivery(self) -> DeliveryOptions:
        """Raises UsageError when rows of unknown outcome are to be taken for both."""
        if self.assume_applied and self.assume_lost:
            raise UsageError("--assume-applied and --assume-lost exclude each other")
        assume = "applied" if self.assume_applied else "lost" if self.assume_lost else None
        return DeliveryOptions(
            concurrency=self.concurrency, max_failures=self.max_failures, settle=self.settle, assume=assume, capture_ids=self.capture_ids
        )


@dataclass(frozen=True, kw_only=True)
class ReadRequest(Taken):
    """How a file is read, where its name and content do not say it."""

    format: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quote: str | None = None
    sheet: str | None = None
    pad_short: bool = False
    excel_safe: bool = False

    def source(self) -> SourceOptions:
        return SourceOptions(
            self.format, self.encoding, self.delimiter, self.quote, self.sheet, pad_short=self.pad_short, excel_safe=self.excel_safe
        )


@dataclass(frozen=True, kw_only=True)
class ImportRequest(RunRequest, ReadRequest):
    """One import: `file` (a path, or `-` for stdin) into `object` (a slug or an id), or `rows`, of which `file` is only the name. The rest
    are the options of `crmctl bulk import`."""

    object: str
    file: str
    rows: Iterable[Mapping[str, Any]] | None = None
    mode: str | None = None
    keys: Sequence[str] = ()
    on_duplicate_key: str = "error"
    references: Sequence[str] = ()
    on_missing_ref: str = "error"
    expect: int | None = None
    max_changes: str | None = None
    plan_file: str | Path | None = None
    map_pairs: Sequence[str] = ()
    map_file: str | Path | None = None
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
    marker: str | None = None
    before_images: str = "auto"
    feed: str | None = None
    on_conflict: str | None = None
    mirror: str = "auto"

    @property
    def plan_path(self) -> Path | None:
        return Path(self.plan_file) if self.plan_file else None

    def source(self) -> SourceOptions:
        return super().source() if self.rows is None else SourceOptions(format="jsonl")

    def guard(self) -> Guard:
        return Guard.parse(self.expect, self.max_changes)

    def plan(self) -> ImportPlan:
        """How rows become records. Raises UsageError for values, and for combinations, that mean nothing."""
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
        return ImportPlan(self.source(), self._mapping(mode), self._values(), stops, (), self.on_missing_ref, self._feed())

    def _feed(self) -> FeedPlan | None:
        if self.feed is None and self.on_conflict is None:
            return None
        if not self.keys:
            raise UsageError("--feed and --on-conflict need --key, by which a row is known from one import to the next")
        if self.feed is not None and not self.feed.strip():
            raise UsageError("--feed needs a name", hint="for example --feed erp")
        Policy.parse(self.on_conflict)
        return FeedPlan(self.feed or Path(self.file).name, self.on_conflict or "keep")

    def _mapping(self, mode: str) -> MappingOptions:
        return MappingOptions(
            Mode(mode),
            tuple(self.map_pairs),
            Path(self.map_file) if self.map_file else None,
            tuple(self.set_values),
            self.ignore_unknown,
            tuple(self.keys),
            self.on_duplicate_key,
        )

    def _values(self) -> ValueOptions:
        return ValueOptions(
            blank=parse_blanks(self.blank),
            null_strings=tuple(self.null_strings),
            clear_tokens=tuple(self.clear_tokens),
            list_separator=self.list_separator,
            decimal_marks=parse_decimal_marks(self.decimal_marks, comma=self.decimal_comma),
            date_formats=parse_date_formats(self.date_formats),
            default_region=check_region(self.default_region),
            currency=currency_code(self.currency),
        )


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises UsageError for a value that is none of the choices."""
    if value not in choices:
        raise UsageError(f"{option} must be {' or '.join(choices)}, not {value!r}", hint=suggestion(value, choices))
