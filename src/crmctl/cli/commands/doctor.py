"""`crmctl doctor`: is everything in place?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from crmctl.cli.framework import CommandApp
from crmctl.errors import ExitCode

if TYPE_CHECKING:
    from crmctl.cli.diagnosis import Check
    from crmctl.cli.runtime import Runtime

app = CommandApp()

COLORS = {"ok": "green", "warning": "yellow", "failed": "red"}
BEFORE_DETAIL = " " * 27


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
    if runtime.message_format == "table":
        runtime.streams.write_out("".join(_described(runtime, check) for check in checks))
    else:
        rows = [check.to_document() for check in checks]
        Emitter(runtime.streams, runtime.message_format, messages=runtime.messages).emit_items(rows, generic_view(rows, "checks"))
    return next((check.exit_code for check in checks if check.status == "failed"), ExitCode.OK)


def _described(runtime: Runtime, check: Check) -> str:
    """A check for a person: nothing is cut, long details go on below their beginning."""
    import textwrap

    from crmctl.output.control_characters import clean

    width = max(60, runtime.streams.width or 120) - len(BEFORE_DETAIL)
    texts = [clean(check.detail), *([f"hint: {clean(check.hint)}"] if check.hint else [])]
    lines = [line for text in texts for line in textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)]
    status = runtime.streams.paint(check.status, COLORS.get(check.status, "bold"))
    return f"{status}{' ' * (9 - len(check.status))}{check.name:<18}" + f"\n{BEFORE_DETAIL}".join(lines) + "\n"
