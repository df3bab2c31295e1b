"""`crmctl workflows`: refusals before the start, and the wait for the run that the command started, among other runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.client.runs import Followed, RunFollower
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.config.credentials import Credential
from tests.support.cli import expect_exit, spawn
from tests.support.clock import FakeClock
from tests.support.fakecrm import KEY, Answer, FakeCrm, FakeRequest
from tests.support.inprocess import run_here

ID = "0b4e1d52-6a37-4a3f-9d5e-1f2a3b4c5d6e"
OTHER = "1c5f2e63-7b48-4b40-8e6f-2a3b4c5d6e7f"
RUN = f"POST /workflows/{ID}/run"
RUNS = f"GET /workflows/{ID}/runs"
NAME = "Greet new people"


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def run_of(identity: str, created: float, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "id": identity, "status": status, "title": f"API: {NAME}", "triggerEvent": "api", "error": None,
        "createdAt": stamp(created), "startedAt": stamp(created), "completedAt": None, **more,
    }  # fmt: skip


class Service(FakeCrm):
    """A service with one workflow. `after(look, runs)` changes the list at each look after the start, counted from 0."""

    def __init__(self, runs: list[dict[str, Any]] | None = None, *, after: Callable[[int, list[Any]], None] | None = None) -> None:
        self.workflow = {"id": ID, "name": NAME, "enabled": True, "trigger": "record/created"}
        self.runs = runs or []
        self.after = after or (lambda look, runs: runs.append(run_of("mine", self.now())) if look == 0 else None)
        self.now: Callable[[], float] = time.time
        self.started: int | None = None
        super().__init__(
            {
                "GET /workflows": lambda asked: {"workflows": [self.workflow, {"id": OTHER, "name": "Other", "enabled": True}]},
                f"GET /workflows/{ID}": lambda asked: {"workflow": self.workflow},
                RUN: self._start,
                RUNS: self._list,
            }
        )

    def _start(self, asked: FakeRequest) -> Answer:
        self.started = 0
        return Answer(202, {"message": "Workflow run started", "workflowId": ID, "workflowName": NAME}, date=self.now())

    def _list(self, asked: FakeRequest) -> Answer:
        if self.started is not None:
            self.after(self.started, self.runs)
            self.started += 1
        start = int(asked.query["offset"])
        return Answer(200, {"runs": self.runs[start : start + int(asked.query["limit"])]}, date=self.now())


def test_workflows_by_name_and_by_id() -> None:
    with Service([run_of("r1", 0)]) as fake:
        assert run_here("workflows", "get", NAME, env=fake.env).ok().json() == fake.workflow
        assert run_here("workflows", "list", "-o", "ids", env=fake.env).ok().out.split() == [ID, OTHER]
        assert run_here("workflows", "runs", ID, env=fake.env).ok().json() == fake.runs
        assert "Greet new people" in run_here("workflows", "runs", "greet new", env=fake.env).exits(3).error()["hint"]
        fake.workflow["name"] = "Other"
        assert run_here("workflows", "run", "Other", env=fake.env).exits(2).error()["details"] == {"ids": [ID, OTHER]}
        assert fake.of(RUN) == []


def test_run_sends_the_given_data() -> None:
    with Service() as fake:
        started = run_here("workflows", "run", NAME, "--data", '{"a": 1.50}', env=fake.env).ok()
        assert started.json() == {"message": "Workflow run started", "workflowId": ID, "workflowName": NAME}
        run_here("workflows", "run", ID, "--data", "-", input='{"b": 2}', env=fake.env).ok()
        run_here("workflows", "run", ID, env=fake.env).ok()
        assert [asked.body for asked in fake.of(RUN)][2] == b""
        assert [asked.json for asked in fake.of(RUN)[:2]] == [{"data": {"a": 1.5}}, {"data": {"b": 2}}]
        assert fake.of(RUNS) == []
        run_here("workflows", "run", ID, "--data", "[1]", env=fake.env).exits(2)
        fake.routes[RUN] = lambda asked: Answer(202)
        assert run_here("workflows", "run", NAME, env=fake.env).ok().json() == {"workflowId": ID, "workflowName": NAME}


@pytest.mark.parametrize("words", [[NAME], [NAME, "--wait"], [ID, "--wait"], [NAME, "--dry-run"]])
def test_a_disabled_workflow_is_refused_before_anything_starts(words: list[str]) -> None:
    with Service() as fake:
        fake.workflow["enabled"] = False
        refused = run_here("workflows", "run", *words, env=fake.env).exits(9)
        assert refused.error()["code"] == "workflow_disabled"
        assert fake.of(RUN) == []


@pytest.mark.parametrize(("status", "code"), [(400, 9), (409, 9), (403, 4)])
def test_the_refusal_of_the_service_is_passed_on(status: int, code: int) -> None:
    with Service() as fake:
        fake.routes[RUN] = lambda asked: Answer(status, {"error": "workflow_disabled", "message": "The workflow is disabled"})
        for words in ([ID], [NAME, "--wait"]):
            refused = run_here("workflows", "run", *words, env=fake.env).exits(code)
            assert (refused.error()["code"], refused.error()["message"]) == ("workflow_disabled", "The workflow is disabled")


@pytest.mark.parametrize("words", [["--wait-timeout", "5"], ["--wait", "--wait-timeout", "-1"]])
def test_a_wait_timeout_that_makes_no_sense(words: list[str]) -> None:
    run_here("workflows", "run", NAME, *words).exits(2)


def test_waiting_ends_with_the_run() -> None:
    def after(look: int, runs: list[Any]) -> None:
        if look == 0:
            runs.insert(0, run_of("mine", time.time(), "queued"))
        runs[0]["status"] = ["queued", "running", "completed"][min(look, 2)]

    with Service([run_of("old", time.time() - 60)], after=after) as fake:
        waited = run_here("workflows", "run", NAME, "--wait", env=fake.env).ok()
        assert (waited.json()["id"], waited.json()["status"]) == ("mine", "completed")
        assert waited.err == ""
        assert len(fake.of(RUN)) == 1
        assert len(fake.of(RUNS)) == 4


def test_a_run_that_failed_is_shown_and_is_exit_7() -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[:] = [run_of("mine", time.time(), "failed", error="no such address")]

    with Service(after=after) as fake:
        failed = run_here("workflows", "run", ID, "--wait", env=fake.env).exits(7)
        assert failed.json()["id"] == "mine"
        assert failed.error()["code"] == "run_failed"
        assert "no such address" in failed.error()["message"]


def test_a_wait_that_runs_out_is_exit_8() -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[:] = [run_of("mine", time.time(), "some new word")]

    with Service(after=after) as fake:
        pending = run_here("workflows", "run", NAME, "--wait", "--wait-timeout", "1", env=fake.env).exits(8)
        assert pending.out == ""
        assert "some new word after 1 s" in pending.error()["message"]
        assert pending.error()["details"]["runs"][0]["id"] == "mine"


def test_a_person_sees_how_things_stand() -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[:] = [run_of("mine", time.time(), "running" if look == 0 else "completed")]

    with Service(after=after) as fake:
        code, shown = expect_exit(spawn("workflows", "run", NAME, "--wait", env={**fake.env, "NO_COLOR": "1"}))
    assert code == 0
    assert "run mine: running" in shown
    assert re.search(r"status +completed", shown)


def test_a_dry_run_shows_the_start_alone() -> None:
    with Service() as fake:
        shown = run_here("workflows", "run", NAME, "--wait", "--data", '{"a": 1}', "--dry-run", env=fake.env).ok().json()
        assert shown == {"dryRun": True, "method": "POST", "path": f"/api/v1/workflows/{ID}/run", "body": {"data": {"a": 1}}}
        assert fake.of(RUN) == []


def test_a_key_that_cannot_read_runs_starts_nothing() -> None:
    with Service() as fake:
        fake.routes[RUNS] = lambda asked: Answer(403, {"error": "insufficient_scope", "message": "needs workflows:read"})
        assert run_here("workflows", "run", NAME, "--wait", env=fake.env).exits(4).error()["requiredScope"] == "workflows:read"
        assert fake.of(RUN) == []


NOW = 1_800_000_000.4


class Scene:
    """A follower on a clock that the test moves; crmctl's clock is an hour behind the service's."""

    def __init__(self, fake: Service) -> None:
        self.clock = FakeClock(NOW)
        fake.now = lambda: self.clock.now() + 3600
        self.fake = fake
        self.notes: list[str] = []
        session = Session(fake.origin, Credential(KEY, "test", fake.origin), HttpTransport(), clock=self.clock)
        self.follower = RunFollower(Crm(session), ID, NAME, self.clock, note=self.notes.append, tell=lambda text: None)

    def follow(self, seconds: float = 300) -> Followed:
        self.follower.look()
        self.follower.start(None)
        return self.follower.follow(seconds)

    def at(self, seconds: float) -> float:
        """Return a moment of the service's clock, counted from the request."""
        return NOW + 3600 + seconds


