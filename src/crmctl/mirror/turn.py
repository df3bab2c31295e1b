"""Whose turn it is to write a mirror: one process at a time; the others wait, or use what is there."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from crmctl.clock import Clock
from crmctl.errors import PendingError
from crmctl.mirror.file import storage_errors

WAIT_SECONDS = 3600.0
LOOK_SECONDS = 0.2


@contextmanager
def writing_turn(path: Path, clock: Clock, note: Callable[[str], None], patience: float = WAIT_SECONDS) -> Iterator[bool]:
    """Keep every other sync of the mirror waiting; whether this one had to wait. A process that dies lets go.

    Raises PendingError when the turn does not come in time.
    """
    place = path.with_name(f"{path.name}.turn")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.touch(mode=0o600)
    with closing(sqlite3.connect(place, isolation_level=None, timeout=0.0)) as base:
        begun, waited = clock.monotonic(), False
        while not _is_ours(base, path):
            passed = clock.monotonic() - begun
            if passed >= patience:
                raise PendingError(
                    "another process is bringing the mirror up to date",
                    hint="try again when it is done; crmctl mirror status shows what there is",
                    code="sync_running",
                    retryable=True,
                )
            if not waited:
                note("another process is bringing the mirror up to date; waiting for its end")
            waited = True
            clock.sleep(min(LOOK_SECONDS, patience - passed))
        yield waited


def _is_ours(base: sqlite3.Connection, path: Path) -> bool:
    """Take the turn where it is free, which it is as soon as its holder has ended."""
    try:
        with storage_errors(path):
            base.execute("BEGIN EXCLUSIVE")
    except Exception as error:
        name = getattr(error.__cause__ or error, "sqlite_errorname", "")
        if str(name).startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return False
        raise
    return True
