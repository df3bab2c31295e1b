"""stderr says in helpful words why the service or crmctl refused a row, not only a file of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.transport import HttpTransport, Request, Response
from crmctl.errors import NetworkError
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

TAKEN = "another record has this value"
INVALID = "not an email address"
BOTH = "email,score\nada@acme.com,1\n{},2\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("reasons")) as running:
        yield running


@pytest.fixture
def crm(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    yield service
    there = service.client.get(records(service), params={"limit": 100}).json()["records"]
    if there:
        service.client.request("DELETE", f"{records(service)}/bulk", json={"ids": [one["id"] for one in there]}).raise_for_status()


def records(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def person(crm: RunningService, email: str, **data: Any) -> str:
    made = crm.client.post(records(crm), json={"data": {"email": email, **data}}).raise_for_status().json()
    return str(made.get("record", made)["id"])


def imported(crm: RunningService) -> list[str]:
    Path("a.csv").write_text(BOTH.format("bob@acme.com"))
    person(crm, "bob@acme.com")
    return ["bulk", "import", "people", "a.csv"]


def imported_badly(crm: RunningService) -> list[str]:
    Path("a.csv").write_text(BOTH.format("bob"))
    return ["bulk", "import", "people", "a.csv", "--on-error", "continue"]


def imported_by_key(crm: RunningService) -> list[str]:
    person(crm, "eve@acme.com", phone="+442079460958")
    Path("a.csv").write_text("email,id\nada@acme.com,\neve@acme.com,{}\n".format(person(crm, "bob@acme.com")))
    return ["bulk", "import", "people", "a.csv", "--mode", "upsert"]


def planned(crm: RunningService) -> list[str]:
    words = imported(crm)
    run_here(*words, "--plan", "a.plan").ok()
    return ["bulk", "apply", "a.plan"]


def updated(crm: RunningService) -> list[str]:
    person(crm, "ada@acme.com", score=1)
    person(crm, "eve@acme.com")
    return ["bulk", "update", "people", "--filter", "score=1", "--set", "email=eve@acme.com", "--yes"]


def resumed(crm: RunningService) -> list[str]:
    person(crm, "bob@acme.com")
    Path("a.csv").write_text(BOTH.format("bob@acme.com"))
    run_here("bulk", "import", "people", "a.csv", env={"CRMCTL_API_KEY": crm.key_for(["objects:read", "records:read"])}).exits(4)
    return ["bulk", "resume", "--last", "--max-wait", "1"]


def undone_update(crm: RunningService) -> list[str]:
    person(crm, "ada@acme.com", score=1)
    run_here("bulk", "update", "people", "--filter", "score=1", "--set", "email=new@acme.com", "--yes").ok()
    person(crm, "ada@acme.com")
    return ["bulk", "undo", "last", "--yes"]


def undone_deletion(crm: RunningService) -> list[str]:
    person(crm, "ada@acme.com", score=1)
    person(crm, "bob@acme.com", score=1)
    run_here("bulk", "delete", "people", "--filter", "score=1", "--yes").ok()
    person(crm, "ada@acme.com")
    return ["bulk", "undo", "last", "--yes"]


def merged(crm: RunningService) -> None:
    for email in ("ada@acme.com", "a.lovelace@acme.com"):
        person(crm, email, name="Ada Lovelace", phone="+442079460958")
    run_here("bulk", "dedupe", "people", "--match", "phone", "--plan", "m.plan").ok()


def undone_merge(crm: RunningService) -> list[str]:
    merged(crm)
    run_here("bulk", "apply", "m.plan", "--yes").ok()
    left = {one["data"]["email"] for one in crm.client.get(records(crm)).json()["records"]}
    person(crm, ({"ada@acme.com", "a.lovelace@acme.com"} - left).pop())
    return ["bulk", "undo", "last", "--yes"]


def applied_merge(crm: RunningService) -> list[str]:
    merged(crm)
    there = crm.client.get(records(crm)).json()["records"]
    crm.client.patch(f"{records(crm)}/{there[0]['id']}", json={"data": {"score": 9}}).raise_for_status()
    return ["bulk", "apply", "m.plan", "--yes"]


def edited_since(crm: RunningService) -> list[str]:
    Path("a.csv").write_text(BOTH.format("bob@acme.com"))
    run_here("bulk", "import", "people", "a.csv").ok()
    there = crm.client.get(records(crm)).json()["records"]
    crm.client.patch(f"{records(crm)}/{there[0]['id']}", json={"data": {"score": 9}}).raise_for_status()
    return ["bulk", "undo", "last", "--yes"]


CASES: list[tuple[Callable[[RunningService], list[str]], str]] = [
    (imported, TAKEN), (imported_badly, INVALID), (imported_by_key, TAKEN), (planned, TAKEN), (updated, TAKEN), (resumed, TAKEN),
    (undone_update, TAKEN), (undone_deletion, TAKEN), (undone_merge, TAKEN), (applied_merge, "changed"),
    (edited_since, "--include-changed undoes those too"),
]  # fmt: skip


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(("prepare", "reason"), CASES, ids=[prepare.__name__ for prepare, _ in CASES])
def test_the_reason_is_on_stderr(crm: RunningService, prepare: Callable[[RunningService], list[str]], reason: str, output: str) -> None:
    done = run_here(*prepare(crm), "-o", output)
    assert done.code in (9, 10), done.err
    assert reason in done.err


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_finished_job_says_it_again(crm: RunningService, output: str) -> None:
    run_here(*imported(crm)).exits(10)
    assert TAKEN in run_here("bulk", "resume", "--last", "-o", output).exits(10).err


@pytest.mark.parametrize("words", [("delete", "people", "--filter", "score>=0"), ("undo", "last")], ids=["delete", "undo"])
def test_why_records_are_not_deleted_is_on_stderr(crm: RunningService, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    Path("a.csv").write_text(BOTH.format("bob@acme.com"))
    run_here("bulk", "import", "people", "a.csv").ok()
    send = HttpTransport.send

    def refuses(transport: HttpTransport, request: Request) -> Response:
        refusal = b'{"error": "locked", "message": "the record is locked by an audit"}'
        return Response(409, {"content-type": "application/json"}, refusal) if request.method == "DELETE" else send(transport, request)

    monkeypatch.setattr(HttpTransport, "send", refuses)
    assert "the record is locked by an audit" in run_here("bulk", *words, "--yes").exits(10).error()["message"]


def test_why_rows_are_in_doubt_is_on_stderr(crm: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.csv").write_text(BOTH.format("bob@acme.com"))
    send = HttpTransport.send

    def loses_answers_and_hides_records(transport: HttpTransport, request: Request) -> Response:
        answer = send(transport, request)
        if request.url.endswith("/bulk"):
            raise NetworkError("the line is cut", outcome_unknown=True)
        hides = "/records" in request.url
        return Response(403, {"content-type": "application/json"}, b'{"message": "not for you"}') if hides else answer

    monkeypatch.setattr(HttpTransport, "send", loses_answers_and_hides_records)
    error = run_here("bulk", "import", "people", "a.csv", "--settle", "0").exits(10).error()
    assert error["message"] == "not every row was written: 2 in doubt: the line is cut"


WORDS = {
    "403": (
        403,
        "application/json",
        b'{"error": "frozen", "message": "frozen until Monday"}',
        4,
        "frozen until Monday",
    ),
    "422": (422, "application/json", b'{"message": "invalid", "details": {"email": ["is in use"]}}', 9, "invalid: email: is in use"),
    "500": (500, "application/json", b'{"error": "shard", "message": "shard 7 is being moved"}', 7, "shard 7 is being moved"),
    "404": (404, "text/html", b"<h1>No such page</h1>", 3, "<h1>No such page</h1>"),
    "lost": (0, "", b"", 6, "the answer broke off"),
}
"""Refusals: status, type and body, with the exit code and the expected words."""

NOBODY = "01900000-0000-7000-8000-000000000001"


def repaired(crm: RunningService) -> list[str]:
    Path("a.csv").write_text(BOTH.format("bob@acme.com"))
    send, lost = HttpTransport.send, []

    def loses(transport: HttpTransport, request: Request) -> Response:
        answer = send(transport, request)
        if request.url.endswith("/bulk") and not lost:
            lost.append(request)
            raise NetworkError("the answer broke off", outcome_unknown=True)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpTransport, "send", loses)
        run_here("bulk", "import", "people", "a.csv").ok()
    return ["bulk", "repair", "last"]


REFUSED: dict[str, Callable[[RunningService], list[str]]] = {
    "repair": repaired,
    "export": lambda _: ["bulk", "export", "people"],
    "export to a file": lambda _: ["bulk", "export", "people", "-O", "a.csv", "--yes"],
    "sync": lambda _: ["mirror", "sync"],
    "apply": lambda crm: merged(crm) or ["bulk", "apply", "m.plan", "--yes"],
    "run": lambda _: ["reports", "run", NOBODY],
    "report by name": lambda _: ["reports", "run", "Deals by stage"],
    "activities": lambda _: ["activities", "list"],
    "activity": lambda _: ["activities", "get", NOBODY],
    "new activity": lambda _: ["activities", "create", "--title", "Call"],
    "changed activity": lambda _: ["activities", "update", NOBODY, "--title", "Call"],
    "deleted activity": lambda _: ["activities", "delete", NOBODY, "--yes"],
}


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("command", REFUSED)
def test_the_services_reason_is_shown_once(crm: RunningService, monkeypatch: pytest.MonkeyPatch, command: str, words: str) -> None:
    arguments = REFUSED[command](crm)
    status, kind, body, code, said = WORDS[words]
    send = HttpTransport.send

    def refuses(transport: HttpTransport, request: Request) -> Response:
        if request.method == "GET" and request.url.partition("?")[0].endswith(("/objects", "/attributes")):
            return send(transport, request)
        if not status:
            raise NetworkError(said, outcome_unknown=request.method == "POST")
        return Response(status, {"content-type": kind}, body)

    monkeypatch.setattr(HttpTransport, "send", refuses)
    error = run_here(*arguments, "--max-wait", "0").exits(code).error()
    assert (error["message"].count(said), said in (error["hint"] or "")) == (1, False)


@pytest.mark.parametrize("command", ["export", "sync", "run", "new activity"])
def test_a_service_without_tls_gets_one_warning(crm: RunningService, command: str) -> None:
    arguments = REFUSED[command](crm)
    error = run_here(*arguments, "--max-wait", "0", "--base-url", crm.base_url.replace("http://", "https://")).exits(6).error()
    assert error["message"].count("no secure connection to") == 1


def test_a_failed_backup_or_restore_names_the_reason(tmp_path: Path) -> None:
    Path("broken").write_bytes(b"no archive")
    for words, code, said in (
        (("backup", "a.backup", "--data", "nowhere"), 2, "nowhere"),
        (("restore", "missing", "--data", "new"), 2, "there is no backup missing"),
        (("restore", "broken", "--data", "new"), 9, "broken"),
    ):
        error = run_here("service", *words).exits(code).error()
        assert said in error["message"]
