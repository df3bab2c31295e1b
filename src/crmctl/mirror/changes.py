"""Emit what changed in the mirror since a token or a moment, each change once.

Triggers write every change of an object's table into `_changes`. The log reaches back to the object's first sync, at most 30 days.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crmctl.clock import Clock
from crmctl.errors import DifferenceError, NotFoundError
from crmctl.files.export_formats import require_files_extra
from crmctl.files.spills import chunks
from crmctl.files.whole_files import whole_bytes
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SyncState, quoted
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.values.moments import MICROS, micros_of, timestamp, to_timestamp

KEPT_SECONDS = 30 * 24 * 3600
IDENTITY, TRIMMED = "changes-identity", "changes-trimmed"
COLUMNS = ("op", "object", "id", "into", "before", "after", "at")
BATCH = 1000

_TABLE = """
CREATE TABLE IF NOT EXISTS _changes (
    no INTEGER PRIMARY KEY AUTOINCREMENT, noticed INTEGER NOT NULL, op TEXT NOT NULL, table_name TEXT NOT NULL, record_id TEXT NOT NULL,
    before TEXT, after TEXT
)
"""


def begin_log(file: MirrorFile, state: SyncState, now: float) -> None:
    """Create the log of an object after its first sync, and forget entries that are too old. Call this in a transaction."""
    db = file.db
    db.execute(_TABLE)
    if file.noted(IDENTITY) is None:
        file.note(IDENTITY, secrets.token_hex(6))
    if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", (state.table_name,)).fetchone():
        db.execute("DELETE FROM _changes WHERE table_name = ?", (state.table_name,))
        begin = "INSERT INTO _changes (noticed, op, table_name, record_id) VALUES (?, 'begin', ?, '')"
        db.execute(begin, (state.as_of, state.table_name))
        create_triggers(db, state.table_name)
    old, oldest = "op <> 'begin' AND noticed < ?", int((now - KEPT_SECONDS) * MICROS)
    trimmed = db.execute(f"SELECT MAX(no) FROM _changes WHERE {old}", (oldest,)).fetchone()[0]
    if trimmed is not None:
        file.note(TRIMMED, str(trimmed))
        db.execute(f"DELETE FROM _changes WHERE {old}", (oldest,))


_NOTICED = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


def log_updates(db: sqlite3.Connection, table: str, updates: Iterable[tuple[str, str, str]]) -> None:
    """Log changes that no trigger sees: id, JSON before, and JSON after."""
    statement = f"INSERT INTO _changes (noticed, op, table_name, record_id, before, after) VALUES ({_NOTICED}, 'update', ?, ?, ?, ?)"
    db.executemany(statement, ((table, *update) for update in updates))


def create_triggers(db: sqlite3.Connection, table: str) -> None:
    name = "'" + table.replace("'", "''") + "'"
    columns = "INSERT INTO _changes (noticed, op, table_name, record_id, before, after)"
    for op, condition, values in (
        ("insert", "", "NEW.id, NULL, NEW._data"),
        ("update", "WHEN OLD._data IS NOT NEW._data", "NEW.id, OLD._data, NEW._data"),
        ("delete", "", "OLD.id, OLD._data, NULL"),
    ):
        trigger = quoted(f"_log_{table}_{op}")
        body = f"{columns} VALUES ({_NOTICED}, '{op}', {name}, {values});"
        db.execute(f"CREATE TRIGGER IF NOT EXISTS {trigger} AFTER {op.upper()} ON {quoted(table)} {condition} BEGIN {body} END")


def forget_log(file: MirrorFile, state: SyncState) -> None:
    """Delete an object's log, whose values the mirror may not keep; the next sync begins a new one."""
    if file.noted(IDENTITY) is not None:
        file.db.execute("DELETE FROM _changes WHERE table_name = ?", (state.table_name,))
        for op in ("insert", "update", "delete"):
            file.db.execute(f"DROP TRIGGER IF EXISTS {quoted(f'_log_{state.table_name}_{op}')}")


def emitted_states(file: MirrorFile, name: str | None) -> list[SyncState]:
    """Return the states of one object or of all. Raises NotFoundError for an unknown object."""
    states = [state for state in file.states() if state.object_id != ACTIVITIES and name in (None, state.slug, state.object_id)]
    if name is not None and not states:
        raise NotFoundError(f"the mirror has no object {name!r}", hint="crmctl mirror status shows its objects")
    return states


