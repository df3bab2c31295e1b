"""`crmctl mirror`: all of the data at hand, proven, and asked in SQL. The work is done by crmctl.mirror."""

from __future__ import annotations

from typing import Annotated

import typer

from crmctl.cli.framework import CommandApp

app = CommandApp("Keep a proven copy of the data in one SQLite file, and ask it anything.")


@app.command(
    "sync",
    examples=[
        "crmctl mirror sync",
        "crmctl mirror sync people companies --activities",
        "crmctl mirror sync people --exclude people.phone",
    ],
)
def sync(
    ctx: typer.Context,
    objects: Annotated[
        list[str] | None, typer.Argument(metavar="OBJECT", help="Only these; those the mirror has, at first all, when none is named.")
    ] = None,
    activities: Annotated[bool | None, typer.Option("--activities", help="Activities too; from then on always.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Read everything anew.")] = False,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="OBJECT.ATTR", help="Never keep these values; remembered. Repeatable.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--lock-wait", metavar="SECONDS", min=0, help="How long to wait for another sync of the mirror.")
    ] = 3600.0,
) -> int:
    """Make the mirror, or bring it up to date with few requests.

    Only what changed is read. That nothing is missing or stale is proven: changes must join what was known, and the count must be right;
    otherwise everything is read anew, and the result says why. Exit 7 when not even that could prove it.
    """
    from crmctl.cli.mirror_commands import sync

    return sync(ctx.obj, objects or [], activities, full=full, exclude=exclude or [], wait=wait)


@app.command("status", examples=["crmctl mirror status", "crmctl mirror status -q '[?!proven].object'"])
def status(ctx: typer.Context) -> None:
    """Show what is in the mirror, as of when, and how that is known."""
    from crmctl.cli.mirror_commands import status

    status(ctx.obj)


@app.command("verify", examples=["crmctl mirror verify people", "crmctl mirror verify || echo 'the mirror was wrong'"])
def verify(
    ctx: typer.Context,
    objects: Annotated[
        list[str] | None, typer.Argument(metavar="OBJECT", help="Only these, or activities; else all that the mirror has.")
    ] = None,
) -> int:
    """Read everything, and name every record that the mirror had wrong.

    What somebody changed since the last sync is not wrong. Exit 11 when a record was; it is put right at once.
    """
    from crmctl.cli.mirror_commands import verify

    return verify(ctx.obj, objects or [])


@app.command("search", examples=["crmctl mirror search Hopper", "crmctl mirror search 'ada acme' people companies -o ids"])
def search(
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words that must all be in a record; beginnings of words count.")],
    objects: Annotated[
        list[str] | None, typer.Argument(metavar="OBJECT", help="Only these, or activities; else all that the mirror has.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = 20,
) -> None:
    """Find records of any object by words in any of their texts.

    The best matches come first. No request is made.
    """
    from crmctl.cli.mirror_commands import search

    search(ctx.obj, text, objects or [], limit)


@app.command(
    "sql",
    examples=[
        "crmctl mirror sql 'SELECT status, count(*) AS people FROM people GROUP BY status'",
        "crmctl mirror sql 'SELECT id, email FROM people WHERE score >= :least' --param least=90 -o csv",
        'crmctl mirror sql "SELECT id FROM people WHERE email IS NULL" --expect-empty',
    ],
)
def sql(
    ctx: typer.Context,
    statement: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT; - reads it from stdin.")],
    parameters: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A value for :NAME; NAME:=JSON for another type. Repeatable.")
    ] = None,
    expect_empty: Annotated[bool, typer.Option("--expect-empty", help="Exit with 11 when rows come: a check for CI.")] = False,
) -> int:
    """Ask the mirror in SQL; it is only read, never changed.

    Each object is a table with a column for each attribute: crmctl mirror sql 'SELECT * FROM attributes' shows them. No request is made;
    --timeout bounds how long a question may take.
    """
    from crmctl.cli.mirror_commands import sql

    return sql(ctx.obj, statement, parameters or [], expect_empty=expect_empty)


@app.command("path", examples=["crmctl mirror path", 'sqlite3 "$(crmctl mirror path -o ids)"'])
def path(ctx: typer.Context) -> None:
    """Show where the file of the mirror is."""
    from crmctl.cli.mirror_commands import path

    path(ctx.obj)


@app.command("remove", examples=["crmctl mirror remove"])
def remove(ctx: typer.Context) -> None:
    """Delete the mirror from this machine; asks first. The service keeps its data."""
    from crmctl.cli.mirror_commands import remove

    remove(ctx.obj)
