"""`crmctl demo`: crmctl at work on a throw-away service."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crmctl.cli.framework import CommandApp
from crmctl.errors import ServiceError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

app = CommandApp()


@app.command("demo", local=True, examples=["crmctl demo", "crmctl demo -o json"])
def demonstrate(ctx: typer.Context) -> None:
    """Watch crmctl work on a throw-away service.

    Starts the embedded service on a free port, signs in, imports a CSV, lists it, pipes it, exports it again and compares; then draws a
    report, runs a workflow, uploads a file and receives webhooks. Every command is shown before it runs; nothing of your own settings or
    data is touched, and nothing is left behind.
    """
    from crmctl.cli.demo import Demo
    from crmctl.cli.demo_stage import Stage

    runtime: Runtime = ctx.obj
    if any(find_spec(name) is None for name in ("starlette", "uvicorn", "prometheus_client")):
        raise UsageError("the demonstration needs the embedded service", hint="pip install 'crmctl[service]'", code="service_not_installed")
    asked = runtime.flags.get("output") or ("json" if runtime.flags.get("json") else None)
    for_people = asked in (None, "table")
    started = runtime.clock.monotonic()
    with tempfile.TemporaryDirectory(prefix="crmctl-demo-") as folder:
        stage = Stage(Path(folder), runtime.streams, "stdout" if for_people else "stderr", runtime.environ)
        result = Demo(stage, runtime.clock).play()
    seconds = runtime.clock.monotonic() - started
    if result["differences"] or result["imported"] != result["exported"]:
        raise ServiceError(f"what came back is not what was sent: {result['differences']} cells differ", details=result)
    if for_people:
        back = f"Imported {result['imported']:,} people, got all of them back unchanged"
        stage.say(f"\n{back}, heard {result['events']} webhooks, and cleaned up, in {seconds:.1f} s.\n")
    else:
        runtime.emitter.emit_result({**result, "elapsedSeconds": round(seconds, 1)})
