"""The common options, accepted before and after every command, and the option types that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer


def common_options(
    profile: Annotated[str | None, typer.Option("--profile", "-p", metavar="PROFILE", help="Use this profile.")] = None,
    base_url: Annotated[str | None, typer.Option("--base-url", metavar="URL", help="Talk to the service at this address.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="table|json|jsonl|csv|tsv|yaml|ids", help="Format of what is printed on stdout.")
    ] = None,
    json: Annotated[bool | None, typer.Option("--json", help="Same as --output json.")] = None,
    fields: Annotated[str | None, typer.Option("--fields", metavar="FIELD,...", help="Only these fields, in this order.")] = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", metavar="JMESPATH", help="Print only what this JMESPath expression selects.")
    ] = None,
    raw_output: Annotated[
        bool | None, typer.Option("--raw-output", "-r", help="JSON: a text that --query selects without its quotes.")
    ] = None,
    excel_safe: Annotated[
        bool | None, typer.Option("--excel-safe", help="csv, tsv: neutralise cells a spreadsheet would run; bulk import undoes it.")
    ] = None,
    quiet: Annotated[bool | None, typer.Option("--quiet", help="No notes, no progress.")] = None,
    verbose: Annotated[bool | None, typer.Option("--verbose", "-v", help="Say more about what happens.")] = None,
    debug: Annotated[bool | None, typer.Option("--debug", help="Log every request on stderr, keys redacted.")] = None,
    yes: Annotated[bool | None, typer.Option("--yes", "-y", help="Answer every question with yes.")] = None,
    no_input: Annotated[bool | None, typer.Option("--no-input", help="Never ask; fail instead.")] = None,
    dry_run: Annotated[bool | None, typer.Option("--dry-run", help="Show what a write would send, send nothing.")] = None,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="SECONDS", help="Longest wait for one answer.")] = None,
    max_wait: Annotated[str | None, typer.Option("--max-wait", metavar="SECONDS", help="Longest wait for rate limits and retries.")] = None,
    ca_bundle: Annotated[str | None, typer.Option("--ca-bundle", metavar="FILE", help="Trust the certificates in this file.")] = None,
    color: Annotated[str | None, typer.Option("--color", metavar="auto|always|never", help="Colour on or off.")] = None,
) -> None:
    """Only its parameters matter: `cli/framework.py` adds them to every command and group."""


ObjectArgument = Annotated[str, typer.Argument(metavar="OBJECT", help="Slug or id of the object, for example people.")]
RecordArgument = Annotated[
    str, typer.Argument(metavar="ID|ATTR=VALUE", help="The record's id, or a value that it alone has: email=ada@acme.com.")
]
FilterOption = Annotated[
    list[str] | None, typer.Option("--filter", metavar="CONDITION", help="Only records that match; repeat to narrow further.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SLUG=VALUE", help="Set a field; may be repeated. SLUG= clears, SLUG:=JSON is taken as JSON."),
]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="JSON|@FILE|-", help="The fields as a JSON object, from a file, or from stdin.")
]
CurrencyOption = Annotated[
    str | None, typer.Option("--currency", metavar="CODE", help="Currency of amounts without one, where the record has none: EUR.")
]
SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort", metavar="ATTR", help="created_at, updated_at, or an attribute, for which all that match are read and sorted here."
    ),
]
OrderOption = Annotated[str | None, typer.Option("--order", metavar="asc|desc", help="Smallest or oldest first, or last.")]
SampleOption = Annotated[int | None, typer.Option("--sample", metavar="N", help="Show so many at random.")]
SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="With --sample: the same ones again, while nothing changes.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="A value that no record can have is an error, not a warning.")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", help="Show this many; 50 unless given.")]
AllOption = Annotated[bool, typer.Option("--all", help="Show all of them.")]
OffsetOption = Annotated[int, typer.Option("--offset", metavar="N", help="Skip this many first.")]
PlainSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="Set any other field, named as in JSON; may be repeated. FIELD:=JSON is taken as JSON."
    ),
]
