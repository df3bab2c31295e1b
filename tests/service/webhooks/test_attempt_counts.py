"""Summaries of an endpoint's newest attempts, as the pages show them."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.service.context import new_id
from crmctl.service.store import webhooks
from crmctl.service.store.webhooks import UNPROVEN, Attempt, recent_attempts
from tests.support.deliveries import Bench


def attempt(bench: Bench, endpoint: str, outcomes: list[tuple[int | None, float]]) -> None:
    def run(tx: Any) -> None:
        now = bench.clock.now()
        for status, seconds in outcomes:
            webhooks.send_test(tx, endpoint, ids=new_id, now=now)
            tx.execute("UPDATE webhook_endpoint SET failing_since = NULL, succeeded_at = NULL")
            [due] = webhooks.claim(tx, UNPROVEN, 9, now=now)
            webhooks.settle(tx, [Attempt(due, now, seconds, status, None, {}, {}, "")], new_id)

    bench.engine.write(run)


def recent(bench: Bench, endpoint: str) -> dict[str, Any]:
    return bench.engine.read(lambda tx: recent_attempts(tx, endpoint))


def test_the_newest_attempts_are_summarized(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "RECENT", 25)
    one, other = (bench.endpoint(f"http://127.0.0.1:9/{name}")["id"] for name in ("one", "other"))
    assert recent(bench, one) == {"tries": 0, "succeeded": 0, "rate": None, "median": None, "slowest": None}
    attempt(bench, one, [(503, 0.1)] * 9)
    attempt(bench, one, [(200, 0.0806)] * 18 + [(204, 2.04)] * 2 + [(None, 15.0)] * 3 + [(404, 0.5)] * 2)
    attempt(bench, other, [(500, 0.0)])
    assert recent(bench, one) == {"tries": 25, "succeeded": 20, "rate": "80 %", "median": "81 ms", "slowest": "2.0 s"}
    assert recent(bench, other) == {"tries": 1, "succeeded": 0, "rate": "0 %", "median": None, "slowest": None}


@pytest.mark.parametrize(
    ("tries", "succeeded", "rate"), [(3000, 2999, "99.9 %"), (3000, 1, "0.1 %"), (3, 2, "66.7 %"), (7, 7, "100 %"), (7, 0, "0 %")]
)
def test_rates_are_never_rounded_to_all_or_nothing(tries: int, succeeded: int, rate: str) -> None:
    assert webhooks._rate(succeeded, tries) == rate
