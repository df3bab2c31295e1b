"""Emit what changed in the mirror since a token or a moment, each change once.

Triggers write every change of an object's table into `_changes`. The log reaches back to the object's first sync, at most 30 days.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from crmctl.clock import Clock
from crmctl.errors import DifferenceError, NotFoundError
from crmctl.files.whole_files import require_files_extra, whole_bytes
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
        file.note(_begun(state), f"{state.as_of} {db.execute(begin, (state.as_of, state.table_name)).lastrowid}")
        create_triggers(db, state.table_name)
    oldest = int((now - KEPT_SECONDS) * MICROS)
    trimmed = db.execute("SELECT MAX(no) FROM _changes WHERE noticed < ?", (oldest,)).fetchone()[0]
    if trimmed is not None:
        file.note(TRIMMED, str(trimmed))
        db.execute("DELETE FROM _changes WHERE no <= ?", (trimmed,))


def create_triggers(db: sqlite3.Connection, table: str) -> None:
    """Log every later change of a table."""
    noticed, name = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)", "'" + table.replace("'", "''") + "'"
    columns = "INSERT INTO _changes (noticed, op, table_name, record_id, before, after)"
    for op, condition, values in (
        ("insert", "", "NEW.id, NULL, NEW._data"),
        ("update", "WHEN OLD._data IS NOT NEW._data", "NEW.id, OLD._data, NEW._data"),
        ("delete", "", "OLD.id, OLD._data, NULL"),
    ):
        trigger = quoted(f"_log_{table}_{op}")
        body = f"{columns} VALUES ({noticed}, '{op}', {name}, {values});"
        db.execute(f"CREATE TRIGGER IF NOT EXISTS {trigger} AFTER {op.upper()} ON {quoted(table)} {condition} BEGIN {body} END")


def forget_log(file: MirrorFile, state: SyncState) -> None:
    """Delete an object's log, whose values the mirror may not keep; the next sync begins a new one."""
    if file.noted(IDENTITY) is not None:
        file.db.execute("DELETE FROM _changes WHERE table_name = ?", (state.table_name,))
        for op in ("insert", "update", "delete"):
            file.db.execute(f"DROP TRIGGER IF EXISTS {quoted(f'_log_{state.table_name}_{op}')}")


def _begun(state: SyncState) -> str:
    return f"changes-begun {state.object_id}"


def read_changes(file: MirrorFile, name: str | None, since: str | None, clock: Clock, survivors: Mapping[str, str]) -> Iterator[Json]:
    """Yield the changes of one object or of all, and at last `{"token"}`. Without `since`, yield every record as an insert.

    `survivors` maps the ids of merged records to their survivors. Raises NotFoundError for an unknown object, and DifferenceError if the
    log does not reach back that far.
    """
    states = [state for state in file.states() if state.object_id != ACTIVITIES and name in (None, state.slug, state.object_id)]
    if name is not None and not states:
        raise NotFoundError(f"the mirror has no object {name!r}", hint="crmctl mirror status shows its objects")
    with file.snapshot():
        condition, value = _since(file, states, since, clock.now())
        row = file.db.execute("SELECT seq FROM sqlite_sequence WHERE name = '_changes'").fetchone()
        last = int(row[0]) if row is not None else 0
        if since is None:
            yield from _everything(file, states)
        else:
            slugs = {state.table_name: state.slug for state in states}
            query = (
                f"SELECT op, table_name, record_id, before, after, noticed FROM _changes WHERE op <> 'begin' AND {condition} ORDER BY no"
            )
            for op, table, record_id, before, after, noticed in file.db.execute(query, (value,)):
                if table in slugs:
                    yield _change(op, slugs[table], record_id, before, after, noticed, survivors)
        yield {"token": f"{file.noted(IDENTITY)}-{last}"}


def _everything(file: MirrorFile, states: Sequence[SyncState]) -> Iterator[Json]:
    for state in states:
        for record_id, wire in file.db.execute(f"SELECT id, _data FROM {quoted(state.table_name)} ORDER BY _created, _no"):
            yield _change("insert", state.slug, record_id, None, wire, state.as_of, {})


def _change(op: str, slug: str, record_id: str, before: str | None, after: str | None, noticed: int, survivors: Mapping[str, str]) -> Json:
    old, new = (None if text is None else jsontext.loads(text) for text in (before, after))
    survivor = survivors.get(record_id.lower()) if op == "delete" else None
    moment = micros_of((new or {}).get("updatedAt")) or noticed
    change = {"op": "merge" if survivor else op, "object": slug, "id": record_id} | ({"into": survivor} if survivor else {})
    data = {"before": (old or {}).get("data"), "after": (new or {}).get("data")}
    return {**change, **data, "at": to_timestamp(moment)}


def _since(file: MirrorFile, states: Sequence[SyncState], since: str | None, now: float) -> tuple[str, int]:
    """Return the SQL condition and its value. Raises UsageError for a malformed moment and DifferenceError."""
    trimmed, identity = int(file.noted(TRIMMED) or 0), file.noted(IDENTITY)
    begins = {state.slug: [int(text) for text in (file.noted(_begun(state)) or f"{state.as_of} 0").split()] for state in states}
    if identity is None:
        raise _forgotten("the mirror has not begun to remember changes", "crmctl mirror sync begins it")
    if since is None:
        return "no > ?", 0
    if token := re.fullmatch(r"([0-9a-f]{12})-(\d+)", since):
        number = int(token[2])
        if token[1] != identity:
            raise _forgotten("the token belongs to another mirror", code="unknown_token")
        if number < trimmed:
            raise _forgotten("the mirror remembers 30 days, and the token is older")
        if later := sorted(slug for slug, (_, begun) in begins.items() if number < begun):
            raise _forgotten(f"the mirror knows changes of {later[0]} since a later moment only")
        return "no > ?", number
    moment, oldest = micros_of(timestamp(since, now)) or 0, int((now - KEPT_SECONDS) * MICROS) if trimmed else 0
    for slug, (as_of, _) in begins.items():
        if moment < max(as_of, oldest):
            raise _forgotten(f"the mirror knows changes of {slug} since {to_timestamp(max(as_of, oldest))} only")
    return "noticed >= ?", moment


def _forgotten(problem: str, hint: str = "leave --since out and begin again", code: str = "too_old") -> DifferenceError:
    return DifferenceError(problem, hint=hint, code=code)


def write_parquet(path: Path, changes: Iterator[Json], done: Callable[[str], None]) -> None:
    """Write the changes as Parquet, with records as JSON text; pass the token to `done`."""
    pyarrow, parquet = require_files_extra("pyarrow"), require_files_extra("pyarrow.parquet")
    schema = pyarrow.schema([(name, pyarrow.string()) for name in COLUMNS])
    token, rows = "", list[list[str | None]]()
    with whole_bytes(path, mode=0o600) as raw, parquet.ParquetWriter(raw, schema) as writer:

        def flush() -> None:
            arrays = [pyarrow.array([row[place] for row in rows], pyarrow.string()) for place in range(len(COLUMNS))]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
            rows.clear()

        for change in changes:
            token = change.get("token", token)
            if "op" in change:
                cells = (change.get(name) for name in COLUMNS)
                rows.append([cell if cell is None or isinstance(cell, str) else jsontext.dumps(cell) for cell in cells])
            if len(rows) == BATCH:
                flush()
        flush()
    done(token)
