"""Who is calling, and may they call now: the API key and its rate window. Scopes are checked where the endpoint is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

from crmctl.service.context import Context
from crmctl.service.http.errors import rate_limited, unauthorized
from crmctl.service.store import keys
from crmctl.service.store.keys import ApiKey
from crmctl.service.store.rates import UNLIMITED, RateWindows


@dataclass
class RequestAuth:
    """Where a caller stands: the key once it is known, and the rate figures for the answer's headers (`reset` in Unix seconds)."""

    limit: int
    remaining: int
    reset: float
    key: ApiKey | None = None

    @property
    def key_id(self) -> str | None:
        return self.key.id if self.key else None

    def headers(self) -> list[tuple[bytes, bytes]]:
        figures = (
            ("x-ratelimit-limit", self.limit),
            ("x-ratelimit-remaining", self.remaining),
            ("x-ratelimit-reset", math.ceil(self.reset)),
        )
        return [(name.encode(), str(figure).encode()) for name, figure in figures]


def stranger(context: Context) -> RequestAuth:
    """The standing of a request whose key is not known (yet): an untouched window."""
    limit = context.settings.rate_limit or UNLIMITED
    return RequestAuth(limit, limit, context.clock.now() + context.settings.rate_window)


class Admission:
    """Finds the key of a request and takes the request from its rate window."""

    def __init__(self, context: Context, windows: RateWindows) -> None:
        self.context = context
        self.windows = windows

    def admit(self, standing: RequestAuth, authorization: str | None) -> None:
        """Fill in `standing`. Raises a 401 without a valid key, a 429 when its window is used up."""
        scheme, _, secret = (authorization or "").strip().partition(" ")
        if not authorization:
            raise unauthorized("this request needs an API key: Authorization: Bearer <API_KEY>")
        if scheme.lower() != "bearer" or not secret.strip():
            raise unauthorized("the Authorization header must be: Bearer <API_KEY>")
        key = self.context.engine.read(lambda tx: keys.find_key(tx, secret.strip()), single=True)
        now = self.context.clock.now()
        if key is None:
            raise unauthorized("this API key is not valid: unknown or revoked")
        if key.is_expired(now):
            raise unauthorized("this API key has expired")
        standing.key = key
        state = self.windows.take(key.id, standing.limit, self.context.settings.rate_window, now)
        standing.remaining, standing.reset = state.remaining, state.reset
        if not state.allowed:
            raise rate_limited(max(1, math.ceil(state.reset - now)))
