"""The thread that hands out batches never waits longer than it means to."""

from __future__ import annotations

import signal
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crmctl.bulk_context import Interrupt
from crmctl.clock import SystemClock
from crmctl.write import sender
from tests.support.patience import PATIENCE


def test_a_signal_at_the_end_of_a_wait_does_not_make_it_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = 0.002
    monkeypatch.setattr(sender, "TICK_SECONDS", tick)
    options = SimpleNamespace(max_rows=100, concurrency=1)
    journal = SimpleNamespace(batches=list)
    context = SimpleNamespace(journal=journal, clock=SystemClock(), progress=None, interrupt=Interrupt(), options=options)
    delivery = sender.Delivery(cast(Any, context), cast(Any, SimpleNamespace(evidence=SimpleNamespace(can_count=True))))
    rescue = threading.Timer(PATIENCE, delivery._answers.put, [cast(Any, None)])  # which the delivery cannot read
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    rescue.start()
    try:
        for turn in range(600):
            signal.setitimer(signal.ITIMER_REAL, 0.995 * tick + turn % 40 * tick / 1000)
            delivery._receive()
    finally:
        rescue.cancel()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
