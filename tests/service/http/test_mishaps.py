"""Failures of the machine: an unwritable stderr, a full disk, a damaged database."""

from __future__ import annotations

import contextlib
import resource
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from crmctl.service.context import DATABASE_FILE
from crmctl.service.faults import Failures
from tests.support.service import ServiceProcess, service_process

RATE_HEADERS = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"}
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full, or limits of a running process")


def assert_documented_error(answer: httpx.Response, status: int, error: str) -> None:
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
    assert answer.json()["message"]
    assert set(answer.headers) >= RATE_HEADERS


@LINUX
@pytest.mark.parametrize("stderr_path", [Path("/dev/full"), None])
def test_an_error_that_cannot_be_logged_is_still_the_documented_answer(tmp_path: Path, stderr_path: Path | None) -> None:
    data = tmp_path / "data"
    with service_process(data, "--log", "json", stderr_path=stderr_path) as service, service.client() as client:
        with contextlib.closing(sqlite3.connect(data / DATABASE_FILE)) as database:
            database.execute("ALTER TABLE member RENAME TO elsewhere")
        for _ in range(3):
            assert_documented_error(client.get("/api/v1/members"), 500, "internal_error")
        assert client.get("/api/v1/objects").status_code == 200
        assert client.get("/healthz").status_code == 200
        if stderr_path is None:
            assert service.stderr.count("Traceback (most recent call last)") == 1


@contextlib.contextmanager
def disk_full(service: ServiceProcess, largest: int) -> Iterator[None]:
    """Keep the process from writing files beyond this size until the block ends."""
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, limits)


@LINUX
def test_a_full_disk_is_reported_and_reading_still_works(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with service_process(data, "--log", "json") as service, service.client() as client:
        [people] = [crm_object["id"] for crm_object in client.get("/api/v1/objects").json()["objects"] if crm_object["slug"] == "people"]
        records = f"/api/v1/objects/{people}/records"
        assert client.post(records, json={"data": {"notes": "before"}}).status_code == 201
        assert client.get("/readyz").status_code == 200
        with disk_full(service, 4096):
            refused = client.post(records, json={"data": {"notes": "never"}})
            assert_documented_error(refused, 503, "unavailable")
            assert "nothing was written" in refused.json()["message"]
            assert refused.headers["retry-after"] == "1"
            not_ready = client.get("/readyz")
            assert_documented_error(not_ready, 503, "unavailable")
            assert "disk" in not_ready.json()["message"]
            read = client.get(records)
            assert (read.status_code, [record["data"] for record in read.json()["records"]]) == (200, [{"notes": "before"}])
            assert int(read.headers["x-ratelimit-remaining"]) < 100
            assert client.get("/healthz").status_code == 200
        assert client.post(records, json={"data": {"notes": "after"}}).status_code == 201
        assert client.get(records).json()["pagination"]["total"] == 2


def wait_until_not_ready(client: httpx.Client) -> httpx.Response:
    """Wait until the service is not ready; it caches the readiness check for a second."""
    while (answer := client.get("/readyz")).status_code == 200:
        threading.Event().wait(0.1)
    assert_documented_error(answer, 503, "unavailable")
    return answer


def test_a_repeated_failure_is_reported_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    failures = Failures(lambda: now)

    def fail() -> None:
        try:
            raise RuntimeError("the disk")
        except RuntimeError as error:
            failures.tell(error)

    for _ in range(5):
        fail()
    assert capsys.readouterr().err.count("RuntimeError: the disk") == 1
    failures.tell(ValueError("another"), briefly=True)
    assert capsys.readouterr().err == "ValueError: another\n"
    now = 61.0
    fail()
    output = capsys.readouterr().err
    assert output.count("RuntimeError: the disk") == 1
    assert "the same 4 times more" in output
