"""Limits of concurrent work: how many requests run at once, in which order, and that no place is ever lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from crmctl.service.faults import Busy
from crmctl.service.http import turns
from crmctl.service.http.turns import FairLimiter, Work


class Crowd:
    """Tasks that wait for places of one limiter; `order` lists them as they get one."""

    def __init__(self, places: int, per_key: int) -> None:
        self.limiter = FairLimiter(places, per_key)
        self.order: list[str] = []
        self.working: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def work(self, name: str, seconds: float = 60.0) -> None:
        """Hold a place until `end`; `name` is a key and a number."""
        self._ends[name] = asyncio.Event()
        async with self.limiter.place(name[0], seconds):
            self.order.append(name)
            self.working.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.working.remove(name)

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def run_play(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(play())


def test_a_place_shows_whether_its_key_has_no_other() -> None:
    async def play() -> None:
        limiter = FairLimiter(3, 1)
        async with limiter.place("a", 60.0) as first:
            later = asyncio.create_task(enter(limiter))
            async with limiter.place("b", 60.0) as other:
                await settle()
                third = asyncio.create_task(enter(limiter))
                await settle()
        assert (first, other) == (True, True)
        assert (await later, await third) == (False, True)
        limiter = FairLimiter(3, 2)
        async with limiter.place("a", 60.0) as first, limiter.place("a", 60.0) as second:
            assert (first, second) == (True, False)

    async def enter(limiter: FairLimiter) -> bool:
        async with limiter.place("a", 60.0) as is_alone:
            return is_alone

    run_play(play)


def test_keys_take_turns_within_their_share() -> None:
    async def play() -> None:
        crowd = Crowd(places=3, per_key=2)
        tasks = [asyncio.create_task(crowd.work(name)) for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1")]
        await settle()
        assert crowd.order == ["a1", "a2", "b1"]
        await crowd.end("a1")
        assert crowd.order[3:] == ["b2"]
        await crowd.end("b1")
        assert crowd.order[4:] == ["c1"]
        await crowd.end("a2")
        assert crowd.order[5:] == ["a3"]
        await crowd.end("c1")
        assert crowd.order[6:] == ["a4"]
        for name in list(crowd.working):
            await crowd.end(name)
        await asyncio.gather(*tasks)

    run_play(play)


def test_a_task_that_gives_up_leaves_the_queue_without_a_place() -> None:
    async def play() -> None:
        crowd = Crowd(places=1, per_key=1)
        first = asyncio.create_task(crowd.work("a1"))
        await settle()
        with pytest.raises(Busy, match="nothing was done"):
            await crowd.work("b1", seconds=0.01)
        cancelled = asyncio.create_task(crowd.work("b2"))
        last = asyncio.create_task(crowd.work("c1"))
        await settle()
        cancelled.cancel()
        await settle()
        await crowd.end("a1")
        assert crowd.order == ["a1", "c1"]
        await crowd.end("c1")
        await asyncio.gather(first, last)

    run_play(play)


@pytest.mark.parametrize("steps", range(5))
def test_a_place_granted_during_cancellation_is_returned(steps: int) -> None:
    async def play() -> None:
        crowd = Crowd(places=1, per_key=1)
        holder = asyncio.create_task(crowd.work("a1"))
        await settle()
        waiting = asyncio.create_task(crowd.work("b1"))
        await settle()
        crowd._ends["a1"].set()
        for _ in range(steps):
            await asyncio.sleep(0)
        waiting.cancel()
        await settle()
        another = asyncio.create_task(crowd.work("c1"))
        await settle()
        assert crowd.working == ["c1"]
        await crowd.end("c1")
        await asyncio.gather(holder, another)

    run_play(play)


def test_bodies_that_are_too_large_together_are_refused_and_no_longer_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_BODY_BYTES", 100)
    work = Work()
    with work.body() as one:
        one(60)
        with work.body() as other:
            other(30)
            with pytest.raises(Busy, match="too many large requests"):
                other(30)
        assert work.body_bytes == 60
        one(40)
    assert work.body_bytes == 0
