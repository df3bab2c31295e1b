"""Received events on their way to another address, one after another in the background, with the bytes and headers they came with."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from crmctl.backoff import Backoff
from crmctl.client.http.transport import Request, Transport
from crmctl.client.webhooks.receiver import ReceivedEvent
from crmctl.clock import Clock
from crmctl.errors import CrmctlError

WAITING = 1000
"""Events that may wait; more are not to be taken."""

TRIES = 3
TIMEOUT = 10.0
_BACKOFF = Backoff(first=1.0)

_OWN = frozenset(
    "host content-length connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding"  # noqa: SIM905
    " upgrade expect".split()
)
"""Headers that belong to one connection and not to the delivery."""


class Forwarder:
    """`say` gets a sentence about every event that did not arrive, `detail` about every one that did."""

    def __init__(self, url: str, transport: Transport, clock: Clock, *, say: Callable[[str], None], detail: Callable[[str], None]) -> None:
        self._url = url
        self._transport = transport
        self._clock = clock
        self._say = say
        self._detail = detail
        self._events: queue.Queue[ReceivedEvent | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="forwarder", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether one more event may wait."""
        return not self._events.full()

    def forward(self, event: ReceivedEvent) -> None:
        """Returns at once; ask for room first."""
        self._events.put_nowait(event)

    def close(self, seconds: float) -> None:
        """Give what waits so many seconds to leave."""
        with contextlib.suppress(queue.Full):
            self._events.put_nowait(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._say(f"{self._events.qsize() + 1} events were not forwarded")
        else:
            self._transport.close()

    def _work(self) -> None:
        while (event := self._events.get()) is not None:
            self._deliver(event)

    def _deliver(self, event: ReceivedEvent) -> None:
        headers = tuple((name, value) for name, value in event.headers if name.lower() not in _OWN)
        request = Request("POST", self._url, headers, event.body, TIMEOUT)
        said = ""
        for attempt in range(TRIES):
            if attempt:
                self._clock.sleep(_BACKOFF.gap(attempt))
            try:
                status = self._transport.send(request).status
            except CrmctlError as error:
                said = error.message
                continue
            if status < 500 and status != 429:
                tell = self._detail if 200 <= status < 300 else self._say
                tell(f"{event.id} forwarded: {status}")
                return
            said = f"status {status}"
        self._say(f"{event.id} could not be forwarded: {said}")
