"""Rows in temporary databases, and in chunks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import ClassVar, TypeVar

CHUNK_ROWS = 500

R = TypeVar("R")


def chunks(rows: Iterable[R], size: int = CHUNK_ROWS) -> Iterator[list[R]]:
    """Yield the rows in lists of `size`; the last list may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def open_spill(tables: str, cache_kib: int = 2_000) -> sqlite3.Connection:
    """Open an empty database with these tables, in one endless transaction. Nothing in it survives a crash."""
    # An empty name makes SQLite use a temporary file: in memory while small, deleted when closed. The garbage collector may close it in
    # any thread.
    database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
    for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{cache_kib}"):
        database.execute(f"PRAGMA {setting}")
    database.executescript(tables)
    database.execute("BEGIN")
    return database


def open_tables(path: Path | None, tables: str) -> sqlite3.Connection:
    """Open a private file (0600) with these tables, or a temporary one, for several threads in turn."""
    if path is not None:
        path.touch(mode=0o600)
    with ExitStack() as unless_ready:
        database = unless_ready.enter_context(closing(sqlite3.connect(path or "", isolation_level=None, check_same_thread=False)))
        database.executescript(tables)
        unless_ready.pop_all()
    return database


class Spill(ExitStack):
    """Base of classes that keep rows in a temporary database with `TABLES`."""

    TABLES: ClassVar[str]
    CACHE_KIB: ClassVar[int] = 2_000

    def __init__(self) -> None:
        super().__init__()
        self._db = self.enter_context(closing(open_spill(self.TABLES, self.CACHE_KIB)))
