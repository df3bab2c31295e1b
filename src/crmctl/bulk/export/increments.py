"""What earlier runs of an incremental export delivered: how far back the next one reads, and which contents it need not give again."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from crmctl.bulk.export.collected_records import Staging
from crmctl.bulk.export.passes import GatherMark, GatherState
from crmctl.errors import ConfigError, UsageError, reason, storage_error
from crmctl.models import jsontext
from crmctl.models.timestamps import MICROS

_SCHEMA = """
CREATE TABLE IF NOT EXISTS delivered (id TEXT PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS mark (
    one INTEGER PRIMARY KEY CHECK (one = 1), run INTEGER NOT NULL, since INTEGER, as_of INTEGER NOT NULL, taken INTEGER NOT NULL
);
"""

_DROP = """
DELETE FROM record
WHERE EXISTS (SELECT 1 FROM other.delivered AS old WHERE old.id = record.id AND old.digest = digest(record.wire))
"""
_REMEMBER = "INSERT OR REPLACE INTO other.delivered SELECT id, digest(wire) FROM record"
_MARK = "INSERT OR REPLACE INTO other.mark VALUES (1, ?, ?, ?, ?)"
_FORMAT = 2
"""Of the memory; one of an earlier format is not read."""


class Increments:
    """The memory of one incremental export, known by `identity`: service, object, conditions and file.

    `run` counts the complete runs so far; `mark` is where the last one ended, None before the first, and after one that found no record.
    """

    def __init__(self, state_directory: Path, identity: dict[str, Any]) -> None:
        folder = state_directory / "increments"
        name = hashlib.sha256(jsontext.dumps({**identity, "format": _FORMAT}, sort_keys=True).encode()).hexdigest()[:24]
        self._path = folder / f"{name}.db"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError as error:
            if (failure := storage_error(error, self._path)) is not None:
                raise failure from error
            raise ConfigError(f"cannot write to {folder}: {reason(error)}", hint="CRMCTL_STATE_DIR names another directory") from error
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
                db.executescript(_SCHEMA)
                row = db.execute("SELECT run, since, as_of, taken FROM mark").fetchone()
        except sqlite3.Error as error:
            raise storage_error(error, self._path) or error from error
        self.run: int = row[0] if row is not None else 0
        self.mark = GatherMark(*row[1:]) if row is not None and row[1] is not None else None

    def drop_delivered(self, staging: Staging) -> None:
        """Remove what was delivered before exactly as it is now, whenever that was. Where a record was delivered more than once, the last
        time counts: what it went back to is a change."""
        known, found = staging.noted("contradiction"), staging.oldest_contradiction()
        with staging.attached(self._path, writes=False, digest=_digest) as db:
            staging.note("contradiction", min((one for one in (known, found) if one is not None), default=None))
            db.execute(_DROP)

    def remember(self, staging: Staging, state: GatherState, lookback: float) -> None:
        """The records of the staging have been delivered. Raises UsageError when another run was complete meanwhile: it gave the same.

        The next run looks back from the newest change too: the clock that stamps records may be behind the one that dates answers. Where it
        could not be told which of two contents is the newer one, it looks again.
        """
        back, contradiction = int(lookback * MICROS), staging.noted("contradiction")
        since = None if state.newest is None else min(state.as_of - back, state.newest - back, contradiction or state.newest)
        with staging.attached(self._path, writes=True, digest=_digest) as db:
            known = db.execute("SELECT run FROM other.mark").fetchone()
            if known is not None and known[0] != self.run:
                raise UsageError(
                    "another run of this export was complete meanwhile, and gave the same changes",
                    hint="leave out what this one gave",
                    code="export_running",
                )
            db.execute(_REMEMBER)
            db.execute(_MARK, (self.run + 1, since, state.as_of, state.taken))


def _digest(wire: str) -> bytes:
    """Of a record's content, whatever the order of its keys."""
    return hashlib.blake2b(jsontext.dumps(jsontext.loads(wire), sort_keys=True).encode("utf-8", "surrogatepass"), digest_size=8).digest()
