"""Workflows under faults: killed with -9 in every transaction, lost leases, several processes at once."""

from __future__ import annotations

import signal
import threading
from functools import partial
from typing import Any

import pytest

from crmctl.service.background import LOOPBACK
from crmctl.service.context import Context, ServiceSettings, new_id
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import workflows
from crmctl.service.store.engine import open_engine
from crmctl.service.store.tx import Tx
from crmctl.service.store.workflows import LeaseLostError
from crmctl.service.workflows.run_executor import Runs, start_due
from tests.support.campaigns import rest_in_campaigns
from tests.support.clock import FakeClock
from tests.support.receiver import Receiver
from tests.support.service import RunningService
from tests.support.warm_program import run_module
from tests.support.workflows import Machinery

WRITES = 6
"""Transactions of one run of the workflow below: hand over, claim, activity, before the call, after it, record."""

CLAIMED, CALLED = 2, 5
"""The transaction that claims the run, and the one after the call, whose loss leaves the outcome of the call unknown."""


@pytest.fixture
def work(crm: RunningService) -> Machinery:
    return Machinery(crm, TargetGuard(LOOPBACK))


def pass_time(work: Machinery, seconds: float) -> None:
    assert isinstance(work.crm.clock, FakeClock)
    work.crm.clock.advance(seconds)


def run_until_killed(work: Machinery, database: str, transaction: int) -> None:
    ended = run_module("tests.support.workflowchild", database, work.crm.clock.now(), transaction, packages=["service"])
    assert ended == (-signal.SIGKILL if transaction <= WRITES else 0)


# After the last transaction nothing is killed. Only an interrupted call depends on `repeat`.
KILLS = [(CALLED, False), (CALLED, True), *((number, False) for number in range(1, WRITES + 2) if number != CALLED)]


@pytest.mark.parametrize(("transaction", "repeat"), rest_in_campaigns(KILLS, 2))
def test_kills_lose_no_run_and_repeat_no_step_silently(work: Machinery, database: str, transaction: int, repeat: bool) -> None:
    with Receiver() as receiver:
        [workflow] = work.load(
            {
                "actions": [
                    {"type": "createActivity", "title": "called"},
                    {"type": "callUrl", "url": receiver.url, "repeat": repeat},
                    {"type": "createRecord", "object": "companies", "data": {"name": "made"}},
                ]
            }
        )
        work.record(email="a@b.c")
        run_until_killed(work, database, transaction)
        work.settle()
        if CLAIMED < transaction <= WRITES:
            assert work.events("workflow.") == [], "a lease was not respected"
        pass_time(work, 31)
        work.settle()
    [run] = work.runs(workflow)
    [(kind, payload)] = work.events("workflow.")
    companies = work.crm.client.get(f"/api/v1/objects/{work.crm.object_id('companies')}/records").json()["records"]
    assert [activity["title"] for activity in work.activities()] == ["called"]
    assert (kind, payload["error"]) == (f"workflow.{run['status']}", run["error"])
    if transaction == CALLED and not repeat:
        assert run["status"] == "failed"
        assert "interrupted" in run["error"]
        assert (len(receiver.received), len(companies)) == (1, 0)
        return
    assert (run["status"], len(companies)) == ("completed", 1)
    keys = [request.headers["idempotency-key"] for request in receiver.received]
    assert keys == [f"{run['id']}-1"] * (2 if repeat else 1)


def other_context(database: str, work: Machinery) -> Context:
    """Return the context of another process, from the database's point of view."""
    return Context(ServiceSettings(), open_engine(database), work.crm.clock, new_id)


def test_a_process_that_lost_a_run_writes_nothing_more(work: Machinery) -> None:
    [workflow] = work.load({"actions": [{"type": "createActivity", "title": "once"}]})
    work.start(workflow)
    slow = work.claim()
    pass_time(work, 31)
    work.settle()
    job = Runs(work.context, Caller(work.guard))
    job.work(slow)
    job.close()
    assert work.states(workflow) == ["completed"]
    assert [activity["title"] for activity in work.activities()] == ["once"]
    assert len(work.events("workflow.")) == 1
    with pytest.raises(LeaseLostError):
        work.crm.engine.write(lambda tx: workflows.finish_run(tx, slow, workflows.FAILED, "late", ids=new_id, now=work.crm.clock.now()))


def test_a_repeatedly_interrupted_run_fails(work: Machinery) -> None:
    [workflow] = work.load({})
    work.start(workflow)
    for _ in range(5):
        work.claim()
        work.settle()
        assert work.states(workflow) == ["running"]
        pass_time(work, 31)
    work.settle()
    assert work.states(workflow) == ["failed"]
    assert "interrupted 5 times" in work.runs(workflow)[0]["error"]
    assert work.activities() == []


def run_together(*jobs: Any) -> None:
    """Run the functions at the same moment and wait for all."""
    start = threading.Barrier(len(jobs))
    problems: list[BaseException] = []

    def run(job: Any) -> None:
        start.wait()
        try:
            job()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=[job]) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_several_processes_share_schedules_and_runs(work: Machinery, database: str) -> None:
    action = {"type": "createActivity", "title": "{{ schedule.dueAt }}"}
    ids = work.load(*({"trigger": "schedule", "cron": "* * * * *", "object": None, "actions": [action]} for _ in range(3)))
    contexts = [other_context(database, work) for _ in range(3)]
    for _ in range(4):
        pass_time(work, 60)
        run_together(*(partial(start_due, context) for context in contexts))
    assert [len(work.runs(workflow_id)) for workflow_id in ids] == [4, 4, 4]
    jobs = [Runs(context, Caller(work.guard)) for context in contexts]

    def drain(job: Runs) -> None:
        while job.run_once():
            pass
        job.close()

    run_together(*(lambda job=job: drain(job) for job in jobs))
    work.settle()
    for context in contexts:
        context.engine.close()
    assert [work.states(workflow_id) for workflow_id in ids] == [["completed"] * 4] * 3
    titles = [activity["title"] for activity in work.activities()]
    assert (len(titles), len(set(titles))) == (12, 4)
    assert len(work.events("workflow.completed")) == 12


def test_a_due_time_and_an_event_start_only_one_run(work: Machinery) -> None:
    [scheduled, reacting] = work.load({"trigger": "schedule", "cron": "* * * * *", "object": None}, {})
    pass_time(work, 60)
    start_due(work.context)
    work.crm.engine.write(lambda tx: tx.execute("UPDATE workflow SET next_due_at = 0 WHERE id = ?", (scheduled,)))
    start_due(work.context)
    assert len(work.runs(scheduled)) == 1
    work.record()
    work.dispatch()

    def again(tx: Tx) -> None:
        tx.execute("UPDATE change_log SET waiting = 1 WHERE event_id IS NOT NULL")

    work.crm.engine.write(again)
    work.settle()
    assert work.states(reacting) == ["completed"]
    assert len(work.activities()) == 2