def followed(after: Callable[[int, list[Any]], None], runs: list[Any] | None = None, seconds: float = 300) -> tuple[Followed, Scene]:
    with Service(runs, after=after) as fake:
        scene = Scene(fake)
        return scene.follow(seconds), scene


AT = NOW + 3600


@pytest.mark.parametrize(
    "other",
    [
        run_of("other", AT, "failed", triggerEvent="record/created", title="Ada"),
        run_of("other", AT, "failed", triggerEvent="schedule"),
        run_of("other", AT, "failed", title="API: Something else"),
        run_of("other", AT - 20, "failed"),
        run_of("other", AT + 20, "failed"),
    ],
    ids=["event", "schedule", "title", "before", "after"],
)
@pytest.mark.parametrize("first", [True, False])
def test_runs_of_other_clients_are_ignored(other: dict[str, Any], first: bool) -> None:
    def after(look: int, runs: list[Any]) -> None:
        if look == 0:
            mine = run_of("mine", AT + 0.2, "running")
            runs[:] = [dict(other), mine] if first else [mine, dict(other)]
        if look == 3:
            next(run for run in runs if run["id"] == "mine")["status"] = "completed"

    found, _ = followed(after, [run_of("old", AT - 100, "failed")])
    assert [run.id for run in found.runs] == ["mine"]
    assert found.ended
    assert found.failed is None


