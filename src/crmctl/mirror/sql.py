"""Questions in SQL about a mirror: read only, one statement, no other file, no longer than allowed."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any

from crmctl.clock import Clock
from crmctl.errors import PendingError, UsageError, reason, storage_error
from crmctl.mirror.columns import clean_text, quoted
from crmctl.mirror.file import connect_to_read, storage_errors

STEPS = 2_000
"""Instructions of SQLite between two looks at the clock."""

GRACE_SECONDS = 1.0
"""So much longer than its limit a question may take to heed it."""

TICK_SECONDS = 0.1
ROWS_AT_ONCE = 500
PARTS = 4
"""Parts of an answer that wait for whoever reads it: memory is flat."""

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})
_LARGEST_VALUE = 100_000_000

Row = dict[str, Any]


def ask(path: Path, statement: str, parameters: Mapping[str, Any], clock: Clock, seconds: float | None) -> Iterator[Row]:
    """The rows of one SELECT, as they come. Raises UsageError for anything else and for what SQLite refuses; PendingError when it takes
    longer than `seconds`.

    SQLite works in a thread of its own: one function of two large values can take hours, and it looks at no clock meanwhile.
    """
    limit = _Limit(clock, seconds)
    handed: Queue[list[Row] | Exception | None] = Queue(PARTS)
    left = threading.Event()

    def hand(part: list[Row] | Exception | None) -> None:
        while not left.is_set():
            with suppress(Full):
                handed.put(part, timeout=TICK_SECONDS)
                return

    def work() -> None:
        try:
            for part in _parts(_answer(path, statement, parameters, limit), clock):
                hand(part)
                if left.is_set():
                    break
        except Exception as error:
            hand(error)
        else:
            hand(None)

    worker = threading.Thread(target=work, name="question", daemon=True)
    worker.start()
    try:
        while (part := _next(handed, limit)) is not None:
            yield from part
    finally:
        left.set()
        worker.join(GRACE_SECONDS)


def _next(handed: Queue[list[Row] | Exception | None], limit: _Limit) -> list[Row] | None:
    """The next rows, None after the last. Raises what the question has raised, and PendingError where it does not heed its limit."""
    while True:
        try:
            part = handed.get(timeout=TICK_SECONDS)
        except Empty:
            if limit.is_over(GRACE_SECONDS):
                raise limit.error from None
            continue
        if isinstance(part, Exception):
            raise part
        return part


def _parts(rows: Generator[Row], clock: Clock) -> Iterator[list[Row]]:
    """Rows together, none of which waits for long."""
    with closing(rows):
        part: list[Row] = []
        since = clock.monotonic()
        for row in rows:
            part.append(row)
            if len(part) >= ROWS_AT_ONCE or clock.monotonic() - since >= TICK_SECONDS:
                yield part
                part, since = [], clock.monotonic()
        yield part


def _answer(path: Path, statement: str, parameters: Mapping[str, Any], limit: _Limit) -> Generator[Row]:
    with closing(_open(path, limit)) as db:
        try:
            cursor = db.execute(statement, dict(parameters))
            if cursor.description is None:
                raise UsageError("only SELECT is answered: a mirror is read, never written", hint=_HINT, code="not_a_select")
            names = _unique([column[0] for column in cursor.description])
            for row in cursor:
                yield {name: _shown(value) for name, value in zip(names, row, strict=True)}
        except sqlite3.Error as error:
            raise _explained(error, path, limit) from error
        except (ValueError, OverflowError) as error:
            problem = "a whole number of more than 64 bits" if isinstance(error, OverflowError) else reason(error)
            raise UsageError(f"SQL: {problem}", code="bad_sql") from error


class _Limit:
    """How long a question may take: `seconds` from now, None for as long as it likes."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock, self._seconds = clock, seconds
        self._end = clock.monotonic() + (math.inf if seconds is None else seconds)

    def is_over(self, grace: float = 0.0) -> bool:
        return self._clock.monotonic() >= self._end + grace

    @property
    def error(self) -> PendingError:
        hint = "--timeout SECONDS allows more; an index of your own needs a copy of the file"
        return PendingError(f"the question took longer than {self._seconds:g} s", hint=hint, code="query_timeout")


_HINT = "crmctl mirror sync is what changes a mirror"


def _open(path: Path, limit: _Limit) -> sqlite3.Connection:
    with storage_errors(path):
        db = connect_to_read(path, 10.0)
        db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA temp_store = FILE")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    # Full-text tables are opened before questions are watched: opening one declares it to SQLite, which looks like making it.
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'").fetchall():
        db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 0")  # noqa: S608 - quoted
    db.set_authorizer(_authorize)
    db.set_progress_handler(lambda: int(limit.is_over()), STEPS)
    return db


def _authorize(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA and first == "data_version":
        return sqlite3.SQLITE_OK  # full text asks for it
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _explained(error: sqlite3.Error, path: Path, limit: _Limit) -> Exception:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_INTERRUPT":
        return limit.error
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
