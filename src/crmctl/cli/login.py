"""Logging in: where the address and the key come from, the check against the service, and what is stored then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from crmctl.errors import CrmctlError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.config.settings import Settings


def log_in(runtime: Runtime, *, from_stdin: bool, insecure: bool) -> dict[str, Any]:
    """Store a checked key and the profile's address; returns `{"profile", "baseUrl", "keySource", "isDefault"}`.

    Raises DeniedError when the service does not accept the key; nothing is stored then.
    """
    from crmctl.cli.scope_probes import prove_key
    from crmctl.config.credentials import KEY_VARIABLE, Credential, check_key, check_keyring, store_credential

    settings = _with_address(runtime)
    runtime.settings = settings
    profile, origin = settings.profile.value, settings.require_origin()
    if not (from_stdin or insecure) and runtime.prompter.can_ask:
        check_keyring(profile, origin)
    key = check_key(_read_key(runtime, from_stdin=from_stdin))
    runtime.credential = Credential(key, "stdin" if from_stdin else "prompt", origin)
    _explained(lambda: prove_key(runtime.crm.session), settings)
    stored = store_credential(profile, origin, key, runtime.paths, insecure=insecure)
    if insecure:
        runtime.messages.warn(f"the key is stored unencrypted in {stored.source}; only your user can read it")
    file = settings.file.set_value("base_url", settings.require_base_url(), profile)
    if file.default_profile is None:
        file = file.set_value("default_profile", profile, None)
    if runtime.environ.get(KEY_VARIABLE):
        runtime.messages.warn(f"{KEY_VARIABLE} is set and wins over the stored key")
    return {
        "profile": profile,
        "baseUrl": settings.base_url.value,
        "keySource": stored.source,
        "isDefault": file.default_profile == profile,
    }


def _with_address(runtime: Runtime) -> Settings:
    """The settings, with an address asked for when there is none. The profile need not be there: it is made here."""
    from crmctl.config.keys import parse_base_url
    from crmctl.config.settings import Sourced

    settings = replace(runtime.settings, profile=Sourced(runtime.settings.profile.value, "auth login"))
    if settings.base_url.value is not None:
        return settings
    given = runtime.prompter.text("Base URL of the service", flag="--base-url URL")
    try:
        return replace(settings, base_url=Sourced(parse_base_url(given), "prompt"))
    except ValueError as error:
        raise UsageError(f"the base URL {error}, not {given!r}") from error


def _read_key(runtime: Runtime, *, from_stdin: bool) -> str:
    if not from_stdin:
        return runtime.prompter.secret(f"API key for {runtime.settings.base_url.value}", flag="--with-key and the key on stdin")
    if runtime.streams.stdin_is_terminal:
        runtime.messages.note("reading the key from stdin; without --with-key it is asked for unseen")
    return runtime.streams.stdin.readline()


def _explained(check: Any, settings: Settings) -> None:
    try:
        check()
    except CrmctlError as error:
        if error.status == 401:
            error.hint = "nothing was stored; check that the whole key was pasted and that it has not expired or been revoked"
        elif error.status == 404:
            error.hint = f"nothing was stored; is {settings.base_url.value} the address of a Customer Records Service?"
        raise