def read_changes(file: MirrorFile, name: str | None, since: str | None, clock: Clock, survivors: Mapping[str, str]) -> Generator[Json]:
    """Yield the changes of one object or of all, and at last `{"token"}`. Without `since`, yield every record as an insert.

    `survivors` maps the ids of merged records to their survivors. Raises NotFoundError for an unknown object, and DifferenceError if the
    log does not reach back that far.
    """
    states = emitted_states(file, name)
    with file.snapshot():
        if file.noted(IDENTITY) is None:
            raise _forgotten("the mirror has not begun to remember changes", "crmctl mirror sync begins it")
        if since is not None:
            tables = None if name is None else {state.table_name for state in states}
            yield from _logged(file, states, since, clock.now(), survivors, tables)
        for state in states if since is None else ():
            for record_id, wire in file.db.execute(f"SELECT id, _data FROM {quoted(state.table_name)} ORDER BY _created, _no"):
                yield _change(("insert", state.slug, record_id, None, wire, state.as_of), {})
        yield {"token": f"{file.noted(IDENTITY)}-{_last(file)}"}


def _last(file: MirrorFile) -> int:
    return int(file.db.execute("SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = '_changes'").fetchone()[0])


def _logged(
    file: MirrorFile, states: Sequence[SyncState], since: str, now: float, survivors: Mapping[str, str], tables: Collection[str] | None
) -> Iterator[Json]:
    """Yield the logged changes of these tables, or of all, also of deleted objects, after a token or a moment.

    Raises UsageError for a malformed moment and DifferenceError.
    """
    trimmed, begins = int(file.noted(TRIMMED) or 0), "SELECT no, noticed FROM _changes WHERE op = 'begin' AND table_name = ?"
    if token := re.fullmatch(r"([0-9a-f]{12})-(\d+)", since):
        condition, first = "no > ?", int(token[2])
        if token[1] != file.noted(IDENTITY) or first > _last(file):
            raise _forgotten("the token belongs to another mirror, or to one that was replaced by an older one", code="unknown_token")
    else:
        condition, first = "noticed >= ?", micros_of(timestamp(since, now)) or 0
    for state in states:
        begin = file.db.execute(begins, (state.table_name,)).fetchone()
        if begin is None:
            raise _forgotten(f"the mirror has not begun to remember changes of {state.slug}", "crmctl mirror sync begins it")
        reach = max(begin[1], int((now - KEPT_SECONDS) * MICROS) if trimmed else 0)
        if first < (max(begin[0], trimmed) if token else reach):
            raise _forgotten(f"the mirror knows changes of {state.slug} since {to_timestamp(reach)} only")
    slugs = {state.table_name: state.slug for state in states}
    query = f"SELECT op, table_name, record_id, before, after, noticed FROM _changes WHERE op <> 'begin' AND {condition} ORDER BY no"
    for op, table, *facts in file.db.execute(query, (first,)):
        if tables is None or table in tables:
            yield _change((op, slugs.get(table, table), *facts), survivors)


def _change(row: tuple[Any, ...], survivors: Mapping[str, str]) -> Json:
    """Return the change in a row of operation, slug, id, values before and after, and the moment when the mirror noticed it."""
    op, slug, record_id, before, after, noticed = row
    old, new = (jsontext.loads(text or "{}") for text in (before, after))
    survivor = survivors.get(record_id.lower()) if op == "delete" else None
    change = {"op": "merge" if survivor else op, "object": slug, "id": record_id} | ({"into": survivor} if survivor else {})
    return {**change, "before": old.get("data"), "after": new.get("data"), "at": to_timestamp(micros_of(new.get("updatedAt")) or noticed)}


def _forgotten(problem: str, hint: str = "leave --since out and begin again", code: str = "too_old") -> DifferenceError:
    return DifferenceError(problem, hint=hint, code=code)


def write_parquet(path: Path, changes: Iterator[Json]) -> str:
    """Write the changes as Parquet, with records as JSON text; return the token."""
    pyarrow, parquet = require_files_extra("pyarrow"), require_files_extra("pyarrow.parquet")
    schema, token = pyarrow.schema([(name, pyarrow.string()) for name in COLUMNS]), ""
    with whole_bytes(path, mode=0o600) as raw, parquet.ParquetWriter(raw, schema) as writer:
        for rows in chunks(changes, BATCH):
            token = rows[-1].get("token", token)
            for row in rows:
                row |= {name: jsontext.dumps(row[name]) for name in ("before", "after") if row.get(name) is not None}
            writer.write_batch(pyarrow.RecordBatch.from_pylist([row for row in rows if "op" in row], schema=schema))
    return token
