"""`crmctl auth`: the key of a profile, from storing it to seeing what it may do. No command here ever prints one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.errors import ExitCode, ServiceError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("Log in, log out, see what a key may do.")


@app.command(
    "login",
    examples=["crmctl auth login --base-url https://crm.example.com", "crmctl auth login --profile ci --with-key < key.txt"],
)
def login(
    ctx: typer.Context,
    with_key: Annotated[bool, typer.Option("--with-key", help="Read the API key from stdin.")] = False,
    insecure_storage: Annotated[
        bool, typer.Option("--insecure-storage", help="Keep the key in a private file where there is no keyring.")
    ] = False,
) -> None:
    """Check an API key against the service and store it for a profile.

    Asks for the key without showing it, or reads it from stdin. Keys are made in Organization Settings, Developers.
    """
    from crmctl.cli.login import log_in

    runtime: Runtime = ctx.obj
    result = log_in(runtime, from_stdin=with_key, insecure=insecure_storage)
    runtime.done(result, f"logged in to {result['baseUrl']} as profile {result['profile']}; the key is in {_place(result['keySource'])}")


def _place(source: str) -> str:
    return "the system keyring" if source == "keyring" else source


@app.command("logout", examples=["crmctl auth logout", "crmctl auth logout --profile work"])
def logout(ctx: typer.Context) -> None:
    """Remove the stored API key of a profile."""
    from crmctl.config.credentials import KEY_VARIABLE, remove_credential

    runtime: Runtime = ctx.obj
    profile = runtime.settings.profile.value
    removed = remove_credential(profile, runtime.settings.require_origin(), runtime.paths)
    if runtime.environ.get(KEY_VARIABLE):
        runtime.messages.warn(f"{KEY_VARIABLE} is set and still used")
    said = f"removed the key of profile {profile} from {', '.join(_place(place) for place in removed)}"
    runtime.done({"profile": profile, "removed": removed}, said if removed else f"profile {profile} had no stored key")


@app.command("status", examples=["crmctl auth status", "crmctl auth status --scopes"])
def status(
    ctx: typer.Context,
    scopes: Annotated[bool, typer.Option("--scopes", help="Ask the service what the key may do (16 small requests).")] = False,
) -> None:
    """Show profile, service, where the key comes from, and what it may do."""
    runtime: Runtime = ctx.obj
    credential = runtime.credential
    result: dict[str, Any] = {
        "profile": runtime.settings.profile.value,
        "baseUrl": runtime.settings.base_url.value,
        "origin": credential.origin,
        "keySource": credential.source,
        "key": credential.masked,
    }
    if scopes:
        from crmctl.cli.scope_probes import PROBES, may

        granted = {}
        with runtime.progress as progress:
            progress.start("asking what the key may do", len(PROBES), 1)
            for scope in PROBES:
                granted[scope] = may(runtime.crm.session, scope)
                progress.advance()
        result["scopes"] = [scope for scope, allowed in granted.items() if allowed]
        result["missingScopes"] = [scope for scope, allowed in granted.items() if allowed is False]
        result["unknownScopes"] = [scope for scope, allowed in granted.items() if allowed is None]
    runtime.emitter.emit_item(result)


@app.command("list", examples=["crmctl auth list", "crmctl auth list -o json"])
def list_profiles(ctx: typer.Context) -> None:
    """List the profiles."""
    from crmctl.output.views import generic_view

    runtime: Runtime = ctx.obj
    settings = runtime.settings
    rows = [
        {
            "profile": name,
            "baseUrl": values.get("base_url"),
            "isDefault": name == settings.file.default_profile,
            "isCurrent": name == settings.profile.value,
            "isProtected": bool(values.get("protected", False)),
        }
        for name, values in settings.file.profiles.items()
    ]
    runtime.emitter.emit_items(rows, generic_view(rows, "profiles"))


@app.command("switch", examples=["crmctl auth switch default"])
def switch(ctx: typer.Context, profile: Annotated[str, typer.Argument(metavar="PROFILE", help="Name of the profile.")]) -> None:
    """Make another profile the default."""
    runtime: Runtime = ctx.obj
    file = runtime.settings.file
    if profile not in file.profiles:
        known = ", ".join(sorted(file.profiles)) or "none yet"
        raise UsageError(f"there is no profile {profile!r}", hint=f"known profiles: {known}", code="unknown_profile")
    file.set_value("default_profile", profile, None)
    runtime.done({"profile": profile, "baseUrl": file.profiles[profile].get("base_url")}, f"the default profile is now {profile}")


@app.command("can-i", examples=["crmctl auth can-i records:write", "crmctl auth can-i objects:write && echo allowed"])
def can_i(
    ctx: typer.Context, scope: Annotated[str, typer.Argument(metavar="SCOPE", help="Name of a scope, for example records:write.")]
) -> int:
    """Tell whether the key has a scope: yes or no, exit 0 or 4.

    Asks the service with requests that cannot change anything.
    """
    from crmctl.cli.scope_probes import check_scope_name, may

    runtime: Runtime = ctx.obj
    scope = check_scope_name(scope)
    allowed = may(runtime.crm.session, scope)
    if allowed is None:
        raise ServiceError(
            f"cannot tell whether the key has {scope}: this service does not offer what the scope is for", code="cannot_tell"
        )
    answer = "yes" if allowed else "no"
    if runtime.settings.output.value in (None, "table"):
        runtime.streams.write_out(f"{answer}\n")  # also in a pipe: the word is what scripts compare
    else:
        runtime.emitter.emit_result({"scope": scope, "allowed": allowed, "answer": answer})
    return ExitCode.OK if allowed else ExitCode.DENIED
