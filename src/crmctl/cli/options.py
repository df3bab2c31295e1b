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


def option(names: str, value: str | None, help: str, **settings: Any) -> Any:
    """Return an option from its names, separated by blanks, the form of its value, and its help."""
    return typer.Option(*names.split(), metavar=value, help=help, **settings)


def flag(names: str, help: str) -> Any:
    """Return an option without a value."""
    return option(names, None, help)


def advanced(names: str, value: str | None, help: str, **settings: Any) -> Any:
    """Return an option, or a flag without a value, that only --help-all explains."""
    return option(names, value, help, rich_help_panel=ADVANCED, **settings)


def argument(value: str, help: str) -> Any:
    return typer.Argument(metavar=value, help=help)


def common_options(
    profile: Annotated[str | None, option("--profile -p", "PROFILE", "Use this profile.")] = None,
    base_url: Annotated[str | None, advanced("--base-url", "URL", "Address of the service.")] = None,
    output: Annotated[str | None, option("--output -o", "|".join(OUTPUT_FORMATS), "Format of stdout.")] = None,
    json: Annotated[bool | None, flag("--json", "Same as --output json.")] = None,
    fields: Annotated[str | None, option("--fields", "FIELD,...", "Only these fields, in this order.")] = None,
    query: Annotated[str | None, option("--query -q", "JMESPATH", "Print what this expression selects.")] = None,
    raw_output: Annotated[bool | None, advanced("--raw-output -r", None, "With --query: print a JSON string unquoted.")] = None,
    wide: Annotated[bool | None, advanced("--wide", None, "Show whole ids in tables.")] = None,
    excel_safe: Annotated[bool | None, advanced("--excel-safe", None, "csv, tsv: neutralise formulas; bulk import undoes it.")] = None,
    shape: Annotated[
        str | None, advanced("--shape", "columns|json", "csv, tsv, xlsx: money and parts of values in columns, or as JSON.")
    ] = None,
    quiet: Annotated[bool | None, flag("--quiet", "Print no notes and no progress.")] = None,
    verbose: Annotated[bool | None, advanced("--verbose -v", None, "Print more details.")] = None,
    debug: Annotated[bool | None, advanced("--debug", None, "Log every request on stderr, with keys redacted.")] = None,
    yes: Annotated[bool | None, flag("--yes -y", "Answer every question with yes.")] = None,
    no_input: Annotated[bool | None, advanced("--no-input", None, "Never prompt; fail instead.")] = None,
    dry_run: Annotated[bool | None, flag("--dry-run", "Show what would be written; write nothing.")] = None,
    timeout: Annotated[str | None, advanced("--timeout", "SECONDS", "Longest wait for one answer.")] = None,
    max_wait: Annotated[str | None, advanced("--max-wait", "SECONDS", "Longest wait for rate limits and retries.")] = None,
    ca_bundle: Annotated[str | None, advanced("--ca-bundle", "FILE", "Trust the certificates in this file.")] = None,
    color: Annotated[str | None, advanced("--color", "auto|always|never", "Use color or not.")] = None,
) -> None:
    """Declare the options that `cli/app.py` adds to every command and group."""


ObjectArgument = Annotated[str, argument("OBJECT", "Slug or id of the object, such as people.")]
RecordArgument = Annotated[
    str, argument("ID|ATTR=VALUE", "The record's id, its ending as a table shows it, or a value only it has: email=ada@acme.com.")
]
FilterOption = Annotated[list[str] | None, option("--filter", "CONDITION", "Only matching records. Repeat to combine conditions with and.")]
SetOption = Annotated[
    list[str] | None,
    option(
        "--set", "SLUG=VALUE", "Set a field; repeatable. SLUG= clears it, SLUG:=JSON sets JSON, SLUG+=ITEM and SLUG-=ITEM change a list."
    ),
]
DataOption = Annotated[str | None, option("--data", "JSON|@FILE|-", "Fields as a JSON object, from a file or from stdin.")]
CurrencyOption = Annotated[str | None, option("--currency", "CODE", "Default currency, such as EUR.")]
StrictOption = Annotated[bool, flag("--strict", "Fail, not warn, when a condition can never match.")]
PlainSetOption = Annotated[
    list[str] | None, option("--set", "FIELD=VALUE", "Set any other field by its JSON name; repeatable. FIELD:=JSON sets a JSON value.")
]


FileArgument = Annotated[str, argument("FILE|-", "CSV, TSV, JSONL, JSON array, Excel or Parquet; - is stdin.")]
PingOption = Annotated[str | None, advanced("--ping", "URL", "Tell a monitor: URL/start now, URL/EXITCODE at the end.")]


