"""Three processes share one budget: two saturate the service, one is a user at a terminal. The service refuses no request."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service

PROGRAM = """
import sys, time, urllib.request
from pathlib import Path
from crmctl.client.rate_limit.limiter import SharedBudget
from crmctl.clock import SystemClock  # noqa: E402
base, key, path, lane, count, pause = sys.argv[1:]
budget = SharedBudget(Path(path), SystemClock(), lane=lane)
request = urllib.request.Request(base + "/api/v1/objects", headers={"Authorization": "Bearer " + key})
for _ in range(int(count)):
    slot = budget.acquire(60)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        answer.read()
        budget.answered(slot, answer.status, {name.lower(): value for name, value in answer.getheaders()})
    time.sleep(float(pause))
"""


def start(service: RunningService, path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command: Sequence[str] = [sys.executable, "-c", PROGRAM, service.base_url, service.key, str(path), *arguments]
    return subprocess.Popen(command)


@pytest.mark.campaign
@pytest.mark.long
def test_two_imports_and_a_person(tmp_path: Path) -> None:
    with running_service(tmp_path / "service", rate_limit=100, rate_window=3) as service:
        bulk = [start(service, tmp_path / "rate.sqlite", "bulk", "130", "0") for _ in range(2)]
        person = start(service, tmp_path / "rate.sqlite", "interactive", "4", "1.1")
        assert [process.wait(PATIENCE) for process in (person, *bulk)] == [0, 0, 0]
        assert [entry["status"] for entry in service.log] == [200] * 264
