"""Executes runs, a few at once, each step in the transaction that notes it as done.

A crash loses no run: its lease ends and another process goes on at the step that was not noted. Only a call of a URL cannot be part of a
transaction: when it is not known whether one was made, the run fails and says so, or the call is repeated where the action allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crmctl.models import jsontext
from crmctl.service.context import Context
from crmctl.service.faults import BadRequest, Conflict, Fault, Forbidden, NotFound
from crmctl.service.jobs.places import Places
from crmctl.service.jobs.worker import POLL_SECONDS
from crmctl.service.outbound.caller import ATTEMPT_SECONDS, USER_AGENT, Caller, CallFailedError
from crmctl.service.store import actors, workflow_runs
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.service.store.tx import Tx
from crmctl.service.store.workflow_runs import Claimed, LeaseLostError
from crmctl.service.workflows.actions import PERFORM
from crmctl.service.workflows.templates import render

AT_ONCE = 32
PER_WORKFLOW = 4
"""Under way at a time of one workflow, over all processes: one whose calls hang leaves the other places to the others."""

LEASE_SECONDS = 2 * ATTEMPT_SECONDS
"""Longer than a step can take: a run whose lease ended belongs to a process that died."""

MOST_ATTEMPTS = 5
"""A run that was interrupted this often is given up: it may be what brings the process down."""

RETENTION_SECONDS = 90 * 24 * 3600.0
HOUSEKEEPING_SECONDS = 3600.0


class Runs:
    """A job of the worker."""

    def __init__(self, context: Context, caller: Caller) -> None:
        self._context = context
        self._caller = caller
        self._places = Places(AT_ONCE, "workflow")
        self._clean_at = 0.0

    def run_once(self) -> bool:
        """Start what waits and has a place; whether to look again at once."""
        self._forget()
        free = self._places.free()
        claimed = self._claim(free) if free else []
        for run in claimed:
            self._places.start(self.execute, run)
        return bool(claimed) or self._places.wait(POLL_SECONDS)

    def close(self) -> None:
        """Waits for the runs under way."""
        self._places.close()

    def execute(self, run: Claimed) -> None:
        """Do the steps that are left. Raises only what another try may get past; the lease decides when that is."""
        try:
            if run.attempt > MOST_ATTEMPTS:
                raise BadRequest(f"interrupted {MOST_ATTEMPTS} times, not tried again")
            while run.step < len(run.actions):
                run = self._step(run)
        except LeaseLostError:
            return
        except (BadRequest, NotFound, Conflict, Forbidden) as fault:
            self._fail(run, fault)

    def _claim(self, most: int) -> list[Claimed]:
        engine, clock = self._context.engine, self._context.clock
        if not engine.read(lambda tx: workflow_runs.is_waiting(tx, PER_WORKFLOW, now=clock.now())):
            return []
        return engine.write(lambda tx: workflow_runs.claim(tx, most, PER_WORKFLOW, LEASE_SECONDS, now=clock.now()))

    def _step(self, run: Claimed) -> Claimed:
        action = run.actions[run.step]
        perform = self._call if action["type"] == "callUrl" else self._change
        return perform(run, action)

    def _change(self, run: Claimed, action: Mapping[str, Any]) -> Claimed:
        """A step in the database: what it does, which events it causes and that it is done commit together."""
        scope = _scope(run)
        filled = render(dict(action), scope, f"actions[{run.step}]")

        def change(tx: Tx) -> Claimed:
            now, made = self._context.clock.now(), _Noted(self._context)
            result = PERFORM[action["type"]](tx, filled, scope, {"ids": made, "now": now})
            workflow_runs.note_origin(tx, run, made.ids)
            return workflow_runs.advance(tx, run, result, LEASE_SECONDS, ids=self._context.ids, now=now)

        return self._context.engine.write(change, by=actors.workflow(run.workflow_id))

    def _call(self, run: Claimed, action: Mapping[str, Any]) -> Claimed:
        if run.is_calling and not action.get("repeat"):
            raise BadRequest("interrupted: the service stopped during the call; whether it arrived is not known and it was not repeated")
        engine, clock = self._context.engine, self._context.clock
        scope = _scope(run)
        filled = render(dict(action), scope, f"actions[{run.step}]")
        headers = {"content-type": "application/json", "user-agent": USER_AGENT, "idempotency-key": f"{run.id}-{run.step}"}
        headers |= {name.lower(): str(value) for name, value in filled.get("headers", {}).items()}
        body = jsontext.dumps(filled.get("body", scope)).encode()
        calling = engine.write(lambda tx: workflow_runs.begin_call(tx, run, LEASE_SECONDS, now=clock.now()))
        try:
            reply = self._caller.post(str(filled["url"]), headers, body)
        except CallFailedError as problem:
            raise BadRequest(f"the call failed: {problem}") from None
        if not 200 <= reply.status < 300:
            raise BadRequest(f"the call was answered with status {reply.status}")
        result = {"status": reply.status}
        return engine.write(lambda tx: workflow_runs.advance(tx, calling, result, LEASE_SECONDS, ids=self._context.ids, now=clock.now()))

    def _fail(self, run: Claimed, fault: Fault) -> None:
        kind = run.actions[run.step]["type"]
        error = f"action {run.step + 1} ({kind}): {fault.message}"
        try:
            self._context.engine.write(lambda tx: workflow_runs.fail(tx, run, error, ids=self._context.ids, now=self._context.clock.now()))
        except LeaseLostError:
            return

    def _forget(self) -> None:
        now = self._context.clock.now()
        if now >= self._clean_at:
            self._clean_at = now + HOUSEKEEPING_SECONDS
            self._context.engine.write(lambda tx: workflow_runs.forget(tx, now - RETENTION_SECONDS))


class _Noted:
    """Makes ids and remembers them."""

    def __init__(self, context: Context) -> None:
        self._make = context.ids
        self.ids: list[str] = []

    def __call__(self) -> str:
        self.ids.append(self._make())
        return self.ids[-1]


def _scope(run: Claimed) -> dict[str, Any]:
    """What templates can name: `record` or `activity`, `event`, `data`, `schedule`; `workflow`, `run`, `steps`, and `now`, its start."""
    return run.input | {
        "workflow": {"id": run.workflow_id, "name": run.workflow_name},
        "run": {"id": run.id, "triggerEvent": run.trigger},
        "steps": run.steps,
        "now": to_wire(to_micros(run.created_at)),
    }