TEXT, TEXTS, NUMBER = str | None, list[str] | None, int | None
OPTIONS: dict[str, tuple[Any, Any, Any]] = {
    "mode": (TEXT, None, option("--mode", "create|upsert|update", "Create records, also update existing ones, or only update.")),
    "keys": (TEXTS, None, option("--key", "ATTR", "Update the record with the same value of ATTR, else create one; repeatable.")),
    "on_duplicate_key": (str, "error", advanced("--on-duplicate-key", "error|first|last", "Which row counts when rows share a key.")),
    "feed": (TEXT, None, option("--feed", "NAME", "Keep values that people changed since the last import of this feed. Needs --key.")),
    "on_conflict": (
        TEXT,
        None,
        option(
            "--on-conflict",
            "keep|take|fail|fill[,ATTR=...]",
            "If people changed a value too. Default with --feed: keep; fill writes empty fields only.",
        ),
    ),
    "mirror": (str, "auto", advanced("--mirror", "auto|never|only", "Whether to look up keys and references in the mirror.")),
    "references": (TEXTS, None, option("--ref", "ATTR=OBJECT.KEY", "Column ATTR holds values of KEY instead of ids; repeatable.")),
    "on_missing_ref": (str, "error", option("--on-missing-ref", "error|null|create", "If a record is missing.")),
    "expect": (NUMBER, None, option("--expect", "N", "Write exactly N rows or nothing.", min=0)),
    "max_changes": (TEXT, None, option("--max-changes", "N|P%", "Write nothing if more rows would change.")),
    "plan_file": (TEXT, None, option("--plan", "FILE", "Dry run; save a plan for bulk apply.")),
    "report": (TEXT, None, advanced("--report", "github|junit|markdown", "With --dry-run: one line per finding, for CI.")),
    "map_pairs": (TEXTS, None, option("--map", "COLUMN=SLUG", "Attribute of a column; COLUMN= skips it.")),
    "map_file": (TEXT, None, advanced("--map-file", "FILE", "Mappings in a JSON or YAML file.")),
    "value_map": (TEXTS, None, advanced("--value", "COLUMN:FROM=TO", "Replace a value: Status:Software=technology; repeatable.")),
    "set_values": (TEXTS, None, option("--set", "SLUG=VALUE", "Set the same value in every record.")),
    "ignore_unknown": (bool, False, flag("--ignore-unknown", "Skip columns that match no attribute.")),
    "on_error": (str, "stop", option("--on-error", "stop|continue", "After an invalid row.")),
    "max_failures": (NUMBER, None, advanced("--max-failures", "N", "Stop after the service refused more rows.", min=0)),
    "failed": (TEXT, None, option("--failed", "FILE", "Write rows that need correction here.")),
    "again": (bool, False, flag("--again", "Import the same content a second time.")),
    "blank": (TEXTS, None, option("--blank", "[COLUMN=]skip|clear", "Whether an empty cell clears the field.")),
    "null_strings": (TEXTS, None, advanced("--null-string", "TEXT", "Treat cells with exactly this text as empty.")),
    "clear_tokens": (TEXTS, None, advanced("--clear-token", "TEXT", "Cells with exactly this text clear the field.")),
    "list_separator": (str, ";", advanced("--list-separator", "CHAR", "Separator of values in a list cell.")),
    "decimal_comma": (bool, False, flag("--decimal-comma", "Numbers look like 1.234,56.")),
    "decimal_marks": (TEXTS, None, advanced("--decimal-mark", "[COLUMN=]comma|point", "Decimal mark of a column.")),
    "date_formats": (TEXTS, None, option("--date-format", "[COLUMN=]FORMAT", "Date format, such as %d/%m/%Y; else ISO.")),
    "default_region": (TEXT, None, option("--default-region", "REGION|none", "Default country of phones, such as GB.")),
    "currency": (CurrencyOption, None, None),
    "format": (TEXT, None, option("--format", "csv|tsv|jsonl|json", "Format, if detected wrongly.")),
    "encoding": (TEXT, None, option("--encoding", "NAME", "Text encoding, such as cp1252.")),
    "delimiter": (TEXT, None, option("--delimiter", "CHAR", "Cell separator: a character or tab.")),
    "sheet": (TEXT, None, option("--sheet", "NAME", "Excel sheet; the first by default.")),
    "concurrency": (int, 2, advanced("--concurrency", "N", "Simultaneous requests.", min=1, max=16)),
    "settle": (float, 120.0, advanced("--settle", "SECONDS", "How long crmctl looks for rows in doubt.", min=0)),
    "capture_ids": (bool, False, advanced("--capture-ids", None, "Find the ids of all created records, with extra reads.")),
    "lock_wait": (
        float,
        3600.0,
        advanced("--lock-wait", "SECONDS", "Longest wait for another keyed import into the object; 0: exit 8 at once.", min=0),
    ),
    "ping": (PingOption, None, None),
    "filters": (FilterOption, None, None),
    "limit": (NUMBER, None, option("--limit", "N", "Show at most N; 50 by default.")),
    "every": (bool, False, flag("--all", "Show all.")),
    "offset": (int, 0, option("--offset", "N", "Skip the first N.", min=0)),
    "sort": (
        TEXT,
        None,
        option("--sort", "ATTR", "created_at, updated_at, an attribute or company.name. crmctl reads all matches to sort by an attribute."),
    ),
    "order": (TEXT, None, option("--order", "asc|desc", "Ascending or descending.")),
    "strict": (StrictOption, False, None),
    "sample": (NUMBER, None, option("--sample", "N", "Show N random records.", min=1)),
    "seed": (NUMBER, None, option("--seed", "N", "With --sample: repeat the same choice while the data is unchanged.")),
    "ids": (TEXT, None, option("--ids", "FILE|-", "Record ids: one per line, or a table with an id column.")),
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
