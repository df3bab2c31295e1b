"""An import job in a process of its own, to be killed or interrupted.

`python -m tests.support.bulkchild FOLDER ORIGIN ROWS CONCURRENCY POINT`; exits as an import does. The job in FOLDER is made when it is not
there. At POINT (`NAME:N`, the N-th time from 1) the process kills itself as a power cut would: `begin` before a batch is written down,
`begun` after that and before its first byte, `answered` with the answer in hand and not written down, `settled` after it was. A `patient`
one waits for ever for the request in flight after one interrupt. The notes for the user are in FOLDER/notes.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.clock import SystemClock
from crmctl.config.credentials import Credential
from crmctl.plan.import_run import run_import
from crmctl.plan.job_start import ImportRun
from crmctl.write import sender
from crmctl.write.in_flight import DeliveryOptions
from crmctl.write.jobs import exit_code
from crmctl.write.journal import FILE_NAME, Journal
from tests.support.bulkjobs import Silent, header, prepared
from tests.support.patience import PATIENCE


class KilledJournal(Journal):
    """Kills the process at one of its steps."""

    point = ("", 0)
    reached = 0

    def begin(self, *args: Any, **kwargs: Any) -> None:
        self._reach("begin")
        super().begin(*args, **kwargs)
        self._reach("begun")

    def settle(self, *args: Any, **kwargs: Any) -> None:
        self._reach("answered")
        super().settle(*args, **kwargs)
        self._reach("settled")

    def _reach(self, name: str) -> None:
        if self.point[0] == name:
            self.reached += 1
            if self.reached == self.point[1]:
                os.kill(os.getpid(), signal.SIGKILL)


class Noted(Silent):
    """Progress that writes its notes to a file, so that a test can wait for one."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def note(self, text: str) -> None:
        with self._path.open("a") as file:
            print(text, file=file)


def main(folder: Path, origin: str, rows: int, concurrency: int, point: str) -> int:
    name, _, number = point.partition(":")
    KilledJournal.point = (name, int(number or 0))
    if name == "patient":
        sender.GRACE_SECONDS = 2 * PATIENCE
    clock = SystemClock()
    if not (folder / FILE_NAME).exists():
        Journal.create(folder, header(origin=origin), clock).close()
    journal = KilledJournal(folder, clock)
    crm = Crm(Session(origin, Credential("key", "test", origin), HttpTransport(), timeout=PATIENCE if name != "patient" else 2 * PATIENCE))
    options = DeliveryOptions(concurrency=concurrency, settle=1)
    result = run_import(ImportRun(crm, journal, options, clock, Noted(folder / "notes"), rows=lambda: prepared(rows)))
    return exit_code(journal.counts(), result.error)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
