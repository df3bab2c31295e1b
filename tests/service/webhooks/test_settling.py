"""Tries are written, and events handed over, in few statements, with the same result as one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crmctl.service.context import new_id
from crmctl.service.store import change_log, webhooks
from crmctl.service.store.webhooks import Attempt, Due, Lane
from tests.support.deliveries import Bench

ALL = Lane("all", 100, False, 100)


class Counted:
    """A transaction that counts its statements."""

    def __init__(self, tx: Any) -> None:
        self._tx = tx
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def execute(self, sql: str, params: Any = ()) -> int:
        self.statements += 1
        return int(self._tx.execute(sql, params))

    def execute_many(self, sql: str, rows: Any) -> None:
        rows = list(rows)
        # Inserted rows are sent together.
        self.statements += min(1, len(rows)) if sql.endswith(")") else len(rows)
        self._tx.execute_many(sql, rows)

    def one(self, sql: str, params: Any = ()) -> Any:
        self.statements += 1
        return self._tx.one(sql, params)

    def all(self, sql: str, params: Any = ()) -> Any:
        self.statements += 1
        return self._tx.all(sql, params)


def count_statements(bench: Bench, work: Callable[[Any], Any]) -> int:
    def run(tx: Any) -> int:
        counting = Counted(tx)
        work(counting)
        return counting.statements

    return bench.engine.write(run)


def append_events(bench: Bench, count: int) -> None:
    """Append events that the dispatcher has not handed over yet."""

    def add(tx: Any) -> None:
        for number in range(count):
            change_log.append_event(tx, "record.created", {"number": number}, ids=new_id, now=bench.clock.now())

    bench.engine.write(add)


def claim(bench: Bench, most: int = 100) -> list[Due]:
    return bench.engine.write(lambda tx: webhooks.claim(tx, ALL, most, now=bench.clock.now()))


def ended_try(bench: Bench, due: Due, status: int | None = 200, again: float | None = None, after: float = 0.0) -> Attempt:
    error = None if status else "ConnectError: refused"
    return Attempt(due, bench.clock.now() + after, 0.01, status, error, {"a": "1"}, {}, "ok", again)


def settle(bench: Bench, tries: list[Attempt]) -> None:
    bench.engine.write(lambda tx: webhooks.settle(tx, tries, new_id))


def test_the_number_of_statements_does_not_depend_on_the_deliveries(bench: Bench) -> None:
    for _ in range(3):
        bench.endpoint("http://127.0.0.1:9/hook")
    append_events(bench, 40)
    now = bench.clock.now()
    assert count_statements(bench, lambda tx: webhooks.fan_out(tx, change_log.take_waiting(tx, 200), ids=new_id, now=now)) == 4
    found: list[Due] = []
    # Busy endpoints, free deliveries, one for each endpoint, and the leases.
    assert count_statements(bench, lambda tx: found.extend(webhooks.claim(tx, ALL, 200, now=now))) <= 6
    assert len(found) == 120
    # The attempts, the deliveries, and the health of each endpoint.
    assert count_statements(bench, lambda tx: webhooks.settle(tx, [ended_try(bench, due) for due in found], new_id)) == 5
    assert bench.engine.read(lambda tx: tx.all("SELECT state, count(*) FROM webhook_delivery GROUP BY state")) == [("succeeded", 120)]
    assert bench.engine.read(lambda tx: tx.one("SELECT count(*) FROM webhook_attempt")) == (120,)


def test_tries_of_all_kinds_are_written_together(bench: Bench) -> None:
    fine, gone = bench.endpoint("http://127.0.0.1:9/fine"), bench.endpoint("http://127.0.0.1:9/gone")
    append_events(bench, 5)
    bench.dispatch()
    now = bench.clock.now()
    claimed = claim(bench)
    first, second, third, fourth, lost = [due for due in claimed if due.endpoint == fine["id"]]
    bench.engine.write(lambda tx: webhooks.delete_endpoint(tx, gone["id"]))
    bench.engine.write(lambda tx: tx.execute("UPDATE webhook_delivery SET attempts = 2 WHERE id = ?", (lost.delivery,)))
    ended = [
        ended_try(bench, first, 204, after=3.0),
        ended_try(bench, second, None, again=now + 60, after=1.0),
        ended_try(bench, third, 500, after=2.0),
        ended_try(bench, fourth),
        ended_try(bench, lost),
        *(ended_try(bench, due) for due in claimed if due.endpoint == gone["id"]),
    ]
    settle(bench, ended)
    known = {delivery["id"]: delivery for delivery in bench.history(fine)}
    states = [known[due.delivery]["state"] for due in (first, second, third, fourth, lost)]
    # Another process has claimed the last delivery meanwhile, but this try is in its history too.
    assert states == ["succeeded", "pending", "failed", "succeeded", "pending"]
    assert [bool(known[due.delivery]["settledAt"]) for due in (first, second, third, fourth, lost)] == [True, False, True, True, False]
    assert known[second.delivery]["nextTryAt"] is not None
    histories = [bench.engine.read(lambda tx, due=due: webhooks.get_delivery(tx, due.delivery))["history"] for due in (second, lost)]  # type: ignore[misc]
    assert [(attempts[0]["status"], attempts[0]["error"]) for attempts in histories] == [(None, "ConnectError: refused"), (200, None)]
    # The try that ended last decides the endpoint's health; the deleted endpoint leaves nothing.
    assert bench.engine.read(lambda tx: webhooks.get_endpoint(tx, fine["id"]))["health"] == "working"
    assert bench.engine.read(lambda tx: tx.one("SELECT count(*) FROM webhook_attempt")) == (5,)
    settle(bench, ended[:2])
    assert bench.engine.read(lambda tx: tx.one("SELECT count(*) FROM webhook_attempt")) == (5,)


@pytest.mark.parametrize(("statuses", "health"), [((200, 503), "failing"), ((503, 200), "working"), ((200, 200), "working")])
@pytest.mark.parametrize("is_turned", [False, True])
def test_the_last_try_decides_the_health_of_an_endpoint(bench: Bench, statuses: tuple[int, int], health: str, is_turned: bool) -> None:
    endpoint = bench.endpoint("http://127.0.0.1:9/hook")
    append_events(bench, 2)
    bench.dispatch()
    waiting = claim(bench)[:: -1 if is_turned else 1]
    settle(bench, [ended_try(bench, due, status, None, after) for due, status, after in zip(waiting, statuses, (0, 1), strict=True)])
    assert bench.engine.read(lambda tx: webhooks.get_endpoint(tx, endpoint["id"]))["health"] == health
