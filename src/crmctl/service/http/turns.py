"""Fair turns: how many requests of one key, and of all keys, are worked on at once, and which reads need no thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import anyio
import anyio.to_thread

from crmctl.service.faults import Busy, Unavailable

T = TypeVar("T")

LARGE = 256 * 1024
"""A body this large is processed alone, because it takes many times its size in memory."""

MOST_BODY_BYTES = 256 * 1024 * 1024
"""Most bytes of all bodies in memory at once."""

MOST_ANSWER_BYTES = 64 * 1024 * 1024
"""While its clients have more bytes of answers than this still to take, a key can only write: one list may have 100 MB."""

ADMISSIONS = 4

AT_ONCE_SECONDS = 0.01
"""Most seconds of a short read on the event loop, where most reads cost less than a thread. A longer one begins again on a thread."""

THREADS_SECONDS = 0.2
"""How long threads do all reads after one took too long, so that a lock or slow searches delay the event loop by five percent at most."""


class _Share:
    """The share of one key in a limiter, and how many of its requests are there."""

    def __init__(self, most: int) -> None:
        self.turns = asyncio.Semaphore(most)
        self.requests = 0


class FairLimiter:
    """At most `places` at once. At most `per_key` requests of one key are among them or next in the queue: the others let other keys pass.

    For one event loop.
    """

    def __init__(self, places: int, per_key: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._per_key = per_key
        self._shares: dict[str, _Share] = {}

    @contextlib.asynccontextmanager
    async def place(self, key: str, seconds: float) -> AsyncIterator[bool]:
        """Wait for a turn, and yield whether the key has no other request here. Raises Busy after `seconds`; nothing has been done then."""
        share = self._shares.setdefault(key, _Share(self._per_key))
        share.requests += 1
        try:
            await self._enter(share, seconds)
            try:
                yield share.requests == 1
            finally:
                self._places.release()
                share.turns.release()
        finally:
            share.requests -= 1
            if not share.requests:
                del self._shares[key]

    async def _enter(self, share: _Share, seconds: float) -> None:
        if not (share.turns.locked() or self._places.locked()):
            # Nothing to wait for, and so nothing to time or to give back.
            await share.turns.acquire()
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout(seconds), contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(share.turns)
                await self._places.acquire()
                stack.pop_all()
        except TimeoutError:
            raise Busy("the service is busy, and there was no turn in time; nothing was done, try again") from None


@dataclass
class Work:
    """The queues of one service process. Together they have fewer places than an engine has connections (see PostgresEngine).

    With `reads_at_once`, short reads run on the event loop.
    """

    reads_at_once: bool = False
    _threads_until: float = -math.inf

    reads: FairLimiter = field(default_factory=lambda: FairLimiter(6, 4))
    searches: FairLimiter = field(default_factory=lambda: FairLimiter(4, 2))
    writes: FairLimiter = field(default_factory=lambda: FairLimiter(6, 4))
    large_bodies: FairLimiter = field(default_factory=lambda: FairLimiter(4, 1))
    body_bytes: int = 0
    answer_bytes: Counter[str] = field(default_factory=Counter)
    refused_at: float = -math.inf
    refusal: Unavailable | None = None
    """The last request that the storage refused; `refused_at` is on the monotonic clock."""

    @cached_property
    def _threads(self) -> tuple[anyio.CapacityLimiter, anyio.CapacityLimiter]:
        # Callers of `run` already have a place.
        return anyio.CapacityLimiter(ADMISSIONS), anyio.CapacityLimiter(math.inf)

    async def admit(self, fn: Callable[[float | None], T]) -> T:
        """Run the admission of a request. `fn` takes its most seconds, and raises Busy after them without having done anything."""
        return await self._at_once(fn, lambda: anyio.to_thread.run_sync(fn, None, limiter=self._threads[0]))

    async def run(self, fn: Callable[[], T]) -> T:
        """Run a function on a thread. The caller must have a place."""
        return await anyio.to_thread.run_sync(fn, limiter=self._threads[1])

    async def read(self, fn: Callable[[float], T]) -> T:
        """Do as `admit` does for a short read. The caller must have a place."""
        return await self._at_once(fn, lambda: self.run(lambda: fn(math.inf)))

    async def _at_once(self, fn: Callable[[float], T], on_thread: Callable[[], Awaitable[T]]) -> T:
        if self.reads_at_once and time.monotonic() >= self._threads_until:
            try:
                return fn(AT_ONCE_SECONDS)
            except Busy:
                self._threads_until = time.monotonic() + THREADS_SECONDS
        return await on_thread()

    @contextlib.contextmanager
    def sending(self, key: str, size: int) -> Iterator[None]:
        """Count the bytes of an answer to a key while it is sent."""
        self.answer_bytes[key] += size
        try:
            yield
        finally:
            self.answer_bytes[key] -= size

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts the bytes of a request's body. It raises Busy when all bodies together are too large."""
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
