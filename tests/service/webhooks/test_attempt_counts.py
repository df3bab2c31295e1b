"""What pages and metrics say of the attempts of a day: counted where they are made, by the hour, and written down together."""

from __future__ import annotations

import pytest

from crmctl.service.faults import Unavailable
from crmctl.service.store import deliveries, webhooks
from crmctl.service.store.deliveries import CountedAttempts, DayOfEndpoint, read_figures
from crmctl.service.webhooks.delivery_jobs import AttemptTally
from tests.support.deliveries import Bench
from tests.support.receiver import Receiver


def day_of(bench: Bench, endpoint: str) -> DayOfEndpoint:
    return bench.engine.read(lambda tx: deliveries.last_day(tx, now=bench.clock.now()))[endpoint]


def count(bench: Bench, endpoint: str, hours_ago: float, seconds: float, outcomes: list[bool]) -> None:
    at = bench.clock.now() - hours_ago * 3600
    for succeeded in outcomes:
        counted = {CountedAttempts.of(endpoint, at, seconds, succeeded): 1}
        bench.engine.write(lambda tx, counted=counted: deliveries.add_counts(tx, counted))  # type: ignore[misc]


def test_the_attempts_of_a_day_are_counted_with_how_long_they_took(bench: Bench) -> None:
    one, other = (bench.endpoint(f"http://127.0.0.1:9/{name}")["id"] for name in ("one", "other"))
    assert (day_of(bench, one).rate, day_of(bench, one).median) == (None, None)
    count(bench, one, 0, 0.08, [True] * 18)
    count(bench, one, 22.9, 2.0, [True, True])
    count(bench, one, 3, 15.0, [False] * 5)
    count(bench, one, 26, 0.1, [False] * 9)
    count(bench, other, 0, 0.0, [False])
    day = day_of(bench, one)
    assert (day.tries, day.succeeded, day.rate) == (25, 20, "80 %")
    # Time classes say a fifth too much at most.
    assert (day.median, day.slowest) == ("91 ms", "2.0 s")
    assert (day_of(bench, other).rate, day_of(bench, other).median) == ("0 %", None)
    figures = bench.engine.read(lambda tx: read_figures(tx, now=bench.clock.now()))
    assert (figures["delivery_attempts_day"], figures["delivery_attempts_failed_day"]) == (26, 6)
    bench.engine.write(lambda tx: deliveries.forget_counts(tx, bench.clock.now() - 24 * 3600))
    bench.engine.write(lambda tx: webhooks.delete_endpoint(tx, one))
    count(bench, one, 0, 0.1, [True])
    rows = bench.engine.read(lambda tx: tx.all("SELECT endpoint_id, attempts FROM webhook_hour"))
    assert rows == [(other, 1)]


@pytest.mark.parametrize(
    ("tries", "succeeded", "rate"), [(3000, 2999, "99.9 %"), (3000, 1, "0.1 %"), (3, 2, "66.7 %"), (7, 7, "100 %"), (7, 0, "0 %")]
)
def test_a_rate_says_all_or_nothing_only_where_it_is(tries: int, succeeded: int, rate: str) -> None:
    assert DayOfEndpoint(tries, succeeded).rate == rate


def test_a_tally_is_written_once_a_second_and_survives_a_database_that_is_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = AttemptTally(bench.context)
    bench.sender._tell = tally.add
    with Receiver(lambda _request, number: 500 if number == 0 else 200) as receiver:
        endpoint = bench.endpoint(receiver.url)["id"]
        bench.event()
        bench.deliver()
        assert tally.run_once() is False
        assert day_of(bench, endpoint).tries == 1
        bench.clock.advance(60)
        bench.deliver()
        with monkeypatch.context() as away:
            away.setattr(deliveries, "add_counts", _refuse)
            with pytest.raises(Unavailable):
                tally.run_once()
        bench.clock.advance(2)
        tally.run_once()
    day = day_of(bench, endpoint)
    assert (day.tries, day.succeeded) == (2, 1)
    assert day.median is not None


def _refuse(*_: object) -> None:
    raise Unavailable("the database is away")
