"""Ten thousand rows with every attribute type: in, out, the same; and at a tight rate limit without one refused request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.journeys.contacts import differences, make_object, write_csv
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.service import RunningService, running_service

ROWS = 10_000
LIMIT = 100
"""Requests per window."""
WINDOW = 6
"""Seconds. Shorter, and a busy machine's processor would be the limit that is measured, not the service's."""


@pytest.fixture
def unlimited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as service:
        use(service, monkeypatch)
        yield service


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> Iterator[RunningService]:
    with running_service(tmp_path / "service", rate_limit=LIMIT, rate_window=window) as service:
        use(service, monkeypatch)
        yield service


def use(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)


def test_ten_thousand_rows_come_back_cell_by_cell(unlimited: RunningService) -> None:
    _, person = make_object(unlimited)
    written = write_csv(Path("contacts.csv"), ROWS, person)
    summary = run_crmctl("bulk", "import", "contacts", "contacts.csv", timeout=300).ok().json()
    assert (summary["rows"], summary["created"], summary["requests"]) == (ROWS, ROWS, ROWS // 100)
    assert run_crmctl("records", "count", "contacts").ok().json() == {"count": ROWS}
    exported = run_crmctl("bulk", "export", "contacts", "-O", "out.csv", timeout=300).ok().json()
    assert exported["rows"] == ROWS
    assert differences(written, Path("out.csv")) == []


def settle(service: RunningService, window: int) -> None:
    """Let the requests of the preparation leave the window, so that the clock starts at an unused limit."""
    service.log.clear()
    time.sleep(window + 0.5)  # the service's own window, which no test can move


def seconds_on_the_wire(service: RunningService) -> float:
    """From the first to the last write, as the service saw them."""
    moments = [datetime.fromisoformat(entry["time"]) for entry in service.log if entry["method"] == "POST"]
    return (max(moments) - min(moments)).total_seconds()


def least_seconds(requests: int, window: int) -> float:
    """The time that so many requests take at the limit, spread evenly."""
    return requests * window / LIMIT


@pytest.mark.parametrize("window", [WINDOW])
def test_at_a_tight_limit_nothing_is_refused_and_little_time_is_lost(limited: RunningService, window: int) -> None:
    _, person = make_object(limited)
    write_csv(Path("contacts.csv"), ROWS, person)
    settle(limited, window)
    summary = run_crmctl("bulk", "import", "contacts", "contacts.csv", timeout=300).ok().json()
    assert summary["created"] == ROWS
    assert [entry for entry in limited.log if entry["status"] == 429] == []
    assert seconds_on_the_wire(limited) <= 1.1 * least_seconds(summary["requests"], window)


@pytest.mark.parametrize("window", [WINDOW])
def test_two_imports_at_once_share_the_limit(limited: RunningService, window: int) -> None:
    identity, person = make_object(limited)
    for prefix in ("left", "right"):
        write_csv(Path(f"{prefix}.csv"), ROWS, person, prefix=prefix)
    settle(limited, window)
    with start_crmctl("bulk", "import", "contacts", "left.csv") as left, start_crmctl("bulk", "import", "contacts", "right.csv") as right:
        ends = [run.communicate(timeout=300) for run in (left, right)]
    assert [run.returncode for run in (left, right)] == [0, 0], ends
    assert [entry for entry in limited.log if entry["status"] == 429] == []
    assert seconds_on_the_wire(limited) <= 1.1 * least_seconds(2 * ROWS // 100, window)
    assert limited.client.get(f"/api/v1/objects/{identity}/records?limit=1").json()["pagination"]["total"] == 2 * ROWS
