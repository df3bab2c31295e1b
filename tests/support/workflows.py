"""Workflows run by hand: load definitions into a service, run the jobs until nothing is due, look at the runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from crmctl.service.context import Context, ServiceSettings, new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.service.jobs.worker import dispatch
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import workflows
from crmctl.service.workflows.run_executor import Runs, start_due, start_for_events
from tests.support.service import RunningService


def start_workflows(context: Context) -> bool:
    """Hand waiting events to workflows alone. Return whether there were any."""
    return dispatch(context, [start_for_events])


@dataclass
class Machinery:
    """The jobs of workflows on a service that runs without them."""

    crm: RunningService
    guard: TargetGuard
    caller: Caller = field(init=False)

    def __post_init__(self) -> None:
        self.caller = Caller(self.guard, 5)

    def job(self) -> Runs:
        """Return the job that executes runs in one process."""
        return Runs(self.context, self.caller)

    @property
    def context(self) -> Context:
        return Context(ServiceSettings(), self.crm.engine, self.crm.clock, new_id)

    def load(self, *definitions: dict[str, Any]) -> list[str]:
        """Load these workflows, with harmless defaults. Return their ids."""
        named = [
            {"name": f"W{number}", "trigger": "record/created", "object": "people", "actions": [{"type": "createActivity", "title": "Hi"}]}
            | definition
            for number, definition in enumerate(definitions)
        ]
        load_document(self.crm.engine, parse_document(json.dumps({"workflows": named})), clock=self.crm.clock, ids=new_id)
        known = {workflow["name"]: workflow["id"] for workflow in self.crm.client.get("/api/v1/workflows").json()["workflows"]}
        return [known[workflow["name"]] for workflow in named]

    def dispatch(self) -> None:
        while start_workflows(self.context):
            pass

    def settle(self) -> None:
        """Do everything that is due now, including what follows from it."""
        start_due(self.context)
        for _ in range(100):
            self.dispatch()
            job = self.job()
            found = job.run_once()
            job.close()
            if not found:
                return
        raise AssertionError("still work after 100 rounds")

    def claim_all(self) -> list[workflows.Claimed]:
        """Claim the runs that another process would claim."""
        return self.crm.engine.write(lambda tx: workflows.claim_runs(tx, 10, now=self.crm.clock.now()))

    def claim(self) -> workflows.Claimed:
        """Claim the one waiting run."""
        [run] = self.claim_all()
        return run

    def runs(self, workflow_id: str) -> list[dict[str, Any]]:
        """Return the runs, oldest first."""
        found = self.crm.client.get(f"/api/v1/workflows/{workflow_id}/runs", params={"limit": 100}).json()["runs"]
        return list(reversed(found))

    def states(self, workflow_id: str) -> list[str]:
        return [run["status"] for run in self.runs(workflow_id)]

    def start(self, workflow_id: str, body: Any = None) -> Any:
        return self.crm.client.post(f"/api/v1/workflows/{workflow_id}/run", json=body)

    def record(self, slug: str = "people", **data: Any) -> dict[str, Any]:
        answer = self.crm.client.post(f"/api/v1/objects/{self.crm.object_id(slug)}/records", json={"data": data})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def stored(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return its current data."""
        return dict(self.crm.client.get(f"/api/v1/objects/{record['objectId']}/records/{record['id']}").json()["data"])

    def activities(self) -> list[dict[str, Any]]:
        """Return the activities, oldest first."""
        return list(reversed(self.crm.client.get("/api/v1/activities", params={"limit": 100}).json()["activities"]))

    def events(self, prefix: str) -> list[tuple[str, Any]]:
        return [event for event in self.crm.outbox() if event[0].startswith(prefix)]
