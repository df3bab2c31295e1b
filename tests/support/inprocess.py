"""The command line in the test's own process: one run with streams in memory. For depth where a process each would take minutes."""

from __future__ import annotations

import io
import os

from crmctl.cli.app import run
from crmctl.cli.runtime import Runtime
from crmctl.clock import Clock
from crmctl.output.streams import ClosedPipe, Streams
from tests.support.cli import Result


def run_here(*arguments: str, clock: Clock | None = None, env: dict[str, str] | None = None) -> Result:
    """Run to the end off a terminal, with the test's environment."""
    out, err = io.StringIO(), io.StringIO()
    environ = {**os.environ, **(env or {})}
    runtime = Runtime(Streams(io.StringIO(), out, err, environ), environ, list(arguments), clock)
    try:
        code = run(list(arguments), runtime)
    except ClosedPipe:
        code = 0
    finally:
        if "crm" in runtime.__dict__:
            runtime.crm.session.close()
    return Result(arguments, int(code), out.getvalue(), err.getvalue())
