"""Values that may stand in a file once only: remembers them on disk, so that memory stays flat however long the file is."""

from __future__ import annotations

import hashlib
import sqlite3
from decimal import Decimal
from types import TracebackType
from typing import Any, Self

from crmctl.models import jsontext
from crmctl.models.numbers import canonical_number


class Seen:
    """Values by slot (an attribute's slug, or the record id), each with the line that had it first.

    A private temporary database, gone when closed.
    """

    def __init__(self) -> None:
        # An empty name is a temporary file of SQLite's own; nothing in it has to survive a crash.
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -16000"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("BEGIN")
        self._database.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID")

    def first_line(self, slot: str, value: Any, line: int) -> int | None:
        """The line that had this value first, or None when it is new and now remembered. Text counts without case and outer blanks, a
        number however it is spelled."""
        text = _text_of(value)
        key = hashlib.blake2b(f"{slot}\0{text}".encode(), digest_size=16).digest()
        inserted = self._database.execute("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", (key, line)).rowcount
        if inserted == 1:
            return None
        found: tuple[int] = self._database.execute("SELECT line FROM seen WHERE key = ?", (key,)).fetchone()
        return found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.close()


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return canonical_number(value)
    return jsontext.dumps(value, sort_keys=True)
