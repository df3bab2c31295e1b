"""`crmctl serve` as a process: its start, its output, its end."""

from __future__ import annotations

import json
import signal
import socket
import stat
import threading
from pathlib import Path

import httpx
import pytest

from crmctl.errors import UsageError
from crmctl.service.context import ServiceSettings
from crmctl.service.server import Server
from tests.support.cli import run_crmctl
from tests.support.patience import PATIENCE
from tests.support.service import make_client, service_process


def test_only_the_first_start_prints_the_key(tmp_path: Path) -> None:
    data, ready_file = tmp_path / "data", tmp_path / "ready.json"
    with service_process(data, "--ready-file", str(ready_file)) as first:
        assert set(first.ready) == {"baseUrl", "consoleUrl", "apiKey"}
        assert first.ready["consoleUrl"].startswith(first.ready["baseUrl"] + "/console?link=")
        assert json.loads(ready_file.read_text()) == {name: first.ready[name] for name in ("baseUrl", "consoleUrl")}
        with first.client() as client:
            answer = client.get("/api/v1/objects")
        assert (answer.status_code, answer.headers["x-ratelimit-limit"]) == (200, "100")
        assert first.stop(signal.SIGTERM) == 0
        assert not ready_file.exists()
        assert first.stderr == ""
    with service_process(data, key=first.key) as second:
        assert set(second.ready) == {"baseUrl", "consoleUrl"}
        with second.client() as client:
            assert client.get("/api/v1/objects").status_code == 200
        assert second.stop(signal.SIGINT) == 0
    for file in data.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
        assert first.key.encode() not in file.read_bytes()


def test_the_request_log_has_one_json_line_per_request_without_the_key(tmp_path: Path) -> None:
    with service_process(tmp_path / "data", "--log", "json", "--public-url", "https://crm.example.com/") as service:
        assert service.ready["baseUrl"] == "https://crm.example.com"
        port = _port_of(service.process.pid)
        with make_client(f"http://127.0.0.1:{port}", service.key) as client:
            client.get("/api/v1/objects?x=1")
        service.stop()
        [entry] = [json.loads(line) for line in service.stderr.splitlines()]
        assert (entry["method"], entry["path"], entry["status"]) == ("GET", "/api/v1/objects", 400)
        assert service.key not in service.stderr


def _port_of(pid: int) -> int:
    """Return the TCP port on which a process listens (Linux)."""
    sockets = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if "socket:" in str(link.readlink())}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].split(":")[1], 16)
    raise AssertionError("nothing listens")


def test_a_port_in_use_is_a_usage_error_and_creates_no_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run_crmctl("serve", "--data", tmp_path / "data", "--port", port).exits(2)
    assert f"port {port} on 127.0.0.1 is in use" in refused.error()["message"]
    assert "--port 0" in refused.error()["hint"]
    with service_process(tmp_path / "data") as service:
        assert service.key


def test_a_foreign_address_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot listen on 203"):
        Server(ServiceSettings(data_dir=tmp_path, host="203.0.113.1", port=0))


@pytest.mark.parametrize("options", [("--log", "xml"), ("--rate-limit", "-1"), ("--port", "70000"), ("--rate-window", "0")])
def test_bad_options_are_usage_errors(tmp_path: Path, options: tuple[str, str]) -> None:
    run_crmctl("serve", "--data", tmp_path, *options).exits(2)


def test_requests_under_way_are_answered_before_the_service_stops(tmp_path: Path) -> None:
    with service_process(tmp_path / "data") as service:
        half_sent, go_on = threading.Event(), threading.Event()

        def body() -> object:
            yield b'{"pluralName": '
            half_sent.set()
            assert go_on.wait(PATIENCE)
            yield b'"Plans"}'

        answers: list[httpx.Response] = []
        with service.client() as client:
            sender = threading.Thread(target=lambda: answers.append(client.post("/api/v1/objects", content=body())))  # type: ignore[arg-type]
            sender.start()
            assert half_sent.wait(PATIENCE)
            # A second request answered on another connection shows that the first half has arrived.
            with service.client() as other:
                assert other.get("/api/v1/objects").status_code == 200
            service.process.send_signal(signal.SIGTERM)
            _wait_until_refused(service.base_url)
            go_on.set()
            sender.join(30)
        assert [answer.status_code for answer in answers] == [201]
        assert service.wait() == 0
    with service_process(tmp_path / "data", key=service.key) as again, again.client() as client:
        assert "Plans" in [crm_object["pluralName"] for crm_object in client.get("/api/v1/objects").json()["objects"]]


def _wait_until_refused(base_url: str) -> None:
    """Return when the service accepts no more connections."""
    host, _, port = base_url.removeprefix("http://").partition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=PATIENCE).close()
        except OSError:
            return
