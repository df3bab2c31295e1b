"""The mirror's file: tables, columns, versions, and the lock of its writer."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from crmctl.clock import Clock
from crmctl.errors import ConfigError, CrmctlError, PendingError, StorageError, reason, storage_error
from crmctl.files.turns import take_turn
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import is_uuid, reference_id
from crmctl.models.jsontext import Json
from crmctl.models.numbers import plain_decimal
from crmctl.models.resources import Attribute, AttributeType
from crmctl.values.attribute_types import PART_NAMES, type_of
from crmctl.values.composites import JOINED_BY, usual_name
from crmctl.values.moments import to_timestamp
from crmctl.write_ahead_log import begin_log

FIXED = ("_no", "id", "created_at", "updated_at", "_created", "_updated", "_data")
"""Columns of every table; attributes with these slugs get no column."""

MOST_COLUMNS = 1900
"""SQLite allows 2,000."""

_LARGEST = 2**63 - 1
_WITH_PARTS = (AttributeType.NAME, AttributeType.ADDRESS, AttributeType.CURRENCY)
_NUMBERS = (AttributeType.NUMBER, AttributeType.CURRENCY)
_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?")

SqlValue = str | int | float | None


@frozen
class TableColumn:
    """A column for an attribute, or for a part of its values. `declared` is its SQL type."""

    name: str
    declared: str
    attribute: Attribute
    part: str | None = None

    def value(self, data: Mapping[str, Any]) -> SqlValue:
        value = data.get(self.attribute.slug)
        if value is None:
            return None
        if self.part is not None:
            return _part(self.attribute, self.part, value)
        return _shown(self.attribute, value)


def table_columns(attributes: Iterable[Attribute], loose: Iterable[str] = ()) -> list[TableColumn]:
    """Return the columns: attributes in display order, then parts. Attributes in `loose` have numbers that SQLite cannot hold exactly."""
    ordered = sorted(attributes, key=lambda attribute: attribute.display_order if attribute.display_order is not None else 1 << 30)
    taken, untyped = set(FIXED), set(loose)
    columns: list[TableColumn] = []

    def add(name: str, declared: str, attribute: Attribute, part: str | None = None) -> None:
        if _lower(name) not in taken and can_be_named(name) and len(columns) < MOST_COLUMNS:
            taken.add(_lower(name))
            columns.append(TableColumn(name, declared, attribute, part))

    for attribute in ordered:
        add(attribute.slug, "" if attribute.slug in untyped else _declared(attribute), attribute)
    for attribute in ordered:
        if attribute.type in _WITH_PARTS and not attribute.is_list:
            for part in PART_NAMES[attribute.type]:
                if (attribute.type, part) != (AttributeType.CURRENCY, "amount"):
                    add(f"{attribute.slug}_{part}", "TEXT", attribute, part)
    return columns


def can_be_named(name: str) -> bool:
    """Whether SQLite accepts this name, once quoted, for a table or column."""
    return bool(name) and "\0" not in name and name.isprintable() and name == clean_text(name)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def clean_text(text: str) -> str:
    """Return text that UTF-8 can store: lone surrogates become question marks."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def searched_text(data: Mapping[str, Any]) -> str:
    """Return every text in a record's data except ids, one per line."""
    return clean_text("\n".join(_texts(data)))


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        if not is_uuid(value):
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _lower(name: str) -> str:
    """Return a name as SQLite compares it, without the case of ASCII letters."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _declared(attribute: Attribute) -> str:
    if attribute.is_list:
        return "TEXT"
    if attribute.type in _NUMBERS:
        return "NUMERIC"
    return "INTEGER" if attribute.type == AttributeType.CHECKBOX else "TEXT"


def _shown(attribute: Attribute, value: Any) -> SqlValue:
    if attribute.type == AttributeType.REFERENCE and not attribute.is_list and isinstance(value, list) and len(value) == 1:
        value = value[0]
    if attribute.is_list or attribute.type == AttributeType.LIST or isinstance(value, list):
        return jsontext.dumps(value)
    if isinstance(value, dict):
        value = _of_parts(attribute, value)
    return _number(value) if attribute.type in _NUMBERS and isinstance(value, str) else _plain(value)


def _number(text: str) -> SqlValue:
    """Return the number in a text, if SQLite holds it exactly: some services show numbers as text."""
    if not _NUMBER.fullmatch(text):
        return clean_text(text)
    number = float(text) if "." in text else int(text)
    return _plain(number) if Decimal(repr(number)) == Decimal(text) else text


def _plain(value: Any) -> SqlValue:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value if -_LARGEST <= value <= _LARGEST else str(value)
    if isinstance(value, float):
        return value
    if isinstance(value, Decimal):
        return plain_decimal(value)
    return clean_text(value) if isinstance(value, str) else jsontext.dumps(value)


def _of_parts(attribute: Attribute, value: Json) -> SqlValue:
    """Return an object as one value: a name or address as text, an amount, a number, or the id of the referenced record."""
    if attribute.type in JOINED_BY:
        parts = [_part(attribute, part, value) for part in PART_NAMES[attribute.type]]
        text = JOINED_BY[attribute.type].join(str(part) for part in parts if part not in (None, ""))
        return text or jsontext.dumps(value)
    main = type_of(attribute.type).bare
    if main is not None and (part_value := _part(attribute, main, value)) is not None:
        return part_value
    if attribute.type == AttributeType.REFERENCE and isinstance(record_id := reference_id(value), str):
        return clean_text(record_id)
    return jsontext.dumps(value)


def _part(attribute: Attribute, part: str, value: Any) -> SqlValue:
    if not isinstance(value, dict):
        return None
    part_value = next((item for name, item in value.items() if usual_name(attribute, name) == part and item is not None), None)
    return None if part_value is None else _plain(part_value)


FORMAT = 1
_ANEW = "crmctl mirror remove, then crmctl mirror sync makes it anew"
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
"""The columns of every table except those of objects."""

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS _by_activity_links_record ON activity_links (record_id)",
    "CREATE INDEX IF NOT EXISTS _by_activity_links_activity ON activity_links (activity_id)",
)


@dataclass
class SyncState:
    """The state of one object after a sync. Moments are microseconds.

    Changes before `since` are known. `as_of` is when the last sync began by the service's clock, `taken` the same moment by this machine's
    clock, `newest` the newest change then. `fingerprint`: the attributes the records were read with. `loose`: attributes with numbers that
    SQLite cannot hold exactly. `audited`: the offset up to which records were compared again.
    """

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
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in names})


def connect_to_read(path: Path, seconds: float) -> sqlite3.Connection:
    """Open a read-only connection that waits `seconds` for locks. Rolls back the writes of a killed process first. Raises sqlite3.Error.

    The garbage collector may end an abandoned read in any thread.
    """
    for is_last in (False, True):
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=seconds, check_same_thread=False)
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


class MirrorFile(ExitStack):
    """An open mirror. Writers use transactions; readers see the state before them."""

    def __init__(self, path: Path, db: sqlite3.Connection) -> None:
        super().__init__()
        self.path = path
        self.db = self.enter_context(closing(db))

    @classmethod
    def create(cls, path: Path, profile: str, origin: str) -> Self:
        """Open for writing; create the file, readable only by its owner, if it is missing. Raises ConfigError and StorageError."""
        _make_private(path)
        with storage_errors(path):
            db = sqlite3.connect(path, isolation_level=None, timeout=60.0, check_same_thread=False)
            begin_log(db, 60.0)
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA cache_size = -16000")
            db.execute("PRAGMA secure_delete = ON")
            opened = cls(path, db)
            opened._prepare(profile, origin)
        return opened

    @classmethod
    def read(cls, path: Path, patience: float = 60.0, *, any_format: bool = True) -> Self | None:
        """Open for reading.

        Return None if there is no file of this version. Raises StorageError, also after `patience` seconds behind a lock, and without
        `any_format` for a file of another version.
        """
        if not path.is_file():
            return None
        with storage_errors(path):
            opened = cls(path, connect_to_read(path, patience))
            if (file_format := opened._format()) != FORMAT:
                opened.close()
                if file_format is not None and not any_format:
                    raise _other_format(path, file_format)
                return None
        return opened

    def _prepare(self, profile: str, origin: str) -> None:
        file_format = self._format()
        if file_format is not None and file_format != FORMAT:
            raise _other_format(self.path, file_format)
        if file_format == FORMAT:
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
        self.db.execute("INSERT OR REPLACE INTO _mirror VALUES (?, ?)", (name, value))

    def noted(self, name: str) -> str | None:
        row = self.db.execute("SELECT value FROM _mirror WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all writes of the block visible together, or none of them. Raises StorageError."""
        with storage_errors(self.path), self.db:
            self.db.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything in the block as of one moment."""
        with storage_errors(self.path):
            self.db.execute("BEGIN")
            try:
                yield
            finally:
                self.db.execute("ROLLBACK")

    def states(self) -> list[SyncState]:
        """Return the states of all objects by slug; that of the activities comes last."""
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
        self.db.execute(f"INSERT OR REPLACE INTO _sync VALUES ({', '.join('?' * len(row))})", row)

    def forget(self, state: SyncState) -> None:
        """Drop an object's table and state; its log then holds the deletion of every record."""
        if self.db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (state.table_name,)).fetchone():
            self.db.execute(f"DELETE FROM {quoted(state.table_name)}")
        for name in (state.table_name, search_table(state.table_name)):
            self.db.execute(f"DROP TABLE IF EXISTS {quoted(name)}")
        for table, column in (("_sync", "object_id"), ("_reread", "object_id"), ("attributes", "object_id"), ("objects", "id")):
            self.db.execute(f"DELETE FROM {table} WHERE {column} = ?", (state.object_id,))


