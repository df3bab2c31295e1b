"""Imports by key into one object take turns: each looks up which records are there, and must not be overtaken before it has written."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from crmctl.bulk.journal.jobs import OBJECTS, JobStore, unlockable
from crmctl.clock import Clock
from crmctl.errors import PendingError

WAIT_SECONDS = 3600.0
"""How long an import waits for its turn where nothing else is asked for."""

LOOK_SECONDS = 0.2
TELLING_SECONDS = 3.0
"""How long whoever holds the lock may take to have a job that can be named."""

UNKNOWN = "another process"


@dataclass(frozen=True)
class ObjectLock:
    """One object of one organization, which its id and the origin of the service name. `patience`: most seconds to wait."""

    store: JobStore
    origin: str
    object_id: str
    object: str
    patience: float = WAIT_SECONDS

    @contextmanager
    def hold(self, clock: Clock, note: Callable[[str], None]) -> Iterator[None]:
        """Keep every other import by key into the object waiting meanwhile; a process that dies lets go. `note` hears of a wait.

        Raises PendingError when the turn does not come in time, ConfigError where nothing can be locked.
        """
        folder = self.store.root / OBJECTS
        name = hashlib.sha256(f"{self.origin} {self.object_id}".encode()).hexdigest()[:32]
        path = folder / f"{name}.sqlite"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            base = sqlite3.connect(path, isolation_level=None, timeout=0.0)
        except (OSError, sqlite3.Error) as error:
            raise unlockable(path, error) from error
        with closing(base):
            try:
                self._wait(base, clock, note)
            except sqlite3.Error as error:
                raise unlockable(path, error) from error
            yield

    def _wait(self, base: sqlite3.Connection, clock: Clock, note: Callable[[str], None]) -> None:
        begun, told = clock.monotonic(), False
        while not _lock(base):
            waited = clock.monotonic() - begun
            if waited >= self.patience:
                raise PendingError(
                    f"{self._holder or UNKNOWN} is importing into {self.object} by key; nothing was sent",
                    hint="--lock-wait SECONDS waits for its end",
                    code="import_running",
                    retryable=True,
                )
            if not told and ((holder := self._holder) is not None or waited >= TELLING_SECONDS):
                note(f"{holder or UNKNOWN} is importing into {self.object} by key; waiting for its end (--lock-wait 0 does not)")
                told = True
            clock.sleep(min(LOOK_SECONDS, self.patience - waited))

    @property
    def _holder(self) -> str | None:
        """Who it is; one that has just begun has no job yet."""
        for job in self.store.list():
            if job.is_running and job.header.keys and (job.header.origin, job.header.object_id) == (self.origin, self.object_id):
                return f"job {job.id}"
        return None


def _lock(base: sqlite3.Connection) -> bool:
    """Whether the lock is ours; it is free as soon as its holder has ended, in whatever way."""
    try:
        base.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return False
        raise
    return True
