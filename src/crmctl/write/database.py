"""The database of a journal, its states, and its high-water mark."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from crmctl.clock import Clock, SystemClock
from crmctl.errors import StorageError, reason, storage_error
from crmctl.files.validation import Batch
from crmctl.models import jsontext


class JobKind(StrEnum):
    IMPORT = "import"
    UPDATE = "update"
    """Writes the same values to many records."""
    DELETE = "delete"


class JobState(StrEnum):
    CHECKING = "checking"
    """crmctl is reading and validating the input; nothing was sent."""
    OPEN = "open"
    """The job can be resumed: rows may still be sent, or are in doubt."""
    FINISHED = "finished"
    """Every row has a final state."""
    REJECTED = "rejected"
    """Invalid rows stopped the job before anything was sent."""
    UNDONE = "undone"
    """An undo deleted the created records again."""


class BatchState(StrEnum):
    PLANNED = "PLANNED"
    """Certainly not applied: its rows may be sent again, in this or another batch."""
    SENDING = "SENDING"
    """May be on the wire. After a crash, the same as IN_DOUBT."""
    CONFIRMED = "CONFIRMED"
    """The service accounted for every row."""
    BISECT = "BISECT"
    """Refused as a whole and not applied: its rows continue in smaller batches."""
    IN_DOUBT = "IN_DOUBT"
    """The service may have applied it. crmctl repeats it only after proving its rows absent."""
    RECONCILED = "RECONCILED"
    """Was in doubt; every row has since been found or proven absent."""
    UNKNOWN = "UNKNOWN"
    """Still in doubt after reading back; the user decides."""


DOUBTFUL = frozenset({BatchState.SENDING, BatchState.IN_DOUBT, BatchState.UNKNOWN})
"""States of batches whose rows may or may not exist in the service."""


RESULT_FILES = ("ok", "failed", "inDoubt", "unsent", "duplicates")
"""The result files of a job, in the order of the summary."""


class RowState(StrEnum):
    """The state of one row; the values are the `_status` of result files."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    IN_DOUBT = "inDoubt"
    UNSENT = "unsent"


ABANDONED = "not sent: the job was undone"
"""Reason of a skipped row of an unfinished job that was undone."""

MAY_BE_THERE = frozenset({RowState.CREATED, RowState.IN_DOUBT})
"""States of rows for which the service may have a new record."""


BUGS = (sqlite3.ProgrammingError, sqlite3.InterfaceError)
"""SQLite errors caused by a wrong call, not by a damaged file."""


ORPHANED = "it refers to no record: "
"""Beginning of the reason of a row whose parent the service refused."""


