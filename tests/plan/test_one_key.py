"""Two imports and a reader, each a process, share one key: the service refuses no request. benchmarks/rate_processes.py measures them."""

from __future__ import annotations

import math
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.ratesim import FixedWindow, Limiter, SlidingWindow
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.limitedsink import LimitedSink

LIMIT, WINDOW = 40, 2.0
BATCHES = 40


@pytest.mark.parametrize(
    "limiter",
    [lambda: FixedWindow(LIMIT, WINDOW, aligned=True), lambda: SlidingWindow(LIMIT, WINDOW, rounding=math.ceil)],
    ids=["fixed", "sliding"],
)
def test_processes_with_one_key_share_its_limit(tmp_path: Path, limiter: Callable[[], Limiter]) -> None:
    with LimitedSink(limiter()) as sink:
        env = {"CRMCTL_BASE_URL": sink.origin, "CRMCTL_API_KEY": "one-key"}
        imports = []
        for name in ("people", "leads"):
            file = tmp_path / f"{name}.csv"
            file.write_text("email,score\n" + "".join(f"{name}{n}@acme.com,{n}\n" for n in range(100 * BATCHES)))
            imports.append(start_crmctl("bulk", "import", name, file, env=env, stdin=subprocess.DEVNULL))
        reads = 0
        while any(process.poll() is None for process in imports):
            run_crmctl("records", "list", "people", env=env).ok()
            reads += 1
            threading.Event().wait(0.2)  # a person who repeats a query
        ends = [(process.communicate(), process.returncode) for process in imports]
        assert [code for _, code in ends] == [0, 0], ends
    assert sum(one.writes for one in sink.asked) == 2 * BATCHES
    assert reads
    assert sink.refused == 0
