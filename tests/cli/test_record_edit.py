"""`records edit` sends the changes an editor made to the text of a record, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.transport import HttpTransport, Request, Response
from crmctl.errors import NetworkError
from crmctl.plan.edit import Editing
from tests.cli.conftest import requests_of
from tests.support.cli import Result, expect_exit, run_crmctl, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService

DATA = {"email": "ada@acme.com", "score": 36, "notes": "007", "tags": ["a", "no"], "address": {"street": "St. James 1", "city": "Paris"}}


@pytest.fixture
def ada(crm: RunningService) -> str:
    path = f"/api/v1/objects/{crm.object_id('people')}/records"
    made: dict[str, Any] = crm.client.post(path, json={"data": DATA}).json()
    crm.log.clear()
    return str(made.get("record", made)["id"])


def editor(tmp_path: Path, code: str) -> str:
    """An editor that runs Python code on the text `t` of the file."""
    script = tmp_path / "editor.py"
    script.write_text(f"import sys, pathlib\np = pathlib.Path(sys.argv[1])\nt = p.read_text()\n{code}\np.write_text(t)\n")
    return f"{sys.executable} {script}"


def edit(tmp_path: Path, code: str, *options: str) -> Result:
    return run_crmctl("records", "edit", "people", "email=ada@acme.com", *options, env={"EDITOR": editor(tmp_path, code), "VISUAL": None})


def data_of(crm: RunningService, record: str) -> dict[str, Any]:
    found: dict[str, Any] = crm.client.get(f"/api/v1/objects/{crm.object_id('people')}/records/{record}").json()
    data: dict[str, Any] = found.get("record", found)["data"]
    return data


def test_only_changes_are_sent(crm: RunningService, ada: str, tmp_path: Path) -> None:
    code = "t = t.replace('city: Paris', 'city: Rome').replace('score: 36', 'score: 37.50').replace('job_title: null', 'job_title: 0815')"
    shown = edit(tmp_path, code, "--dry-run").ok().json()
    assert shown["body"] == {"data": {"address": {"street": "St. James 1", "city": "Rome"}, "score": 37.5, "job_title": "0815"}}
    edit(tmp_path, code).ok()
    assert data_of(crm, ada) == DATA | {"address": DATA["address"] | {"city": "Rome"}, "score": 37.5, "job_title": "0815"}  # type: ignore[operator]
    crm.log.clear()
    assert "nothing was sent" in edit(tmp_path, "t = t.replace('notes: ', '# a remark\\nnotes:   ')").ok().err
    assert {method for method, _ in requests_of(crm)} == {"GET"}
    edit(tmp_path, "t = t.replace('score: 37.5', 'score:').replace('notes:', '#')").ok()
    assert {"score", "notes"} & {slug for slug, value in data_of(crm, ada).items() if value is not None} == {"notes"}
    assert list((Path(run_crmctl("config", "path").ok().out.strip()).parent).rglob("people-*.yaml")) == []


def test_unsendable_text_is_kept_and_named(crm: RunningService, ada: str, tmp_path: Path) -> None:
    broken = edit(tmp_path, "t += 'tags: [a'").exits(2).error()
    assert "line " in broken["message"]
    assert "your text is in" in broken["hint"]
    assert "tags: [a" in Path(broken["hint"].rpartition(" in ")[2]).read_text()
    assert "there is no attribute scor" in edit(tmp_path, "t = t.replace('score: 36', 'scor: 37')").exits(2).error()["message"]
    assert "score" in edit(tmp_path, "t = t.replace('score: 36', 'score: many')").exits(9).error()["message"]
    assert edit(tmp_path, "sys.exit(3)").exits(130).error()["message"].endswith("ended with 3; nothing was sent")
    assert "empty" in edit(tmp_path, "t = ''").exits(130).error()["message"]
    refused = edit(tmp_path, "t = t.replace('email: ada@acme.com', 'email: nobody')").exits(9).error()
    assert "your text is in" in refused["hint"]
    assert data_of(crm, ada) == DATA


def test_another_clients_change_is_not_overwritten(crm: RunningService, ada: str, tmp_path: Path) -> None:
    url = f"{crm.base_url}/api/v1/objects/{crm.object_id('people')}/records/{ada}"
    head = {"Authorization": f"Bearer {crm.key}"}
    other = f"import httpx; httpx.patch({url!r}, json={{'data': {{'score': 99}}}}, headers={head!r}).raise_for_status()"
    refused = edit(tmp_path, f"{other}\nt = t.replace('city: Paris', 'city: Rome')").exits(9).error()
    assert (refused["code"], "score" in refused["message"]) == ("changed_meanwhile", True)
    assert data_of(crm, ada) == DATA | {"score": 99}


def test_a_change_in_the_last_moment_is_not_overwritten(
    crm: RunningService, ada: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client saves between the last read and the write: crmctl names the version it changes."""
    look, turns = Editing._refuse_changed, []

    def looks(*given: Any) -> None:
        look(*given)
        turns.append(1)
        crm.client.patch(f"/api/v1/objects/{crm.object_id('people')}/records/{ada}", json={"data": {"score": 99}}).raise_for_status()

    monkeypatch.setattr(Editing, "_refuse_changed", looks)
    env = {"EDITOR": editor(tmp_path, "t = t.replace('score: 36', 'score: 40')"), "VISUAL": ""}
    refused = run_here("records", "edit", "people", ada, env=env).exits(9).error()
    assert (refused["code"], "score" in refused["message"], len(turns)) == ("changed_meanwhile", True, 1)
    assert data_of(crm, ada) == DATA | {"score": 99}


@pytest.mark.parametrize("somebody", [False, True], ids=["alone", "and somebody writes then"])
def test_a_lost_answer_does_not_look_like_another_clients_change(
    crm: RunningService, ada: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, somebody: bool
) -> None:
    """The service writes and the connection breaks; the first try made the version that the second one names outdated."""
    send, sent = HttpTransport.send, []

    def loses(transport: HttpTransport, request: Request) -> Response:
        answer = send(transport, request)
        if request.method == "PATCH":
            sent.append(answer.status)
            if len(sent) == 1:
                if somebody:
                    path = f"/api/v1/objects/{crm.object_id('people')}/records/{ada}"
                    crm.client.patch(path, json={"data": {"score": 99}}).raise_for_status()
                raise NetworkError("the connection was lost", outcome_unknown=True, retryable=True)
        return answer

    monkeypatch.setattr(HttpTransport, "send", loses)
    env = {"EDITOR": editor(tmp_path, "t = t.replace('score: 36', 'score: 40')"), "VISUAL": ""}
    done = run_here("records", "edit", "people", ada, env=env)
    assert sent == [200, 412]
    if somebody:
        error = done.exits(9).error()
        assert (error["code"], "nothing was sent" in error["message"]) == ("changed_meanwhile", False), "the first try was carried out"
    else:
        assert done.ok().json()["data"]["score"] == 40
    assert data_of(crm, ada) == DATA | {"score": 99 if somebody else 40}


def test_a_broken_text_comes_back_on_a_terminal(crm: RunningService, ada: str, tmp_path: Path) -> None:
    code = "t = t.replace('score: 36', 'score: [') if 'score: 36' in t else t.replace('score: [', 'score: 40')"
    terminal = spawn("records", "edit", "people", ada, env={"EDITOR": editor(tmp_path, code), "VISUAL": None})
    terminal.expect("line [0-9]+")
    terminal.expect("Edit it again")
    terminal.sendline("y")
    assert expect_exit(terminal)[0] == 0
    assert data_of(crm, ada)["score"] == 40