class OneAtATime:
    """Lets one thread at a time use a database. Raises StorageError with the path for failures and unreadable content."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()
        if isinstance(error, ValueError):
            raise damaged(self._path, reason(error)) from error
        if isinstance(error, sqlite3.Error) and not isinstance(error, BUGS):
            raise storage_error(error, self._path) from error


def damaged(path: Path, why: str) -> StorageError:
    """Return the error for a job file with impossible content."""
    return StorageError(f"{path} is damaged: {why}", code="damaged_job")


class JournalDatabase:
    """Base of `Journal`, which opens the database."""

    _db: sqlite3.Connection
    _lock: OneAtATime

    def remember(self, name: str, value: Any) -> None:
        """Store a JSON value under a name."""
        self._write("INSERT OR REPLACE INTO fact VALUES (?, ?)", name, jsontext.dumps(value))

    def recall(self, name: str) -> Any:
        """Return the value stored under a name, or None."""
        with self._lock:
            found = self._one("SELECT (SELECT value FROM fact WHERE name = ?)", name)
            return None if found is None else jsontext.loads(found)

    def records_made(self) -> int:
        """Return the number of records known to be created by the job."""
        query = (
            "SELECT (SELECT COALESCE(SUM(created), 0) FROM batch) "
            "+ (SELECT COUNT(*) FROM row WHERE state = ?) + (SELECT COUNT(*) FROM row WHERE state = ? AND created_id IS NOT NULL) "
            "+ (SELECT COUNT(*) FROM duplicate)"
        )
        return int(self._one(query, RowState.CREATED, RowState.FAILED))

    def refusals(self) -> list[str]:
        """Return the first two different reasons for failed rows and rows without a parent, in input order."""
        is_refused = "(state = ? AND error IS NOT NULL) OR (state = ? AND error LIKE ?)"
        query = f"SELECT error FROM row WHERE {is_refused} GROUP BY error ORDER BY MIN(ordinal) LIMIT 2"
        with self._lock:
            return [reason for (reason,) in self._db.execute(query, (RowState.FAILED, RowState.REJECTED, f"{ORPHANED}%"))]

    def refute_doubt(self, number: int, ordinals: Collection[int]) -> None:
        """Record that the service did not carry out a batch in doubt. Its rows may be sent again and are no longer doubted."""
        with self._transaction(durable=False):
            rows = [(ordinal, number) for ordinal in ordinals]
            self._db.executemany("DELETE FROM doubted WHERE ordinal IN (SELECT ordinal FROM row WHERE ordinal = ? AND batch = ?)", rows)
            self._db.executemany("DELETE FROM row WHERE ordinal = ? AND batch = ?", rows)
            self._db.execute("UPDATE batch SET size = 0, state = ? WHERE no = ?", (BatchState.RECONCILED, number))

    def was_repeated(self) -> bool:
        """Whether any row was sent more than once."""
        query = "SELECT EXISTS (SELECT 1 FROM batch WHERE attempt > 1 OR state IN ('PLANNED', 'BISECT', 'RECONCILED', 'UNKNOWN'))"
        return bool(self._one(query))

    def has_whole_refusal(self) -> bool:
        """Whether the service refused all rows of a batch one by one, as it does when it already has them."""
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM batch WHERE state = 'CONFIRMED' AND size > 1 AND created + updated = 0)"))

    def refused_later(self) -> set[int]:
        """Return the refused rows that another request may have created: an earlier attempt, or the first of two sent by a proxy."""
        query = (
            "SELECT DISTINCT ordinal FROM batch JOIN row ON ordinal BETWEEN first AND last WHERE row.state = ? AND (attempt > 1 OR "
            "batch.state IN ('PLANNED', 'BISECT', 'RECONCILED', 'UNKNOWN') OR (size > 1 AND created + updated = 0))"
        )
        with self._lock:
            return {ordinal for (ordinal,) in self._db.execute(query, (RowState.FAILED,))}

    def batch_of(self, ordinal: int) -> int:
        """Return the number of the last batch that included the row."""
        return int(self._one("SELECT batch FROM row WHERE ordinal = ?", ordinal))

    def created_in(self, number: int) -> int:
        """Return the number of rows created by a batch."""
        query = "SELECT created + (SELECT COUNT(*) FROM row WHERE batch = no AND row.state = ?) FROM batch WHERE no = ?"
        return int(self._one(query, RowState.CREATED, number))

    def accept(self, ordinal: int, record_id: str | None) -> None:
        """Mark a refused row as created, because another attempt created its record."""
        query = "UPDATE row SET state = ?, created_id = ?, error = NULL WHERE ordinal = ? AND state = ?"
        self._write(query, RowState.CREATED, record_id, ordinal, RowState.FAILED)

    # -- rows with a key -------------------------------------------------------------------------------------------------------------

    def set_targets(self, targets: Iterable[tuple[int, str]]) -> None:
        """Store the records that rows update. Every other row creates a record."""
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR REPLACE INTO target VALUES (?, ?)", targets)

    def target(self, ordinal: int) -> str | None:
        """Return the id of the record that a row updates."""
        found: str | None = self._one("SELECT (SELECT record_id FROM target WHERE ordinal = ?)", ordinal)
        return found

    def conclude(self, outcomes: Iterable[tuple[int, RowState, str | None, str | None]]) -> None:
        """Store the final state of rows that were never sent: ordinal, state, record id and reason."""
        with self._transaction(durable=False):
            # A row of a batch refused temporarily already has an entry.
            self._db.executemany("INSERT OR REPLACE INTO row (ordinal, state, record_id, error) VALUES (?, ?, ?, ?)", outcomes)

    # -- before images and undone records --------------------------------------------------------------------------------------------

    def keep_images(self, before: Iterable[tuple[int, dict[str, Any]]], whole: Iterable[tuple[int, dict[str, Any] | None]] = ()) -> None:
        """Store the values that rows are about to overwrite, and the complete values of rows that give parts; None removes the latter."""
        with self._transaction(durable=False):
            for column, images in (("before", before), ("whole", whole)):
                query = f"INSERT INTO image (ordinal, {column}) VALUES (?, ?) ON CONFLICT DO UPDATE SET {column} = excluded.{column}"
                rows = ((ordinal, None if values is None else jsontext.dumps(values)) for ordinal, values in images)
                self._db.executemany(query, rows)

    def before(self, first: int, last: int) -> dict[int, dict[str, Any]]:
        """Return the before images of the rows first..last."""
        with self._lock:
            found = self._db.execute(
                "SELECT ordinal, before FROM image WHERE before IS NOT NULL AND ordinal BETWEEN ? AND ?", (first, last)
            ).fetchall()
            return {ordinal: jsontext.loads(data) for ordinal, data in found}

    def whole(self, ordinal: int) -> dict[str, Any] | None:
        """Return the complete values of a row that gives parts of values."""
        found = self._one("SELECT (SELECT whole FROM image WHERE ordinal = ?)", ordinal)
        return None if found is None else jsontext.loads(found)

    def mark_undone(self, record_ids: Iterable[str]) -> None:
        """Mark records as restored to their state before the job."""
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR IGNORE INTO undone VALUES (?)", ((record_id.lower(),) for record_id in record_ids))

    def is_undone(self, record_id: str | None) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM undone WHERE record_id = lower(?))", record_id))

    @property
    def undone_count(self) -> int:
        return int(self._one("SELECT COUNT(*) FROM undone"))

    # -- rows of a resumed job -------------------------------------------------------------------------------------------------------

    def first_open(self) -> int:
        """Return the first row that may still be sent or is in doubt. If every row has an outcome, return the number after the last row."""
        return int(
            self._one(
                "SELECT MIN(ordinal) FROM ("
                "SELECT MIN(ordinal) AS ordinal FROM row JOIN batch ON no = batch "
                "WHERE row.state IS NULL AND batch.state NOT IN ('CONFIRMED', 'RECONCILED') "
                "UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM row WHERE ordinal = 1) "
                "UNION ALL SELECT * FROM (SELECT ordinal + 1 FROM row AS this "
                "WHERE NOT EXISTS (SELECT 1 FROM row WHERE ordinal = this.ordinal + 1) ORDER BY ordinal LIMIT 1))"
            )
        )

    def overrule(self, ordinal: int, why: str) -> None:
        """Mark a written row as failed. It keeps its record."""
        with self._transaction():
            query = (
                "SELECT row.state, batch, record_id, batch.state = 'CONFIRMED', created, updated FROM row LEFT JOIN batch ON no = batch "
                "WHERE ordinal = ?"
            )
            state, batch, record_id, is_counted, created, updated = self._db.execute(query, (ordinal,)).fetchone()
            if state is None and is_counted:
                column = "updated" if updated and (record_id or not created) else "created"
                self._db.execute(f"UPDATE batch SET {column} = {column} - 1 WHERE no = ?", (batch,))
            self._db.execute("UPDATE row SET state = ?, error = ? WHERE ordinal = ?", (RowState.FAILED, why, ordinal))

    # -- keys used by other clients meanwhile ----------------------------------------------------------------------------------------

    def record_rivals(self, records: Iterable[tuple[int, str, str]]) -> None:
        """Store rows whose key several records have: ordinal, record id and key, once per record."""
        with self._transaction(durable=False):
            self._db.executemany("INSERT OR IGNORE INTO rival VALUES (?, ?, ?)", records)

    def rivals(self) -> dict[int, tuple[str, list[str]]]:
        """Return the key and its records for each row whose key several records have."""
        found: dict[int, tuple[str, list[str]]] = {}
        with self._lock:
            for ordinal, record_id, key in self._db.execute("SELECT ordinal, record_id, key FROM rival ORDER BY ordinal, record_id"):
                found.setdefault(ordinal, (key, []))[1].append(record_id)
        return found

    def release(self, ordinals: Iterable[int]) -> None:
        """Allow refused rows to be sent again, as creates or updates."""
        with self._transaction():
            for ordinal in ordinals:
                query = "DELETE FROM row WHERE ordinal = ? AND state = ? AND created_id IS NULL"
                if self._db.execute(query, (ordinal, RowState.FAILED)).rowcount:
                    self._db.execute("DELETE FROM target WHERE ordinal = ?", (ordinal,))
                    self._db.execute("UPDATE image SET before = NULL WHERE ordinal = ?", (ordinal,))

    # -- the database ----------------------------------------------------------------------------------------------------------------

    def _one(self, query: str, *values: Any) -> Any:
        with self._lock:
            return self._db.execute(query, values).fetchone()[0]

    def _write(self, statement: str, *values: Any) -> None:
        with self._transaction():
            self._db.execute(statement, values)

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Apply all statements of the block or none. With `durable`, they are on disk when the block ends."""
        with self._lock:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # on a full disk SQLite has already ended some transactions
                    self._db.execute("ROLLBACK")
                raise


