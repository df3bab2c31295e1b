"""The backoff: longer each time, bounded, and different for each client."""

from __future__ import annotations

import re
from pathlib import Path

import crmctl
from crmctl.clock import Backoff


def test_gaps_grow_to_a_bound_and_only_their_share_is_up_to_chance() -> None:
    backoff = Backoff(first=0.5, longest=3.0)
    assert [backoff.gap(attempt, lambda: 1.0) for attempt in (1, 2, 3, 4, 500)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.gap(3, lambda: 0.0) == 1.0
    assert Backoff(jitter=0.0).gap(2) == 1.0
    assert len({backoff.gap(3) for _ in range(50)}) > 10


def test_nobody_else_computes_one() -> None:
    root = Path(crmctl.__file__).parent
    written = re.compile(r"sleep\([^)]*\*\*|gap \*=|gap \* ")
    found = [path.name for part in ("bulk", "client") for path in (root / part).rglob("*.py") if written.search(path.read_text())]
    assert found == []
