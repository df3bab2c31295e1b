"""`workflows run --wait`: start, follow, show the run, turn how it ended into the exit code. Which run it is, client.following knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crmctl.errors import PendingError, ServiceError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.run_follower import Followed
    from crmctl.models.workflows import Workflow


def run_and_wait(runtime: Runtime, workflow: Workflow, data: dict[str, Any] | None, seconds: float) -> None:
    """Raises ServiceError when the run failed, after it was shown, and PendingError when it had not ended in time."""
    from crmctl.client.run_follower import RunFollower
    from crmctl.output.status_line import StatusLine

    standing = StatusLine(runtime.streams, runtime.clock, quiet=bool(runtime.flags.get("quiet")))
    follower = RunFollower(runtime.crm, workflow.id, workflow.name, runtime.clock, note=runtime.messages.note, tell=standing)
    if not runtime.dry_run:
        follower.look()
    follower.start(data)
    try:
        followed = follower.follow(seconds)
    except KeyboardInterrupt:
        runtime.messages.warn("the run goes on; crmctl workflows runs shows it")
        raise
    _show(runtime, workflow, followed, seconds)


def _show(runtime: Runtime, workflow: Workflow, followed: Followed, seconds: float) -> None:
    from crmctl.output.views import WORKFLOW_RUNS

    runs = [run.wire for run in followed.runs]
    hint = f"crmctl workflows runs {workflow.id}"
    if not followed.ended:
        where = f"run {followed.runs[0].id} is still {followed.runs[0].status or 'going on'}" if runs else "the run is not in the list yet"
        raise PendingError(f"{where} after {seconds:g} s", hint=f"{hint} shows how it ends", details={"runs": runs})
    failed = followed.failed
    runtime.emitter.emit_item((failed or followed.runs[0]).wire, WORKFLOW_RUNS)
    if failed is None:
        return
    reason = f": {failed.error}" if failed.error else ""
    said = f"run {failed.id} ended as {failed.status}{reason}"
    if len(runs) > 1:
        said = f"one of {len(runs)} runs that cannot be told apart failed: {said}"
    raise ServiceError(said, code="run_failed", hint=hint, details={"runs": runs})
