"""What stands behind a job's journal: its database and transactions, facts by name, and the records that rows were found to be."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from crmctl.bulk.journal.states import BatchState, RowState
from crmctl.errors import StorageError, reason, storage_error
from crmctl.models import jsontext

BUGS = (sqlite3.ProgrammingError, sqlite3.InterfaceError)
"""What SQLite says to a wrong caller, not of a file."""


class OneAtATime:
    """One thread at a time works on a database. What that cannot do, or what in it cannot be read, is a StorageError that names it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()
        if isinstance(error, ValueError):
            raise damaged(self._path, reason(error)) from error
        if isinstance(error, sqlite3.Error) and not isinstance(error, BUGS):
            raise storage_error(error, self._path) or error from error


def damaged(path: Path, why: str) -> StorageError:
    """What a file of a job holds cannot be what was written."""
    return StorageError(f"{path} is damaged: {why}", code="damaged_job")


class JournalDatabase:
    """Base of `Journal`, which opens the database."""

    _db: sqlite3.Connection
    _lock: OneAtATime

    def remember(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        self._write("INSERT OR REPLACE INTO fact VALUES (?, ?)", name, jsontext.dumps(value))

    def recall(self, name: str) -> Any:
        """The value kept under a name, or None."""
        with self._lock:
            found = self._one("SELECT (SELECT value FROM fact WHERE name = ?)", name)
            return None if found is None else jsontext.loads(found)

    def records_made(self, since: float | None = None) -> int:
        """Records the job is known to have made; with `since` (Unix time) those confirmed then or later, and all that were found."""
        query = (
            "SELECT (SELECT COALESCE(SUM(created), 0) FROM batch WHERE ? IS NULL OR settled_at >= ?) "
            "+ (SELECT COUNT(*) FROM row WHERE state = ?) + (SELECT COUNT(*) FROM row WHERE state = ? AND created_id IS NOT NULL) "
            "+ (SELECT COUNT(*) FROM duplicate)"
        )
        return int(self._one(query, since, since, RowState.CREATED, RowState.FAILED))

    def refusals(self) -> list[str]:
        """Why rows failed: the first two different reasons, in input order."""
        query = "SELECT error FROM row WHERE state = ? AND error IS NOT NULL GROUP BY error ORDER BY MIN(ordinal) LIMIT 2"
        with self._lock:
            return [reason for (reason,) in self._db.execute(query, (RowState.FAILED,))]

    def refute_doubt(self, number: int, ordinals: Collection[int]) -> None:
        """A batch in doubt was certainly not carried out: its rows may be sent again, and there is nothing to come back to."""
        with self._transaction(durable=False):
            rows = [(ordinal, number) for ordinal in ordinals]
            self._db.executemany("DELETE FROM doubted WHERE ordinal IN (SELECT ordinal FROM row WHERE ordinal = ? AND batch = ?)", rows)
            self._db.executemany("DELETE FROM row WHERE ordinal = ? AND batch = ?", rows)
            self._db.execute("UPDATE batch SET size = 0, state = ? WHERE no = ?", (BatchState.RECONCILED, number))

    # -- rows with a key -------------------------------------------------------------------------------------------------------------

    def set_targets(self, targets: Iterable[tuple[int, str]]) -> None:
        """Write down which records rows update; every other row creates one."""
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR REPLACE INTO target VALUES (?, ?)", targets)

    def target(self, ordinal: int) -> str | None:
        """The record that a row updates."""
        found: str | None = self._one("SELECT (SELECT record_id FROM target WHERE ordinal = ?)", ordinal)
        return found

    def conclude(self, outcomes: Iterable[tuple[int, RowState, str | None, str | None]]) -> None:
        """Give rows that were never sent their last state: ordinal, state, the record's id, and why."""
        with self._transaction(durable=False):
            # A row of a batch that was refused for the time being is down already.
            self._db.executemany("INSERT OR REPLACE INTO row (ordinal, state, record_id, error) VALUES (?, ?, ?, ?)", outcomes)

    # -- what was there before, and what was taken back ------------------------------------------------------------------------------

    def keep_before(self, images: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Keep what the attributes that rows write hold before: ordinal, values by slug (None for an absent one)."""
        rows = ((ordinal, jsontext.dumps(image)) for ordinal, image in images)
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR REPLACE INTO before VALUES (?, ?)", rows)

    def before(self, first: int, last: int) -> dict[int, dict[str, Any]]:
        """What was kept of the rows first..last."""
        with self._lock:
            found = self._db.execute("SELECT ordinal, data FROM before WHERE ordinal BETWEEN ? AND ?", (first, last)).fetchall()
            return {ordinal: jsontext.loads(data) for ordinal, data in found}

    def mark_undone(self, record_ids: Iterable[str]) -> None:
        """Records that are as they were before the job: deleted, or put back."""
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR IGNORE INTO undone VALUES (?)", ((record_id.lower(),) for record_id in record_ids))

    def is_undone(self, record_id: str | None) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM undone WHERE record_id = lower(?))", record_id))

    @property
    def undone_count(self) -> int:
        return int(self._one("SELECT COUNT(*) FROM undone"))

    # -- rows of a job that goes on --------------------------------------------------------------------------------------------------

    def first_open(self) -> int:
        """The first row that may still be sent, or is in doubt; where every row has its outcome, one behind the last row."""
        return int(
            self._one(
                "SELECT MIN(ordinal) FROM ("
                "SELECT MIN(ordinal) AS ordinal FROM row JOIN batch ON no = batch "
                "WHERE row.state IS NULL AND batch.state NOT IN ('CONFIRMED', 'RECONCILED') "
                "UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM row WHERE ordinal = 1) "
                "UNION ALL SELECT * FROM (SELECT ordinal + 1 FROM row AS this "
                "WHERE NOT EXISTS (SELECT 1 FROM row WHERE ordinal = this.ordinal + 1) ORDER BY ordinal LIMIT 1))"
            )
        )

    def overrule(self, ordinal: int, why: str) -> None:
        """A row that was written counts as failed all the same; it keeps its record."""
        with self._transaction():
            query = (
                "SELECT row.state, batch, record_id, batch.state = 'CONFIRMED', created, updated FROM row LEFT JOIN batch ON no = batch "
                "WHERE ordinal = ?"
            )
            state, batch, record_id, is_counted, created, updated = self._db.execute(query, (ordinal,)).fetchone()
            if state is None and is_counted:
                column = "updated" if updated and (record_id or not created) else "created"
                self._db.execute(f"UPDATE batch SET {column} = {column} - 1 WHERE no = ?", (batch,))  # noqa: S608
            self._db.execute("UPDATE row SET state = ?, error = ? WHERE ordinal = ?", (RowState.FAILED, why, ordinal))

    def rename_row(self, ordinal: int, record_id: str) -> None:
        """The record that a row became is gone; this one is in its place."""
        self._write("UPDATE row SET created_id = ? WHERE ordinal = ?", record_id, ordinal)

    # -- keys that somebody else used meanwhile --------------------------------------------------------------------------------------

    def record_rivals(self, records: Iterable[tuple[int, str, str]]) -> None:
        """Rows, each with a record that has its key, and the key: all of them, where there is more than one."""
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR IGNORE INTO rival VALUES (?, ?, ?)", records)

    def rivals(self) -> dict[int, tuple[str, list[str]]]:
        """Rows whose key several records have: the key, and those records."""
        found: dict[int, tuple[str, list[str]]] = {}
        with self._lock:
            for ordinal, record_id, key in self._db.execute("SELECT ordinal, record_id, key FROM rival ORDER BY ordinal, record_id"):
                found.setdefault(ordinal, (key, []))[1].append(record_id)
        return found

    def release(self, ordinals: Iterable[int]) -> None:
        """Rows the service refused may be sent again, whatever they were to do."""
        with self._transaction():
            for ordinal in ordinals:
                query = "DELETE FROM row WHERE ordinal = ? AND state = ? AND created_id IS NULL"
                if self._db.execute(query, (ordinal, RowState.FAILED)).rowcount:
                    self._db.execute("DELETE FROM target WHERE ordinal = ?", (ordinal,))
                    self._db.execute("DELETE FROM before WHERE ordinal = ?", (ordinal,))

    # -- the database ----------------------------------------------------------------------------------------------------------------

    def _one(self, query: str, *values: Any) -> Any:
        with self._lock:
            return self._db.execute(query, values).fetchone()[0]

    def _write(self, statement: str, *values: Any) -> None:
        with self._transaction():
            self._db.execute(statement, values)

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        """All or nothing; when `durable`, on disk with everything before it, before the next line runs."""
        with self._lock:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk ends some transactions by itself
                    self._db.execute("ROLLBACK")
                raise
