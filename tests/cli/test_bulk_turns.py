"""Two imports by key into one object at once: the second waits or is refused by name, and no row is written twice."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from crmctl.clock import SystemClock
from crmctl.service.http import schemas
from crmctl.write.jobs import JobStore
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, opened

ROWS = 500
IMPORT = ("bulk", "import", "companies", "firms.csv", "--key", "name")


@pytest.fixture
def firms(crm: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    monkeypatch.chdir(tmp_path)
    Path("firms.csv").write_text("Name\n" + "".join(f"Firm {n}\n" for n in range(ROWS)))
    return crm


def names() -> Counter[str]:
    return Counter(run_crmctl("records", "list", "companies", "--all", "-q", "[].data.name").ok().json())


@dataclass
class Held:
    """A request that the service has received and carries out when the test allows it."""

    reached: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


def hold_up(monkeypatch: pytest.MonkeyPatch, number: int) -> Held:
    """Hold the n-th request of an import, counted from 1."""
    held, read, numbers = Held(), schemas.read_shape, count(1)

    def read_shape(shape: Any, raw: bytes, **options: Any) -> dict[str, Any]:
        if b'"records"' in raw and next(numbers) == number:
            held.reached.set()
            assert held.go_on.wait(PATIENCE)
        return read(shape, raw, **options)

    monkeypatch.setattr(schemas, "read_shape", read_shape)
    return held


def test_two_at_once_take_turns(firms: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    request = hold_up(monkeypatch, 3)
    with start_crmctl(*IMPORT) as first:
        assert request.reached.wait(PATIENCE)
        with start_crmctl(*IMPORT, "-o", "table") as second:
            assert second.stderr is not None
            said = next(line for line in second.stderr if "waiting for its end" in line)
            request.go_on.set()
            ends = [process.communicate(timeout=PATIENCE) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), ends
    assert names() == Counter(f"Firm {n}" for n in range(ROWS))
    assert re.search("job 20.* is importing into companies by key", said)


def held(service: RunningService) -> AbstractContextManager[None]:
    """Lock the companies in this process."""
    store = JobStore(Path(os.environ["CRMCTL_STATE_DIR"]), SystemClock())
    store.prepare()
    return store.object_turn(service.object_id("companies"), "companies", lambda _: None)


def test_an_import_that_does_not_wait_is_refused_and_leaves_nothing_behind(firms: RunningService) -> None:
    with held(firms):
        refused = run_crmctl(*IMPORT, "--lock-wait", "0").exits(8)
        assert refused.error()["code"] == "import_running"
        assert "importing into companies by key; nothing was sent" in refused.error()["message"]
        assert run_crmctl(*IMPORT, "--lock-wait", "0.3").exits(8).error()["retryable"] is True
        run_crmctl(*IMPORT, "--lock-wait", "0", "--dry-run").ok()
        elsewhere = {"CRMCTL_BASE_URL": firms.base_url.replace("127.0.0.1", "localhost")}
        assert run_crmctl(*IMPORT, "--lock-wait", "0", env=elsewhere).exits(8).error()["code"] == "import_running"
        run_crmctl("bulk", "import", "companies", "-", "--lock-wait", "0", input="Name\nOther\n").ok()
        run_crmctl("bulk", "import", "people", "-", "--key", "email", "--lock-wait", "0", input="Email\na@x.com\n").ok()
        run_crmctl(*IMPORT, "--plan", "firms.plan").ok()
        run_crmctl("bulk", "apply", "firms.plan", "--lock-wait", "0").exits(8)
    assert len(run_crmctl("bulk", "jobs").ok().json()) == 2
    run_crmctl("bulk", "apply", "firms.plan", "--lock-wait", "0").ok()
    assert names() == Counter({"Other": 1, **{f"Firm {n}": 1 for n in range(ROWS)}})


def test_an_import_that_still_reads_its_input_holds_up_no_other(firms: RunningService) -> None:
    with opened(firms) as client:

        def rows() -> Iterator[dict[str, str]]:
            yield {"Name": "First"}
            client.bulk.import_records("companies", [{"Name": "Second"}], key="name", lock_wait=0).raise_for_error()

        client.bulk.import_records("companies", rows(), key="name").raise_for_error()
    assert names() == Counter({"First": 1, "Second": 1})


def test_imports_with_separate_state_report_records_of_one_key(firms: RunningService, tmp_path: Path) -> None:
    """With separate state directories, as on two machines: a unique key exists once; crmctl reports a second record of any other key."""
    Path("people.csv").write_text("Email\n" + "".join(f"p{n}@acme.com\n" for n in range(ROWS)))
    elsewhere = {"CRMCTL_STATE_DIR": str(tmp_path / "elsewhere")}
    for file, key in (("people.csv", "email"), ("firms.csv", "name")):
        command = ("bulk", "import", "people" if key == "email" else "companies", file, "--key", key)
        with start_crmctl(*command) as first, start_crmctl(*command, env=elsewhere) as second:
            ends = [process.communicate(timeout=PATIENCE) for process in (first, second)]
        if key == "email":
            assert (first.returncode, second.returncode) == (0, 0), ends
            assert run_crmctl("records", "count", "people").ok().json() == {"count": ROWS}
        elif doubled := [name for name, count in names().items() if count > 1]:
            assert 10 in (first.returncode, second.returncode), ends
            told = "".join(err for _, err in ends)
            assert "a key that another client's new record has too" in told
            assert len(doubled) <= ROWS


def test_a_killed_import_blocks_nothing_and_its_resume_waits_in_turn(firms: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    request = hold_up(monkeypatch, 3)
    with start_crmctl(*IMPORT) as first:
        assert request.reached.wait(PATIENCE)
        first.send_signal(signal.SIGKILL)
        first.wait(PATIENCE)
    request.go_on.set()
    with held(firms):
        refused = run_crmctl("bulk", "resume", "--last", "--lock-wait", "0").exits(8)
        assert refused.error()["code"] == "import_running"
    run_crmctl("bulk", "resume", "--last", "--lock-wait", "0", "--settle", "1").ok()
    assert names() == Counter(f"Firm {n}" for n in range(ROWS))
