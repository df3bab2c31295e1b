"""Background jobs and figures of one service process."""

from __future__ import annotations

import ipaddress
import random
import threading
from collections.abc import Sequence

from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.jobs.worker import BackgroundJob, Dispatcher, Removals, RequestLogWriter, Retention
from crmctl.service.outbound.caller import Caller, OutboundCaller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import change_log, deliveries
from crmctl.service.store.deliveries import PROVEN, UNPROVEN, read_figures
from crmctl.service.store.tx import Tx
from crmctl.service.webhooks.delivery_jobs import Deliveries
from crmctl.service.workflows.run_executor import Runs, Schedules, start_for_events

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


FIGURES_SECONDS = 5.0
FIGURES_WITHIN = 2.0


def target_guard(context: Context) -> TargetGuard:
    """Return what webhooks and workflows may call: with `--dev` this machine, too."""
    return TargetGuard(LOOPBACK if context.settings.development else ())


def jobs(context: Context, caller: Caller | None = None) -> list[BackgroundJob]:
    """Return the jobs of one process, not started."""
    caller = caller or Caller(target_guard(context))
    sender = OutboundCaller(caller, context.clock)

    def fan_out(tx: Tx, events: Sequence[change_log.Event]) -> None:
        deliveries.fan_out(tx, events, ids=context.ids, now=context.clock.now())

    def start_workflows(tx: Tx, events: Sequence[change_log.Event]) -> None:
        start_for_events(tx, events, ids=context.ids, now=context.clock.now())

    return [
        Dispatcher(context, [fan_out, start_workflows]),
        Deliveries(context, sender, random.random, PROVEN),
        Deliveries(context, sender, random.random, UNPROVEN),
        Retention(context),
        Removals(context),
        Runs(context, caller),
        Schedules(context),
    ]


class Figures:
    """Figures of the database for /metrics, read at most every few seconds."""

    def __init__(self, context: Context, requests: RequestLogWriter | None) -> None:
        self._context = context
        self._requests = requests
        self._lock = threading.Lock()
        self._known: dict[str, float] = {}
        self._next_at = 0.0

    def read(self) -> dict[str, float]:
        """Return the figures, or none if the database does not answer in time: the other metrics do not depend on it."""
        context = self._context
        with self._lock:
            if context.clock.monotonic() >= self._next_at:
                try:
                    self._known = context.engine.read(lambda tx: read_figures(tx, now=context.clock.now()), within=FIGURES_WITHIN)
                    self._known |= context.engine.figures()
                except Unavailable:
                    self._known = {}
                self._next_at = context.clock.monotonic() + FIGURES_SECONDS
            return self._known | {"request_log_dropped": float(self._requests.dropped if self._requests else 0)}
