"""What the options of `bulk import` ask for, checked together. The options themselves are in bulk_options, the run in bulk_runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.list_window import one_of
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.bulk.run.guards import Guard
    from crmctl.bulk.run.plan import ImportPlan
    from crmctl.bulk.send.context import DeliveryOptions

_CHOICES = {
    "mode": ("create", "upsert"),
    "on_duplicate_key": ("error", "first", "last"),
    "on_missing_ref": ("error", "null", "create"),
    "on_error": ("stop", "continue"),
    "before_images": ("auto", "yes", "no"),
}


@dataclass(frozen=True)
class ImportRequest:
    """One import as asked for, before its file or its object is looked at."""

    plan: ImportPlan
    delivery: DeliveryOptions
    guard: Guard
    again: bool
    marker: str | None
    failed_copy: Path | None
    references: tuple[str, ...]
    before_images: str
    plan_file: Path | None
    lock_wait: float


def read_request(given: Mapping[str, Any]) -> ImportRequest:
    """From the parameters of the command, by name. Raises UsageError for values, and for combinations, that mean nothing."""
    from crmctl.bulk.run.guards import Guard
    from crmctl.bulk.send.context import DeliveryOptions

    if given["keys"] and given["mode"] == "create":
        raise UsageError("--key updates records that are there, and --mode create never does", hint="leave out one of the two")
    mode = given["mode"] or ("upsert" if given["keys"] else "create")
    for name, choices in _CHOICES.items():
        one_of(f"--{name.replace('_', '-')}", mode if name == "mode" else given[name], choices)
    assume = assumption(given["assume_applied"], given["assume_lost"])
    delivery = DeliveryOptions(
        concurrency=given["concurrency"],
        max_failures=given["max_failures"],
        settle=given["settle"],
        assume=assume,
        capture_ids=given["capture_ids"],
    )
    return ImportRequest(
        plan=_plan(given, mode),
        delivery=delivery,
        guard=Guard.parse(given["expect"], given["max_changes"]),
        again=given["again"],
        marker=given["marker"],
        failed_copy=Path(given["failed"]) if given["failed"] else None,
        references=tuple(given["references"] or ()),
        before_images=given["before_images"],
        plan_file=Path(given["plan_file"]) if given["plan_file"] else None,
        lock_wait=given["lock_wait"],
    )


def assumption(applied: bool, lost: bool) -> str | None:
    """What to take rows for of which nobody can tell. Raises UsageError when both are asked for."""
    if applied and lost:
        raise UsageError("--assume-applied and --assume-lost exclude each other")
    return "applied" if applied else "lost" if lost else None


def _plan(given: Mapping[str, Any], mode: str) -> ImportPlan:
    from crmctl.bulk.rows.cell_values import ValueOptions
    from crmctl.bulk.rows.column_options import parse_blanks, parse_date_formats, parse_decimal_marks
    from crmctl.bulk.rows.mapping import MappingOptions, Mode
    from crmctl.bulk.rows.phones import check_region
    from crmctl.bulk.run.plan import ImportPlan
    from crmctl.bulk.sources.rows import SourceOptions
    from crmctl.models.composites import currency_code

    mapping = MappingOptions(
        Mode(mode),
        tuple(given["map_pairs"] or ()),
        Path(given["map_file"]) if given["map_file"] else None,
        tuple(given["set_values"] or ()),
        given["ignore_unknown"],
        tuple(given["keys"] or ()),
        given["on_duplicate_key"],
    )
    values = ValueOptions(
        blank=parse_blanks(given["blank"] or ()),
        null_strings=tuple(given["null_strings"] or ()),
        clear_tokens=tuple(given["clear_tokens"] or ()),
        list_separator=given["list_separator"],
        decimal_marks=parse_decimal_marks(given["decimal_marks"] or (), comma=given["decimal_comma"]),
        date_formats=parse_date_formats(given["date_formats"] or ()),
        default_region=check_region(given["default_region"]),
        currency=currency_code(given["currency"]),
    )
    source = SourceOptions(
        given["format"],
        given["encoding"],
        given["delimiter"],
        given["quote"],
        given["sheet"],
        pad_short=given["pad_short"],
        excel_safe=bool(given["excel_safe"]),
    )
    return ImportPlan(source, mapping, values, given["on_error"] == "stop", (), given["on_missing_ref"])
