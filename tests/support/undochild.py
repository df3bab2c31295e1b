"""An undo in a process of its own, to be killed: `python -m tests.support.undochild FOLDER ORIGIN POINT`; exits 0 when all is undone.

At POINT (`NAME:N`, the N-th time from 1) the process kills itself as a power cut would: `answered` with the service's answer in hand and
nothing written down, `marked` after what was undone was written down.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential
from crmctl.models.resources import Attribute
from crmctl.plan.import_run import rows_of
from crmctl.plan.resume import reopen
from crmctl.plan.undo import Undo, WrittenRecords, carry_out, plan_undo
from crmctl.plan.undo_updates import Updates
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.write.jobs import JobStore
from crmctl.write.journal import Journal
from tests.support.bulkjobs import Silent
from tests.support.keydesk import ATTRIBUTES
from tests.support.patience import PATIENCE


class KilledJournal(Journal):
    """Kills the process at one of its steps."""

    point = ("", 0)
    reached = 0

    def mark_undone(self, record_ids: Iterable[str]) -> None:
        ids = list(record_ids)
        self._reach("answered" if ids else "")
        super().mark_undone(ids)
        self._reach("marked" if ids else "")

    def _reach(self, name: str) -> None:
        if name and self.point[0] == name:
            self.reached += 1
            if self.reached == self.point[1]:
                os.kill(os.getpid(), signal.SIGKILL)


def undo(folder: Path, origin: str, service: Crm, clock: Clock, attributes: Sequence[Attribute] = tuple(ATTRIBUTES)) -> Undo:
    """Undo the newest job of a desk's folder."""
    store = JobStore(folder / "state", clock)
    job = reopen(store, store.list()[0], origin, attributes)
    job.journal.close()
    with (
        closing(job.input),
        closing(KilledJournal(job.journal.folder, clock)) as journal,
        journal.hold(),
        SeenIds() as ids,
        Updates(attributes) as updates,
    ):
        again = rows_of(journal, job.input.payloads)
        written = WrittenRecords(journal, again, ids, updates)
        plan = plan_undo(written, Reader(service, journal.header.object_id))
        carry_out(written, plan, service, Silent())
        return plan


def main(folder: Path, origin: str, point: str) -> int:
    name, _, number = point.partition(":")
    KilledJournal.point = (name, int(number or 0))
    crm = Crm(Session(origin, Credential("key", "test", origin), HttpTransport(), timeout=PATIENCE))
    plan = undo(folder, origin, crm, SystemClock())
    return 1 if plan.left or plan.error else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
