"""What is told about finished requests: Prometheus metrics and the request log. Never a key, only its id; never a query string or body."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from crmctl.service.faults import shown
from crmctl.service.settings import RequestLog

MOST_PATH = 1000
"""Characters of a path in the request log."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True)
class Finished:
    """One finished request; `route` is the template of its path, None when nothing was there; `at` in Unix seconds."""

    at: float
    method: str
    path: str
    route: str | None
    status: int | None
    seconds: float
    key_id: str | None


class Metrics:
    """The service's own registry, so that two services in one process do not count together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["method", "route", "status"]
        self._requests = Counter("crm_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram("crm_request_seconds", "Time to answer.", ["method", "route"], buckets=SECONDS, registry=self.registry)

    def count(self, finished: Finished) -> None:
        # Only known routes and methods become labels: a stranger must not be able to grow the table.
        route = re.sub(r":\w+}", "}", finished.route or "none")
        method = "any" if not finished.route else finished.method if finished.method in METHODS else "other"
        self._requests.labels(method, route, str(finished.status)).inc()
        self._seconds.labels(method, route).observe(finished.seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)


def observer(metrics: Metrics, log: RequestLog | None) -> Callable[[Finished], None]:
    """Counts every finished request and, with a log, writes it down."""

    def observe(finished: Finished) -> None:
        metrics.count(finished)
        if log is None:
            return
        # A log that cannot be written, on a full disk for example, must not change the answer.
        with contextlib.suppress(OSError, ValueError):
            log(
                {
                    "time": datetime.fromtimestamp(finished.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                    "method": shown(finished.method),
                    "path": shown(finished.path, MOST_PATH),
                    "status": finished.status,
                    "ms": round(finished.seconds * 1000, 3),
                    "keyId": finished.key_id,
                }
            )

    return observe
