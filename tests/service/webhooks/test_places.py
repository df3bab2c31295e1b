"""Endpoints never use each other's places; the database counts them over all processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from crmctl.service.background import LOOPBACK
from crmctl.service.faults import Failures
from crmctl.service.jobs import worker
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import webhooks
from crmctl.service.store.engine import open_engine
from crmctl.service.store.webhooks import PROVEN, UNPROVEN, Lane
from tests.support.deliveries import Bench
from tests.support.patience import PATIENCE
from tests.support.receiver import SLOW_HANDSHAKE, ByteReceiver, Received, Receiver, drip


@contextmanager
def working(bench: Bench) -> Iterator[None]:
    """Run the jobs of one process in threads until the block ends."""
    jobs, leaving = bench.jobs(), threading.Event()

    def work(job: Any) -> None:
        while not leaving.is_set():
            if not job.run_once():
                leaving.wait(0.02)
        job.close()

    threads = [threading.Thread(target=work, args=[job], daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leaving.set()
        for thread in threads:
            thread.join(PATIENCE)


def hanging(release: threading.Event) -> Any:
    def answer(request: Received, number: int) -> int:
        release.wait(PATIENCE)
        return 200

    return answer


def test_an_endpoint_gets_its_events_next_to_hanging_and_dead_ones(bench: Bench) -> None:
    release = threading.Event()
    with ExitStack() as stack:
        slow = [stack.enter_context(Receiver(hanging(release))) for _ in range(18)]
        dripping = stack.enter_context(ByteReceiver(drip(b"HTTP/1.1 200 OK\r\nx: ", b"a", 1)))
        shaking = stack.enter_context(ByteReceiver(drip(*SLOW_HANDSHAKE, 1)))
        redirecting = stack.enter_context(Receiver(lambda request, number: 302))
        healthy = stack.enter_context(Receiver())
        slow_tls = shaking.url.replace("http:", "https:")
        for url in [*(receiver.url for receiver in slow), dripping.url, slow_tls, redirecting.url, "http://127.0.0.1:9/dead"]:
            bench.endpoint(url)
        bench.endpoint(healthy.url)
        for number in range(40):
            bench.event(number=number)
        stack.callback(release.set)
        with working(bench):
            received = healthy.wait_for(40)
            release.set()
            dripping.__exit__()
            shaking.__exit__()
        assert len({request.headers["webhook-id"] for request in received}) == 40
        assert shaking.accepted >= 1
        assert redirecting.received


def make_proven(bench: Bench, endpoint: dict[str, Any], receiver: Receiver) -> None:
    bench.event()
    bench.deliver()
    assert [delivery["state"] for delivery in bench.history(endpoint)] == ["succeeded"]
    receiver.received.clear()


@pytest.mark.parametrize(("lane", "places"), [(PROVEN, 8), (UNPROVEN, 1)])
def test_the_places_of_an_endpoint_are_counted_over_all_processes(bench: Bench, database: str, lane: Lane, places: int) -> None:
    with Receiver() as receiver:
        endpoint = bench.endpoint(receiver.url)
        if lane is PROVEN:
            make_proven(bench, endpoint, receiver)
    for number in range(20):
        bench.event(number=number)
    with ExitStack() as stack, ThreadPoolExecutor(4) as processes:
        engines = [open_engine(database) for _ in range(4)]
        for engine in engines:
            stack.callback(engine.close)
        start = threading.Barrier(4)

        def claim(engine: Any) -> list[webhooks.Due]:
            start.wait()
            return engine.write(lambda tx: webhooks.claim(tx, lane, 32, now=bench.clock.now()))

        claimed = [due for found in processes.map(claim, engines) for due in found]
    assert len({due.delivery for due in claimed}) == len(claimed) == places


def test_places_of_a_dead_process_return_when_its_leases_end(bench: Bench) -> None:
    bench.endpoint("http://127.0.0.1:9/hook")
    for number in range(3):
        bench.event(number=number)

    def claim() -> list[webhooks.Due]:
        return bench.engine.write(lambda tx: webhooks.claim(tx, UNPROVEN, 8, now=bench.clock.now()))

    assert [len(claim()), len(claim())] == [1, 0]
    bench.clock.advance(30)
    assert len(claim()) == 1


def test_a_failing_endpoint_loses_its_places_until_its_next_success(bench: Bench) -> None:
    status = [200]
    with Receiver(lambda request, number: status[0]) as receiver:
        endpoint = bench.endpoint(receiver.url)

        def lanes() -> list[int]:
            """Return how many deliveries can be claimed in each lane."""
            for number in range(10):
                bench.event(number=number)
            found = []
            for lane in (PROVEN, UNPROVEN):
                due = bench.engine.write(lambda tx, lane=lane: webhooks.claim(tx, lane, 32, now=bench.clock.now()))  # type: ignore[misc]
                found.append(len(due))
            bench.clock.advance(31)
            return found

        assert lanes() == [0, 1]
        bench.deliver()
        assert lanes() == [8, 0]
        status[0] = 503
        bench.deliver()
        assert lanes() == [0, 1]
        status[0] = 200
        bench.deliver()
        assert lanes() == [8, 0]
        # A changed address starts as unproven.
        changed = {"url": f"{receiver.url}/new"}
        bench.engine.write(lambda tx: webhooks.update_endpoint(tx, endpoint["id"], changed, now=bench.clock.now()))
        assert lanes() == [0, 1]


def test_endpoints_take_turns(bench: Bench) -> None:
    """Endpoints with the fewest deliveries under way come first, so a long queue of one endpoint delays no other."""
    with Receiver() as receiver:
        endpoints = [bench.endpoint(receiver.url) for _ in range(3)]
        bench.event()
        bench.deliver()
        for number in range(20):
            bench.event(number=number)
        claimed = [bench.engine.write(lambda tx: webhooks.claim(tx, PROVEN, 4, now=bench.clock.now())) for _ in range(len(endpoints))]
    turns = [{due.endpoint for due in found} for found in claimed]
    assert [len(turn) for turn in turns] == [1, 1, 1]
    assert set().union(*turns) == {endpoint["id"] for endpoint in endpoints}


def test_a_place_is_free_again_after_each_of_many_tries(bench: Bench) -> None:
    with Receiver() as receiver:
        bench.endpoint(receiver.url)
        for number in range(100):
            bench.event(number=number)
        with working(bench):
            receiver.wait_for(100)


def test_a_failed_delivery_job_is_reported_and_returns_its_place(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    class Broken(Caller):
        def post(self, *unused: Any) -> Any:
            tries.append(unused)
            raise RuntimeError("a bug")

    monkeypatch.setattr(worker, "FAILURES", Failures())
    bench.endpoint("http://127.0.0.1:9/hook")
    bench.event()
    bench.caller = Broken(TargetGuard(LOOPBACK))
    jobs = bench.jobs()
    for _ in range(40):
        for job in jobs:
            job.run_once()
        bench.clock.advance(31)
    for job in jobs:
        job.close()
    assert len(tries) == 40
    assert capsys.readouterr().err.count("RuntimeError: a bug") == 1
