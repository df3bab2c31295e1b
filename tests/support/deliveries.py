"""Webhook deliveries run by hand: a database, a clock, and jobs whose rounds a test starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crmctl.service.background import LOOPBACK, Deliveries
from crmctl.service.context import Context, ServiceSettings, new_id
from crmctl.service.jobs.worker import dispatch
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import change_log, members, webhooks
from crmctl.service.store.engine import open_engine
from crmctl.service.store.tx import micros_of
from crmctl.service.store.webhooks import PROVEN, UNPROVEN
from crmctl.values.value_readers import parse_instant
from tests.support.clock import FakeClock


class Bench:
    """A database, a clock and the jobs, run by hand."""

    def __init__(self, path: Path, url: str, caller: Caller | None = None) -> None:
        self.clock = FakeClock()
        self.engine = open_engine(url)
        self.context = Context(ServiceSettings(data_dir=path), self.engine, self.clock, new_id)
        self.engine.write(lambda tx: members.initialise(tx, ids=new_id, now=self.clock.now()))
        self.caller = caller or Caller(TargetGuard(LOOPBACK), 5.0)

    def endpoint(self, url: str, event_types: list[str] | None = None) -> dict[str, Any]:
        return self.engine.write(
            lambda tx: webhooks.create_endpoint(tx, url=url, event_types=event_types, ids=new_id, now=self.clock.now())
        )

    def event(self, kind: str = "record.created", **payload: Any) -> None:
        self.engine.write(lambda tx: change_log.append_event(tx, kind, payload, ids=new_id, now=self.clock.now()))
        self.dispatch()

    def dispatch(self) -> None:
        dispatch(self.context, [webhooks.fan_out])

    def jobs(self) -> list[Deliveries]:
        """Return the delivery jobs of one process."""
        return [Deliveries(self.context, self.caller, lambda: 0.5, lane) for lane in (PROVEN, UNPROVEN)]

    def deliver(self) -> int:
        """Try everything that is due now. Return the number of rounds."""
        rounds = 0
        while True:
            jobs = self.jobs()
            found = [job.run_once() for job in jobs]
            for job in jobs:
                job.close()
            if not any(found):
                return rounds
            rounds += 1

    def attempts(self, endpoint: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the attempts of its only delivery."""
        [delivery] = self.history(endpoint)
        return list(self.engine.read(lambda tx: webhooks.get_delivery(tx, delivery["id"]))["history"])

    def history(self, endpoint: dict[str, Any]) -> list[dict[str, Any]]:
        return self.engine.read(lambda tx: webhooks.list_deliveries(tx, endpoint["id"]))

    def secret(self, endpoint: dict[str, Any]) -> str:
        return self.engine.read(lambda tx: webhooks.reveal_secret(tx, endpoint["id"]))

    def run_until_settled(self, endpoint: dict[str, Any]) -> None:
        """Move the clock from due time to due time until nothing is pending."""
        for _ in range(100):
            self.deliver()
            waiting = [parse_instant(delivery["nextTryAt"]) for delivery in self.history(endpoint) if delivery["state"] == "pending"]
            if not waiting:
                return
            self.clock.advance(max(0.0, micros_of(min(waiting)) / 1_000_000 - self.clock.now()))
        raise AssertionError("still pending after 100 rounds")
