"""`crmctl workflows`: list and run workflows, and wait for a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from crmctl.cli.options import argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.cli.targets import read_json_object
from crmctl.cli.verbs import NOUNS, find_item, noun_app
from crmctl.errors import PendingError, RejectedError, ServiceError, UsageError

if TYPE_CHECKING:
    from crmctl.models.jsontext import Json
    from crmctl.models.resources import Workflow


NOUN = NOUNS["workflows"]
app = noun_app("workflows")

NAME = NOUN.example
WAIT_SECONDS = 300.0


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
    runtime: Runtime,
    workflow: Annotated[str, argument("WORKFLOW", "Id or exact name of the workflow.")],
    data: Annotated[str | None, option("--data", "JSON|@FILE|-", "Input of the run: a JSON object, from a file or from stdin.")] = None,
    wait: Annotated[bool, flag("--wait", "Wait for the run to end, and show it.")] = False,
    wait_timeout: Annotated[float | None, option("--wait-timeout", "SECONDS", "Longest wait for the run; 300 by default.")] = None,
) -> None:
    """Run an enabled workflow by hand.

    With --wait the exit code is 0 if the run completed, 7 if it failed, 8 if it did not end in time. The service does not say which run
    a call started; if crmctl finds several new runs, all of them must complete.
    """
    if wait_timeout is not None and not (wait and 0 <= wait_timeout < 1e7):
        raise UsageError("--wait-timeout is a number of seconds from 0 on, and goes with --wait")
    values = read_json_object(runtime, data) if data is not None else None
    if wait:
        runtime.emitter.check_fields(NOUN.runs_view)
    else:
        if runtime.output_format == "ids" and not runtime.flags.get("query"):
            raise UsageError("the answer names no run", hint="--wait shows the run, whose id -o ids prints")
        runtime.emitter.check_result({"message": "", "workflowId": "", "workflowName": ""})
    item = _enabled(runtime, workflow, look=wait)
    if wait:
        run_and_wait(runtime, item, values, WAIT_SECONDS if wait_timeout is None else wait_timeout)
    else:
        started, _ = runtime.crm.run_workflow(item.id, values)
        empty = {"workflowId": item.id} | ({"workflowName": item.name} if item.name else {})
        runtime.emitter.emit_result(started.wire or empty, text=started.message or "the workflow was started")


def _enabled(runtime: Runtime, text: str, *, look: bool) -> Workflow:
    """Return the workflow. Raises RejectedError if it is disabled; `look` reads it to find out."""
    from crmctl.models.resources import Workflow

    item = Workflow.parse(find_item(runtime, NOUN, text).wire)
    if look and item.name is None:
        item = runtime.crm.get_workflow(item.id)
    if item.enabled is False:
        name = item.name or item.id
        raise RejectedError(f"the workflow {name!r} is disabled", code="workflow_disabled", hint="it can be run once it is enabled")
    return item


def run_and_wait(runtime: Runtime, workflow: Workflow, data: Json | None, seconds: float) -> None:
    """Run a workflow and show the run. Raises ServiceError if it failed, PendingError if it did not end in time."""
    from crmctl.client.runs import RunFollower

    told = ""

    def tell(text: str) -> None:
        nonlocal told
        if text != told and runtime.streams.stderr_is_terminal:
            runtime.messages.note(text)
        told = text

    follower = RunFollower(runtime.crm, workflow.id, workflow.name, runtime.clock, note=runtime.messages.note, tell=tell)
    if not runtime.dry_run:
        follower.look()
    follower.start(data)
    try:
        followed = follower.follow(seconds)
    except KeyboardInterrupt:
        runtime.messages.warn("the run goes on; crmctl workflows runs shows it")
        raise
    runs = [run.wire for run in followed.runs]
    hint = f"crmctl workflows runs {workflow.id}"
    if not followed.ended:
        where = f"run {followed.runs[0].id} is still {followed.runs[0].status or 'going on'}" if runs else "the run is not in the list yet"
        raise PendingError(f"{where} after {seconds:g} s", hint=f"{hint} shows how it ends", details={"runs": runs})
    failed = followed.failed
    runtime.emitter.emit_item((failed or followed.runs[0]).wire, NOUN.runs_view)
    if failed is None:
        return
    reason = f": {failed.error}" if failed.error else ""
    said = f"run {failed.id} ended as {failed.status}{reason}"
    if len(runs) > 1:
        said = f"one of {len(runs)} runs that cannot be told apart failed: {said}"
    raise ServiceError(said, code="run_failed", hint=hint, details={"runs": runs})
