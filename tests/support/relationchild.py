"""An import whose rows refer to one another, and to records that are not there, in a process of its own, to be killed at a step.

`python -m tests.support.relationchild FOLDER ORIGIN POINT [KEY...]`; makes the job in FOLDER or goes on with it, and exits as an import
does. POINT is `NAME:N`: at the N-th time, counted over parents, rows and links, the process kills itself before a batch is written down
(`begin`), after that (`begun`), with the answer in hand (`answered`), after it was written down (`settled`), or before ids (`know_parents`,
`name_rows`) are.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.clock import SystemClock
from crmctl.config.credentials import Credential
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.sources import GivenInput
from crmctl.match.references import Reference, ReferenceMap
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.job_run import RunOptions, run_job
from crmctl.plan.job_start import ImportTarget, JobOptions, start_import
from crmctl.plan.resume import choose_job, reopen
from crmctl.write.in_flight import DeliveryOptions
from crmctl.write.jobs import JobStore
from crmctl.write.journal import Journal
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import OBJECT_ID
from tests.support.patience import PATIENCE

ATTRIBUTES = [attribute("email", "email"), attribute("manager", "reference", config={"allowed_object_id": OBJECT_ID})]
REFERENCE = Reference("manager", "people", OBJECT_ID, "email", "email")
STEPS = {
    "begin": (Journal, "begin", False),
    "begun": (Journal, "begin", True),
    "answered": (Journal, "settle", False),
    "settled": (Journal, "settle", True),
    "know_parents": (ReferenceMap, "know_parents", False),
    "name_rows": (Journal, "name_rows", False),
}


def kill_at(point: str) -> None:
    """Let this process kill itself at the step."""
    name, _, number = point.partition(":")
    if name not in STEPS:
        return
    owner, method, afterwards = STEPS[name]
    original, reached = getattr(owner, method), Counter[str]()

    def step(*args: Any, **kwargs: Any) -> Any:
        reached[name] += 1
        due = reached[name] == int(number)
        if due and not afterwards:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, step)


def main(folder: Path, origin: str, keys: tuple[str, ...], point: str) -> int:
    kill_at(point)
    clock = SystemClock()
    store = JobStore(folder / "state", clock)
    crm = Crm(Session(origin, Credential("key", "test", origin), HttpTransport(), timeout=PATIENCE))
    if store.list():
        job = reopen(store, choose_job(store, None), origin, ATTRIBUTES)
    else:
        mapping = MappingOptions(Mode.UPSERT if keys else Mode.CREATE, keys=keys)
        plan = ImportPlan(mapping=mapping, references=(REFERENCE,), missing_references="create")
        target = ImportTarget("people", OBJECT_ID, origin, ATTRIBUTES, crm)
        job = start_import(store, target, GivenInput.at(folder / "people.csv"), JobOptions(plan))
    options = RunOptions(DeliveryOptions(concurrency=1, settle=1))
    return run_job(QuietContext(crm, clock), job, options, lambda _: None).exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], tuple(sys.argv[4:]), sys.argv[3]))
