"""Questions in SQL about a mirror: read only, one statement, no other file, no longer than allowed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from crmctl.clock import Clock
from crmctl.errors import PendingError, UsageError, storage_error
from crmctl.mirror.columns import clean_text, quoted

STEPS = 2_000
"""Instructions of SQLite between two looks at the clock."""

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})
_LARGEST_VALUE = 100_000_000

Row = dict[str, Any]


def ask(path: Path, statement: str, parameters: Mapping[str, Any], clock: Clock, seconds: float | None) -> Iterator[Row]:
    """The rows of one SELECT, as they come. Raises UsageError for anything else and for what SQLite refuses; PendingError when it takes
    longer than `seconds`."""
    with closing(_open(path, clock, seconds)) as db:
        try:
            cursor = db.execute(statement, dict(parameters))
            if cursor.description is None:
                raise UsageError("only SELECT is answered: a mirror is read, never written", hint=_HINT, code="not_a_select")
            names = _unique([column[0] for column in cursor.description])
            for row in cursor:
                yield {name: _shown(value) for name, value in zip(names, row, strict=True)}
        except sqlite3.Error as error:
            raise _explained(error, path, seconds) from error
        except (ValueError, OverflowError) as error:
            raise UsageError(f"SQL: {error}", code="bad_sql") from error


_HINT = "crmctl mirror sync is what changes a mirror"


def _open(path: Path, clock: Clock, seconds: float | None) -> sqlite3.Connection:
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10.0)
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA temp_store = FILE")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    # Full-text tables are opened before questions are watched: opening one declares it to SQLite, which looks like making it.
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'").fetchall():
        db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 0")  # noqa: S608 - quoted
    db.set_authorizer(_authorize)
    if seconds is not None:
        end = clock.monotonic() + seconds
        db.set_progress_handler(lambda: int(clock.monotonic() >= end), STEPS)
    return db


def _authorize(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA and first == "data_version":
        return sqlite3.SQLITE_OK  # full text asks for it
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _explained(error: sqlite3.Error, path: Path, seconds: float | None) -> Exception:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_INTERRUPT":
        hint = "--timeout SECONDS allows more; an index of your own needs a copy of the file"
        return PendingError(f"the question took longer than {seconds:g} s", hint=hint, code="query_timeout")
    if name == "SQLITE_AUTH" or "not authorized" in str(error) or "prohibited" in str(error):
        return UsageError("only SELECT is answered: a mirror is read, never written", hint=_HINT, code="not_a_select")
    if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FULL") or name.startswith("SQLITE_IOERR"):
        return storage_error(error, path) or error
    return UsageError(
        f"SQL: {error}", hint="SELECT slug, table_name FROM objects; SELECT slug, column_name FROM attributes", code="bad_sql"
    )


def _unique(names: list[str]) -> list[str]:
    """Column names, each once: a second `id` becomes `id:2`."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}:{seen[name]}")
    return unique


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return clean_text(value) if isinstance(value, str) else value