FILE_NAME = "journal.mark"

SLOT_BYTES = 512
"""Size of one slot: a sector, which a disk writes completely or not at all. crmctl writes two slots in turn, so one survives a torn
write."""

TOUCHED_SECONDS = 60.0
"""A larger difference between the times of the file and its content shows that the file was copied or restored."""


class Mark(NamedTuple):
    """Number of attempts (`sends`), the highest row among them (`last`), and the Unix time of the newest (`at`)."""

    sends: int = 0
    last: int = 0
    at: float = 0.0


class HighWaterMark:
    """The mark of a job's folder. Only one process writes it at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._file: int | None = None

    def read(self) -> tuple[Mark, bool]:
        """Return the mark, and whether it proves that nothing more was sent. A missing, damaged, copied or restored file proves nothing."""
        try:
            content, changed = self._path.read_bytes(), self._path.stat().st_ctime
        except OSError:
            return Mark(), False
        found = [slot for at in (0, SLOT_BYTES) if (slot := _parse(content[at : at + SLOT_BYTES])) is not None]
        if not found:
            return Mark(), False
        mark, written = max(found)
        return mark, os.name != "posix" or abs(changed - written) <= TOUCHED_SECONDS

    def write(self, mark: Mark) -> None:
        """Write the mark to disk before returning. Raises StorageError."""
        try:
            if self._file is None:
                self._file = self._open()
            os.lseek(self._file, SLOT_BYTES * (mark.sends % 2), os.SEEK_SET)
            os.write(self._file, _encode(mark))
            _bring_to_disk(self._file)
        except OSError as error:
            raise storage_error(error, self._path, StorageError(f"cannot write {self._path}: {reason(error)}")) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        """Open the file at full size, so that later writes need no space and overwrite only their own bytes."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(file).st_size != 2 * SLOT_BYTES:
                os.truncate(file, 0)
                os.write(file, _encode(Mark()) * 2)
                os.fsync(file)
                _bring_name_to_disk(self._path.parent)
                _bring_name_to_disk(self._path.parent.parent)
        except BaseException:
            os.close(file)
            raise
        return file


