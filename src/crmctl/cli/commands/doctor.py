"""`crmctl doctor`: check the installation and the connection."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.options import flag
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, ExitCode, NetworkError, reason
from crmctl.frozen import frozen
from crmctl.output.streams import clean
from crmctl.version import __version__

if TYPE_CHECKING:
    from crmctl.client.answers import Answer
    from crmctl.models.jsontext import Json


app = CommandApp()

COLORS = {"ok": "green", "warning": "yellow", "failed": "red"}
BEFORE_DETAIL = " " * 30


@app.command("doctor", local=True, examples=["crmctl doctor", "crmctl doctor --network -o json"])
def examine(
    runtime: Runtime,
    network: Annotated[bool, flag("--network", "Also connect to the service: name, key, clock, rate limit.")] = False,
) -> int:
    """Check the installation, the settings and the connection.

    The exit code is that of the first failed check, or 0.
    """
    checks = list(diagnose(runtime, network=network))
    if runtime.message_format == "table":
        runtime.streams.write_out("".join(_described(runtime, check) for check in checks))
    else:
        runtime.emitter.emit_rows([check.to_document() for check in checks], "checks")
    return next((check.exit_code for check in checks if check.status == "failed"), ExitCode.OK)


def _described(runtime: Runtime, check: Check) -> str:
    """Return a check as text with wrapped details."""
    import textwrap

    width = max(60, runtime.streams.width or 120) - len(BEFORE_DETAIL)
    texts = [clean(check.detail), *([f"hint: {clean(check.hint)}"] if check.hint else [])]
    lines = [line for text in texts for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]
    status = runtime.streams.paint(check.status, COLORS.get(check.status, "bold"))
    return f"{status}{' ' * (9 - len(check.status))}{check.name:<21}" + f"\n{BEFORE_DETAIL}".join(lines) + "\n"


UNLIMITED = 1_000_000_000
"""A limit of so many requests is none."""
CLOCK_TOLERANCE = 30.0
"""Difference from the service's clock, in seconds, that causes a warning."""


@frozen
class Check:
    """The result of a check: `status` is ok, warning or failed, `exit_code` that of a failing command."""

    name: str
    status: str
    detail: str
    hint: str | None = None
    exit_code: ExitCode = ExitCode.OK

    def to_document(self) -> Json:
        return {"check": self.name, "status": self.status, "detail": self.detail, "hint": self.hint}


Look = Callable[["Runtime"], Check | None]


def diagnose(runtime: Runtime, *, network: bool) -> Iterator[Check]:
    """Every check in order; with `network` also those that ask the service. A check that depends on a failed one is left out."""
    for look in OFFLINE:
        if check := _looked(look, runtime):
            yield check
    if network:
        yield from _probe(runtime)


def _looked(look: Look, runtime: Runtime) -> Check | None:
    try:
        return look(runtime)
    except CrmctlError as error:
        return Check(look.__name__.strip("_").replace("_", " "), "failed", error.message, error.hint, error.exit_code)


def python(_runtime: Runtime) -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", "ok", f"crmctl {__version__} on Python {version}, {sys.platform}")


def settings_file(runtime: Runtime) -> Check:
    path = runtime.paths.config_file
    if not path.exists():
        return Check("settings file", "ok", f"{path} does not exist yet")
    _ = runtime.settings
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name == "posix" and mode & 0o022:
        return Check("settings file", "warning", f"{path} can be changed by other users (mode {mode:04o})", f"chmod 600 {path}")
    return Check("settings file", "ok", str(path))


def folders(runtime: Runtime) -> Check:
    for folder in (runtime.paths.config, runtime.paths.state, runtime.paths.cache):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if not os.access(existing, os.W_OK):
            return Check("folders", "failed", f"{folder} cannot be written", "set CRMCTL_CONFIG_DIR, CRMCTL_STATE_DIR", ExitCode.USAGE)
    return Check("folders", "ok", "settings, state and cache can be written")


def profile(runtime: Runtime) -> Check:
    chosen = runtime.settings.profile
    return Check("profile", "ok", f"{chosen.value} (from {chosen.source})")


def base_url(runtime: Runtime) -> Check:
    address = runtime.settings.require_base_url()
    if warnings := runtime.settings.warnings:
        return Check("base url", "warning", warnings[0])
    return Check("base url", "ok", f"{address} (from {runtime.settings.base_url.source})")


def api_key(runtime: Runtime) -> Check | None:
    if runtime.settings.base_url.value is None:
        return None
    return Check("api key", "ok", f"{runtime.credential.masked} (from {runtime.credential.source})")


def keyring(_runtime: Runtime) -> Check:
    from crmctl.config import credentials

    try:
        credentials.get("doctor")
    except CrmctlError as error:
        return Check("keyring", "warning", error.message, error.hint)
    return Check("keyring", "ok", "answers")


OFFLINE: tuple[Look, ...] = (python, settings_file, folders, profile, base_url, api_key, keyring)


def _probe(runtime: Runtime) -> Iterator[Check]:
    """Name, connection, key, clock and rate limit; ends at the first that fails, because the rest could say nothing."""
    from crmctl.cli.commands.auth import prove_key

    host = _looked(_name_of_the_service, runtime)
    if host is not None:
        yield host
    if host is None or host.status == "failed":
        return
    before = runtime.clock.now()
    try:
        answer = runtime.crm.session.request("GET", "/objects", any_status=True)
    except CrmctlError as error:
        yield Check("connection", "failed", error.message, error.hint, error.exit_code)
        return
    elapsed = runtime.clock.now() - before
    yield Check("connection", "ok", f"{runtime.settings.base_url.value} answered {answer.status} in {elapsed * 1000:.0f} ms")
    try:
        prove_key(runtime.crm.session)
    except CrmctlError as error:
        yield Check("key accepted", "failed", error.message, error.hint, error.exit_code)
    else:
        yield Check("key accepted", "ok", "the service knows the key")
    yield _clock(runtime, answer)
    yield _rate_limit(answer)


def _name_of_the_service(runtime: Runtime) -> Check | None:
    import socket
    from urllib.parse import urlsplit

    if runtime.settings.base_url.value is None:
        return None
    host = urlsplit(runtime.settings.base_url.value).hostname or ""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise NetworkError(f"{host} has no address: {reason(error)}", hint="check the spelling of the base URL, and the network") from error
    return Check("name of the service", "ok", f"{host} is {', '.join(sorted(addresses)[:4])}")


def _clock(runtime: Runtime, answer: Answer) -> Check:
    from email.utils import parsedate_to_datetime

    try:
        skew = runtime.clock.now() - parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return Check("clock", "ok", "the service does not say what time it is")
    if abs(skew) > CLOCK_TOLERANCE:
        return Check(
            "clock", "warning", f"this machine differs from the service by {skew:+.0f} s", "set the clock: rate limits depend on it"
        )
    return Check("clock", "ok", "agrees with the service")


def _rate_limit(answer: Answer) -> Check:
    limit, remaining = answer.headers.get("x-ratelimit-limit"), answer.headers.get("x-ratelimit-remaining")
    if limit is None or remaining is None:
        return Check("rate limit", "warning", "the service sends no rate limit headers: requests are paced blindly")
    is_unlimited = limit == remaining and limit.isdecimal() and int(limit) >= UNLIMITED
    return Check("rate limit", "ok", "no limit" if is_unlimited else f"{remaining} of {limit} requests left")
