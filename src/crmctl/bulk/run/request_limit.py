"""How many requests the service allows, as it states it: so long a work takes at least."""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.bulk.context import BulkContext


@dataclass(frozen=True)
class Limit:
    """The request rate: `requests` per `seconds`, of which `remaining` may go at once."""

    requests: int = 100
    seconds: float = 60.0
    remaining: int = 0

    def time_for(self, requests: int) -> float:
        """Seconds until so many requests may have gone."""
        return max(0, requests - self.remaining) * self.seconds / self.requests if self.requests > 0 else 0.0


def current_limit(context: BulkContext) -> Limit:
    """The request rate as the service states it at this moment."""
    session = context.crm.session
    headers = session.exchange("GET", "/objects").headers
    try:
        return Limit(int(headers["x-ratelimit-limit"]), session.rate_window, int(headers["x-ratelimit-remaining"]))
    except (KeyError, ValueError):
        return Limit(seconds=session.rate_window)
