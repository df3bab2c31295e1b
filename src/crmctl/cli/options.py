"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from crmctl.config.output_formats import OUTPUT_FORMATS

ADVANCED = "Advanced"
"""Options of this panel are explained by --help-all only."""


def common_options(
    profile: Annotated[str | None, typer.Option("--profile", "-p", metavar="PROFILE", help="Use this profile.")] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Address of the service.", rich_help_panel=ADVANCED)
    ] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="|".join(OUTPUT_FORMATS), help="Format of stdout.")] = None,
    json: Annotated[bool | None, typer.Option("--json", help="Same as --output json.")] = None,
    fields: Annotated[str | None, typer.Option("--fields", metavar="FIELD,...", help="Only these fields, in this order.")] = None,
    query: Annotated[str | None, typer.Option("--query", "-q", metavar="JMESPATH", help="Print what this expression selects.")] = None,
    raw_output: Annotated[
        bool | None, typer.Option("--raw-output", "-r", help="With --query: print a JSON string unquoted.", rich_help_panel=ADVANCED)
    ] = None,
    wide: Annotated[bool | None, typer.Option("--wide", help="Show whole ids in tables.", rich_help_panel=ADVANCED)] = None,
    excel_safe: Annotated[
        bool | None,
        typer.Option("--excel-safe", help="csv, tsv: neutralise formulas; bulk import undoes it.", rich_help_panel=ADVANCED),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            "--shape",
            metavar="columns|json",
            help="csv, tsv, xlsx: money and parts of values in columns, or as JSON.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    quiet: Annotated[bool | None, typer.Option("--quiet", help="Print no notes and no progress.")] = None,
    verbose: Annotated[bool | None, typer.Option("--verbose", "-v", help="Print more details.", rich_help_panel=ADVANCED)] = None,
    debug: Annotated[
        bool | None, typer.Option("--debug", help="Log every request on stderr, with keys redacted.", rich_help_panel=ADVANCED)
    ] = None,
    yes: Annotated[bool | None, typer.Option("--yes", "-y", help="Answer every question with yes.")] = None,
    no_input: Annotated[bool | None, typer.Option("--no-input", help="Never prompt; fail instead.", rich_help_panel=ADVANCED)] = None,
    dry_run: Annotated[bool | None, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="SECONDS", help="Longest wait for one answer.", rich_help_panel=ADVANCED)
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option("--max-wait", metavar="SECONDS", help="Longest wait for rate limits and retries.", rich_help_panel=ADVANCED),
    ] = None,
    ca_bundle: Annotated[
        str | None, typer.Option("--ca-bundle", metavar="FILE", help="Trust the certificates in this file.", rich_help_panel=ADVANCED)
    ] = None,
    color: Annotated[
        str | None, typer.Option("--color", metavar="auto|always|never", help="Use color or not.", rich_help_panel=ADVANCED)
    ] = None,
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
SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort",
        metavar="ATTR",
        help="created_at, updated_at, an attribute or company.name. crmctl reads all matches to sort by an attribute.",
    ),
]
OrderOption = Annotated[str | None, typer.Option("--order", metavar="asc|desc", help="Ascending or descending.")]
SampleOption = Annotated[int | None, typer.Option("--sample", metavar="N", help="Show N random records.")]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="With --sample: repeat the same choice while the data is unchanged.")
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Fail, not warn, when a condition can never match.")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", help="Show at most N; 50 by default.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show all.")]
OffsetOption = Annotated[int, typer.Option("--offset", metavar="N", help="Skip the first N.")]
PlainSetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any other field by its JSON name; repeatable. FIELD:=JSON sets a JSON value."),
]


