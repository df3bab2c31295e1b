"""`crmctl service members`: who may sign in to the console. A password is set by its member alone, through a one-time link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.commands.serve import DatabaseOption, DataOption
from crmctl.cli.framework import CommandApp
from crmctl.cli.service_access import opened, write
from crmctl.errors import NotFoundError, UsageError
from crmctl.models.nearest import suggestion

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.service.store.tx import Tx

ROLES = ("owner", "admin", "member", "viewer")

app = CommandApp("Invite members to the console, and give them new links.")

EmailArgument = Annotated[str, typer.Argument(metavar="EMAIL", help="The member's email address.")]


@app.command("list", examples=["crmctl service members list"])
def list_members(ctx: typer.Context, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """List the members, what each may do, and whether each can sign in.

    A member is active with a password, invited with a link that can be used, or has no access."""
    from crmctl.output.views import generic_view

    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.store import members, passwords

        now = runtime.clock.now()
        found, access = engine.read(lambda tx: (members.list_members(tx), passwords.access_of_members(tx, now=now)))
    rows = [_describe(member) | {"access": access.get(member["id"], "none")} for member in found]
    runtime.emitter.emit_items(rows, generic_view(rows, "members", first=("name", "email", "role", "access", "id")))


@app.command(
    "invite",
    writes=None,
    examples=["crmctl service members invite ada@example.com --name 'Ada Lovelace' --role admin"],
)
def invite_member(
    ctx: typer.Context,
    email: EmailArgument,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="How the member is called (default: the address).")] = None,
    role: Annotated[str, typer.Option("--role", metavar="owner|admin|member|viewer", help="What the member may do.")] = "member",
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Add a member and print the link with which the member sets a password.

    The link works once, within three days. The service sends no mail: pass the link on to the member, and to nobody else.
    """
    if role not in ROLES:
        raise UsageError(f"there is no role {role!r}", hint=suggestion(role, ROLES, f"one of: {', '.join(ROLES)}"))
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.data import new_id
        from crmctl.service.store import members

        def invite(tx: Tx) -> dict[str, Any]:
            made = members.create_member(tx, name=name or email, email=email, role=role, ids=new_id, now=runtime.clock.now())
            return _linked(runtime, tx, made)

        described = write(runtime, engine, invite)
    _emit(runtime, described)


@app.command("reset", writes=None, examples=["crmctl service members reset ada@example.com"])
def reset_password(ctx: typer.Context, email: EmailArgument, data: DataOption = None, database_url: DatabaseOption = None) -> None:
    """Print a link with which a member sets a new password; earlier links become void.

    The present password works until the link is used. Then every session of the member ends.
    """
    runtime: Runtime = ctx.obj
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.store import members

        def reset(tx: Tx) -> dict[str, Any]:
            known = members.find_member_by_email(tx, email)
            if known is None:
                raise NotFoundError(f"there is no member {email!r}", hint="crmctl service members list")
            return _linked(runtime, tx, known)

        described = write(runtime, engine, reset)
    _emit(runtime, described)


def _linked(runtime: Runtime, tx: Tx, member: dict[str, Any]) -> dict[str, Any]:
    from crmctl.service.console.links import make_password_link
    from crmctl.service.store.service_values import get_address
    from crmctl.service.store.timestamps import to_micros, to_wire

    address = get_address(tx)
    if address is None:
        raise UsageError("this service has never been started", hint="crmctl serve")
    link = make_password_link(tx, address, member["id"], now=runtime.clock.now())
    return _describe(member) | {"passwordUrl": link.url, "expiresAt": to_wire(to_micros(link.expires_at))}


def _describe(member: dict[str, Any]) -> dict[str, Any]:
    return {"id": member["id"], "name": member["user"]["name"], "email": member["user"]["email"], "role": member["role"]}


def _emit(runtime: Runtime, described: dict[str, Any]) -> None:
    # Of a rehearsal neither id nor link is there afterwards.
    shown = {field: described[field] for field in ("name", "email", "role")}
    runtime.emitter.emit_item({"dryRun": True} | shown if runtime.dry_run else described)