def _other_format(path: Path, found: int) -> StorageError:
    return StorageError(f"the mirror {path} has the format {found}, this crmctl writes {FORMAT}", hint=_ANEW, code="damaged_file")


def search_table(table: str) -> str:
    return f"_search_{table}"


def remove_mirror(path: Path) -> None:
    """Delete a mirror and the remains of interrupted syncs."""
    for file in (path, *path.parent.glob(f"{path.name}*")):
        file.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors about the disk or file into StorageError."""
    try:
        yield
    except sqlite3.Error as error:
        failure = storage_error(error, path)
        if isinstance(failure, StorageError) and failure.code == "damaged_file":
            failure.hint = _ANEW
        raise failure from error


Fingerprint = Mapping[str, Sequence[Any]]
"""Slug, type, whether it is a list, and whether it is active, by attribute id."""


def fingerprint_of(attributes: Iterable[Attribute]) -> dict[str, list[Any]]:
    """Return the properties of attributes that decide what records hold."""
    return {
        attribute.id: [attribute.slug, attribute.type, bool(attribute.is_list), attribute.is_active is not False]
        for attribute in attributes
    }


def why_anew(before: Fingerprint, now: Fingerprint) -> str | None:
    """Return why records may have changed without a new time of change; None if no attribute was recreated or changed.

    A new attribute changes no record until a client writes to it, and the values of a deleted one are dropped from the mirror.
    """
    gone = deleted_slugs(before, now)
    for attribute_id, facts in before.items():
        slug = facts[0]
        if attribute_id in now and now[attribute_id] != facts:
            return f"the attribute {slug} has changed"
        if attribute_id not in now and slug not in gone:
            return f"the attribute {slug} was made anew"
    return None


def deleted_slugs(before: Fingerprint, now: Fingerprint) -> set[str]:
    return {facts[0] for attribute_id, facts in before.items() if attribute_id not in now} - {facts[0] for facts in now.values()}


def _make_private(path: Path) -> None:
    """Create a file, unless it exists, and its folder, both for their owner only. Raises ConfigError and StorageError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)
    except OSError as error:
        hint = "CRMCTL_STATE_DIR names another directory"
        raise storage_error(error, path, ConfigError(f"cannot write to {path.parent}: {reason(error)}", hint=hint)) from error


WAIT_SECONDS = 3600.0


@contextmanager
def writing_turn(path: Path, clock: Clock, note: Callable[[str], None], patience: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of the mirror's writer. The lock of a dead process is free.

    Raises PendingError after `patience` seconds, ConfigError and StorageError.
    """
    running = "another process is bringing the mirror up to date"

    def tell(_: float) -> bool:
        note(f"{running}; waiting for its end")
        return True

    def refusal() -> CrmctlError:
        hint = "try again when it is done; crmctl mirror status shows what there is"
        return PendingError(running, hint=hint, code="sync_running", retryable=True)

    place = path.with_name(f"{path.name}.turn")
    _make_private(place)
    with take_turn(place, clock, patience, tell, refusal):
        yield
