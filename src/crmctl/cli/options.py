"""Options and arguments that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from crmctl.config.output_formats import OUTPUT_FORMATS

ADVANCED = "Advanced"
"""Options of this panel are explained by --help-all only."""
WIDEST = 100
"""Help is never set wider than this: long lines are hard to read."""


def advanced(*names: str, **settings: Any) -> Any:
    """Return an option that only --help-all explains."""
    return typer.Option(*names, rich_help_panel=ADVANCED, **settings)


def common_options(
    profile: Annotated[str | None, typer.Option("--profile", "-p", metavar="PROFILE", help="Use this profile.")] = None,
    base_url: Annotated[str | None, advanced("--base-url", metavar="URL", help="Address of the service.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="|".join(OUTPUT_FORMATS), help="Format of stdout.")] = None,
    json: Annotated[bool | None, typer.Option("--json", help="Same as --output json.")] = None,
    fields: Annotated[str | None, typer.Option("--fields", metavar="FIELD,...", help="Only these fields, in this order.")] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", metavar="JMESPATH", help="Print what this expression selects.")] = None,
    raw_output: Annotated[bool | None, advanced("--raw-output", "-r", help="With --query: print a JSON string unquoted.")] = None,
    wide: Annotated[bool | None, advanced("--wide", help="Show whole ids in tables.")] = None,
    excel_safe: Annotated[bool | None, advanced("--excel-safe", help="csv, tsv: neutralise formulas; bulk import undoes it.")] = None,
    shape: Annotated[
        str | None, advanced("--shape", metavar="columns|json", help="csv, tsv, xlsx: money and parts of values in columns, or as JSON.")
    ] = None,
    quiet: Annotated[bool | None, typer.Option("--quiet", help="Print no notes and no progress.")] = None,
    verbose: Annotated[bool | None, advanced("--verbose", "-v", help="Print more details.")] = None,
    debug: Annotated[bool | None, advanced("--debug", help="Log every request on stderr, with keys redacted.")] = None,
    yes: Annotated[bool | None, typer.Option("--yes", "-y", help="Answer every question with yes.")] = None,
    no_input: Annotated[bool | None, advanced("--no-input", help="Never prompt; fail instead.")] = None,
    dry_run: Annotated[bool | None, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = None,
    timeout: Annotated[str | None, advanced("--timeout", metavar="SECONDS", help="Longest wait for one answer.")] = None,
    max_wait: Annotated[str | None, advanced("--max-wait", metavar="SECONDS", help="Longest wait for rate limits and retries.")] = None,
    ca_bundle: Annotated[str | None, advanced("--ca-bundle", metavar="FILE", help="Trust the certificates in this file.")] = None,
    color: Annotated[str | None, advanced("--color", metavar="auto|always|never", help="Use color or not.")] = None,
) -> None:
    """Declare the options that `cli/app.py` adds to every command and group."""


ObjectArgument = Annotated[str, typer.Argument(metavar="OBJECT", help="Slug or id of the object, such as people.")]
RecordArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID|ATTR=VALUE", help="The record's id, its ending as a table shows it, or a value only it has: email=ada@acme.com."
    ),
]
FilterOption = Annotated[
    list[str] | None, typer.Option("--filter", metavar="CONDITION", help="Only matching records. Repeat to combine conditions with and.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SLUG=VALUE",
        help="Set a field; repeatable. SLUG= clears it, SLUG:=JSON sets JSON, SLUG+=ITEM and SLUG-=ITEM change a list.",
    ),
]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="JSON|@FILE|-", help="Fields as a JSON object, from a file or from stdin.")
]
CurrencyOption = Annotated[str | None, typer.Option("--currency", metavar="CODE", help="Default currency, such as EUR.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Fail, not warn, when a condition can never match.")]
PlainSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any other field by its JSON name; repeatable. FIELD:=JSON sets a JSON value."),
]


FileArgument = Annotated[str, typer.Argument(metavar="FILE|-", help="CSV, TSV, JSONL, JSON array, Excel or Parquet; - is stdin.")]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="create|upsert", help="Create records, or also update those whose id a column holds.")
]
PingOption = Annotated[str | None, advanced("--ping", metavar="URL", help="Tell a monitor: URL/start now, URL/EXITCODE at the end.")]


TEXT, TEXTS, NUMBER = str | None, list[str] | None, int | None
OPTIONS: dict[str, tuple[Any, Any, Any]] = {
    "mode": (
        TEXT,
        None,
        typer.Option("--mode", metavar="create|upsert|update", help="Create records, also update existing ones, or only update."),
    ),
    "keys": (
        TEXTS,
        None,
        typer.Option("--key", metavar="ATTR", help="Update the record with the same value of ATTR, else create one; repeatable."),
    ),
    "on_duplicate_key": (
        str,
        "error",
        advanced("--on-duplicate-key", metavar="error|first|last", help="Which row counts when rows share a key."),
    ),
    "feed": (
        TEXT,
        None,
        typer.Option("--feed", metavar="NAME", help="Keep values that people changed since the last import of this feed. Needs --key."),
    ),
    "on_conflict": (
        TEXT,
        None,
        typer.Option(
            "--on-conflict",
            metavar="keep|take|fail|fill[,ATTR=...]",
            help="If people changed a value too. Default with --feed: keep; fill writes empty fields only.",
        ),
    ),
    "mirror": (str, "auto", advanced("--mirror", metavar="auto|never|only", help="Whether to look up keys and references in the mirror.")),
    "references": (
        TEXTS,
        None,
        typer.Option("--ref", metavar="ATTR=OBJECT.KEY", help="Column ATTR holds values of KEY instead of ids; repeatable."),
    ),
    "on_missing_ref": (str, "error", typer.Option("--on-missing-ref", metavar="error|null|create", help="If a record is missing.")),
    "expect": (NUMBER, None, typer.Option("--expect", metavar="N", min=0, help="Write exactly N rows or nothing.")),
    "max_changes": (TEXT, None, typer.Option("--max-changes", metavar="N|P%", help="Write nothing if more rows would change.")),
    "plan_file": (TEXT, None, typer.Option("--plan", metavar="FILE", help="Dry run; save a plan for bulk apply.")),
    "report": (TEXT, None, advanced("--report", metavar="github|junit|markdown", help="With --dry-run: one line per finding, for CI.")),
    "map_pairs": (TEXTS, None, typer.Option("--map", metavar="COLUMN=SLUG", help="Attribute of a column; COLUMN= skips it.")),
    "map_file": (TEXT, None, advanced("--map-file", metavar="FILE", help="Mappings in a JSON or YAML file.")),
    "value_map": (
        TEXTS,
        None,
        advanced("--value", metavar="COLUMN:FROM=TO", help="Replace a value: Status:Software=technology; repeatable."),
    ),
    "set_values": (TEXTS, None, typer.Option("--set", metavar="SLUG=VALUE", help="Set the same value in every record.")),
    "ignore_unknown": (bool, False, typer.Option("--ignore-unknown", help="Skip columns that match no attribute.")),
    "on_error": (str, "stop", typer.Option("--on-error", metavar="stop|continue", help="After an invalid row.")),
    "max_failures": (NUMBER, None, advanced("--max-failures", metavar="N", min=0, help="Stop after the service refused more rows.")),
    "failed": (TEXT, None, typer.Option("--failed", metavar="FILE", help="Write rows that need correction here.")),
    "again": (bool, False, typer.Option("--again", help="Import the same content a second time.")),
    "blank": (TEXTS, None, typer.Option("--blank", metavar="[COLUMN=]skip|clear", help="Whether an empty cell clears the field.")),
    "null_strings": (TEXTS, None, advanced("--null-string", metavar="TEXT", help="Treat cells with exactly this text as empty.")),
    "clear_tokens": (TEXTS, None, advanced("--clear-token", metavar="TEXT", help="Cells with exactly this text clear the field.")),
    "list_separator": (str, ";", advanced("--list-separator", metavar="CHAR", help="Separator of values in a list cell.")),
    "decimal_comma": (bool, False, typer.Option("--decimal-comma", help="Numbers look like 1.234,56.")),
    "decimal_marks": (TEXTS, None, advanced("--decimal-mark", metavar="[COLUMN=]comma|point", help="Decimal mark of a column.")),
    "date_formats": (
        TEXTS,
        None,
        typer.Option("--date-format", metavar="[COLUMN=]FORMAT", help="Date format, such as %d/%m/%Y; else ISO."),
    ),
    "default_region": (TEXT, None, typer.Option("--default-region", metavar="REGION|none", help="Default country of phones, such as GB.")),
    "currency": (CurrencyOption, None, None),
    "format": (TEXT, None, typer.Option("--format", metavar="csv|tsv|jsonl|json", help="Format, if detected wrongly.")),
    "encoding": (TEXT, None, typer.Option("--encoding", metavar="NAME", help="Text encoding, such as cp1252.")),
    "delimiter": (TEXT, None, typer.Option("--delimiter", metavar="CHAR", help="Cell separator: a character or tab.")),
    "sheet": (TEXT, None, typer.Option("--sheet", metavar="NAME", help="Excel sheet; the first by default.")),
    "concurrency": (int, 2, advanced("--concurrency", metavar="N", min=1, max=16, help="Simultaneous requests.")),
    "settle": (float, 120.0, advanced("--settle", metavar="SECONDS", min=0, help="How long crmctl looks for rows in doubt.")),
    "capture_ids": (bool, False, advanced("--capture-ids", help="Find the ids of all created records, with extra reads.")),
    "lock_wait": (
        float,
        3600.0,
        advanced("--lock-wait", metavar="SECONDS", min=0, help="Longest wait for another keyed import into the object; 0: exit 8 at once."),
    ),
    "ping": (PingOption, None, None),
    "filters": (FilterOption, None, None),
    "limit": (NUMBER, None, typer.Option("--limit", metavar="N", help="Show at most N; 50 by default.")),
    "every": (bool, False, typer.Option("--all", help="Show all.")),
    "offset": (int, 0, typer.Option("--offset", metavar="N", help="Skip the first N.")),
    "sort": (
        TEXT,
        None,
        typer.Option(
            "--sort",
            metavar="ATTR",
            help="created_at, updated_at, an attribute or company.name. crmctl reads all matches to sort by an attribute.",
        ),
    ),
    "order": (TEXT, None, typer.Option("--order", metavar="asc|desc", help="Ascending or descending.")),
    "strict": (StrictOption, False, None),
    "sample": (NUMBER, None, typer.Option("--sample", metavar="N", help="Show N random records.")),
    "seed": (NUMBER, None, typer.Option("--seed", metavar="N", help="With --sample: repeat the same choice while the data is unchanged.")),
    "ids": (TEXT, None, typer.Option("--ids", metavar="FILE|-", help="Record ids: one per line, or a table with an id column.")),
}
"""Options of several commands, by the name of the parameter: kind of the value, default, and declaration unless the kind has it."""


def takes(names: str) -> Callable[[Any], Any]:
    """Add some of OPTIONS to a command, which gets them as keywords."""

    def add(command: Any) -> Any:
        command.shared = names.split()
        return command

    return add


def shared_option(name: str) -> inspect.Parameter:
    kind, default, option = OPTIONS[name]
    annotation = kind if option is None else Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
