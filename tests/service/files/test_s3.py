"""Uploads to S3-compatible storage: the storage accepts the addresses, and the signatures match those of the AWS SDK."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from crmctl.errors import ConfigError
from crmctl.service.backup.backup import RemotePlace, unpack
from crmctl.service.context import S3Settings, ServiceSettings
from crmctl.service.files.storage import open_storage
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service

REGION = "eu-west-1"
ACCOUNT = {"AWS_ACCESS_KEY_ID": "an-access-key", "AWS_SECRET_ACCESS_KEY": "secret-for-tests"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Address of a local S3 with a bucket crm-public that everyone may read."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::crm-public/*"}
    httpx.put(f"{address}/crm-public", trust_env=False).raise_for_status()
    httpx.put(f"{address}/crm-public?policy", json={"Version": "2012-10-17", "Statement": [statement]}, trust_env=False).raise_for_status()
    yield address
    server.stop()


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def service(s3: str, tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path, background=False, files_s3=S3Settings("crm-", s3, REGION)) as running:
        yield running


def ask(service: RunningService, path: str, bucket: str = "public") -> httpx.Response:
    return service.client.post("/api/v1/files/upload-url", json={"path": path, "bucket": bucket})


def signature_by_the_sdk(method: str, url: str) -> str:
    """Return botocore's signature for this request, computed from its address without the signature."""
    parts = urlsplit(url)
    query = "&".join(part for part in parts.query.split("&") if not part.startswith("X-Amz-Signature="))
    request = AWSRequest(method, parts._replace(query=query).geturl())
    request.headers["host"] = parts.netloc
    request.context["timestamp"] = parse_qs(parts.query)["X-Amz-Date"][0]
    auth = S3SigV4QueryAuth(Credentials(ACCOUNT["AWS_ACCESS_KEY_ID"], ACCOUNT["AWS_SECRET_ACCESS_KEY"]), "s3", REGION)
    signature: str = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return signature


@pytest.mark.parametrize("path", ["logos/acme.png", "a b/ä+&?#'(1).txt"])
def test_an_uploaded_file_is_in_the_bucket_and_at_its_public_address(service: RunningService, s3: str, path: str) -> None:
    urls = ask(service, path).json()
    assert urls["signedUrl"].startswith(f"{s3}/crm-public/")
    assert urls["publicUrl"] == urls["signedUrl"].partition("?")[0]
    answer = httpx.put(urls["signedUrl"], content=b"bytes", headers={"Content-Type": "image/png"}, trust_env=False)
    assert answer.status_code == 200
    served = httpx.get(urls["publicUrl"], trust_env=False)
    assert (served.content, served.headers["content-type"]) == (b"bytes", "image/png")
    assert not (service.data_dir / "files").exists()


def test_the_address_is_signed_for_one_file_method_and_time(service: RunningService) -> None:
    url = ask(service, "a b/x.png").json()["signedUrl"]
    query = parse_qs(urlsplit(url).query)
    [signature] = query["X-Amz-Signature"]
    assert signature_by_the_sdk("PUT", url) == signature
    assert signature_by_the_sdk("GET", url) != signature
    assert signature_by_the_sdk("PUT", url.replace("x.png", "y.png")) != signature
    assert query["X-Amz-Expires"] == ["900"]
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert ACCOUNT["AWS_SECRET_ACCESS_KEY"] not in url


def test_bucket_names_that_s3_does_not_allow_are_refused(service: RunningService) -> None:
    answer = ask(service, "x", "Upper_Case")
    assert (answer.status_code, answer.json()["details"]) == (400, {"field": "bucket"})


def test_addresses_at_amazon() -> None:
    storage = open_storage(ServiceSettings(files_s3=S3Settings("crm-", None, REGION)))
    _, public_url = storage(None, "public", "a.png", now=0)  # type: ignore[arg-type]
    assert public_url == "https://crm-public.s3.amazonaws.com/a.png"


