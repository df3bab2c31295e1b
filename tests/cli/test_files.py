"""`crmctl files upload` to services and storages that refuse, expire, break and redirect. The key goes to the service only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.uploads import content_type
from tests.support.fakecrm import Answer, FakeCrm, FakeRequest
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
Put = Callable[[FakeRequest, int], Answer]


class Storage(FakeCrm):
    """A service that signs URLs of its own; `put(request, number of the signature)` answers for the storage."""

    def __init__(self, put: Put = lambda asked, number: Answer(200)) -> None:
        self.stored: dict[str, bytes] = {}
        self.signed = 0
        self._put = put
        self._guard = threading.Lock()
        super().__init__({"POST /files/upload-url": self._sign, "PUT //*": self._store})

    def _sign(self, asked: FakeRequest) -> Any:
        with self._guard:
            self.signed += 1
            number = self.signed
        assert set(asked.json) == {"path", "bucket"}
        target = f"{asked.json['bucket']}/{asked.json['path']}"
        return {
            "signedUrl": f"{self.origin}/store/{target}?number={number}&signature=SeCrEt{number}", "publicUrl": f"https://cdn.example/{target}",
        }  # fmt: skip

    def _store(self, asked: FakeRequest) -> Answer:
        answer = self._put(asked, int(asked.query["number"]))
        if answer.status < 300 and not answer.cut:
            with self._guard:
                self.stored[asked.path.removeprefix("//store/")] = asked.body
        return answer


@pytest.fixture(autouse=True)
def _files() -> None:
    Path("logo.png").write_bytes(PNG)
    Path("data.csv").write_text("a,b\n1,2\n")
    Path("empty.txt").touch()
    Path("tree/sub/deep").mkdir(parents=True)
    Path("tree/one.txt").write_text("one")
    Path("tree/sub/two words.txt").write_text("two")
    Path("tree/sub/deep/ünï.json").write_text("{}")


def test_files_are_stored_and_their_addresses_printed() -> None:
    with Storage() as fake:
        shown = run_here("files", "upload", "logo.png", "data.csv", "empty.txt", "--bucket", "assets", "--prefix", "/2026/", env=fake.env)
        assert shown.ok().json() == [
            {
                "file": "logo.png", "path": "2026/logo.png", "publicUrl": "https://cdn.example/assets/2026/logo.png",
                "bytes": len(PNG), "contentType": "image/png",
            },
            {
                "file": "data.csv", "path": "2026/data.csv", "publicUrl": "https://cdn.example/assets/2026/data.csv",
                "bytes": 8, "contentType": "text/csv",
            },
            {
                "file": "empty.txt", "path": "2026/empty.txt", "publicUrl": "https://cdn.example/assets/2026/empty.txt",
                "bytes": 0, "contentType": "text/plain",
            },
        ]  # fmt: skip
        assert fake.stored == {"assets/2026/logo.png": PNG, "assets/2026/data.csv": b"a,b\n1,2\n", "assets/2026/empty.txt": b""}
        puts = [asked for asked in fake.asked if asked.method == "PUT"]
        assert {asked.headers["content-type"] for asked in puts} == {"image/png", "text/csv", "text/plain"}
        assert [asked.headers for asked in puts if "authorization" in asked.headers or "cookie" in asked.headers] == []


def test_folders_keep_the_paths_inside_them() -> None:
    with Storage() as fake:
        refused = run_here("files", "upload", "tree", "--bucket", "b", env=fake.env).exits(2)
        assert "--recursive" in refused.error()["hint"]
        assert fake.asked == []
        shown = run_here("files", "upload", "tree", "logo.png", "--bucket", "b", "--prefix", "p", "-r", "-q", "[].path", env=fake.env)
        assert shown.ok().json() == ["p/one.txt", "p/sub/two words.txt", "p/sub/deep/ünï.json", "p/logo.png"]
        fetched = {asked.json["path"] for asked in fake.of("POST /files/upload-url")}
        assert fetched == {"p/one.txt", "p/sub/deep/ünï.json", "p/sub/two words.txt", "p/logo.png"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.png", "logo.png"], "missing.png"),
        (["logo.png", "missing.png", "gone.txt"], "gone.txt"),
        (["logo.png", "copy/logo.png"], "both become logo.png"),
        (["logo.png", "/dev/null"], "not a regular file"),
        (["hollow", "--recursive"], "no file"),
        (["logo.png", "--prefix", "../up"], ".."),
        (["logo.png", "--content-type", "png\r\nX: y"], "media type"),
        (["logo.png", "--concurrency", "0"], "--concurrency"),
        (["logo.png", "--fields", "nope"], "valid fields"),
    ],
)
def test_everything_is_checked_before_anything_is_sent(arguments: list[str], said: str) -> None:
    Path("copy").mkdir()
    Path("hollow").mkdir()
    Path("copy/logo.png").write_bytes(PNG)
    with Storage() as fake:
        refused = run_here("files", "upload", *arguments, "--bucket", "b", env=fake.env).exits(2)
        assert said in json.dumps(refused.error(), ensure_ascii=False)
        assert refused.out == ""
        assert fake.asked == []
    run_here("files", "upload", "logo.png", env=fake.env).exits(2)


@pytest.mark.parametrize("status", [400, 401, 403])
def test_an_expired_address_is_replaced_by_a_fresh_one(status: int) -> None:
    with Storage(lambda asked, number: Answer(status) if number == 1 else Answer(200)) as fake:
        run_here("files", "upload", "logo.png", "--bucket", "b", env=fake.env).ok()
        assert (fake.signed, fake.stored) == (2, {"b/logo.png": PNG})


@pytest.mark.parametrize("trouble", [Answer(cut=True), Answer(503), Answer(500), Answer(429, headers={"Retry-After": "0"})])
def test_temporary_failures_are_retried(trouble: Answer) -> None:
    with Storage(lambda asked, number: trouble if number == 1 else Answer(200)) as fake:
        run_here("files", "upload", "logo.png", "--bucket", "b", env=fake.env).ok()
        assert fake.stored == {"b/logo.png": PNG}


def test_a_refusal_that_stays_is_an_error_without_the_signature() -> None:
    body = b"<Error><Code>AccessDenied</Code><Message>bad signature SeCrEt1 for /store/b/logo.png</Message></Error>"

    def put(asked: FakeRequest, number: int) -> Answer:
        return Answer(403, body=body.replace(b"1", str(number).encode()), headers={"Content-Type": "application/xml"})

    with Storage(put) as fake:
        for options in ([], ["--debug"], ["-o", "table"]):
            refused = run_here("files", "upload", "logo.png", "--bucket", "b", *options, env=fake.env).exits(9)
            assert "AccessDenied" in refused.err
            assert "SeCrEt" not in refused.err + refused.out
            assert "number=" not in refused.err
        assert fake.signed == 9


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"statusCode": "409", "error": "Duplicate", "message": "It is there"}', "409: Duplicate: It is there"),
        (b'{"error": {"code": "tooBig", "message": "at most 5 MB"}}', "409: tooBig: at most 5 MB"),
        (b"<?xml version='1.0'?><Error><Code>Taken</Code><Message>it&apos;s there</Message></Error>", "409: Taken: it's there"),
        (b"no room", "409: no room"),
        (b'{"x": 1}', "answered 409"),
        (b"<html><body>Conflict</body></html>", "answered 409"),
    ],
)  # fmt: skip
def test_the_storages_reason_is_explained_in_words(body: bytes, said: str) -> None:
    with Storage(lambda asked, number: Answer(409, body=body)) as fake:
        refused = run_here("files", "upload", "logo.png", "--bucket", "b", env=fake.env).exits(9)
        assert refused.error()["message"].endswith(said)


@pytest.mark.parametrize(("status", "code"), [(302, 7), (307, 7), (413, 9), (409, 9)])
def test_a_redirect_and_a_real_refusal_are_not_repeated(status: int, code: int) -> None:
    with ScriptedServer() as elsewhere:
        with Storage(lambda asked, number: Answer(status, headers={"Location": f"{elsewhere.origin}/x"})) as fake:
            refused = run_here("files", "upload", "logo.png", "--bucket", "b", env=fake.env).exits(code)
            assert str(status) in refused.error()["message"]
            assert "logo.png" in refused.error()["message"]
            assert fake.signed == 1
        assert elsewhere.requests == []


def test_some_that_fail_are_named_and_the_others_are_stored() -> None:
    def put(asked: FakeRequest, number: int) -> Answer:
        return Answer(413) if "two" in asked.path else Answer(201)

    with Storage(put) as fake:
        partial = run_here("files", "upload", "tree", "-r", "--bucket", "b", env=fake.env).exits(10)
        assert [item["path"] for item in partial.json()] == ["one.txt", "sub/deep/ünï.json"]
        failures = partial.error()["details"]["failures"]
        assert [(failure["path"], failure["code"]) for failure in failures] == [("sub/two words.txt", "storage_refused")]
        person = run_here("files", "upload", "tree", "-r", "--bucket", "b", "-o", "table", env=fake.env).exits(10)
        assert "warning: tree/sub/two words.txt: the storage" in person.err


def test_a_key_without_the_scope_sends_one_request() -> None:
    with Storage() as fake:
        fake.routes["POST /files/upload-url"] = lambda asked: Answer(403, {"error": "insufficient_scope", "message": "needs files:write"})
        denied = run_here("files", "upload", "tree", "-r", "--bucket", "b", "--concurrency", "1", env=fake.env).exits(4)
        assert denied.error()["requiredScope"] == "files:write"
        assert len(fake.asked) == 1


def test_a_lost_answer_to_the_request_for_an_address_is_retried() -> None:
    with Storage() as fake:
        sign, calls = fake.routes["POST /files/upload-url"], []

        def flaky(asked: FakeRequest) -> Any:
            calls.append(asked)
            return Answer(cut=True) if len(calls) == 1 else sign(asked)

        fake.routes["POST /files/upload-url"] = flaky
        run_here("files", "upload", "logo.png", "--bucket", "b", env=fake.env).ok()
        assert len(calls) == 2


@pytest.mark.parametrize("wrap", [lambda body: {"data": body}, lambda body: {**body, "expiresIn": 900}, lambda body: {"upload": body}])
def test_other_legal_shapes_of_the_address(wrap: Callable[[Any], Any]) -> None:
    with Storage() as fake:
        sign = fake.routes["POST /files/upload-url"]
        fake.routes["POST /files/upload-url"] = lambda asked: wrap(sign(asked))
        assert run_here("files", "upload", "logo.png", "--bucket", "b", env=fake.env).ok().json()[0]["publicUrl"].endswith("b/logo.png")


def test_a_large_file_is_streamed_whole() -> None:
    content = bytes(range(256)) * 12_000
    Path("large.bin").write_bytes(content)
    with Storage() as fake:
        run_here("files", "upload", "large.bin", "--bucket", "b", "--content-type", "application/x-thing", env=fake.env).ok()
        assert fake.stored["b/large.bin"] == content
        assert next(asked for asked in fake.asked if asked.method == "PUT").headers["content-type"] == "application/x-thing"


def test_a_file_that_changes_while_it_is_read_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    from crmctl.client.crm import Crm
    from crmctl.client.session import Session
    from crmctl.client.transport import HttpTransport
    from crmctl.client.uploads import LocalFile, Uploader
    from crmctl.config.credentials import Credential
    from tests.support.clock import FakeClock
    from tests.support.fakecrm import KEY

    path = Path("growing.log")
    path.write_bytes(bytes(1_000_000))

    def grow(sent: int) -> None:
        if sent > 0:
            with path.open("ab") as stream:
                stream.write(b"more")

    with Storage() as fake:
        clock = FakeClock()
        session = Session(fake.origin, Credential(KEY, "test", fake.origin), HttpTransport(), clock=clock)
        uploader = Uploader(Crm(session), "b", clock, advance=grow, warn=lambda text: None)
        outcome = uploader.upload_all([LocalFile(path, "growing.log", 1_000_000, "text/plain")], 1)[0]
        assert outcome.error is not None
        assert outcome.error.code == "file_changed"
        assert fake.stored == {}


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs the files of Linux that hide their size")
@pytest.mark.parametrize(("path", "said"), [("/proc/self/mem", "input/output error"), ("/proc/self/status", "not a regular file")])
def test_a_file_that_hides_its_size_is_refused(path: str, said: str) -> None:
    with Storage() as fake:
        error = run_here("files", "upload", path, "--bucket", "b", env=fake.env).exits(2).error()
        assert (error["message"], fake.asked) == (f"nothing was uploaded: {path}: {said}", [])


def test_an_upload_obeys_the_time_limit() -> None:
    over = threading.Event()

    def put(asked: FakeRequest, number: int) -> Answer:
        over.wait(PATIENCE)
        return Answer(200)

    with Storage(put) as fake:
        refused = run_here("files", "upload", "logo.png", "--bucket", "b", "--timeout", "0.2", env=fake.env).exits(6)
        over.set()
    assert "did not answer within 0.2 s" in refused.error()["message"]


def test_several_go_at_once_and_one_at_a_time_when_asked() -> None:
    both = threading.Barrier(2, timeout=PATIENCE)

    def put(asked: FakeRequest, number: int) -> Answer:
        both.wait()
        return Answer(200)

    with Storage(put) as fake:
        run_here("files", "upload", "logo.png", "data.csv", "--bucket", "b", "--concurrency", "2", env=fake.env).ok()
        assert len(fake.stored) == 2


def test_a_dry_run_shows_the_request_for_an_address() -> None:
    with Storage() as fake:
        one = run_here("files", "upload", "logo.png", "--bucket", "b", "--dry-run", env=fake.env).ok().json()
        body = {"path": "logo.png", "bucket": "b"}
        assert one == {"dryRun": True, "method": "POST", "path": "/api/v1/files/upload-url", "body": body}
        many = run_here("files", "upload", "logo.png", "data.csv", "--bucket", "b", "--dry-run", env=fake.env).ok().json()
        assert [item["body"]["path"] for item in many] == ["logo.png", "data.csv"]
        run_here("files", "upload", "logo.png", "--bucket", "b", env={**fake.env, "CRMCTL_READ_ONLY": "1"}).exits(2)
        assert fake.asked == []


def test_an_answer_without_an_address_is_unreadable() -> None:
    with ScriptedServer(Reply(json={"url": "x"})) as server:
        env = {"CRMCTL_BASE_URL": server.origin, "CRMCTL_API_KEY": "k"}
        assert run_here("files", "upload", "logo.png", "--bucket", "b", env=env).exits(7).error()["code"] == "unreadable_answer"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("photo.JPG", "image/jpeg"),
        ("x.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ("x.csv.gz", "application/gzip"),
        ("x.webp", "image/webp"),
        ("x.csv", "text/csv"),
        ("README", "application/octet-stream"),
        (".csv", "application/octet-stream"),
        ("x.unheardof", "application/octet-stream"),
    ],
)
def test_the_name_tells_the_media_type(name: str, expected: str) -> None:
    assert content_type(name) == expected
