"""A process that runs workflows on a database and is killed with -9 in its n-th transaction.

python -m tests.support.workflowchild DATABASE_URL NOW N
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crmctl.service.background import LOOPBACK
from crmctl.service.context import Context, ServiceSettings, new_id
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store.engine import open_engine
from crmctl.service.workflows.run_executor import Runs
from tests.support.clock import FakeClock
from tests.support.workflows import start_workflows


class DyingEngine:
    """Counts the transactions that write, and kills the process before the commit of the last one."""

    def __init__(self, url: str, last: int) -> None:
        self._engine = open_engine(url)
        self._left = last
        self.read = self._engine.read

    def write(self, fn: Callable[[Any], Any], by: str | None = None) -> Any:
        def mortal(tx: Any) -> Any:
            result = fn(tx)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        self._left -= 1
        return self._engine.write(mortal, by=by)

    def close(self) -> None:
        self._engine.close()


def main(url: str, now: float, last: int) -> None:
    context = Context(ServiceSettings(data_dir=Path()), DyingEngine(url, last), FakeClock(now), new_id)
    start_workflows(context)
    job = Runs(context, Caller(TargetGuard(LOOPBACK), 5))
    while job.run_once():
        pass
    job.close()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
