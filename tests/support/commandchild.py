"""`python -m tests.support.commandchild POINT WORDS...` runs crmctl with these words, in a process that kills itself at a step.

POINT is `NAME:N`: at the N-th time, counted from 1 over parents, rows and links, the process kills itself as a power cut would. With
`patient`, the process waits for ever for the request in flight after one interrupt.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from typing import Any

from crmctl.main import main
from crmctl.match.references import ReferenceMap
from crmctl.plan import export, undo
from crmctl.plan.deletions import DeleteHooks
from crmctl.read.export_passes import Increments
from crmctl.write import sender
from crmctl.write.journal import Journal
from tests.support.patience import PATIENCE

STEPS: dict[str, tuple[Any, str, bool]] = {
    "begin": (Journal, "begin", False),
    "begun": (Journal, "begin", True),
    "answered": (Journal, "settle", False),
    "settled": (Journal, "settle", True),
    "know_parents": (ReferenceMap, "know_parents", False),
    "name_rows": (Journal, "name_rows", False),
    "imaged": (Journal, "keep", True),
    "copied": (DeleteHooks, "_write", True),
    "restored": (undo, "mark_undone", False),
    "marked": (undo, "mark_undone", True),
    "recalled": (export, "write_file", False),
    "written": (export, "describe", False),
    "described": (export.Export, "_summary", False),
    "remembered": (Increments, "remember", True),
}
"""Each step is the function that the process is about to call, or has just called (True): `begun` is before the first byte of a batch,
`answered` is with the answer not yet in the journal; at `written` an export has no manifest yet, at `remembered` it has stored its mark.
"""


def kill_at(point: str) -> None:
    """Make this process kill itself at the step."""
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


if __name__ == "__main__":
    kill_at(sys.argv[1])
    if sys.argv[1] == "patient":
        sender.GRACE_SECONDS = 2 * PATIENCE
    sys.argv = ["crmctl", *sys.argv[2:]]
    sys.exit(main())
