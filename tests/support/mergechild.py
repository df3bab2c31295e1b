"""A merge, or its undo, in a process to be killed: STATE ORIGIN KEY apply|resume|undo AT WHEN PLAN.

At its AT-th write (0: never) the process kills itself as a power cut would, `before` the request is sent or `after` its answer.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.merges import CrashingService, apply, merge_context, resume, unmerge
from tests.support.outcomes import error_of


def main(state: str, origin: str, key: str, action: str, at: str, when: str, plan: str) -> int:
    with merge_context(origin, key, Path(state)) as context:
        context.service = CrashingService(context.service, int(at), when, lambda: os.kill(os.getpid(), signal.SIGKILL))
        done = apply(context, Path(plan)) if action == "apply" else resume(context) if action == "resume" else unmerge(context)
    return 0 if error_of(done) is None else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
