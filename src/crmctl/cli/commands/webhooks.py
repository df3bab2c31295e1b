"""`crmctl webhooks`: the event types, the management portal, a local receiver, and checking a saved delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.errors import RejectedError, ServiceError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp("See event types, open the management portal, receive and check deliveries.")

PORT = 8788
TOLERANCE = 300.0
SecretOption = Annotated[
    str | None, typer.Option("--secret", metavar="SECRET", help="Signing secret of the endpoint; better in CRMCTL_WEBHOOK_SECRET.")
]


@app.command("events", examples=["crmctl webhooks events", "crmctl webhooks events -q '[].name'"])
def list_events(ctx: typer.Context) -> None:
    """List the event types that endpoints can subscribe to."""
    from crmctl.models.webhooks import EVENT_TYPES as KNOWN
    from crmctl.output.views import EVENT_TYPES

    runtime: Runtime = ctx.obj
    listed = runtime.crm.webhooks().wire.get("eventTypes") or []
    if not isinstance(listed, list):
        raise ServiceError("the service sent event types that are not a list", code="unreadable_answer")
    items = [item if isinstance(item, dict) else {"name": str(item), "description": KNOWN.get(str(item))} for item in listed]
    runtime.emitter.emit_items(items, EVENT_TYPES)


@app.command("portal", examples=["crmctl webhooks portal", "crmctl webhooks portal -q portalUrl", "crmctl webhooks portal --open"])
def show_portal(
    ctx: typer.Context,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser, where there is a terminal and a browser.")] = False,
) -> None:
    """Print the address of the management portal.

    Endpoints, their event types, delivery history, replays and test sends are managed there.
    """
    runtime: Runtime = ctx.obj
    url = runtime.crm.webhooks().portal_url
    if not url:
        raise ServiceError("the service sent no portal address", code="unreadable_answer")
    runtime.emitter.emit_result({"portalUrl": url}, text=url)
    if open_it:
        _open(runtime, url)


def _open(runtime: Runtime, url: str) -> None:
    import sys
    import webbrowser

    if not url.startswith(("https://", "http://")):
        raise ServiceError("the portal address is no web address", code="unreadable_answer")
    has_display = sys.platform in ("darwin", "win32") or any(
        runtime.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if not (runtime.streams.stderr_is_terminal and has_display and webbrowser.open(url)):
        runtime.messages.warn("there is no browser to open here: open the address yourself")


@app.command(
    "listen",
    examples=[
        "CRMCTL_WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw== crmctl webhooks listen",
        "crmctl webhooks listen --port 0 --forward http://localhost:3000/hooks --events record.created,record.updated",
    ],
)
def listen_for_events(
    ctx: typer.Context,
    secret: SecretOption = None,
    port: Annotated[int, typer.Option("--port", metavar="PORT", help="Listen on this port; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Listen on this address.")] = "127.0.0.1",
    forward: Annotated[str | None, typer.Option("--forward", metavar="URL", help="Send every event on to this address.")] = None,
    events: Annotated[str | None, typer.Option("--events", metavar="EVENT,...", help="Only events of these types.")] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="SECONDS", help="Most seconds a signature may be old, or early.")
    ] = TOLERANCE,
) -> None:
    """Receive deliveries: check the signature, answer, print one JSON line per event.

    Deliveries signed with webhook-* or svix-* headers are printed once each and answered 204 when their line is written; others are
    answered 401. What cannot be written is answered 503, so that it comes again. With --forward events are sent on in the background,
    bytes and headers as they came. Events that do not say their type pass every filter. Ctrl-C, or a reader that ends, ends it with 0.
    """
    from crmctl.cli.webhook_listener import Listening, listen, signing_secret

    runtime: Runtime = ctx.obj
    if not 0 <= port <= 65_535:
        raise UsageError(f"--port must be from 0 to 65535, not {port}")
    if not 0 < tolerance < 1e9:
        raise UsageError("--tolerance must be a number of seconds above 0")
    names = frozenset(name.strip() for name in (events or "").split(",") if name.strip())
    listen(runtime, Listening(host, port, signing_secret(runtime, secret), tolerance, _checked_address(forward), names))


def _checked_address(url: str | None) -> str | None:
    from urllib.parse import urlsplit

    try:
        good = url is None or (urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname))
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"--forward {url!r} is no web address", hint="for example --forward http://localhost:3000/hooks")
    return url


@app.command(
    "verify",
    examples=[
        "crmctl webhooks verify body.json --headers headers.txt --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw==",
        "crmctl webhooks verify - --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw== --id msg_p5jXN8AQM9LWM0D4loKWxJek"
        " --timestamp 1614265330 --signature v1,/Xy7FLfFISa1TZH7WLT+0x/orG5MlcutAFOpVan3/00= < body.json",
    ],
)
def verify_delivery(
    ctx: typer.Context,
    body_file: Annotated[str, typer.Argument(metavar="BODYFILE|-", help="The body, byte for byte, in a file or from stdin.")],
    secret: SecretOption = None,
    message_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Value of the header webhook-id.")] = None,
    timestamp: Annotated[str | None, typer.Option("--timestamp", metavar="T", help="Value of the header webhook-timestamp.")] = None,
    signature: Annotated[str | None, typer.Option("--signature", metavar="SIG", help="Value of the header webhook-signature.")] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", metavar="FILE", help="Saved headers: lines of 'Name: value', or JSON.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option("--tolerance", metavar="SECONDS", help="Refuse a signature that is older; any age unless given.")
    ] = None,
) -> None:
    """Check the signature of a saved delivery.

    Exit code 0 when it is valid, 9 with the reason when it is not. The age of a saved delivery does not matter unless --tolerance is given.
    """
    from crmctl.cli.targets import read_input
    from crmctl.cli.webhook_listener import parse_saved_headers, signing_secret
    from crmctl.models.signatures import SignatureError, read_headers, verify

    runtime: Runtime = ctx.obj
    key = signing_secret(runtime, secret)
    found = parse_saved_headers(read_input(runtime, headers).decode("utf-8", "replace")) if headers is not None else {}
    given = {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}
    found |= {name: value for name, value in given.items() if value is not None}
    body = read_input(runtime, body_file)
    try:
        signed = read_headers(found)
        now = runtime.clock.now()
        verify(key, signed, body, now if tolerance is not None else _moment(signed.timestamp), tolerance if tolerance is not None else 1.0)
    except SignatureError as error:
        raise RejectedError(f"not valid: {error}", code="invalid_signature", hint=_hint(str(error))) from error
    document: dict[str, Any] = {
        "valid": True,
        "id": signed.id,
        "timestamp": signed.timestamp,
        "ageSeconds": round(now - int(signed.timestamp)),
    }
    runtime.emitter.emit_result(document, text=f"valid: {signed.id}")


def _moment(timestamp: str) -> float:
    return float(timestamp) if timestamp.isascii() and timestamp.isdecimal() else 0.0


def _hint(reason: str) -> str | None:
    if "missing header" in reason:
        return "--headers FILE, or --id, --timestamp and --signature"
    return "the body must be the bytes that came, not reformatted JSON" if "fits" in reason else None
