"""Which jobs a service process runs beside its requests. The composition root of everything that happens later."""

from __future__ import annotations

import ipaddress
import random

from crmctl.service.context import Context
from crmctl.service.jobs.dispatch import Dispatcher
from crmctl.service.jobs.retention import Retention
from crmctl.service.jobs.worker import Worker
from crmctl.service.outbound.caller import Caller, OutboundCaller
from crmctl.service.outbound.guard import TargetGuard
from crmctl.service.store import deliveries, outbox
from crmctl.service.store.tx import Tx
from crmctl.service.webhooks.delivery_jobs import PROVEN, UNPROVEN, Deliveries, Expiry
from crmctl.service.workflows.run_executor import Runs
from crmctl.service.workflows.triggers import Schedules, start_for_event

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


def target_guard(context: Context) -> TargetGuard:
    """What webhooks and workflows may call; a development service may call this machine."""
    return TargetGuard(LOOPBACK if context.settings.development else ())


def build_worker(context: Context) -> Worker:
    """Not started yet."""
    caller = Caller(target_guard(context))
    sender = OutboundCaller(caller, context.clock)

    def fan_out(tx: Tx, event: outbox.Event) -> None:
        deliveries.fan_out(tx, event.id, event.type, ids=context.ids, now=context.clock.now())

    def start_workflows(tx: Tx, event: outbox.Event) -> None:
        start_for_event(tx, event, ids=context.ids, now=context.clock.now())

    return Worker(
        [
            Dispatcher(context, [fan_out, start_workflows]),
            Deliveries(context, sender, random.random, PROVEN),
            Deliveries(context, sender, random.random, UNPROVEN),
            Expiry(context),
            Retention(context),
            Runs(context, caller),
            Schedules(context),
        ]
    )
