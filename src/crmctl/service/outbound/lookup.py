"""Looking up host names within a time. The system's resolver cannot be interrupted, so nobody waits inside it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

Resolver = Callable[[str, int], Sequence[str]]


class UnresolvableTargetError(Exception):
    """The host name has no address right now: worth another try later."""


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host name, in the system's order. Raises UnresolvableTargetError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnresolvableTargetError(f"the host name {host} has no address") from error
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class Lookups:
    """Thread-safe. A name is looked up once at a time: one whose name servers are silent keeps one thread, however often it is tried."""

    def __init__(self, resolver: Resolver = resolve) -> None:
        self._resolver = resolver
        self._guarded = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[Sequence[str]]] = {}

    def addresses(self, host: str, port: int, seconds: float) -> Sequence[str]:
        """At least one. Raises UnresolvableTargetError, also when the time is over."""
        try:
            found = self._ask(host, port).result(max(0.0, seconds))
        except TimeoutError:
            raise UnresolvableTargetError(f"the host name {host} could not be looked up in time") from None
        if not found:
            raise UnresolvableTargetError(f"the host name {host} has no address")
        return found

    def _ask(self, host: str, port: int) -> Future[Sequence[str]]:
        with self._guarded:
            future = self._under_way.get((host, port))
            if future is None:
                future = self._under_way[host, port] = Future()
                threading.Thread(target=self._run, args=(host, port, future), name="lookup", daemon=True).start()
            return future

    def _run(self, host: str, port: int, future: Future[Sequence[str]]) -> None:
        try:
            future.set_result(self._resolver(host, port))
        except Exception as error:
            future.set_exception(error)
        finally:
            with self._guarded:
                del self._under_way[host, port]
