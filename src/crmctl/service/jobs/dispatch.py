"""Hands every event of the outbox to the features that want it, once, in the transaction that marks it as handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from crmctl.service.context import Context
from crmctl.service.store import outbox
from crmctl.service.store.tx import Tx

BATCH = 200

Consumer = Callable[[Tx, Sequence[outbox.Event]], None]
"""Stores what follows from events; does nothing else."""


class Dispatcher:
    """A job of the worker."""

    def __init__(self, context: Context, consumers: Sequence[Consumer]) -> None:
        self._context = context
        self._consumers = consumers

    def run_once(self) -> bool:
        if not self._context.engine.read(outbox.is_waiting):
            return False
        return self._context.engine.write(self._dispatch)

    def close(self) -> None:
        """Nothing is kept open."""

    def _dispatch(self, tx: Tx) -> bool:
        events = outbox.take_waiting(tx, BATCH)
        for consumer in self._consumers if events else ():
            consumer(tx, events)
        return bool(events)
