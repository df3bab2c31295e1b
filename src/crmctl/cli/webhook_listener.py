"""`webhooks listen`: what the receiver takes in is printed here, one JSON line per event, and handed to the forwarder."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crmctl.errors import UsageError, reason
from crmctl.output.streams import ClosedPipe

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.webhooks.forwarder import Forwarder
    from crmctl.client.webhooks.receiver import Outcome, ReceivedEvent

    Events = queue.SimpleQueue[tuple[ReceivedEvent, Outcome] | None]

SECRET_VARIABLE = "CRMCTL_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable
WAITING = 10_000
TICK = 0.5
LAST_ANSWERS = 5.0
"""Seconds that deliveries which came before the end get for their answers."""

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
    """Receive until Ctrl-C, SIGTERM or the end of the reader of stdout, and end in good order.

    An event is answered with success after its line was written, and only then: what was not written is sent again.
    """
    from crmctl.client.webhooks.receiver import Receiver

    events: Events = queue.SimpleQueue()

    def accept(event: ReceivedEvent, outcome: Outcome) -> None:
        if events.qsize() >= WAITING:
            outcome.set_result(False)
        else:
            events.put((event, outcome))

    say = _speaker(runtime)
    address = (asked.host, asked.port)
    receiver = Receiver(address, asked.secret, runtime.clock, tolerance=asked.tolerance, accept=accept, refuse=say)
    forwarder = _forwarder(runtime, asked, say)
    taker = _Taker(runtime, asked.events, forwarder)
    receiver.start()
    try:
        with _signals_end(events):
            say(f"listening on {receiver.url}" + (f", forwarding to {asked.forward}" if asked.forward else "") + "; Ctrl-C ends it")
            taker.take_until_told(events)
            receiver.close()
            taker.take_rest(events)
            until = runtime.clock.monotonic() + LAST_ANSWERS
            while not receiver.await_answers(TICK) and runtime.clock.monotonic() < until:
                taker.take_rest(events)
    finally:
        if forwarder is not None:
            forwarder.close(LAST_FORWARDS)


class _Taker:
    """Prints events and hands them to the forwarder, in the main thread: where it may be interrupted, and one line at a time.

    When nobody reads stdout any more, nothing is taken from then on.
    """

    def __init__(self, runtime: Runtime, wanted: frozenset[str], forwarder: Forwarder | None) -> None:
        self._streams = runtime.streams
        self._wanted = wanted
        self._forwarder = forwarder
        self._is_over = False

    def take_until_told(self, events: Events) -> None:
        """As they come, until None does or nobody reads any more."""
        while not self._is_over:
            try:
                pair = events.get(timeout=TICK)  # some systems notice signals only between two waits
            except queue.Empty:
                self._is_over = self._streams.reader_is_gone
                continue
            if pair is None:
                return
            self._settle(*pair)

    def take_rest(self, events: Events) -> None:
        """What is there."""
        while not events.empty():
            if (pair := events.get()) is not None:
                self._settle(*pair)

    def _settle(self, event: ReceivedEvent, outcome: Outcome) -> None:
        taken = False
        try:
            taken = not self._is_over and self._take(event)
        except ClosedPipe:
            self._is_over = True
        finally:
            outcome.set_result(taken)

    def _take(self, event: ReceivedEvent) -> bool:
        from crmctl.models import jsontext

        if self._wanted and event.type is not None and event.type not in self._wanted:
            return True
        if self._forwarder is not None and not self._forwarder.has_room:
            return False
        self._streams.write_out(jsontext.dumps(event.to_document()) + "\n")
        if self._forwarder is not None:
            self._forwarder.forward(event)
        return True


@contextmanager
def _signals_end(events: Events) -> Iterator[None]:
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


def _speaker(runtime: Runtime) -> Callable[[str], None]:
    """Says things at once, in every format: somebody watches, or a script waits for the address."""
    from crmctl.output.control_characters import clean

    return lambda text: runtime.streams.write_err(f"{clean(text)}\n")


def _forwarder(runtime: Runtime, asked: Listening, say: Callable[[str], None]) -> Forwarder | None:
    if asked.forward is None:
        return None
    from crmctl.client.http.transport import HttpxTransport
    from crmctl.client.webhooks.forwarder import Forwarder

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
    hint = "lines of 'Name: value', or a JSON object"
    try:
        saved = jsontext.loads(text)
    except ValueError as error:
        raise UsageError(f"the headers are not JSON: {reason(error)}", hint=hint) from error
    try:
        saved = saved.get("headers", saved) if isinstance(saved, dict) and isinstance(saved.get("headers"), dict | list) else saved
        items = saved.items() if isinstance(saved, dict) else [_pair(item) for item in saved]
        return {str(name).lower(): str(value[0] if isinstance(value, list) and value else value) for name, value in items}
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise UsageError("the headers cannot be read: they are neither an object nor pairs of name and value", hint=hint) from error


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, dict):
        return item["name"], item["value"]
    name, value = item
    return name, value
