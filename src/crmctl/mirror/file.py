"""The mirror's file: its fixed tables, who may open it, and what is known of each object in it (`_sync`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from crmctl.errors import ConfigError, StorageError, reason, storage_error
from crmctl.mirror.columns import quoted
from crmctl.models import jsontext
from crmctl.models.timestamps import to_timestamp
from crmctl.write_ahead_log import begin_log

FORMAT = 1
ACTIVITIES = "activities"
"""The key of the activities in `_sync`."""

FIXED_TABLES = {
    "objects": "id TEXT PRIMARY KEY, slug TEXT, table_name TEXT, type TEXT, plural_name TEXT, singular_name TEXT, description TEXT, "
    "is_active INTEGER, created_at TEXT, updated_at TEXT, _data TEXT NOT NULL",
    "attributes": "id TEXT PRIMARY KEY, object_id TEXT, slug TEXT, name TEXT, type TEXT, column_name TEXT, is_required INTEGER, "
    "is_unique INTEGER, is_list INTEGER, is_active INTEGER, display_order INTEGER, config TEXT, created_at TEXT, updated_at TEXT, "
    "_data TEXT NOT NULL",
    "members": "id TEXT PRIMARY KEY, role TEXT, user_id TEXT, user_name TEXT, user_email TEXT, user_image TEXT, created_at TEXT, "
    "_data TEXT NOT NULL",
    "activities": "id TEXT PRIMARY KEY, title TEXT, summary TEXT, activity_date TEXT, participants TEXT, created_by_id TEXT, "
    "created_by_name TEXT, created_by_email TEXT, created_at TEXT, updated_at TEXT, _data TEXT NOT NULL",
    "activity_links": "activity_id TEXT NOT NULL, object_id TEXT, record_id TEXT",
    "_sync": "object_id TEXT PRIMARY KEY, slug TEXT, table_name TEXT, records INTEGER NOT NULL, as_of TEXT, proven INTEGER NOT NULL, "
    "proof TEXT, how TEXT, requests INTEGER NOT NULL, total_requests INTEGER NOT NULL, syncs INTEGER NOT NULL, excluded TEXT NOT NULL, "
    "_state TEXT NOT NULL",
    "_reread": "object_id TEXT NOT NULL, record_id TEXT NOT NULL, PRIMARY KEY (object_id, record_id)",
    "_mirror": "name TEXT PRIMARY KEY, value TEXT NOT NULL",
}
"""Every table but those of the objects, with its columns."""

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS _by_activity_links_record ON activity_links (record_id)",
    "CREATE INDEX IF NOT EXISTS _by_activity_links_activity ON activity_links (activity_id)",
)


@dataclass
class SyncState:
    """What is known of one object. Moments in microseconds: changes before `since` are known; `as_of` is when the last sync began by the
    service's clock, `taken` the same by this machine's; `newest` the newest change then. `fingerprint`: the attributes the records were
    read with. `loose`: attributes whose numbers are not all held exactly. `audited`: up to where records were compared again."""

    object_id: str
    slug: str
    table_name: str
    records: int = 0
    as_of: int = 0
    since: int | None = None
    taken: int = 0
    newest: int | None = None
    proven: bool = False
    proof: str = ""
    how: str = ""
    requests: int = 0
    total_requests: int = 0
    syncs: int = 0
    excluded: list[str] = field(default_factory=list)
    fingerprint: dict[str, list[Any]] = field(default_factory=dict)
    loose: list[str] = field(default_factory=list)
    audited: int = 0

    @classmethod
    def from_text(cls, text: str) -> Self:
        document = jsontext.loads(text)
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})


def connect_to_read(path: Path, seconds: float) -> sqlite3.Connection:
    """A connection that cannot write, and waits so many seconds for others. What a process that was killed has begun is rolled back first,
    which takes one that can. Raises sqlite3.Error."""
    for is_last in (False, True):
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=seconds)
        try:
            db.execute("SELECT 1 FROM sqlite_master").fetchone()
            break
        except sqlite3.OperationalError as error:
            db.close()
            if is_last or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
                raise
            with closing(sqlite3.connect(path, timeout=seconds)) as owner:
                owner.execute("SELECT 1 FROM sqlite_master").fetchone()
    return db


class MirrorFile:
    """An open mirror. Reads and writes in transactions; others may read meanwhile, and see what was there before."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        self.path = path
        self.db = db

    @classmethod
    def create(cls, path: Path, profile: str, origin: str) -> Self:
        """Open for writing; made where it is not there, for its owner only. Raises ConfigError and StorageError."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.chmod(0o700)
            path.touch(mode=0o600)
            path.chmod(0o600)
        except OSError as error:
            hint = "CRMCTL_STATE_DIR names another directory"
            raise storage_error(error, path) or ConfigError(f"cannot write to {path.parent}: {reason(error)}", hint=hint) from error
        with storage_errors(path):
            db = sqlite3.connect(path, isolation_level=None, timeout=60.0)
            begin_log(db, 60.0)
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA cache_size = -16000")
            db.execute("PRAGMA secure_delete = ON")
            opened = cls(path, db)
            opened._prepare(profile, origin)
        return opened

    @classmethod
    def read(cls, path: Path, patience: float = 60.0) -> Self | None:
        """Open for reading; None where there is none that this version knows. Raises StorageError, also where others keep it locked for
        longer than `patience` seconds."""
        if not path.is_file():
            return None
        with storage_errors(path):
            opened = cls(path, connect_to_read(path, patience))
            if opened._format() != FORMAT:
                opened.close()
                return None
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    def _prepare(self, profile: str, origin: str) -> None:
        found = self._format()
        if found not in (None, FORMAT):
            raise StorageError(
                f"the mirror {self.path} has the format {found}, this crmctl writes {FORMAT}",
                hint="crmctl mirror remove, then crmctl mirror sync makes it anew",
                code="damaged_file",
            )
        if found == FORMAT:
            return
        with self.transaction():
            for name, columns in FIXED_TABLES.items():
                self.db.execute(f"CREATE TABLE IF NOT EXISTS {quoted(name)} ({columns})")
            for statement in _INDEXES:
                self.db.execute(statement)
            notes = {"format": str(FORMAT), "profile": profile, "origin": origin}
            for name, value in notes.items():
                self.note(name, value)

    def _format(self) -> int | None:
        if not self.db.execute("SELECT 1 FROM sqlite_master WHERE name = '_mirror'").fetchone():
            return None
        row = self.db.execute("SELECT value FROM _mirror WHERE name = 'format'").fetchone()
        return int(row[0]) if row is not None and str(row[0]).isdigit() else None

    def note(self, name: str, value: str) -> None:
        """Remember something about the service."""
        self.db.execute("INSERT OR REPLACE INTO _mirror VALUES (?, ?)", (name, value))

    def noted(self, name: str) -> str | None:
        row = self.db.execute("SELECT value FROM _mirror WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is written inside becomes visible together, or not at all. Raises StorageError."""
        with storage_errors(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.db.execute("COMMIT")
            except BaseException:
                if self.db.in_transaction:
                    with suppress(sqlite3.Error):
                        self.db.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All that is read inside is of one moment."""
        with storage_errors(self.path):
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                self.db.execute("ROLLBACK")

    # -- what is known of each object ------------------------------------------------------------------------------------------------

    def states(self) -> list[SyncState]:
        """Of every object that was read, by slug; that of the activities last."""
        rows = self.db.execute("SELECT _state FROM _sync ORDER BY object_id = ?, slug", (ACTIVITIES,))
        return [SyncState.from_text(row[0]) for row in rows]

    def state(self, object_id: str) -> SyncState | None:
        row = self.db.execute("SELECT _state FROM _sync WHERE object_id = ?", (object_id,)).fetchone()
        return None if row is None else SyncState.from_text(row[0])

    def save(self, state: SyncState) -> None:
        row = (
            state.object_id, state.slug, state.table_name, state.records, to_timestamp(state.as_of), int(state.proven), state.proof,
            state.how, state.requests, state.total_requests, state.syncs, jsontext.dumps(state.excluded), jsontext.dumps(asdict(state)),
        )  # fmt: skip
        self.db.execute(f"INSERT OR REPLACE INTO _sync VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - only question marks

    def forget(self, state: SyncState) -> None:
        """Drop an object's table and all that is known of it."""
        for name in (state.table_name, search_table(state.table_name)):
            self.db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
        for table, column in (("_sync", "object_id"), ("_reread", "object_id"), ("attributes", "object_id"), ("objects", "id")):
            self.db.execute(f"DELETE FROM {table} WHERE {column} = ?", (state.object_id,))  # noqa: S608 - names of our own

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size


def search_table(table: str) -> str:
    """The name of a table's full-text index."""
    return f"_search_{table}"


def remove_mirror(path: Path) -> bool:
    """Delete a mirror and what an interrupted sync has left; whether there was one."""
    was_there = path.exists()
    for one in (path, *path.parent.glob(f"{path.name}*")):
        one.unlink(missing_ok=True)
    return was_there


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """What SQLite says of a disk or a file as errors of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(error, path) or error from error