FileArgument = Annotated[str, typer.Argument(metavar="FILE|-", help="CSV, TSV, JSONL, JSON array, Excel or Parquet; - is stdin.")]
FormatOption = Annotated[str | None, typer.Option("--format", metavar="csv|tsv|jsonl|json", help="Format, if detected wrongly.")]
EncodingOption = Annotated[str | None, typer.Option("--encoding", metavar="NAME", help="Text encoding, such as cp1252.")]
DelimiterOption = Annotated[str | None, typer.Option("--delimiter", metavar="CHAR", help="Cell separator: a character or tab.")]
SheetOption = Annotated[str | None, typer.Option("--sheet", metavar="NAME", help="Excel sheet; the first by default.")]
QuoteOption = Annotated[
    str | None, typer.Option("--quote", metavar="CHAR", help="Character that quotes cells, or none.", rich_help_panel=ADVANCED)
]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="create|upsert", help="Create records, or also update those whose id a column holds.")
]
ImportModeOption = Annotated[
    str | None,
    typer.Option("--mode", metavar="create|upsert|update", help="Create records, also update existing ones, or only update."),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="ATTR", help="Update the record with the same value of ATTR, else create one; repeatable."),
]
DuplicateKeyOption = Annotated[
    str,
    typer.Option(
        "--on-duplicate-key", metavar="error|first|last", help="Which row counts when rows share a key.", rich_help_panel=ADVANCED
    ),
]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option("--ref", metavar="ATTR=OBJECT.KEY", help="Column ATTR holds values of KEY instead of ids; repeatable."),
]
MissingReferenceOption = Annotated[str, typer.Option("--on-missing-ref", metavar="error|null|create", help="If a record is missing.")]
FeedOption = Annotated[
    str | None,
    typer.Option("--feed", metavar="NAME", help="Keep values that people changed since the last import of this feed. Needs --key."),
]
ConflictOption = Annotated[
    str | None,
    typer.Option(
        "--on-conflict",
        metavar="keep|take|fail|fill[,ATTR=...]",
        help="If people changed a value too. Default with --feed: keep; fill writes empty fields only.",
    ),
]
MirrorOption = Annotated[
    str,
    typer.Option(
        "--mirror", metavar="auto|never|only", help="Whether to look up keys and references in the mirror.", rich_help_panel=ADVANCED
    ),
]
ExpectOption = Annotated[int | None, typer.Option("--expect", metavar="N", min=0, help="Write exactly N rows or nothing.")]
MaxChangesOption = Annotated[str | None, typer.Option("--max-changes", metavar="N|P%", help="Write nothing if more rows would change.")]
PlanOption = Annotated[str | None, typer.Option("--plan", metavar="FILE", help="Dry run; save a plan for bulk apply.")]
ReportOption = Annotated[
    str | None,
    typer.Option(
        "--report", metavar="github|junit|markdown", help="With --dry-run: one line per finding, for CI.", rich_help_panel=ADVANCED
    ),
]
MapOption = Annotated[list[str] | None, typer.Option("--map", metavar="COLUMN=SLUG", help="Attribute of a column; COLUMN= skips it.")]
MapFileOption = Annotated[
    str | None, typer.Option("--map-file", metavar="FILE", help="Mappings in a JSON, YAML or CSV file.", rich_help_panel=ADVANCED)
]
ValueMapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--value", metavar="COLUMN:FROM=TO", help="Replace a value: Status:Software=technology; repeatable.", rich_help_panel=ADVANCED
    ),
]
ConstantOption = Annotated[list[str] | None, typer.Option("--set", metavar="SLUG=VALUE", help="Set the same value in every record.")]
IgnoreOption = Annotated[bool, typer.Option("--ignore-unknown", help="Skip columns that match no attribute.")]
BlankOption = Annotated[
    list[str] | None,
    typer.Option("--blank", metavar="[COLUMN=]skip|clear", help="Whether an empty cell clears the field."),
]
NullOption = Annotated[
    list[str] | None,
    typer.Option("--null-string", metavar="TEXT", help="Treat cells with exactly this text as empty.", rich_help_panel=ADVANCED),
]
SeparatorOption = Annotated[
    str, typer.Option("--list-separator", metavar="CHAR", help="Separator of values in a list cell.", rich_help_panel=ADVANCED)
]
ClearOption = Annotated[
    list[str] | None,
    typer.Option("--clear-token", metavar="TEXT", help="Cells with exactly this text clear the field.", rich_help_panel=ADVANCED),
]
CommaOption = Annotated[bool, typer.Option("--decimal-comma", help="Numbers look like 1.234,56.")]
MarkOption = Annotated[
    list[str] | None,
    typer.Option("--decimal-mark", metavar="[COLUMN=]comma|point", help="Decimal mark of a column.", rich_help_panel=ADVANCED),
]
RegionOption = Annotated[str | None, typer.Option("--default-region", metavar="REGION|none", help="Default country of phones, such as GB.")]
PadOption = Annotated[bool, typer.Option("--pad-short", help="Fill short rows with blank cells.", rich_help_panel=ADVANCED)]
DateOption = Annotated[
    list[str] | None,
    typer.Option("--date-format", metavar="[COLUMN=]FORMAT", help="Date format, such as %d/%m/%Y; else ISO."),
]
OnErrorOption = Annotated[str, typer.Option("--on-error", metavar="stop|continue", help="After an invalid row.")]
MaxFailuresOption = Annotated[
    int | None,
    typer.Option("--max-failures", metavar="N", min=0, help="Stop after the service refused more rows.", rich_help_panel=ADVANCED),
]
IdsOption = Annotated[str | None, typer.Option("--ids", metavar="FILE|-", help="Record ids: one per line, or a table with an id column.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, max=16, help="Simultaneous requests.", rich_help_panel=ADVANCED)
]
PingOption = Annotated[
    str | None,
    typer.Option("--ping", metavar="URL", help="Tell a monitor: URL/start now, URL/EXITCODE at the end.", rich_help_panel=ADVANCED),
]
FailedOption = Annotated[str | None, typer.Option("--failed", metavar="FILE", help="Write rows that need correction here.")]
LockWaitOption = Annotated[
    float,
    typer.Option(
        "--lock-wait",
        metavar="SECONDS",
        min=0,
        help="Longest wait for another keyed import into the object; 0: exit 8 at once.",
        rich_help_panel=ADVANCED,
    ),
]
MarkerOption = Annotated[
    str | None,
    typer.Option("--marker", metavar="ATTR", help="Text attribute that identifies the records of this import.", rich_help_panel=ADVANCED),
]
SettleOption = Annotated[
    float,
    typer.Option("--settle", metavar="SECONDS", min=0, help="How long crmctl looks for rows in doubt.", rich_help_panel=ADVANCED),
]
AssumeAppliedOption = Annotated[bool, typer.Option("--assume-applied", help="Count rows in doubt as written.", rich_help_panel=ADVANCED)]
AssumeLostOption = Annotated[
    bool, typer.Option("--assume-lost", help="Count rows in doubt as not written and send them again.", rich_help_panel=ADVANCED)
]
CaptureOption = Annotated[
    bool,
    typer.Option("--capture-ids", help="Find the ids of all created records, with extra reads.", rich_help_panel=ADVANCED),
]
AgainOption = Annotated[bool, typer.Option("--again", help="Import the same content a second time.")]
BeforeOption = Annotated[
    str,
    typer.Option(
        "--before-images",
        metavar="auto|yes|no",
        help="Keep overwritten values for bulk undo; auto: only with --key.",
        rich_help_panel=ADVANCED,
    ),
]
LookbackOption = Annotated[
    float,
    typer.Option("--lookback", metavar="SECONDS", min=0, help="How late the service may show a change.", rich_help_panel=ADVANCED),
]
