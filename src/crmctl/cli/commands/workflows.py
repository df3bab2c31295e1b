"""`crmctl workflows`: run them by hand, wait for the run, see the runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.framework import CommandApp
from crmctl.cli.list_window import show_pages, window
from crmctl.cli.named_resources import WorkflowArgument, find_workflow, list_workflows
from crmctl.cli.options import AllOption, LimitOption, OffsetOption
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.models.workflows import Workflow

app = CommandApp("Run workflows by hand and see their runs.")

NAME = "'Greet new people'"
WAIT_SECONDS = 300.0


@app.command("list", examples=["crmctl workflows list", "crmctl workflows list -q '[?enabled].name'"])
def list_all(ctx: typer.Context) -> None:
    """List workflows."""
    from crmctl.output.views import WORKFLOWS

    runtime: Runtime = ctx.obj
    runtime.emitter.emit_items(list_workflows(runtime), WORKFLOWS)


@app.command("get", examples=[f"crmctl workflows get {NAME}", f"crmctl workflows get {NAME} -q enabled"])
def get_workflow(ctx: typer.Context, workflow: WorkflowArgument) -> None:
    """Show one workflow."""
    from crmctl.output.views import WORKFLOWS

    runtime: Runtime = ctx.obj
    runtime.emitter.emit_item(runtime.crm.get_workflow(find_workflow(runtime, workflow).id).wire, WORKFLOWS)


@app.command("runs", examples=[f"crmctl workflows runs {NAME}", f"crmctl workflows runs {NAME} -q \"[?status!='completed']\""])
def list_runs(
    ctx: typer.Context, workflow: WorkflowArgument, limit: LimitOption = None, every: AllOption = False, offset: OffsetOption = 0
) -> None:
    """List the runs of a workflow.

    Shows 50 unless --limit or --all asks for more.
    """
    from crmctl.output.views import WORKFLOW_RUNS

    runtime: Runtime = ctx.obj
    part = window(limit, every, offset)
    identity = find_workflow(runtime, workflow).id
    show_pages(
        runtime, lambda limit, offset: runtime.crm.list_workflow_runs(identity, limit=limit, offset=offset), part, lambda _: WORKFLOW_RUNS
    )


@app.command(
    "run",
    writes=True,
    examples=[
        f"crmctl workflows run {NAME}",
        f"""crmctl workflows run {NAME} --data '{{"reason": "asked for it"}}' --wait""",
        f"crmctl workflows run {NAME} --wait --wait-timeout 60 -q status",
    ],
)
def run_workflow(
    ctx: typer.Context,
    workflow: WorkflowArgument,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="JSON|@FILE|-", help="What the run is given: a JSON object, from a file, or from stdin."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run that this call started has ended, and show it.")] = False,
    wait_timeout: Annotated[
        float | None, typer.Option("--wait-timeout", metavar="SECONDS", help="Longest wait for the run; 300 unless given.")
    ] = None,
) -> None:
    """Run a workflow by hand; it must be enabled.

    With --wait the exit code is 0 when the run completed, 7 when it failed, 8 when it had not ended in time. The service does not say
    which run a call started: it is the new one of that moment. Where several cannot be told apart, all of them must complete.
    """
    from crmctl.cli.targets import read_json_object
    from crmctl.output.views import WORKFLOW_RUNS

    runtime: Runtime = ctx.obj
    if wait_timeout is not None and not (wait and 0 <= wait_timeout < 1e7):
        raise UsageError("--wait-timeout is a number of seconds from 0 on, and goes with --wait")
    given = read_json_object(runtime, data) if data is not None else None
    if wait:
        runtime.emitter.check_fields(WORKFLOW_RUNS)
    found = _enabled(runtime, workflow, look=wait)
    if wait:
        from crmctl.cli.run_wait import run_and_wait

        run_and_wait(runtime, found, given, WAIT_SECONDS if wait_timeout is None else wait_timeout)
    else:
        started, _ = runtime.crm.run_workflow(found.id, given)
        runtime.emitter.emit_result(started.wire or _acknowledged(found), text=started.message or "the workflow was started")


def _enabled(runtime: Runtime, text: str, *, look: bool) -> Workflow:
    """The workflow, refused here when it is known to be disabled. Raises RejectedError before anything is started."""
    from crmctl.errors import RejectedError

    found = find_workflow(runtime, text)
    if look and found.name is None:
        found = runtime.crm.get_workflow(found.id)
    if found.enabled is False:
        name = found.name or found.id
        raise RejectedError(f"the workflow {name!r} is disabled", code="workflow_disabled", hint="it can be run once it is enabled")
    return found


def _acknowledged(workflow: Workflow) -> dict[str, Any]:
    """What stands for an empty answer."""
    return {"workflowId": workflow.id} | ({"workflowName": workflow.name} if workflow.name else {})
