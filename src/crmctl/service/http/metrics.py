"""What is told about finished requests: Prometheus metrics and the request log. Never a key, only its id; never a query string or body."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from crmctl.service.faults import shown
from crmctl.service.settings import RequestLog
from crmctl.service.store.figures import FIGURES
from crmctl.service.store.request_log import LoggedRequest
from crmctl.service.store.timestamps import to_micros

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
    request_id: str = ""
    address: str | None = None

    @property
    def template(self) -> str | None:
        """The route as it is written down: parameters without their kinds."""
        return None if self.route is None else re.sub(r":\w+}", "}", self.route)


class Metrics:
    """The service's own registry, so that two services in one process do not count together."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.figures: Callable[[], Mapping[str, float]] = dict
        """What the database says: see store/figures.py."""
        labels = ["method", "route", "status"]
        self._requests = Counter("crm_requests", "Requests answered.", labels, registry=self.registry)
        self._seconds = Histogram("crm_request_seconds", "Time to answer.", ["method", "route"], buckets=SECONDS, registry=self.registry)

    def count(self, finished: Finished) -> None:
        # Only known routes and methods become labels: a stranger must not be able to grow the table.
        route = finished.template or "none"
        method = "any" if not finished.route else finished.method if finished.method in METHODS else "other"
        self._requests.labels(method, route, str(finished.status)).inc()
        self._seconds.labels(method, route).observe(finished.seconds)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Of the registry's own protocol."""
        for name, value in self.figures().items():
            yield GaugeMetricFamily(f"crm_{name}", FIGURES.get(name, name), value=value)

    def render(self) -> bytes:
        return generate_latest(self.registry)


UNLOGGED = frozenset({"/healthz", "/readyz", "/metrics"})
"""What machines ask every few seconds is not kept."""
ASSETS = "/console/static/{name}"
"""What browsers fetch along with a page is kept only where it is refused."""


def observer(metrics: Metrics, log: RequestLog | None, keep: Callable[[LoggedRequest], None] | None = None) -> Callable[[Finished], None]:
    """Counts every finished request and, with a log, writes it down; `keep` is for the log in the database."""

    def observe(finished: Finished) -> None:
        metrics.count(finished)
        is_usual = finished.route in UNLOGGED or (finished.route == ASSETS and finished.status in (200, 304))
        if keep is not None and not is_usual:
            keep(_request(finished))
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
                    "requestId": finished.request_id,
                    "address": finished.address,
                }
            )

    return observe


def _request(finished: Finished) -> LoggedRequest:
    method = finished.method if finished.method in METHODS else "other"
    micros = round(finished.seconds * 1_000_000)
    about = (finished.request_id, finished.key_id, method, finished.template or "none", finished.status, micros, finished.address)
    return LoggedRequest(to_micros(finished.at), *about)
