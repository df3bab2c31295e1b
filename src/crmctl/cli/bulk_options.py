"""The options of `crmctl bulk`, as Typer annotations, and what they mean to the bulk package."""

from __future__ import annotations

from typing import Annotated

import typer

FileArgument = Annotated[str, typer.Argument(metavar="FILE|-", help="CSV, TSV, JSONL, a JSON array, Excel or Parquet; - is stdin.")]
FormatOption = Annotated[str | None, typer.Option("--format", metavar="csv|tsv|jsonl|json", help="Format, when name and content mislead.")]
EncodingOption = Annotated[str | None, typer.Option("--encoding", metavar="NAME", help="Encoding of the text, for example cp1252.")]
DelimiterOption = Annotated[
    str | None, typer.Option("--delimiter", metavar="CHAR", help="What separates cells: a character, tab, semicolon ...")
]
SheetOption = Annotated[str | None, typer.Option("--sheet", metavar="NAME", help="Sheet of an Excel workbook; else the first.")]
QuoteOption = Annotated[str | None, typer.Option("--quote", metavar="CHAR", help="What quotes cells; none when nothing does.")]
ModeOption = Annotated[
    str, typer.Option("--mode", metavar="create|upsert", help="Make new records, or update those whose id a column holds.")
]
ImportModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="create|upsert|update", help="Make new records, update those that an id or --key names too, or only those."
    ),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="ATTR", help="Update the record with the same value here, create it where there is none; repeatable."),
]
DuplicateKeyOption = Annotated[
    str, typer.Option("--on-duplicate-key", metavar="error|first|last", help="What counts of rows of the file that share a key.")
]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option("--ref", metavar="ATTR=OBJECT.KEY", help="A column names the record it refers to by this attribute instead of its id."),
]
MissingReferenceOption = Annotated[
    str, typer.Option("--on-missing-ref", metavar="error|null|create", help="A reference to no record is wrong, no value, or makes one.")
]
FeedOption = Annotated[
    str | None,
    typer.Option("--feed", metavar="NAME", help="Values that people change between two imports of this name stay theirs; needs --key."),
]
ConflictOption = Annotated[
    str | None,
    typer.Option(
        "--on-conflict",
        metavar="keep|take|fail|fill[,ATTR=...]",
        help="Whose value counts where both have changed, or nobody knows; keep is usual with --feed. fill writes empty ones only.",
    ),
]
MirrorOption = Annotated[
    str,
    typer.Option(
        "--mirror", metavar="auto|never|only", help="Look keys and references up in the mirror: where it has them, or else not at all."
    ),
]
ExpectOption = Annotated[
    int | None, typer.Option("--expect", metavar="N", min=0, help="Send nothing unless exactly so many rows would be written.")
]
MaxChangesOption = Annotated[
    str | None,
    typer.Option("--max-changes", metavar="N|P%", help="Send nothing when more rows, or more percent of the rows, would be written."),
]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="FILE", help="Dry run, and keep what it decides here for crmctl bulk apply.")
]
ReportOption = Annotated[
    str | None,
    typer.Option("--report", metavar="github|junit|markdown", help="With --dry-run: every finding on its line, for a build system."),
]
MapOption = Annotated[
    list[str] | None, typer.Option("--map", metavar="COLUMN=SLUG", help="Which attribute a column fills; COLUMN= leaves it out.")
]
MapFileOption = Annotated[str | None, typer.Option("--map-file", metavar="FILE", help="Such pairs in a JSON, YAML or CSV file.")]
ConstantOption = Annotated[list[str] | None, typer.Option("--set", metavar="SLUG=VALUE", help="The same value for every record.")]
IgnoreOption = Annotated[bool, typer.Option("--ignore-unknown", help="Leave out columns that match no attribute.")]
BlankOption = Annotated[
    list[str] | None,
    typer.Option("--blank", metavar="[COLUMN=]skip|clear", help="What an empty cell means: leave the field alone, or clear it."),
]
NullOption = Annotated[
    list[str] | None, typer.Option("--null-string", metavar="TEXT", help="A cell that says exactly this counts as empty.")
]
SeparatorOption = Annotated[str, typer.Option("--list-separator", metavar="CHAR", help="What separates the values of a list cell.")]
ClearOption = Annotated[
    list[str] | None, typer.Option("--clear-token", metavar="TEXT", help="A cell that says exactly this clears the field, in any column.")
]
CommaOption = Annotated[bool, typer.Option("--decimal-comma", help="Numbers are written 1.234,56.")]
MarkOption = Annotated[
    list[str] | None, typer.Option("--decimal-mark", metavar="[COLUMN=]comma|point", help="How a column writes its numbers.")
]
RegionOption = Annotated[
    str | None, typer.Option("--default-region", metavar="REGION|none", help="Country of phone numbers without one, for example GB.")
]
PadOption = Annotated[bool, typer.Option("--pad-short", help="Rows with too few cells have blank ones at their end.")]
DateOption = Annotated[
    list[str] | None,
    typer.Option("--date-format", metavar="[COLUMN=]FORMAT", help="How dates are written, for example %d/%m/%Y; else ISO."),
]
OnErrorOption = Annotated[
    str, typer.Option("--on-error", metavar="stop|continue", help="One invalid row stops everything, or only itself is left out.")
]
MaxFailuresOption = Annotated[
    int | None, typer.Option("--max-failures", metavar="N", min=0, help="Stop when the service refused more rows.")
]
IdsOption = Annotated[str | None, typer.Option("--ids", metavar="FILE|-", help="Record ids, one a line, or a table with an id column.")]
ConcurrencyOption = Annotated[int, typer.Option("--concurrency", metavar="N", min=1, max=16, help="Requests under way at the same time.")]
FailedOption = Annotated[
    str | None, typer.Option("--failed", metavar="FILE", help="Also write failed and rejected rows here, to be corrected.")
]
LockWaitOption = Annotated[
    float,
    typer.Option("--lock-wait", metavar="SECONDS", min=0, help="How long to wait for another import by key into the object; 0: exit 8."),
]
MarkerOption = Annotated[
    str | None,
    typer.Option("--marker", metavar="ATTR", help="Text attribute that gets a reference to this import, by which records are found again."),
]
SettleOption = Annotated[
    float, typer.Option("--settle", metavar="SECONDS", min=0, help="How long rows in doubt are watched before they count as absent.")
]
AssumeAppliedOption = Annotated[
    bool, typer.Option("--assume-applied", help="Rows of which nobody can tell whether they were written count as written.")
]
AssumeLostOption = Annotated[bool, typer.Option("--assume-lost", help="Such rows count as not written, and are sent again.")]
CaptureOption = Annotated[bool, typer.Option("--capture-ids", help="Learn the ids of all created records, for the ok file; costs reads.")]
AgainOption = Annotated[bool, typer.Option("--again", help="Create the records although this content was imported before.")]
BeforeOption = Annotated[
    str, typer.Option("--before-images", metavar="auto|yes|no", help="Keep what updates overwrite, for bulk undo; auto: only with --key.")
]
