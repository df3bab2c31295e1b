"""`crmctl service`: administers an embedded service's own data, whether it runs or not: keys, and definitions as one YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli import service_copies, service_logs
from crmctl.cli.commands import service_members
from crmctl.cli.commands.serve import DatabaseOption, DataOption
from crmctl.cli.framework import CommandApp
from crmctl.cli.service_access import opened, write
from crmctl.errors import UsageError, reason

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.service.store.keys import ApiKey

app = CommandApp("Administer an embedded service's own data.")
keys = CommandApp("Create, list and revoke API keys.")
app.add_typer(keys, name="keys")
app.add_typer(service_members.app, name="members")


@keys.command("create", writes=None, examples=["crmctl service keys create --name ci --scope records:read --expires 30d -o json"])
def create_key(
    ctx: typer.Context,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What the key is for.")],
    scope: Annotated[list[str] | None, typer.Option("--scope", metavar="SCOPE", help="A scope the key gets; may be repeated.")] = None,
    full_access: Annotated[bool, typer.Option("--full-access", help="Every scope.")] = False,
    expires: Annotated[str | None, typer.Option("--expires", metavar="DATE|30d", help="When the key ends (default: never).")] = None,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Create an API key and show it, this once.

    Give the scopes it needs, or --full-access. The key itself is stored nowhere: only a hash is.
    """
    if bool(scope) == full_access:
        raise UsageError("say what the key may do: --scope SCOPE (repeatable), or --full-access", hint="crmctl help service keys create")
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.data import new_id
        from crmctl.service.expiry import parse_expiry
        from crmctl.service.store import keys as store

        now = runtime.clock.now()
        end = parse_expiry(expires, now) if expires else None
        scopes = None if full_access else frozenset(scope or ())
        key, secret = write(runtime, engine, lambda tx: store.create_key(tx, name=name, scopes=scopes, expires_at=end, ids=new_id, now=now))
    described = _describe(key)
    settled = {field: described[field] for field in ("name", "scopes", "expiresAt")}
    runtime.emitter.emit_item({"dryRun": True} | settled if runtime.dry_run else {"id": key.id} | settled | {"key": secret})


@keys.command("list", examples=["crmctl service keys list"])
def list_keys(ctx: typer.Context, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """List the API keys, never the keys themselves; revoked ones too."""
    from crmctl.output.views import generic_view

    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.store import keys as store

        found = engine.read(store.list_keys)
    rows = [_describe(key) for key in found]
    runtime.emitter.emit_items(rows, generic_view(rows, "keys", first=("id", "name", "expiresAt", "revokedAt", "createdAt")))


@keys.command("revoke", writes=None, examples=["crmctl service keys revoke 6f2c1f0e-7a53-4f0e-9a54-0d8f5b1f2a11"])
def revoke_key(
    ctx: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="KEY-ID", help="Id of the key, as keys list shows it.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Revoke an API key; its next request is refused. A revoked key never comes back."""
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.store import keys as store

        key = write(runtime, engine, lambda tx: store.revoke_key(tx, key_id, now=runtime.clock.now()))
    runtime.emitter.emit_item({"dryRun": True} | _describe(key) if runtime.dry_run else _describe(key))


@app.command("console", examples=["crmctl service console", "crmctl service console --open"])
def console(
    ctx: typer.Context,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser, too.")] = False,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Print a link that opens the console of a running service.

    The link works for ten minutes; the session it opens lasts eight hours. Whoever has it can create API keys: do not pass it on.
    """
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.console.links import CONSOLE, make_link
        from crmctl.service.store.service_values import get_address
        from crmctl.service.store.timestamps import to_micros, to_wire

        address = engine.read(get_address)
        if address is None:
            raise UsageError("this service has never been started", hint="crmctl serve")
        link = engine.read(lambda tx: make_link(tx, address, CONSOLE, now=runtime.clock.now()))
    runtime.emitter.emit_item({"consoleUrl": link.url, "expiresAt": to_wire(to_micros(link.expires_at))})
    if open_browser:
        import webbrowser

        webbrowser.open(link.url)


@app.command("load", writes=None, examples=["crmctl service load crm.yaml", "crmctl service load crm.yaml --dry-run"])
def load_definitions(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The definitions file, - for stdin.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Bring members, objects and attributes to what a YAML file says.

    Creates what is missing and renames what is called differently; never deletes. All of the file is loaded or nothing; loading it again
    changes nothing. --dry-run says what would happen.
    """
    runtime: Runtime = ctx.obj
    text = _read_text(runtime, file)
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.data import new_id
        from crmctl.service.definitions.document import parse_document
        from crmctl.service.definitions.load import load_document

        summary = load_document(engine, parse_document(text), clock=runtime.clock, ids=new_id, dry_run=runtime.dry_run)
    runtime.emitter.emit_result(summary, text="\n".join(f"{section:<12}{_counted(counts)}" for section, counts in summary.items()))


@app.command("dump", examples=["crmctl service dump > crm.yaml"])
def dump_definitions(ctx: typer.Context, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """Print members, objects and attributes as a YAML file that load takes back."""
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.definitions.document import format_document
        from crmctl.service.definitions.dump import dump_sections

        sections = engine.read(dump_sections)
    asked = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else "yaml")
    if asked == "yaml":
        runtime.streams.write_out(format_document(sections))
    else:
        runtime.emitter.emit_result(sections)


app.command("requests", examples=["crmctl service requests --errors --since -1h"])(service_logs.list_requests)
app.command("audit", examples=["crmctl service audit --action key"])(service_logs.list_audit)
app.command("backup", examples=["crmctl service backup crm.backup"])(service_copies.backup)
app.command(
    "restore",
    writes=None,
    examples=[
        "crmctl service restore crm.backup --data ./restored",
        "crmctl service restore deals --as-of 'yesterday 15:30' --dry-run",
    ],
)(service_copies.restore)


def _describe(key: ApiKey) -> dict[str, Any]:
    from crmctl.models.scopes import SCOPES

    return key.wire() | {"scopes": sorted(SCOPES if key.scopes is None else key.scopes)}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count) or "none"


def _read_text(runtime: Runtime, file: str) -> str:
    try:
        return runtime.streams.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text", hint="save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {reason(error)}", hint="crmctl service load FILE.yaml") from error
