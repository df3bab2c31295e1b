"""Turns of processes: a lock that ends with its process."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from crmctl.clock import Clock
from crmctl.errors import ConfigError, CrmctlError, StorageError, reason, storage_error

LOOK_SECONDS = 0.2
A_LOOK = 0.1
"""Longest wait in seconds when a process only checks whether a turn is in progress."""


@contextmanager
def take_turn(
    path: Path, clock: Clock, patience: float, tell: Callable[[float], bool], refusal: Callable[[], CrmctlError]
) -> Iterator[None]:
    """Hold the lock of a file, which ends with its process. `tell` gets the seconds waited so far, until it returns true.

    Raises the error of `refusal` after `patience` seconds, ConfigError and StorageError if locking fails.
    """
    with ExitStack() as stack:
        begun, is_told = clock.monotonic(), False
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            base = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None, timeout=A_LOOK)))
            while not _is_ours(base):
                waited = clock.monotonic() - begun
                if waited >= patience:
                    raise refusal()
                is_told = is_told or tell(waited)
                clock.sleep(min(LOOK_SECONDS, patience - waited))
        except (OSError, sqlite3.Error) as error:
            failure = storage_error(error, path)
            if not isinstance(failure, StorageError) or failure.code != "no_space":
                failure = ConfigError(f"cannot lock {path}: {reason(error)}", hint="CRMCTL_STATE_DIR names another directory")
            raise failure from error
        yield


def _is_ours(base: sqlite3.Connection) -> bool:
    """Take the lock; return whether that worked. A lock is free as soon as its holder has ended for any reason."""
    try:
        base.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return False
        raise
    return True
