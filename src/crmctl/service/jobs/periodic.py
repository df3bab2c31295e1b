"""Jobs of the worker that have something to do every so many seconds, and those that write down what others gathered meanwhile."""

from __future__ import annotations

import threading
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.store.tx import Tx


class Gathered(Protocol):
    """A list or a counter."""

    def __len__(self) -> int: ...
    def __add__(self, other: Any, /) -> Any: ...
    def clear(self) -> None: ...


Held = TypeVar("Held", bound=Gathered)


class PeriodicJob:
    """`work` is called every so many seconds."""

    every: ClassVar[float]

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_at = 0.0

    def run_once(self) -> bool:
        now = self._context.clock.monotonic()
        if now >= self._next_at:
            self._next_at = now + self.every
            self.work()
        return False

    def close(self) -> None:
        """Nothing is kept open."""

    def work(self) -> None:
        raise NotImplementedError


class GatheringJob(PeriodicJob, Generic[Held]):
    """Holds what threads add to it, and writes it a second's worth at a time: nobody waits for it. A process that is killed loses that."""

    every = 1.0

    def __init__(self, context: Context, held: Held) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._held = held
        self.dropped = 0

    def close(self) -> None:
        """Write what is held, if the database is there."""
        try:
            self.work()
        except Unavailable:
            self.dropped += len(self._held)
            self._held.clear()

    def work(self) -> None:
        with self._lock:
            held, self._held = self._held, type(self._held)()
        if not held:
            return
        try:
            self._context.engine.write(lambda tx: self.write(tx, held))
        except BaseException:
            with self._lock:
                self._held = self.kept(held + self._held)
            raise

    def write(self, tx: Tx, held: Held) -> None:
        raise NotImplementedError

    def kept(self, held: Held) -> Held:
        """What is held on to while the database is away."""
        return held
