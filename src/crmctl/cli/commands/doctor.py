"""`crmctl doctor`: is everything in place?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crmctl.cli.framework import CommandApp
from crmctl.errors import ExitCode

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp()


@app.command("doctor", local=True, examples=["crmctl doctor", "crmctl doctor --network -o json"])
def examine(
    ctx: typer.Context,
    network: Annotated[bool, typer.Option("--network", help="Also connect to the service: name, key, clock, rate limit.")] = False,
) -> int:
    """Check the installation, the settings and the connection.

    Ends with the exit code of the first check that failed, 0 when none did.
    """
    from crmctl.cli.diagnosis import diagnose
    from crmctl.output.emitter import Emitter
    from crmctl.output.views import generic_view

    runtime: Runtime = ctx.obj
    checks = list(diagnose(runtime, network=network))
    rows = [check.to_document() for check in checks]
    Emitter(runtime.streams, runtime.message_format, messages=runtime.messages).emit_items(rows, generic_view(rows, "checks"))
    return next((check.exit_code for check in checks if check.status == "failed"), ExitCode.OK)
