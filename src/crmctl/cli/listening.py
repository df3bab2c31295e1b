"""`webhooks listen`: what the receiver takes in is printed here, one JSON line per event, and handed to the forwarder."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.forwarding import Forwarder
    from crmctl.client.receiving import Event

SECRET_VARIABLE = "CRMCTL_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
WAITING = 10_000
LAST_FORWARDS = 5.0
"""Seconds that events which still wait to be forwarded get at the end."""


@dataclass(frozen=True)
class Listening:
    """What `webhooks listen` was asked for; `events` empty means all."""

    host: str
    port: int
    secret: str
    tolerance: float
    forward: str | None
    events: frozenset[str]


def signing_secret(runtime: Runtime, given: str | None) -> str:
    """The secret from --secret or the environment. Raises UsageError when there is none or it is none."""
    from crmctl.models.signatures import SignatureError, key_of

    secret = (given or runtime.environ.get(SECRET_VARIABLE) or "").strip()
    if not secret:
        raise UsageError("the signing secret is missing", hint=f"set {SECRET_VARIABLE} or pass --secret; the portal shows it")
    try:
        key_of(secret)
    except SignatureError as error:
        raise UsageError(f"{error}", hint="a secret looks like whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLw==", code="bad_secret") from error
    return secret


def listen(runtime: Runtime, asked: Listening) -> None:
    """Receive until Ctrl-C or SIGTERM, which end it in good order: what was answered is printed."""
    from crmctl.client.receiving import Receiver

    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()

    def accept(event: Event) -> None:
        if events.qsize() >= WAITING:
            raise queue.Full
        events.put(event)

    say = _speaker(runtime)
    address = (asked.host, asked.port)
    receiver = Receiver(address, asked.secret, runtime.clock, tolerance=asked.tolerance, accept=accept, refuse=say)
    forwarder = _forwarder(runtime, asked, say)
    receiver.start()
    try:
        with _signals_end(events):
            say(f"listening on {receiver.url}" + (f", forwarding to {asked.forward}" if asked.forward else "") + "; Ctrl-C ends it")
            for event in _until_told(events):
                _handle(runtime, event, asked.events, forwarder)
            receiver.close()
            while not events.empty():
                if (last := events.get()) is not None:
                    _handle(runtime, last, asked.events, forwarder)
    finally:
        if forwarder is not None:
            forwarder.close(LAST_FORWARDS)


def _until_told(events: queue.SimpleQueue[Event | None]) -> Iterator[Event]:
    """The events as they come, until None does."""
    while True:
        try:
            event = events.get(timeout=1.0)  # some systems notice signals only between two waits
        except queue.Empty:
            continue
        if event is None:
            return
        yield event


@contextmanager
def _signals_end(events: queue.SimpleQueue[Event | None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM put None into the queue instead of breaking into the handling of an event; a second one ends everything."""
    before: dict[signal.Signals, Any] = {}

    def end(*_: Any) -> None:
        events.put(None)
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(runtime: Runtime, event: Event, wanted: frozenset[str], forwarder: Forwarder | None) -> None:
    from crmctl.models import jsontext

    if wanted and event.type is not None and event.type not in wanted:
        return
    if forwarder is not None:
        forwarder.forward(event)
    runtime.streams.write_out(jsontext.dumps(event.to_document()) + "\n")


def _speaker(runtime: Runtime) -> Callable[[str], None]:
    """Says things at once, in every format: somebody watches, or a script waits for the address."""
    from crmctl.output.cleaning import clean

    return lambda text: runtime.streams.write_err(f"{clean(text)}\n")


def _forwarder(runtime: Runtime, asked: Listening, say: Callable[[str], None]) -> Forwarder | None:
    if asked.forward is None:
        return None
    from crmctl.client.forwarding import Forwarder
    from crmctl.client.transport import HttpxTransport

    transport = HttpxTransport(ca_bundle=runtime.settings.ca_bundle.value)

    def detail(text: str) -> None:
        if runtime.flags.get("verbose"):
            say(text)

    return Forwarder(asked.forward, transport, runtime.clock, say=say, detail=detail)


def parse_saved_headers(text: str) -> dict[str, str]:
    """Headers from a file: `Name: value` lines as curl and proxies write them, or a JSON object or list of pairs. Raises UsageError."""
    from crmctl.models import jsontext

    if not text.lstrip().startswith(("{", "[")):
        pairs = [line.partition(":") for line in text.splitlines() if ":" in line and not line.startswith(("POST ", "HTTP/"))]
        return {name.strip().lower(): value.strip() for name, _, value in pairs}
    try:
        saved = jsontext.loads(text)
        saved = saved.get("headers", saved) if isinstance(saved, dict) and isinstance(saved.get("headers"), dict | list) else saved
        items = saved.items() if isinstance(saved, dict) else [_pair(item) for item in saved]
        return {str(name).lower(): str(value[0] if isinstance(value, list) and value else value) for name, value in items}
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"the headers cannot be read: {error}", hint="lines of 'Name: value', or a JSON object") from error


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, dict):
        return item["name"], item["value"]
    name, value = item
    return name, value
