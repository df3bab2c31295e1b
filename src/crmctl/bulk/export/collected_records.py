"""What an export has read so far, on disk: records by id, the newest content of each, and where reading goes on. One transaction a page.

Records and position change together, so that whatever ends the process, both are as they were after some page.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crmctl.errors import UsageError, reason, storage_error
from crmctl.models import jsontext
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, updated INTEGER NOT NULL, wire TEXT NOT NULL, older INTEGER
);
CREATE TABLE IF NOT EXISTS kept (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_MERGE = """
INSERT INTO record (id, updated, wire) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    updated = max(record.updated, excluded.updated),
    wire = CASE WHEN excluded.updated >= record.updated THEN excluded.wire ELSE record.wire END,
    older = CASE WHEN excluded.updated < record.updated THEN excluded.updated ELSE record.older END
WHERE excluded.wire <> record.wire AND (excluded.updated >= record.updated OR excluded.updated < coalesce(record.older, record.updated))
"""


class Staging:
    """Records on disk; `path` None is a temporary file that vanishes with the process. Raises UsageError when another process has it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        try:
            if path is not None:
                path.touch(mode=0o600)
            with ExitStack() as unless_ready:
                self._db = unless_ready.enter_context(closing(sqlite3.connect(path or "", isolation_level=None, timeout=0)))
                # One process only, and no shared memory: works on network file systems too.
                self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._db.execute(f"PRAGMA journal_mode = {'WAL' if path is not None else 'OFF'}")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.executescript(_SCHEMA)
                unless_ready.pop_all()
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorname", None) in ("SQLITE_BUSY", "SQLITE_LOCKED"):
                raise UsageError(f"another export is working on {path}", code="export_running") from error
            if path is not None and path.is_file() and not path.stat().st_size:
                path.unlink()  # a disk without any room
            failure = storage_error(error, path) or UsageError(f"cannot write {path}: {reason(error)}", code="unwritable_file")
            raise failure from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM record").fetchone()[0])

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def step(self, other: Path | None = None) -> Iterator[None]:
        """All that is written inside is written together, or not at all. Raises StorageError, which names `other` where that is written."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error) and (failure := storage_error(error, other or self._path)) is not None:
                raise failure from error
            raise

    def merge(self, rows: Iterable[Record]) -> int:
        """Take records in, each id once with its newest content; how many were new or had changed.

        A content that is read later and has an older time of change is either from a replica that lags or from a clock that is behind: the
        newest by time stays, and that there was another one is noted.
        """
        before = self._db.total_changes
        self._db.executemany(_MERGE, ((row.id, micros_of(row.updated_at) or 0, jsontext.dumps(row.wire)) for row in rows))
        return self._db.total_changes - before

    def oldest_contradiction(self) -> int | None:
        """The earliest time of change (microseconds) of a content that came after one with a later time."""
        found: int | None = self._db.execute("SELECT min(older) FROM record").fetchone()[0]
        return found

    def wires(self) -> Iterator[str]:
        """The JSON text of every record, in the order of first arrival."""
        return (row[0] for row in self._db.execute("SELECT wire FROM record ORDER BY no"))

    def keep(self, rows: Iterable[Record]) -> None:
        """Note that these are still there."""
        self._db.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((row.id,) for row in rows))

    def prune(self) -> int:
        """Remove every record that was not noted as still there, and the notes; how many were removed."""
        removed = self._db.execute("DELETE FROM record WHERE id NOT IN (SELECT id FROM kept)").rowcount
        self._db.execute("DELETE FROM kept")
        return removed

    def keep_only(self, admits: Callable[[str], bool]) -> None:
        """Remove every record whose JSON text is not admitted."""
        self._db.create_function("admits", 1, admits, deterministic=True)
        with self.step():
            self._db.execute("DELETE FROM record WHERE NOT admits(wire)")

    @contextmanager
    def attached(self, path: Path, *, writes: bool, **functions: Callable[[str], Any]) -> Iterator[sqlite3.Connection]:
        """These records together with another database, `other`: one change, of that one with `writes`, else of these. `functions` of one
        text can be used in SQL. Raises StorageError."""
        for name, function in functions.items():
            self._db.create_function(name, 1, function, deterministic=True)
        self._db.execute("ATTACH ? AS other", (str(path),))
        try:
            with self.step(path if writes else None):
                yield self._db
        finally:
            self._db.execute("DETACH other")

    def note(self, name: str, value: Any) -> None:
        """Keep a JSON value."""
        self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, jsontext.dumps(value)))

    def noted(self, name: str) -> Any:
        """A kept value, or None."""
        row = self._db.execute("SELECT value FROM note WHERE name = ?", (name,)).fetchone()
        return jsontext.loads(row[0]) if row is not None else None
