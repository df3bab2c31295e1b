"""Exports in processes of their own: killed at any moment and resumed, beside a writer, incremental from run to run."""

from __future__ import annotations

import gzip
import hashlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from crmctl.double_client import TestService
from crmctl.values.moments import micros_of
from tests.support.campaigns import rest_in_campaigns
from tests.support.cli import run_crmctl
from tests.support.patience import PATIENCE, wait_until
from tests.support.service import RunningService, running_service
from tests.support.warm_program import WarmProcess, start_module

COUNT = 750


def start(target: Path, point: str = "never", *options: str) -> WarmProcess:
    words = ("bulk", "export", "people", "-O", target, "--yes", *options)
    return start_module("tests.support.commandchild", point, *words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def finish(child: WarmProcess) -> dict[str, Any]:
    out, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    return dict(json.loads(out))


def killed(child: WarmProcess) -> None:
    child.communicate(timeout=PATIENCE)
    assert child.returncode == -signal.SIGKILL


def seed(double: TestService, scores: range) -> None:
    """Create people with times of yesterday."""
    done = double.client.bulk.import_records("people", ({"score": score} for score in scores))
    assert done.summary.to_document()["created"] == len(scores)
    double.clock.set("in 1d")


def pages(double: TestService) -> int:
    return sum(request["method"] == "GET" and request["path"].endswith("/records") for request in double.requests)


@pytest.mark.parametrize("page", rest_in_campaigns([4, 0, 1, 8, 9]))
def test_an_export_that_is_killed_goes_on_where_it_was(double: TestService, tmp_path: Path, page: int) -> None:
    target = tmp_path / "people.jsonl.gz"
    seed(double, range(COUNT))
    ids = [record.id for record in double.client.records("people").list(order="asc")]
    before = pages(double)
    double.faults(f"GET /api/v1/objects/*/records [nth={page + 1}] -> delay={2 * PATIENCE:.0f}s")
    with start(target) as child:
        wait_until(lambda: pages(double) == before + page + 1)
        child.kill()
        child.communicate()
    double.control("DELETE", "/faults")
    assert not target.exists()
    before = pages(double)
    with start(target) as child:
        summary = finish(child)
    lines = gzip.decompress(target.read_bytes()).decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids
    assert summary["resumed"] == (page > 0)
    assert pages(double) - before <= 12 - max(0, page - 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [target.name, f"{target.name}.manifest.json"]


@pytest.mark.parametrize("point", ["written", "described"])
def test_a_kill_at_the_end_leaves_nothing_half(double: TestService, tmp_path: Path, point: str) -> None:
    target = tmp_path / "people.csv"
    seed(double, range(50))
    with start(target, f"{point}:1") as child:
        killed(child)
    asked = pages(double)
    with start(target) as child:
        summary = finish(child)
    assert pages(double) == asked
    assert summary["resumed"]
    assert len(target.read_text().splitlines()) == 51
    manifest = json.loads((tmp_path / "people.csv.manifest.json").read_text())
    assert (manifest["rows"], manifest["sha256"]) == (50, summary["sha256"])
    assert not (tmp_path / "people.csv.resume").exists()


@pytest.mark.parametrize("point", rest_in_campaigns(["written", "recalled", "described", "remembered"]))
def test_an_incremental_export_that_is_killed_at_its_end_gives_all_once(double: TestService, tmp_path: Path, point: str) -> None:
    """A user who loads each file with its manifest misses no record; a user who loads only files of successful runs gets none twice."""
    target = tmp_path / "people.jsonl"

    def given() -> list[int]:
        return [json.loads(line)["data"]["score"] for line in target.read_text().splitlines()]

    seed(double, range(150))
    with start(target, "never", "--since-last") as child:
        assert finish(child)["rows"] == 150
    seed(double, range(150, 300))
    with start(target, f"{point}:1", "--since-last") as child:
        killed(child)
    assert len(given()) == 150
    if point == "remembered":
        manifest = json.loads((tmp_path / "people.jsonl.manifest.json").read_text())
        assert manifest["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
        assert sorted(given()) == list(range(150, 300))
    seed(double, range(300, 301))
    found: list[int] = []
    for _ in range(2):
        with start(target, "never", "--since-last") as child:
            finish(child)
        found += given()
    assert sorted(found) == list(range(300 if point == "remembered" else 150, 301))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.jsonl", "people.jsonl.manifest.json"]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as running:
        monkeypatch.setenv("CRMCTL_BASE_URL", running.base_url)
        monkeypatch.setenv("CRMCTL_API_KEY", running.key)
        yield running


def create(service: RunningService, start: int, count: int) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/records/bulk"
    rows = [{"data": {"email": f"p{number}@acme.com", "score": number}} for number in range(start, start + count)]
    for at in range(0, count, 100):
        assert service.client.post(path, json={"records": rows[at : at + 100]}).json()["failed"] == []


def all_people(service: RunningService) -> dict[str, Any]:
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    found: dict[str, Any] = {}
    while page := service.client.get(path, params={"order": "asc", "limit": 100, "offset": len(found)}).json()["records"]:
        found |= {record["id"]: record for record in page}
    return found


def until_older(service: RunningService, made: dict[str, Any]) -> None:
    """Wait until the records are older than the service's clock, whose answers give whole seconds a little late."""
    newest = max(micros_of(record["updatedAt"]) or 0 for record in made.values())

    def now() -> float:
        return parsedate_to_datetime(service.client.get("/api/v1/objects").headers["Date"]).timestamp() * 1_000_000

    wait_until(lambda: now() > newest)


def test_an_export_beside_a_writer_has_all_that_stayed(service: RunningService, tmp_path: Path) -> None:
    create(service, 0, 1000)
    before = all_people(service)
    until_older(service, before)
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    done = threading.Event()
    deleted: set[str] = set()
    ids = list(before)

    def write() -> None:
        number = 0
        while not done.is_set() and number < 160:
            number += 1
            service.client.patch(f"{path}/{ids[-number]}", json={"data": {"score": -number}})
            service.client.delete(f"{path}/{ids[number * 3]}")
            deleted.add(ids[number * 3])
            create(service, 10_000 + number, 1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        summary = run_crmctl("bulk", "export", "people", "-O", "people.jsonl").ok().json()
    finally:
        done.set()
        writer.join()
    exported = [json.loads(line) for line in Path("people.jsonl").read_text().splitlines()]
    got = {record["id"]: record for record in exported}
    assert len(got) == len(exported) == summary["rows"]
    assert before.keys() - deleted <= got.keys()
    as_of = micros_of(json.loads(Path("people.jsonl.manifest.json").read_text())["consistentAsOf"])
    now = all_people(service)
    settled = [one for one in now.keys() & got.keys() if micros_of(now[one]["updatedAt"]) < as_of]  # type: ignore[operator]
    assert len(settled) >= 1000 - 2 * 160, "all that the writer cannot have touched"
    assert [one for one in settled if now[one] != got[one]] == []


def test_incremental_exports_give_every_change_once(service: RunningService) -> None:
    create(service, 0, 130)

    def changes() -> list[dict[str, Any]]:
        run_crmctl("bulk", "export", "people", "-O", "changes.jsonl", "--since-last", "--yes").ok()
        return [json.loads(line) for line in Path("changes.jsonl").read_text().splitlines()]

    assert len(changes()) == 130
    assert changes() == []
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    some = list(all_people(service))[5]
    service.client.patch(f"{path}/{some}", json={"data": {"score": 9999}})
    create(service, 500, 2)
    delivered = changes()
    assert sorted(record["data"]["score"] for record in delivered) == [500, 501, 9999]
    assert changes() == []
    everything = run_crmctl("bulk", "export", "people").ok().lines()
    assert len(everything) == 132
    other = run_crmctl("bulk", "export", "people", "--since-last").ok().lines()
    assert len(other) == 132
    assert run_crmctl("bulk", "export", "people", "--since-last").ok().lines() == []


@pytest.mark.parametrize("suffix", ["parquet", "xlsx"])
def test_an_export_of_typed_cells_can_be_imported(service: RunningService, suffix: str) -> None:
    create(service, 0, 12)
    run_crmctl("bulk", "export", "people", "-O", f"people.{suffix}").ok()
    done = run_crmctl("bulk", "import", "people", f"people.{suffix}", "--mode", "upsert").ok().json()
    assert (done["rows"], done["updated"], done["failed"]) == (12, 12, 0)
    run_crmctl("bulk", "export", "people", "-O", f"two.{suffix}.gz").exits(2)
    assert run_crmctl("bulk", "export", "people", "--format", suffix).exits(2).out == ""


def test_a_missing_library_is_one_clear_error(service: RunningService, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "pyarrow.py").write_text("raise ImportError('hidden')")
    error = run_crmctl("bulk", "export", "people", "-O", "a.parquet", env={"PYTHONPATH": str(hidden)}).exits(2).error()
    assert (error["code"], error["hint"]) == ("not_installed", "pip install 'crmctl[files]'")


def test_records_that_were_made_together_are_given_once(service: RunningService) -> None:
    create(service, 0, 600)

    def changes() -> list[int]:
        run_crmctl("bulk", "export", "people", "--since-last", "-O", "changes.jsonl", "--yes").ok()
        return [json.loads(line)["data"]["score"] for line in Path("changes.jsonl").read_text().splitlines()]

    assert len(changes()) == 600
    assert changes() == []
    create(service, 5000, 1)
    assert changes() == [5000]
    assert changes() == []
