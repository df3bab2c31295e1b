"""Read-only SQL and full-text search over a mirror."""

from __future__ import annotations

import heapq
import math
import re
import sqlite3
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from crmctl.clock import Clock
from crmctl.errors import NotFoundError, PendingError, UsageError, reason, storage_error
from crmctl.mirror.file import (
    ACTIVITIES,
    MirrorFile,
    SyncState,
    clean_text,
    connect_to_read,
    quoted,
    search_table,
    searched_text,
    storage_errors,
)
from crmctl.mirror.mirror_tables import activity_texts, has_full_text
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Record

STEPS = 2_000
"""SQLite instructions between two checks of the clock."""

_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"})
_LARGEST_VALUE = 100_000_000

Row = Json


def ask(path: Path, statement: str, parameters: Mapping[str, Any], clock: Clock, seconds: float | None) -> Iterator[Row]:
    """Yield the rows of one SELECT. Raises UsageError for anything else and for bad SQL, PendingError after `seconds`.

    SQLite looks at the clock between its steps: one function of large values runs to its end.
    """
    end = clock.monotonic() + (math.inf if seconds is None else seconds)
    with closing(_open(path)) as db:
        db.set_progress_handler(lambda: int(clock.monotonic() >= end), STEPS)
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
            problem = "a whole number of more than 64 bits" if isinstance(error, OverflowError) else reason(error)
            raise UsageError(f"SQL: {problem}", code="bad_sql") from error


_HINT = "crmctl mirror sync is what changes a mirror"


def _open(path: Path) -> sqlite3.Connection:
    with storage_errors(path):
        db = connect_to_read(path, 10.0)
        db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA temp_store = FILE")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
    db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    # Opening a virtual table declares it, which the authorizer would take for CREATE TABLE. So all are opened first.
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL TABLE%'").fetchall():
        db.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 0")
    for function in ("json_each", "json_tree"):
        db.execute(f"SELECT 1 FROM {function}('[]') LIMIT 0")
    db.set_authorizer(_authorize)
    return db


def _authorize(action: int, first: str | None, second: str | None, *_where: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA and first == "data_version":
        return sqlite3.SQLITE_OK  # full-text search needs it
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _explained(error: sqlite3.Error, path: Path, seconds: float | None) -> Exception:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_INTERRUPT":
        hint = "--timeout SECONDS allows more; an index of your own needs a copy of the file"
        return PendingError(f"the question took longer than {seconds or 0:g} s", hint=hint, code="query_timeout")
    if name == "SQLITE_AUTH" or "not authorized" in str(error) or "prohibited" in str(error):
        return UsageError("only SELECT is answered: a mirror is read, never written", hint=_HINT, code="not_a_select")
    if name in ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FULL") or name.startswith("SQLITE_IOERR"):
        return storage_error(error, path)
    return UsageError(
        f"SQL: {error}", hint="SELECT slug, table_name FROM objects; SELECT slug, column_name FROM attributes", code="bad_sql"
    )


def _unique(names: list[str]) -> list[str]:
    """Return unique column names: a second `id` becomes `id:2`."""
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


LIMIT = 20
_EXCERPT = 120
_WORD = re.compile(r"[\w\u0300-\u036f]+")
"""Includes combining accents."""


def search(file: MirrorFile, text: str, objects: Sequence[str] = (), limit: int = LIMIT) -> list[Json]:
    """Return the best matching records and activities; a higher score is better, the excerpt holds one of the words.

    Raises UsageError for a text without words or an SQLite without full text, NotFoundError for an object that is not in the mirror.
    """
    words = _WORD.findall(unicodedata.normalize("NFC", text))
    if not words:
        raise UsageError("the text to look for has no word in it", hint="crmctl mirror search Hopper")
    if not has_full_text(file.db):
        raise UsageError("this Python's SQLite has no full-text search (FTS5)", hint="crmctl mirror sql \"SELECT ... LIKE '%text%'\"")
    expression = " AND ".join(f'"{word}"*' for word in words)
    hits: list[tuple[float, str, SyncState, int]] = []
    with storage_errors(file.path), file.snapshot():
        for state in _chosen(file, objects):
            index = quoted(search_table(state.table_name))
            statement = f"SELECT rowid, bm25({index}) FROM {index} WHERE {index} MATCH ? ORDER BY bm25({index}) LIMIT ?"
            hits += [(score, state.slug, state, number) for number, score in file.db.execute(statement, (expression, limit))]
        best = heapq.nsmallest(limit, hits, key=lambda hit: (hit[0], hit[1], hit[3]))
        return [_hit(file, state, number, -score, words) for score, _, state, number in best]


def _chosen(file: MirrorFile, objects: Sequence[str]) -> list[SyncState]:
    tables = {row[0] for row in file.db.execute("SELECT name FROM sqlite_master")}
    states = [state for state in file.states() if state.syncs and search_table(state.table_name) in tables]
    if not objects:
        return states
    by_name = {name: state for state in reversed(states) for name in (state.slug, state.object_id)}
    for name in objects:
        if name not in by_name:
            slugs = ", ".join(state.slug for state in states)
            raise NotFoundError(f"{name} is not in the mirror", hint=f"it has: {slugs}; crmctl mirror sync {name} adds it")
    return [by_name[name] for name in dict.fromkeys(objects)]


def _hit(file: MirrorFile, state: SyncState, number: int, score: float, words: Sequence[str]) -> Json:
    place = "rowid" if state.object_id == ACTIVITIES else "_no"
    row = file.db.execute(f"SELECT _data FROM {quoted(state.table_name)} WHERE {place} = ?", (number,)).fetchone()
    wire = jsontext.loads(row[0])
    record = Record.parse({"id": wire["id"], "data": activity_texts(wire)} if state.object_id == ACTIVITIES else wire)
    excerpt = _excerpt(searched_text(record.data), words)
    return {"object": state.slug, "id": record.id, "excerpt": excerpt, "score": round(score, 3), "data": record.data}


def _excerpt(text: str, words: Sequence[str]) -> str:
    """Return the line that holds a word, shortened around it; the first line if none does."""
    lines = text.split("\n")
    for word in words:
        for line in lines:
            place = line.casefold().find(word.casefold())
            if place >= 0:
                start = max(0, place - _EXCERPT // 3)
                return ("…" if start else "") + line[start : start + _EXCERPT] + ("…" if len(line) > start + _EXCERPT else "")
    return lines[0][:_EXCERPT]
