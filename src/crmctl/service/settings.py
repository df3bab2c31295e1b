"""What a running service is told when it starts. Plain values only; nothing here reads the environment or touches a disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RequestLog = Callable[[Mapping[str, Any]], None]
"""Takes one finished request: `time method path status ms keyId requestId address` (never the key)."""

DATABASE_FILE = "service.db"
FILES_FOLDER = "files"
UNFINISHED = f".{DATABASE_FILE}.*.partial"
"""What a restore works in, beside the database; left behind only where it was killed."""


@dataclass(frozen=True)
class S3Settings:
    """Uploads go to S3 buckets called `prefix` plus the bucket that a client names. `endpoint` None is Amazon's own."""

    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None


DAY = 86400.0


@dataclass(frozen=True)
class Kept:
    """How many seconds things are kept: changes of records, the request log (0: there is none), the audit log."""

    history: float = 90 * DAY
    requests: float = 7 * DAY
    audit: float = 365 * DAY


@dataclass(frozen=True)
class Quotas:
    """How many bytes there may be in all: uploaded files in the data directory, results of report runs."""

    files: int = 10 * 1024**3
    results: int = 1024**3


@dataclass(frozen=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of one service process.

    `rate_limit` is requests per key in `rate_window` seconds, 0 means unlimited. `body_limit` is in bytes; `body_timeout` is the longest
    pause, in seconds, between two pieces of a request's body, `head_timeout` the longest time its line and headers may take, and
    `request_timeout` the longest time it is worked on. `connections` may be open at once. `metrics` are served with the rest (True), on
    an address of their own, or not at all; `docs` are the OpenAPI document and its page. `public_url` is the
    address that clients use when it is not the bound one.
    `development` lets webhooks and workflows call this machine; without `background` this process only answers requests.
    `file_limit` is the most bytes of one uploaded file; files are kept in the data directory, or in `files_s3`.
    `kept` says how long, and `quotas` how much.
    """

    data_dir: Path = Path("crmctl-data")
    database_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8787
    rate_limit: int = 100
    rate_window: int = 60
    public_url: str | None = None
    body_limit: int = 10 * 1024 * 1024
    body_timeout: float = 30.0
    head_timeout: float = 15.0
    request_timeout: float = 20.0
    connections: int = 4096
    metrics: Address | bool = True
    docs: bool = True
    request_log: RequestLog | None = None
    development: bool = False
    background: bool = True
    file_limit: int = 100 * 1024 * 1024
    files_s3: S3Settings | None = None
    kept: Kept = Kept()
    quotas: Quotas = Quotas()

    @property
    def engine_url(self) -> str:
        """The database to open: the given one, else an SQLite file in the data directory."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / DATABASE_FILE}"

    @property
    def address(self) -> str:
        """The address of the service for its clients, without a trailing slash; right once `port` is the bound one."""
        return self.base_url(self.port)

    def base_url(self, port: int) -> str:
        """The address of the service for its clients, without a trailing slash, when it listens on `port`."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
