"""What stands behind a job's journal: its database and transactions, facts by name, and the records that rows were found to be."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from crmctl.bulk.journal.states import RowState
from crmctl.models import jsontext


class JournalDatabase:
    """Base of `Journal`, which opens the database."""

    _db: sqlite3.Connection
    _lock: threading.RLock

    def remember(self, name: str, value: Any) -> None:
        """Keep a JSON value under a name."""
        self._write("INSERT OR REPLACE INTO fact VALUES (?, ?)", name, jsontext.dumps(value))

    def recall(self, name: str) -> Any:
        """The value kept under a name, or None."""
        found = self._one("SELECT (SELECT value FROM fact WHERE name = ?)", name)
        return None if found is None else jsontext.loads(found)

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
            self._db.executemany("INSERT INTO row (ordinal, state, record_id, error) VALUES (?, ?, ?, ?)", outcomes)

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
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
