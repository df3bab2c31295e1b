"""Takes connections from listening sockets.

Not asyncio's own way: out of file descriptors, that one logs and tries thousands of times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

import uvicorn

from crmctl.service.failures import FAILURES
from crmctl.service.http.connections import Connection, Connections

RESERVED_FILES = 256
"""Descriptors kept for the database, uploads and calls to others."""

_PAUSE = 0.1
"""Seconds before the next try when the system has no room for a connection."""


def raise_file_limit(connections: int) -> int:
    """Let this process open as many files as `connections` need, as far as it may; how many connections there is room for."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if soft == resource.RLIM_INFINITY else min(connections, max(soft - RESERVED_FILES, soft // 2))


class ListeningServer(uvicorn.Server):
    """uvicorn's server on sockets of its own accepting; `apps` beside the first one have sockets of their own."""

    def __init__(self, listeners: list[tuple[socket.socket, uvicorn.Config]], registry: Connections, started: Callable[[], None]) -> None:
        """The first of `listeners` is the service. `started` is called once, when requests are answered."""
        super().__init__(listeners[0][1])
        self._listeners = listeners
        self._registry = registry
        self._tell_started = started
        self._accepting: list[asyncio.Task[None]] = []
        self._ticking: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listener, config in self._listeners:
            if not config.loaded:
                config.load()
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener, config)))
        self._tell_started()

    async def main_loop(self) -> None:
        self._ticking = asyncio.create_task(super().main_loop())
        await asyncio.wait([self._ticking])

    def stop(self) -> None:
        """End the main loop at once and not at its next tick; from any thread."""
        self.should_exit = True
        if self._ticking is not None:
            with contextlib.suppress(RuntimeError):
                self._ticking.get_loop().call_soon_threadsafe(self._ticking.cancel)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for listener, _ in self._listeners:
            listener.close()
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown([])
        # Who does not read what is left has had its time.
        for connection in list(self.server_state.connections):
            cast(Connection, connection).abort()
        await asyncio.sleep(0)

    async def _accept(self, listener: socket.socket, config: uvicorn.Config) -> None:
        loop = asyncio.get_running_loop()
        make = partial(Connection, self._registry, config=config, server_state=self.server_state, app_state=self.lifespan.state)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except ConnectionError:
                continue
            except OSError as error:
                FAILURES.tell(error, briefly=True)
                self._registry.evict()
                await asyncio.sleep(_PAUSE)
                continue
            try:
                await loop.connect_accepted_socket(make, accepted)
            except OSError:
                accepted.close()
