"""`crmctl service requests` and `audit`: who asked what of a service, and who changed how it is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.commands.serve import DatabaseOption, DataOption
from crmctl.cli.service_access import opened

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

LimitOption = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="Show at most so many.")]


def list_requests(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY-ID", help="Only those of one API key.")] = None,
    request: Annotated[str | None, typer.Option("--request", metavar="ID", help="Only the one whose answer had this X-Request-Id.")] = None,
    failed: Annotated[bool, typer.Option("--errors", help="Only those that were refused or failed (status 400 and up).")] = False,
    since: Annotated[str | None, typer.Option("--since", metavar="MOMENT", help="Only later ones, such as -1h.")] = None,
    limit: LimitOption = 50,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """List the requests that a service answered, newest first.

    When, which key, what, how it ended, how long it took, from where. They are kept for 7 days unless serve --keep says otherwise.
    """
    from crmctl.models.moments import timestamp
    from crmctl.service.store.timestamps import micros_of
    from crmctl.service.values.dates import parse_instant

    runtime: Runtime = ctx.obj
    moment = None if since is None else micros_of(parse_instant(timestamp(since, runtime.clock.now()))) / 1_000_000
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.store import request_log

        wanted = request_log.RequestFilter(key, request, 400 if failed else None, moment)
        found = engine.read(lambda tx: request_log.list_requests(tx, wanted, limit))
    rows = [each | {"key": each["key"] and each["key"].get("name", each["key"]["id"])} for each in found]
    _emit(runtime, rows, "requests")


def list_audit(
    ctx: typer.Context,
    action: Annotated[
        str | None, typer.Option("--action", metavar="ACTION", help="Only one, such as key.created, or all on a noun: key.")
    ] = None,
    limit: LimitOption = 50,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """List who changed the schema, keys, members, endpoints, reports and workflows.

    Newest first. What happened to records is in their history: crmctl records history.
    """
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.store import audit_log

        found = engine.read(lambda tx: audit_log.list_entries(tx, limit, action=action))
    _emit(runtime, [each | {"by": each["by"] and each["by"].get("name", each["by"]["type"])} for each in found], "entries")


def _emit(runtime: Runtime, rows: list[dict[str, Any]], noun: str) -> None:
    from crmctl.output.views import generic_view

    runtime.emitter.emit_items(rows, generic_view(rows, noun))
