"""How many requests work at once, and who is next: a bounded number of each kind, for one key at most a share, waiting in turn by key.

Whoever waits holds no thread. Requests that need no place here, such as the health check, are answered whatever waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import anyio
import anyio.to_thread

from crmctl.service.faults import Busy

T = TypeVar("T")

LARGE = 256 * 1024
"""Bytes from which a body is worked on alone: what becomes of it in memory is many times as much."""

MOST_BODY_BYTES = 256 * 1024 * 1024
"""Of all bodies that are in memory at once."""

ADMISSIONS = 4


class FairLimiter:
    """At most `places` at once, and at most `per_key` for one key. Keys take turns; within a key it goes by arrival. For one event loop."""

    def __init__(self, places: int, per_key: int) -> None:
        self._free = places
        self._per_key = per_key
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def place(self, key: str, seconds: float) -> AsyncIterator[bool]:
        """Whether the key has nothing else here. Raises Busy when there is no turn within `seconds`; nothing has been done then."""
        await self._enter(key, seconds)
        try:
            yield self._held[key] == 1 and key not in self._waiting
        finally:
            self._leave(key)

    async def _enter(self, key: str, seconds: float) -> None:
        if self._free and self._held[key] < self._per_key and key not in self._waiting:
            self._take(key)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                # The turn came in the moment the waiting ended.
                self._leave(key)
            else:
                self._forget(key, turn)
            if isinstance(error, TimeoutError):
                raise Busy("the service is busy, and there was no turn in time; nothing was done, try again") from None
            raise

    def _forget(self, key: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(key, deque())
        with contextlib.suppress(ValueError):
            queue.remove(turn)
        if not queue:
            self._waiting.pop(key, None)

    def _take(self, key: str) -> None:
        self._free -= 1
        self._held[key] += 1

    def _leave(self, key: str) -> None:
        self._free += 1
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        while self._free:
            following = next((each for each in self._waiting if self._held[each] < self._per_key), None)
            if following is None:
                return
            queue = self._waiting[following]
            turn = queue.popleft()
            if queue:
                self._waiting.move_to_end(following)
            else:
                del self._waiting[following]
            if not turn.done():
                self._take(following)
                turn.set_result(None)


@dataclass
class Work:
    """The places of one service process. Fewer in all than the connections a database engine has: see PostgresEngine."""

    reads: FairLimiter = field(default_factory=lambda: FairLimiter(6, 4))
    searches: FairLimiter = field(default_factory=lambda: FairLimiter(4, 2))
    writes: FairLimiter = field(default_factory=lambda: FairLimiter(6, 4))
    large_bodies: FairLimiter = field(default_factory=lambda: FairLimiter(4, 1))
    body_bytes: int = 0

    @cached_property
    def _admitting(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(ADMISSIONS)

    @cached_property
    def _working(self) -> anyio.CapacityLimiter:
        # Whoever gets here has a place already.
        return anyio.CapacityLimiter(math.inf)

    async def admit(self, fn: Callable[[], T]) -> T:
        """Run what comes before any place is known, on one of a few threads of its own."""
        return await anyio.to_thread.run_sync(fn, limiter=self._admitting)

    async def run(self, fn: Callable[[], T]) -> T:
        """Run on a thread; for whoever has a place."""
        return await anyio.to_thread.run_sync(fn, limiter=self._working)

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Around a request's body: the function given counts the bytes that came. It raises Busy when all bodies together are too much."""
        mine = 0

        def count(size: int) -> None:
            nonlocal mine
            mine += size
            self.body_bytes += size
            if self.body_bytes > MOST_BODY_BYTES:
                raise Busy("the service has too many large requests at once; nothing was done, try again")

        try:
            yield count
        finally:
            self.body_bytes -= mine
