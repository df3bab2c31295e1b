"""The composition root of the client side: settings and key in, a ready `Crm` out. Nothing is sent and httpx is not loaded."""

from __future__ import annotations

from collections.abc import Callable

from crmctl.client.crm import Crm
from crmctl.client.http.session import USER_AGENT, Session
from crmctl.client.http.transport import HttpxTransport, Transport
from crmctl.client.rate_limit.limiter import SharedBudget, ledger_path
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential
from crmctl.config.paths import Paths
from crmctl.config.settings import Settings


def connect(
    settings: Settings,
    credential: Credential,
    paths: Paths,
    *,
    clock: Clock | None = None,
    log: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
    lane: str = "interactive",
    transport: Transport | None = None,
) -> Crm:
    """A client for the profile's service.

    `log` receives debug lines (the key redacted), `note` sentences about long waits. `lane` is `interactive` or `bulk`: bulk work leaves
    a few requests of the rate budget to people who wait. Raises ConfigError without a base URL, DeniedError for a key of another origin.
    """
    clock = clock or SystemClock()
    base_url = settings.require_base_url()
    session = Session(
        base_url,
        credential,
        transport or HttpxTransport(ca_bundle=settings.ca_bundle.value, user_agent=USER_AGENT),
        clock=clock,
        budget=SharedBudget(ledger_path(paths.state, credential.origin, credential.key), clock, lane=lane, note=note),
        max_wait=settings.max_wait.value,
        timeout=settings.timeout.value,
        log=log,
        note=note,
    )
    return Crm(session)
