"""`records edit` is a job of one row: killed at any step, or with lost answers, it writes once or not at all, and can be resumed."""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.support.cli import expect_exit, spawn
from tests.support.clock import FakeClock
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE, wait_until
from tests.support.service import RunningService, running_service
from tests.support.warm_program import run_module

DATA = {"email": "ada@acme.com", "score": 36, "address": {"street": "St. James 1", "city": "Paris"}}
EDITED = {**DATA, "score": 40, "address": {"street": "St. James 1", "city": "Rome"}}
BEFORE, AFTER = ["imaged:1", "begin:1", "begun:1"], ["answered:1", "settled:1"]
"""Steps of the journal before the write, and those after it."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("edited")) as running:
        yield running


@pytest.fixture
def crm(service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import sys, pathlib\np = pathlib.Path(sys.argv[1])\n"
        "p.write_text(p.read_text().replace('city: Paris', 'city: Rome').replace('score: 36', 'score: 40'))\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {editor}")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    yield service
    service.client.request("DELETE", f"{records(service)}/bulk", json={"ids": [one["id"] for one in stored(service)]}).raise_for_status()


@pytest.fixture
def ada(crm: RunningService) -> str:
    made = crm.client.post(records(crm), json={"data": DATA}).json()
    return str(made.get("record", made)["id"])


def records(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def stored(crm: RunningService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = crm.client.get(records(crm)).json()["records"]
    return found


def data_of(crm: RunningService) -> dict[str, Any]:
    [record] = stored(crm)
    return {slug: value for slug, value in record["data"].items() if value is not None}


def kept_texts() -> list[str]:
    return [path.read_text() for path in Path(os.environ["CRMCTL_STATE_DIR"]).glob("edits/*.yaml")]


def jobs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_here("bulk", "jobs", "--json").ok().json()
    return found


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_killed_edit_is_completed_once_and_undone(crm: RunningService, ada: str, point: str) -> None:
    assert run_module("tests.support.commandchild", point, "records", "edit", "people", ada) == -signal.SIGKILL
    assert data_of(crm) == (DATA if point in BEFORE else EDITED)
    assert run_here("bulk", "resume", "--last").ok().json()["updated"] == 1
    assert data_of(crm) == EDITED
    assert run_here("bulk", "undo", "last", "--yes").ok().json()["restored"] == 1
    assert data_of(crm) == DATA
    assert [(job["mode"], job["state"], job["rows"]) for job in jobs()] == [("update", "undone", 1)]


@pytest.mark.parametrize("point", [*BEFORE, AFTER[0]])
def test_a_killed_edit_overwrites_no_later_change(crm: RunningService, ada: str, point: str) -> None:
    assert run_module("tests.support.commandchild", point, "records", "edit", "people", ada) == -signal.SIGKILL
    crm.client.patch(f"{records(crm)}/{ada}", json={"data": {"job_title": "Byron"}}).raise_for_status()
    resumed = run_here("bulk", "resume", "--last")
    if point in BEFORE:
        error = resumed.exits(9).error()
        assert "another client changed the record while you edited it: job_title" in error["message"]
        assert ("crmctl records edit" in error["hint"], ["score: 40" in text for text in kept_texts()]) == (True, [True])
    else:
        assert resumed.ok().json()["updated"] == 1
    assert data_of(crm) == {**(DATA if point in BEFORE else EDITED), "job_title": "Byron"}


class Faults(ThreadingHTTPServer):
    """A proxy before the service.

    `patches` gives the fate of each PATCH and batch, the last one for all that follow: a status instead of it, `lost` before it, `late`
    (only the answer is lost) or `held` (the answer waits for `gate`). `dies`: after the first of them the proxy answers nothing.
    `versions`: the service has ETags.
    """

    daemon_threads = True

    def __init__(self, crm: RunningService, patches: list[str], *, versions: bool, dies: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.crm, self.patches, self.versions, self.dies = crm, patches, versions, dies
        self.sent: list[str] = []
        self.gate = threading.Event()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *args: object) -> None:
        self.gate.set()
        self.shutdown()
        super().__exit__(*args)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Faults
    LEFT_OUT: ClassVar = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}

    def _answer(self) -> None:
        faults, body = self.server, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = "good"
        if self.command == "PATCH" or self.path.endswith("/bulk"):
            faults.sent.append("If-Match" if "If-Match" in self.headers else "bare")
            fault = faults.patches[min(len(faults.sent), len(faults.patches)) - 1]
        elif faults.dies and faults.sent:
            fault = "lost"
        if fault.isdigit():
            self._send(int(fault), b'{"error":"told_to","message":"told to fail"}', {"content-type": "application/json"})
            return
        if fault != "lost":
            head = {name: value for name, value in self.headers.items() if name.lower() not in self.LEFT_OUT}
            answer = faults.crm.client.request(self.command, self.path, content=body, headers=head)
        if fault == "held":
            faults.gate.wait(PATIENCE)
        if fault in ("good", "held"):
            gone = self.LEFT_OUT | (set() if faults.versions else {"etag"})
            self._send(answer.status_code, answer.content, {name: it for name, it in answer.headers.items() if name not in gone})
            return
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()  # reset the connection
        self.close_connection = True

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PATCH = do_POST = _answer

    def log_message(self, *_: object) -> None: ...


def edit(faults: Faults, ada: str) -> Any:
    return run_here("records", "edit", "people", ada, "--base-url", faults.url, clock=FakeClock(1_900_000_000.0))


@pytest.mark.parametrize(
    ("fault", "versions"), [("500", True), ("503", True), ("429", True), ("lost", True), ("late", True), ("lost", False), ("late", False)]
)
def test_one_fault_on_the_way_and_it_is_written_once(crm: RunningService, ada: str, fault: str, versions: bool) -> None:
    with Faults(crm, [fault, "good"], versions=versions) as faults:
        done = edit(faults, ada).ok()
    assert (done.json()["id"], done.json()["data"]["score"], data_of(crm)) == (ada, 40, EDITED)
    assert set(faults.sent) == {"If-Match" if versions else "bare"}
    [job] = jobs()
    assert f"crmctl bulk undo {job['job']}" in done.err
    assert (job["state"], job["updated"], kept_texts()) == ("finished", 1, [])


REFUSALS = [("500", 7, 3), ("503", 7, 5), ("lost", 6, 5), ("422", 9, 1), ("403", 4, 1)]


@pytest.mark.parametrize(("fault", "code", "patches"), REFUSALS)
def test_an_unsent_edit_leaves_the_text_and_no_job(crm: RunningService, ada: str, fault: str, code: int, patches: int) -> None:
    with Faults(crm, [fault], versions=True) as faults:
        error = edit(faults, ada).exits(code).error()
    assert ("told to fail" in error["message"], len(faults.sent)) == (fault != "lost", patches)
    [text] = kept_texts()
    assert ("your text is in" in error["hint"], "score: 40" in text, data_of(crm), jobs()) == (True, True, DATA, [])


def test_a_limit_that_does_not_clear_ends_it_in_time(crm: RunningService, ada: str) -> None:
    with Faults(crm, ["429"], versions=True) as faults:
        error = run_here("records", "edit", "people", ada, "--base-url", faults.url, "--max-wait", "0").exits(5).error()
    assert ("your text is in" in error["hint"], len(faults.sent), data_of(crm), jobs()) == (True, 1, DATA, [])


@pytest.mark.parametrize("fault", ["lost", "late"])
def test_an_edit_in_doubt_is_settled_later(crm: RunningService, ada: str, fault: str) -> None:
    with Faults(crm, [fault], versions=True, dies=True) as faults:
        error = edit(faults, ada).exits(6).error()
        [job] = jobs()
        assert f"crmctl bulk resume {job['job']}" in error["hint"]
        assert (job["state"], job["inDoubt"], len(kept_texts())) == ("open", 1, 1)
        faults.dies, faults.patches = False, ["good"]
        assert run_here("bulk", "resume", job["job"], "--base-url", faults.url).ok().json()["updated"] == 1
    assert data_of(crm) == EDITED


WAITS = r"waiting up to 5 s for the answer of a request under way; Ctrl-C again"
CHANGES = {
    "edit": ("records", "edit", "people"),
    "update": ("bulk", "update", "people", "--filter", "score=36", "--set", "score=40", "--set", "address.city=Rome", "--yes"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_second_interrupt_leaves_the_write_in_doubt_at_once(crm: RunningService, ada: str, change: str) -> None:
    with Faults(crm, ["held", "good"], versions=True) as faults:
        words = [*CHANGES[change], *([ada] if change == "edit" else []), "--base-url", faults.url]
        terminal = spawn(*words)
        wait_until(lambda: bool(faults.sent))
        terminal.sendintr()
        terminal.expect(WAITS)
        terminal.sendintr()
        code, shown = expect_exit(terminal)
        [job] = jobs()
        assert (code, job["inDoubt"], f"crmctl bulk resume {job['job']}" in shown) == (130, 1, True)
        assert ("may have been written" in shown, len(kept_texts())) == ((True, 1) if change == "edit" else (False, 0))
        faults.gate.set()
        assert run_here("bulk", "resume", "--base-url", faults.url).ok().json()["updated"] == 1
    assert data_of(crm) == EDITED


def test_one_interrupt_waits_for_the_answer_and_reports_it(crm: RunningService, ada: str) -> None:
    with Faults(crm, ["held"], versions=True) as faults:
        terminal = spawn("records", "edit", "people", ada, "--base-url", faults.url)
        wait_until(lambda: bool(faults.sent))
        terminal.sendintr()
        terminal.expect(WAITS)
        faults.gate.set()
        code, shown = expect_exit(terminal)
    assert (code, "crmctl bulk undo" in shown, data_of(crm), kept_texts()) == (0, True, EDITED, [])


def test_an_interrupt_in_the_editor_is_for_the_editor(crm: RunningService, ada: str, tmp_path: Path) -> None:
    # A signal just before a read without a limit would wait for the read to end.
    editor = "trap 'echo noticed' INT; echo ready; until read -t 1 answer; do :; done; sed -i 's/score: 36/score: 40/' \"$1\"; exit $answer"
    (tmp_path / "editor.sh").write_text(editor)
    for answer, score in (("3", 36), ("0", 40)):
        terminal = spawn("records", "edit", "people", ada, env={"EDITOR": f"bash {tmp_path / 'editor.sh'}"})
        terminal.expect("ready")
        terminal.sendintr()
        terminal.expect("noticed")
        terminal.sendline(answer)
        code, shown = expect_exit(terminal)
        assert (code, "your text is in" in shown, data_of(crm)["score"]) == (130 if score == 36 else 0, score == 36, score)
    assert len(kept_texts()) == 1


def test_a_refused_edit_returns_to_the_editor_on_a_terminal(crm: RunningService, ada: str) -> None:
    with Faults(crm, ["422", "good"], versions=True) as faults:
        terminal = spawn("records", "edit", "people", ada, "--base-url", faults.url)
        terminal.expect("told to fail")
        terminal.expect("Edit it again")
        terminal.sendline("y")
        assert expect_exit(terminal)[0] == 0
    assert (data_of(crm), kept_texts()) == (EDITED, [])
