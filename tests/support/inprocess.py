"""Run the command line in the test's own process, with streams in memory, where many processes would take minutes."""

from __future__ import annotations

import io
import os

from crmctl.cli.app import run
from crmctl.cli.runtime import Runtime
from crmctl.client.crm import Crm
from crmctl.clock import Clock
from crmctl.output.streams import ClosedPipe, Streams
from tests.support.cli import Result


class _Runtime(Runtime):
    """A runtime that remembers its connections: processes close them by ending."""

    made: list[Crm]

    def connect(self, lane: str = "interactive") -> Crm:
        self.made.append(super().connect(lane))
        return self.made[-1]


def run_here(*arguments: str, clock: Clock | None = None, env: dict[str, str] | None = None) -> Result:
    """Run a command off a terminal to its end, in the test's environment."""
    out, err = io.StringIO(), io.StringIO()
    environ = {**os.environ, **(env or {})}
    runtime = _Runtime(Streams(io.TextIOWrapper(io.BytesIO()), out, err, environ), environ, list(arguments), clock)
    runtime.made = []
    try:
        code = run(list(arguments), runtime)
    except ClosedPipe:
        code = 0
    finally:
        for crm in runtime.made:
            crm.session.close()
    return Result(arguments, int(code), out.getvalue(), err.getvalue())
