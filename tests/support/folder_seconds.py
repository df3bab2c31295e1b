"""`--folder-seconds`: processor seconds of each folder of tests, of the tests and all processes they start, from one run.

Every worker is in an accounting group of the kernel, which its processes inherit; without root none can be made; then the seconds
only cover the worker and processes that it waited for, and the table says so.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

GROUPS = Path("/sys/fs/cgroup")


class FolderSeconds:
    """Seconds of one process; the process that shows the table adds those of its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self._group: Path | None = None
        for kind, used in (("cpuacct", "cpuacct.usage"), ("", "cpu.stat")):
            group = GROUPS / kind / f"crmctl-tests-{os.getpid()}"
            with contextlib.suppress(OSError):
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                self._group = group / used
                break

    def _used(self) -> float:
        if self._group is None:
            return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        words = self._group.read_text().split()
        return int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        parts = Path(item.location[0]).parts
        folder, before = "/".join(parts[: min(len(parts) - 1, 3 if parts[1] in ("bulk", "service") else 2)]), self._used()
        done = yield
        self.seconds[folder] += self._used() - before
        self.tests[folder] += 1
        return done

    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["folder_seconds"] = (dict(self.seconds), dict(self.tests), self._group is not None)

    def pytest_unconfigure(self) -> None:
        """Remove the group, unless a process is still in it."""
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group.parents[1] / "cgroup.procs").write_text(str(os.getpid()))
                self._group.parent.rmdir()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        seconds, tests, is_whole = getattr(node, "workeroutput", {}).get("folder_seconds", ({}, {}, True))
        self.seconds.update(seconds)
        self.tests.update(tests)
        self._group = self._group if is_whole else None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("processor seconds" + ("" if self._group else ", without processes that no worker waited for"))
        for folder, seconds in self.seconds.most_common():
            terminalreporter.write_line(f"| `{folder}` | {self.tests[folder]:,} | {seconds:,.1f} |")
        terminalreporter.write_line(f"| all | {self.tests.total():,} | {sum(self.seconds.values()):,.1f} |")