def test_several_runs_of_one_moment_must_all_complete() -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[:] = [run_of("a", AT, "completed"), run_of("b", AT + 0.3, "running" if look < 4 else "failed", error="broken")]

    found, scene = followed(after)
    assert (found.ended, {run.id for run in found.runs}) == (True, {"a", "b"})
    assert found.failed is not None
    assert found.failed.id == "b"
    assert len(scene.notes) == 1
    assert "cannot be told apart" in scene.notes[0]


def test_the_nearest_of_late_runs_is_chosen() -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[:] = [run_of("later", AT + 30, "failed"), run_of("mine", AT + 5, "completed")]

    found, scene = followed(after)
    assert [run.id for run in found.runs] == ["mine"]
    assert "mine is the one" in scene.notes[0]


@pytest.mark.parametrize(("status", "failed"), [("Successful", False), ("ok", False), ("Timed-Out", True), ("killed", True)])
def test_other_words_of_success_and_failure_end_the_wait(status: str, failed: bool) -> None:
    found, _ = followed(lambda look, runs: runs.__setitem__(slice(None), [run_of("mine", AT, status)]))
    assert (found.ended, found.failed is not None) == (True, failed)


def test_earlier_runs_are_never_chosen_even_with_strange_times() -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[0]["status"] = "failed"
        if look == 2:
            runs.append(run_of("mine", AT))

    found, _ = followed(after, [run_of("old", AT + 0.1, "running")])
    assert [run.id for run in found.runs] == ["mine"]


def test_a_service_whose_times_make_no_sense_is_believed_in_the_end() -> None:
    found, scene = followed(lambda look, runs: runs.__setitem__(slice(None), [run_of("mine", 1_000_000)]))
    assert [run.id for run in found.runs] == ["mine"]
    assert 15 <= scene.clock.now() - NOW < 25


@pytest.mark.parametrize("missing", ["createdAt", "title", "triggerEvent", "startedAt"])
def test_missing_fields_of_a_run_do_not_matter(missing: str) -> None:
    def after(look: int, runs: list[Any]) -> None:
        runs[:] = [{key: value for key, value in run_of("mine", AT).items() if key != missing}]

    assert [run.id for run in followed(after)[0].runs] == ["mine"]


def test_the_run_is_found_again_when_many_newer_ones_push_it_down_the_list() -> None:
    def after(look: int, runs: list[Any]) -> None:
        if look == 0:
            runs.insert(0, run_of("mine", AT, "running"))
        if look == 1:
            runs[:0] = [run_of(f"new{number}", AT + 1000 - number, "failed") for number in range(150)]
            runs[150]["status"] = "completed"

    found, _ = followed(after, [run_of(f"old{number}", AT - 100 - number) for number in range(300)])
    assert ([run.id for run in found.runs], found.ended) == (["mine"], True)


def test_trouble_on_the_way_does_not_end_the_wait_and_looks_are_gentle() -> None:
    with Service() as fake:
        scene = Scene(fake)
        scene.follower.look()
        scene.follower.start(None)
        looks = 0

        def troubled(asked: FakeRequest) -> Answer:
            nonlocal looks
            looks += 1
            if looks < 20:
                return Answer(500, {"error": "internal", "message": "try later"}, date=fake.now())
            return Answer(200, [run_of("mine", AT)], date=fake.now())

        fake.routes[RUNS] = troubled
        found = scene.follower.follow(300)
        assert ([run.id for run in found.runs], found.ended) == (["mine"], True)
        assert max(scene.clock.slept) == 5.0
        assert scene.clock.now() - NOW > 60
