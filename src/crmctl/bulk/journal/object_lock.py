"""Imports by key into one object take turns: each looks up which records are there, and must not be overtaken before it has written."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from crmctl.bulk.journal.jobs import OBJECTS, JobStore, unlockable
from crmctl.clock import Clock
from crmctl.errors import PendingError

WAIT_SECONDS = 3600.0
"""How long an import waits for its turn where nothing else is asked for."""

LOOK_SECONDS = 0.2
TELLING_SECONDS = 3.0
"""How long whoever holds the lock may take to have a job that can be named."""

A_LOOK = 0.1
"""How long somebody may only look whether a turn is under way, in seconds."""

UNKNOWN = "another process"


@dataclass(frozen=True)
class ObjectLock:
    """One object of one organization, which its id names, by whatever profile it is reached. `patience`: most seconds to wait."""

    store: JobStore
    object_id: str
    object: str
    patience: float = WAIT_SECONDS

    def last_turn(self) -> str | None:
        """The turn that has ended last, None during one. What is read after this is known to `hold` as of its beginning where it gives the
        same."""
        if self._path.exists():
            try:
                with closing(sqlite3.connect(self._path, isolation_level=None, timeout=0.0)) as base:
                    base.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
            except sqlite3.Error:
                return None
        return self._read_turn()

    def _read_turn(self) -> str:
        try:
            return self._turn_path.read_text(encoding="ascii")
        except (OSError, ValueError):
            return ""

    @contextmanager
    def hold(self, clock: Clock, note: Callable[[str], None]) -> Iterator[str]:
        """Keep every other import by key into the object waiting meanwhile; a process that dies lets go. `note` hears of a wait.

        Gives the turn before this one. Raises PendingError when the turn does not come in time, ConfigError where nothing can be locked.
        """
        path = self._path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            base = sqlite3.connect(path, isolation_level=None, timeout=A_LOOK)
        except (OSError, sqlite3.Error) as error:
            raise unlockable(path, error) from error
        with closing(base):
            try:
                self._wait(base, clock, note)
            except sqlite3.Error as error:
                raise unlockable(path, error) from error
            before = self._read_turn()
            try:
                self._turn_path.write_text(secrets.token_hex(8), encoding="ascii")
            except OSError as error:
                raise unlockable(self._turn_path, error) from error
            yield before

    @property
    def _path(self) -> Path:
        name = hashlib.sha256(self.object_id.lower().encode()).hexdigest()[:32]
        return self.store.root / OBJECTS / f"{name}.sqlite"

    @property
    def _turn_path(self) -> Path:
        return self._path.with_suffix(".turn")

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
            if job.is_running and job.header.keys and job.header.object_id.lower() == self.object_id.lower():
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
