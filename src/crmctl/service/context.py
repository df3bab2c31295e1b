"""Settings and data that the parts of one running service share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.clock import Clock
from crmctl.errors import ConfigError, StorageError, storage_error
from crmctl.frozen import frozen
from crmctl.service.faults import Unavailable
from crmctl.service.store import members
from crmctl.service.store.engine import Engine, has_data, open_engine
from crmctl.service.store.tx import Ids

if TYPE_CHECKING:
    from crmctl.service.http.turns import Work

RequestLog = Callable[[Mapping[str, Any]], None]
"""Takes a finished request: `time method path status ms keyId requestId address` (never the key)."""

DATABASE_FILE = "service.db"
FILES_FOLDER = "files"
UNFINISHED = f".{DATABASE_FILE}.*.partial"
"""Folder of a restore beside the database; only an unfinished restore leaves one behind."""


@frozen
class S3Settings:
    """Uploads go to S3 buckets named `prefix` plus the bucket that a client asks for. Without `endpoint` they go to Amazon."""

    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None


DAY = 86400.0


@frozen
class Kept:
    """Retention in seconds of record changes, the request log (0 disables it) and the audit log."""

    history: float = 90 * DAY
    requests: float = 7 * DAY
    audit: float = 365 * DAY


@frozen
class Quotas:
    """Most bytes of all uploaded files in the data directory, and of all report results."""

    files: int = 10 * 1024**3
    results: int = 1024**3


@frozen
class ServiceSettings:
    """Settings of one service process.

    `rate_limit` is requests per key in `rate_window` seconds, 0 means unlimited. `body_limit` is in bytes; `body_timeout` is the longest
    pause, in seconds, between two pieces of a request's body, `head_timeout` the longest time its line and headers may take, and
    `request_timeout` the longest time it is worked on. `connections` may be open at once. `metrics` and `docs` say whether /metrics and
    /openapi.json are served. `public_url` is the address that clients use when it is not the bound one.
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
    metrics: bool = True
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
        """Return the database to open: the given one, else an SQLite file in the data directory."""
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / DATABASE_FILE}"

    @property
    def address(self) -> str:
        """Return the address for clients without a trailing slash. Correct once `port` is the bound one."""
        if self.public_url:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@frozen
class Context:
    settings: ServiceSettings
    engine: Engine
    clock: Clock
    ids: Ids

    @cached_property
    def work(self) -> Work:
        """The queues of requests. Loaded on demand, because administration needs none."""
        from crmctl.service.http.turns import Work

        return Work(self.engine.reads_at_once)


_VARIANT = dict(zip("0123456789abcdef", 4 * "89ab", strict=True))


def new_id() -> str:
    """Return a UUID of version 7. It starts with the time, so that new records are neighbours in every index of ids."""
    text = f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
    return f"{text[:8]}-{text[8:12]}-7{text[12:15]}-{_VARIANT[text[15]]}{text[16:19]}-{text[20:32]}"


def open_data(settings: ServiceSettings, clock: Clock, ids: Ids = new_id) -> Engine:
    """Open the service's data; create it and set up its organisation if necessary.

    Raises StorageError when the disk is full or failed, and ConfigError also after an unfinished restore: a new database would stand beside
    old files.
    """
    if (begun := next(settings.data_dir.glob(UNFINISHED), None)) and not has_data(settings.engine_url):
        hint = f"give crmctl service restore again; to begin with nothing, delete {begun} and {settings.data_dir / FILES_FOLDER}"
        raise ConfigError(f"a restore into {settings.data_dir} is not finished", hint=hint)
    engine = None
    try:
        engine = open_engine(settings.engine_url)
        engine.write(lambda tx: members.initialise(tx, ids=ids, now=clock.now()))
    except BaseException as error:
        if engine is not None:
            engine.close()
        cause = error.__cause__ if type(error) is Unavailable else error
        if isinstance(cause, Exception) and isinstance(failed := storage_error(cause, settings.data_dir / DATABASE_FILE), StorageError):
            raise failed from error
        raise
    return engine
