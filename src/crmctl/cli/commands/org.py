"""`crmctl org`: an organization as a folder of text files. The work is done by crmctl.org."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crmctl.cli.app import CommandApp
from crmctl.cli.runtime import counted
from crmctl.errors import ExitCode

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.jsontext import Json

app = CommandApp("Keep an organization as a folder of text files: compare it, apply it, restore it.")

FolderArgument = Annotated[str, typer.Argument(metavar="DIR", help="The folder.")]


@app.command("pull", examples=["crmctl org pull crm", "crmctl org pull crm --objects people,companies --with members"])
def pull_org(
    ctx: typer.Context,
    folder: FolderArgument,
    objects: Annotated[
        str | None, typer.Option("--objects", metavar="A,B", help="Only these objects; by default those of org.toml.")
    ] = None,
    parts: Annotated[
        str | None, typer.Option("--with", metavar="A,B", help="Besides records: activities, members; '' for neither.")
    ] = None,
) -> None:
    """Write the organization into a folder.

    Syncs the mirror and reads only from it. Replaces the folder as a whole; without a change, no byte changes. Shows what the folder
    contains, and what it cannot contain.
    """
    from crmctl.cli.bulk_output import RuntimeContext
    from crmctl.org.pull import PullRequest, pull

    runtime: Runtime = ctx.obj
    context = RuntimeContext(runtime)
    context.service.session.logs_bodies = False
    report = pull(context, PullRequest(Path(folder), _names(objects), None if parts is None else _names(parts)))
    if runtime.output_format == "table":
        _show_coverage(runtime, report.manifest)
        runtime.messages.note(f"{'written' if report.is_changed else 'unchanged'}: {folder}; {counted(report.requests, 'request')}")
    else:
        runtime.emitter.emit_result(report.to_document())


@app.command("verify", local=True, examples=["crmctl org verify crm", "crmctl org verify crm || echo damaged"])
def verify_org(ctx: typer.Context, folder: FolderArgument) -> int:
    """Check checksums, JSON, schema, references and counts of a folder.

    Exit 11 if something is wrong.
    """
    from crmctl.org.verify import verify
    from crmctl.output.views import generic_view

    runtime: Runtime = ctx.obj
    opened, problems = verify(Path(folder))
    runtime.emitter.emit_items(problems, generic_view(problems, "problems"))
    if problems:
        runtime.messages.warn(f"{folder} is damaged: {counted(len(problems), 'problem')}")
        return ExitCode.DIFFERENT
    records = sum(opened.manifest["records"].values())
    runtime.messages.note(f"{folder} is complete: {counted(records, 'record')}, as of {opened.manifest['asOf']}")
    return ExitCode.OK


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _show_coverage(runtime: Runtime, manifest: Json) -> None:
    from crmctl.output.views import generic_view

    rows = manifest["coverage"]
    runtime.emitter.emit_items(rows, generic_view(rows, "coverage"))
