"""What earlier runs of an incremental export delivered: how far back the next one reads, and which records it need not give again."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from crmctl.bulk.exports.gathering import GatherState
from crmctl.bulk.exports.staging import Staging
from crmctl.bulk.records.moments import MICROS
from crmctl.errors import ConfigError, reason
from crmctl.models import jsontext

_SCHEMA = """
CREATE TABLE IF NOT EXISTS delivered (id TEXT PRIMARY KEY, updated INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS mark (one INTEGER PRIMARY KEY CHECK (one = 1), since INTEGER NOT NULL);
"""

_DROP = """
DELETE FROM record
WHERE EXISTS (SELECT 1 FROM other.delivered AS old WHERE old.id = record.id AND old.updated = record.updated)
"""
_REMEMBER = (
    "INSERT OR REPLACE INTO other.delivered SELECT id, updated FROM record WHERE updated >= ?",
    "DELETE FROM other.delivered WHERE updated < ?",
    "INSERT OR REPLACE INTO other.mark VALUES (1, ?)",
)


class Increments:
    """The memory of one incremental export, known by `identity`: service, object, conditions and file."""

    def __init__(self, state_directory: Path, identity: dict[str, Any]) -> None:
        folder = state_directory / "increments"
        name = hashlib.sha256(jsontext.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
        self._path = folder / f"{name}.db"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {reason(error)}", hint="CRMCTL_STATE_DIR names another directory") from error
        with closing(self._open()) as db:
            db.executescript(_SCHEMA)

    def since(self) -> int | None:
        """The moment (microseconds) from which changes may not have been delivered; None before the first run."""
        with closing(self._open()) as db:
            row = db.execute("SELECT since FROM mark").fetchone()
        return int(row[0]) if row is not None else None

    def drop_delivered(self, staging: Staging) -> None:
        """Remove what was delivered before exactly as it is now."""
        staging.attach(self._path, [(_DROP, ())])

    def remember(self, staging: Staging, state: GatherState, lookback: float) -> None:
        """The records of the staging have been delivered. The mark never goes back."""
        newest = state.as_of if state.newest is None else state.newest
        since = max(min(state.as_of - int(lookback * MICROS), newest), self.since() or 0)
        staging.attach(self._path, [(statement, (since,)) for statement in _REMEMBER])

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None)