def test_without_credentials_the_service_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ACCOUNT:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match="no credentials"):
        open_storage(ServiceSettings(files_s3=S3Settings()))


def test_a_backup_is_stored_and_restored(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with running_service(tmp_path / "data", background=False) as crm:
        made = run_crmctl("service", "backup", "s3://crm-public/daily/crm.backup", "--data", crm.data_dir, "-o", "json").ok().json()
        unknown = run_crmctl("service", "backup", "s3://missing/crm.backup", "--data", crm.data_dir, "-o", "json").exits(7).error()
    assert "s3://missing/crm.backup" in unknown["message"]
    httpx.put(f"{s3}/crm-public/damaged.backup", content=b"Dear diary", trust_env=False).raise_for_status()
    for mode in ((), ("--dry-run",)):
        place = ("s3://crm-public/damaged.backup", "--data", tmp_path / "new")
        refused = run_crmctl("service", "restore", *place, *mode, "-o", "json").exits(9).error()
        assert refused["code"] == "damaged_backup"
        assert "s3://crm-public/damaged.backup" in refused["message"]
    back = run_crmctl("service", "restore", "s3://crm-public/daily/crm.backup", "--data", tmp_path / "new", "-o", "json").ok().json()
    assert (back["records"], back["bytes"]) == (made["records"], made["bytes"])
    run_crmctl("service", "restore", "s3://crm-public/none", "--data", tmp_path / "other").exits(7)
    run_crmctl("service", "restore", "s3://crm-public", "--data", tmp_path / "other").exits(2)


class Gate:
    """A proxy for a storage that holds back the request with this number until `release`."""

    def __init__(self, app: Any) -> None:
        self._app, self._count = app, 0
        self.stop_at, self.reached, self._released = 0, threading.Event(), threading.Event()

    def close_at(self, number: int) -> None:
        self._count, self.stop_at = 0, number
        self.reached.clear()
        self._released.clear()

    def release(self) -> None:
        self.stop_at = 0
        self._released.set()

    def __call__(self, environ: Any, start: Any) -> Any:
        self._count += 1
        if self._count == self.stop_at:
            self.reached.set()
            assert self._released.wait(PATIENCE)
            start("500 Internal Server Error", [])
            return []
        return self._app(environ, start)


@pytest.fixture
def gated() -> Iterator[tuple[str, Gate]]:
    """A separate storage behind a gate, with a bucket backups that everyone may read."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    gate = Gate(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, gate, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.port}"
    httpx.put(f"{address}/backups", trust_env=False).raise_for_status()
    yield address, gate
    gate.release()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.campaign
@pytest.mark.long
def test_a_backup_killed_at_any_request_keeps_the_previous_one(
    gated: tuple[str, Gate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup is sent in parts."""
    address, gate = gated
    for name, value in (("AWS_ENDPOINT_URL", address), ("NO_PROXY", "127.0.0.1"), ("TMPDIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    place, found = "s3://backups/crm.backup", tmp_path / "found"
    storage = RemotePlace(place)

    with running_service(tmp_path / "data", background=False) as crm:
        (tmp_path / "data" / "files" / "aa").mkdir(parents=True)
        (tmp_path / "data" / "files" / "aa" / "file").write_bytes(b"{}\n" + os.urandom(9_000_000))
        backup = ("service", "backup", place, "--data", str(crm.data_dir), "-o", "json")
        run_crmctl(*backup).ok()
        killed = 0
        while True:
            gate.close_at(killed + 1)
            with start_crmctl(*backup) as process:
                while not gate.reached.wait(0.02) and process.poll() is None:
                    pass
                if not gate.reached.is_set():
                    break
                process.kill()
                process.wait()
            gate.release()
            killed += 1
            storage.get(found)
            assert unpack(found, None)["files"] == 1, "the named backup is complete"
        gate.release()
        assert killed >= 5, "begin, two parts, complete, read back"
        back = run_crmctl("service", "restore", place, "--data", tmp_path / "new", "-o", "json").ok().json()
        assert back["files"] == 1
