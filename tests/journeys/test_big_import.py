"""Thousands of rows with every attribute type, imported and exported, also at a tight rate limit without a refused request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.contacts import differences, make_object, write_csv
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.service import RunningService, running_service

ROWS = 3_000
LIMITED_ROWS = 1_500
LIMIT = 20
"""Requests per window."""
WINDOW = 2
"""Seconds."""
PACED_ROWS = 6_400
"""A little more than three windows of requests: few enough that a busy machine, too, reaches the limit in each."""
AROUND = 5
"""The object, its attributes, a sample of its records, the newest records before the first batch, and the comparison at the end."""


@pytest.fixture
def unlimited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as service:
        use(service, monkeypatch)
        yield service


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    with running_service(tmp_path / "service", rate_limit=LIMIT, rate_window=WINDOW) as service:
        use(service, monkeypatch)
        yield service


def use(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)


@pytest.mark.campaign
def test_thousands_of_rows_come_back_cell_by_cell(unlimited: RunningService) -> None:
    _, person = make_object(unlimited)
    written = write_csv(Path("contacts.csv"), ROWS, person)
    summary = run_crmctl("bulk", "import", "contacts", "contacts.csv", timeout=300).ok().json()
    assert (summary["rows"], summary["created"], summary["requests"]) == (ROWS, ROWS, ROWS // 100 + AROUND)
    assert run_crmctl("records", "count", "contacts").ok().json() == {"count": ROWS}
    exported = run_crmctl("bulk", "export", "contacts", "-O", "out.csv", timeout=300).ok().json()
    assert exported["rows"] == ROWS
    assert differences(written, Path("out.csv")) == []


@pytest.mark.campaign
@pytest.mark.long
def test_two_imports_of_every_type_at_a_tight_limit_are_never_refused(limited: RunningService) -> None:
    """benchmarks/pace.py measures the time: for such rows a busy machine needs longer than the limit."""
    _, person = make_object(limited)
    limited.log.clear()
    written = [write_csv(Path(f"{number}.csv"), LIMITED_ROWS, person, prefix=f"person{number}-") for number in range(2)]
    runs = [start_crmctl("bulk", "import", "contacts", f"{number}.csv") for number in range(2)]
    ends = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], ends
    assert [entry for entry in limited.log if entry["status"] == 429] == []
    assert run_crmctl("bulk", "export", "contacts", "-O", "out.csv", timeout=300).ok().json()["rows"] == LIMITED_ROWS * 2
    assert differences([row for rows in written for row in rows], Path("out.csv")) == []


def write_titles(path: Path, rows: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write("Title\n")
        file.writelines(f"{path.stem} {number}\n" for number in range(rows))


@pytest.mark.campaign
@pytest.mark.long
def test_two_imports_at_once_share_the_limit(limited: RunningService) -> None:
    identity, _ = make_object(limited)
    for name in ("left", "right"):
        write_titles(Path(f"{name}.csv"), PACED_ROWS // 2)
    limited.log.clear()
    with start_crmctl("bulk", "import", "contacts", "left.csv") as left, start_crmctl("bulk", "import", "contacts", "right.csv") as right:
        ends = [run.communicate(timeout=300) for run in (left, right)]
    assert [run.returncode for run in (left, right)] == [0, 0], ends
    assert [entry for entry in limited.log if entry["status"] == 429] == []
    assert sum(entry["method"] == "POST" for entry in limited.log) == PACED_ROWS // 100
    assert limited.client.get(f"/api/v1/objects/{identity}/records?limit=1").json()["pagination"]["total"] == PACED_ROWS
