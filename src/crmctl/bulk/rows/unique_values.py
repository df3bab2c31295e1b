"""Values that may stand in a file once only: remembers them on disk, so that memory stays flat however long the file is."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

from crmctl.bulk.spill import Spill
from crmctl.models import jsontext
from crmctl.models.numbers import canonical_number


class Seen(Spill):
    """Values by slot (an attribute's slug, or the record id), each with the line that had it first."""

    TABLES = "CREATE TABLE seen (key BLOB PRIMARY KEY, line INTEGER) WITHOUT ROWID"
    CACHE_KIB = 16_000

    def first_line(self, slot: str, value: Any, line: int) -> int | None:
        """The line that had this value first, or None when it is new and now remembered. Text counts without case and outer blanks, a
        number however it is spelled."""
        text = _text_of(value)
        key = hashlib.blake2b(f"{slot}\0{text}".encode(), digest_size=16).digest()
        inserted = self._db.execute("INSERT INTO seen VALUES (?, ?) ON CONFLICT DO NOTHING", (key, line)).rowcount
        if inserted == 1:
            return None
        found: tuple[int] = self._db.execute("SELECT line FROM seen WHERE key = ?", (key,)).fetchone()
        return found[0]


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return canonical_number(value)
    return jsontext.dumps(value, sort_keys=True)