def _encode(mark: Mark) -> bytes:
    text = f"crmctl 1 {mark.sends} {mark.last} {mark.at!r} {SystemClock().now()!r}".encode()
    return (text + b" %d" % zlib.crc32(text)).ljust(SLOT_BYTES - 1) + b"\n"


def _parse(slot: bytes) -> tuple[Mark, float] | None:
    text, _, check = slot.rstrip().rpartition(b" ")
    try:
        name, version, sends, last, at, written = text.split()
        if (name, version, int(check)) != (b"crmctl", b"1", zlib.crc32(text)):
            return None
        return Mark(int(sends), int(last), float(at)), float(written)
    except ValueError:
        return None


def _bring_to_disk(file: int) -> None:
    getattr(os, "fdatasync", os.fsync)(file)


def _bring_name_to_disk(folder: Path) -> None:
    """Sync the folder so that it lists the new file. Some systems cannot do this and do not need it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class JournalSends(JournalDatabase):
    """Base of `Journal`."""

    folder: Path
    _clock: Clock
    _water: HighWaterMark
    _sent: Mark | None = None

    @property
    def has_sent(self) -> bool:
        """Whether any row may have been sent."""
        known = self._one("SELECT EXISTS (SELECT 1 FROM batch WHERE state NOT IN ('PLANNED', 'BISECT'))")
        return bool(known) or self._water.read()[0].sends > self._counted().sends

    def refuse_lost_sends(self) -> None:
        """Raise StorageError if the service may have received requests that the journal lacks, because it was lost, copied or restored."""
        if self._sent is not None:
            return  # this process has written both files
        mark, is_all = self._water.read()
        lost = mark.sends - self._counted().sends
        if lost <= 0 and is_all:
            return
        requests = f"{lost:,} request{'s' if lost > 1 else ''} with rows up to {mark.last:,}" if lost > 0 else "requests"
        raise StorageError(
            f"{self.folder} was copied or restored: {requests} may have been sent that its journal does not know",
            hint="put the newest files of the job back, or import the file again with --key, which finds the rows that are there",
            code="damaged_job",
        )

    def question(self, batches: Mapping[int, Batch], why: str) -> None:
        """Put created rows in doubt again. `batches` holds the rows by the number of the batch that confirmed them."""
        with self._transaction():
            number = self._db.execute("SELECT COALESCE(MAX(no), 0) FROM batch").fetchone()[0]
            for old, batch in batches.items():
                number += 1
                ordinals = jsontext.dumps(batch.ordinals)
                self._db.execute(
                    "UPDATE batch SET created = created - (SELECT COUNT(*) FROM row WHERE batch = no AND row.state IS NULL "
                    "AND ordinal IN (SELECT value FROM json_each(?))) WHERE no = ?",
                    (ordinals, old),
                )
                sent_at = self._db.execute("SELECT sent_at FROM batch WHERE no = ?", (old,)).fetchone()[0]
                self._insert(number, batch, state=BatchState.IN_DOUBT, sent_at=sent_at, attempt=0)
                self._db.execute("UPDATE batch SET reason = ? WHERE no = ?", (why, number))
            self._remember_doubts()

    def last_confirmed(self) -> tuple[int, int, float, float] | None:
        """Return the newest batch whose rows were all created: first and last row, Unix times of send and answer.

        Without such a batch, return the first batch in doubt whose rows were all found, with the current time as its answer.
        """
        with self._lock:
            found = self._db.execute(
                "SELECT first, last, sent_at, settled_at FROM batch "
                "WHERE state = 'CONFIRMED' AND created = size AND last - first + 1 = size ORDER BY no DESC LIMIT 1"
            ).fetchone()
            found = (
                found
                or self._db.execute(
                    "SELECT first, last, sent_at, ? FROM batch WHERE state = 'RECONCILED' AND last - first + 1 = "
                    "(SELECT COUNT(*) FROM row WHERE row.batch = no AND row.state = 'created') ORDER BY no LIMIT 1",
                    (self._clock.now(),),
                ).fetchone()
            )
        return None if found is None else tuple(found)

    def _remember_doubts(self) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO doubted SELECT ordinal, sent_at FROM batch JOIN row ON ordinal BETWEEN first AND last AND batch = no "
            "WHERE batch.state = ?",
            (BatchState.IN_DOUBT,),
        )

    def _insert(self, number: int, batch: Batch, **facts: Any) -> None:
        """Store a batch and its rows. `facts` are the other columns: state, time of the send, attempt, parent batch."""
        place = {"no": number, "first": batch.ordinals[0], "last": batch.ordinals[-1], "size": len(batch), "digest": batch.digest}
        self._db.execute(
            "INSERT INTO batch (no, parent, first, last, size, digest, state, attempt, sent_at) "
            "VALUES (:no, :parent, :first, :last, :size, :digest, :state, :attempt, :sent_at)",
            {"attempt": 1, "parent": None, **place, **facts},
        )
        ordinals = jsontext.dumps(batch.ordinals)  # one statement takes half the time of a hundred
        self._db.execute("INSERT OR REPLACE INTO row (ordinal, batch) SELECT value, ? FROM json_each(?)", (number, ordinals))
        if given := [(entry.id, entry.ordinal) for entry in batch.entries if entry.id]:
            self._db.executemany("UPDATE row SET record_id = ? WHERE ordinal = ?", given)

    def _before_first_send(self) -> None:
        """Move the log into the database before the first request, so that a lost log loses no checks or look-ups."""
        if not (self._sent or self._counted()).sends:
            with self._lock:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _raise_mark(self, last: int) -> None:
        """Raise the mark for a request that is in the journal and about to leave, with rows up to `last`."""
        if self._sent is None or not self._sent.sends:
            self._sent = self._counted()._replace(last=max(last, self._counted().last, self._water.read()[0].last))
        else:
            self._sent = Mark(self._sent.sends + 1, max(self._sent.last, last), self._clock.now())
        self._water.write(self._sent)

    def _counted(self) -> Mark:
        """Return the mark according to the journal."""
        with self._lock:
            sends, last, at = self._db.execute(
                "SELECT COALESCE(SUM(attempt), 0), COALESCE(MAX(last), 0), COALESCE(MAX(sent_at), 0.0) FROM batch"
            ).fetchone()
            return Mark(sends, last, at)


FORMAT = 7

TABLES = """
CREATE TABLE job (
    one INTEGER PRIMARY KEY CHECK (one = 1), header TEXT NOT NULL, state TEXT NOT NULL, rows INTEGER NOT NULL DEFAULT 0,
    requests INTEGER NOT NULL DEFAULT 0, elapsed REAL NOT NULL DEFAULT 0
);
CREATE TABLE batch (
    no INTEGER PRIMARY KEY, parent INTEGER, first INTEGER NOT NULL, last INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL,
    state TEXT NOT NULL, attempt INTEGER NOT NULL, sent_at REAL NOT NULL, settled_at REAL,
    created INTEGER NOT NULL DEFAULT 0, updated INTEGER NOT NULL DEFAULT 0, reason TEXT
);
CREATE TABLE row (ordinal INTEGER PRIMARY KEY, batch INTEGER, state TEXT, record_id TEXT, created_id TEXT, error TEXT);
CREATE INDEX row_state ON row (state) WHERE state IS NOT NULL;
CREATE TABLE event (at REAL NOT NULL, kind TEXT NOT NULL, batch INTEGER, note TEXT);
CREATE TABLE doubted (ordinal INTEGER PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE duplicate (ordinal INTEGER NOT NULL, record_id TEXT NOT NULL, PRIMARY KEY (ordinal, record_id));
CREATE TABLE target (ordinal INTEGER PRIMARY KEY, record_id TEXT NOT NULL);
CREATE TABLE image (ordinal INTEGER PRIMARY KEY, before TEXT, whole TEXT);
CREATE TABLE rival (ordinal INTEGER NOT NULL, record_id TEXT NOT NULL, key TEXT NOT NULL, PRIMARY KEY (ordinal, record_id)) WITHOUT ROWID;
CREATE TABLE undone (record_id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE fact (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE merge_group (no INTEGER PRIMARY KEY, survivor TEXT NOT NULL, losers TEXT NOT NULL, state TEXT NOT NULL, error TEXT);
CREATE TABLE merge_step (
    no INTEGER PRIMARY KEY, merge INTEGER NOT NULL, kind TEXT NOT NULL, object_id TEXT NOT NULL, target TEXT NOT NULL,
    before TEXT NOT NULL, after TEXT NOT NULL, state TEXT NOT NULL, error TEXT, sent_at REAL, new_id TEXT
);
CREATE INDEX merge_step_group ON merge_step (merge, kind);
CREATE VIEW doubtful AS SELECT * FROM batch WHERE state IN ('SENDING', 'IN_DOUBT', 'UNKNOWN');
CREATE VIEW taken AS
    SELECT ordinal FROM row LEFT JOIN batch ON batch.no = row.batch
    WHERE row.state IS NOT NULL OR batch.state IS NULL OR batch.state NOT IN ('PLANNED', 'BISECT');
"""
"""Tables and views of a journal.

`doubtful`: batches that may or may not be in the service; `size` counts their open rows. `taken`: rows that must not be sent. `doubted`:
rows that were ever in doubt, with the last time. `duplicate`: surplus records of a row. `target`: records to update, found by key.
`image`: values that a row overwrites, and complete values of a row that gives parts of them. `rival`: records that share the key of a row.
`undone`: records deleted or restored by an undo. `fact`: JSON values by name. `merge_group`: the rows of a merge job. `merge_step`: its
steps. The `before` of a deletion is the whole record; an undo adds the `new_id` of the recreated record, and the time it sent it.
"""
