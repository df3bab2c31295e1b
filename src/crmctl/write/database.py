"""The files of a journal: its states, its lock, its lease, and its high-water mark."""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
import zlib
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from crmctl.clock import SystemClock
from crmctl.errors import StorageError, UsageError, reason, storage_error
from crmctl.files.whole_files import sync_path


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
        is_bug = isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError)  # a wrong call, not a damaged file
        if isinstance(error, sqlite3.Error) and not is_bug:
            raise storage_error(error, self._path) from error


def damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"{path} is damaged: {why}", code="damaged_job")


HEARTBEAT_SECONDS = 10.0
"""Interval between a holder's signs of life."""

STALE_SECONDS = 90.0
"""Silence after which a holder on another host or in another container counts as dead."""

LEASE_TABLE = """
CREATE TABLE lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL,
    beat REAL NOT NULL
);
"""


class Holder(NamedTuple):
    """Identity of a process, distinct from a later process with the same id."""

    host: str
    boot: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Holder:
        return cls(socket.gethostname(), _boot_id(), os.getpid(), start_time(os.getpid()))


def acquire(connection: sqlite3.Connection, now: float) -> None:
    """Take the lease inside the caller's transaction. Raises UsageError when a live process holds it."""
    holder, me = live_holder(connection, now), Holder.this_process()
    if holder is not None and holder != me:
        raise UsageError(f"another process (pid {holder.pid} on {holder.host}) is working on this job", code="job_running")
    connection.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?)", (*me, now))


def release(connection: sqlite3.Connection) -> None:
    query = "DELETE FROM lease WHERE host = ? AND boot = ? AND pid = ? AND started = ?"
    connection.execute(query, Holder.this_process())


def live_holder(connection: sqlite3.Connection, now: float) -> Holder | None:
    """Return the process that holds the lease; None if the lease is free or its process is dead."""
    row = connection.execute("SELECT host, boot, pid, started, beat FROM lease").fetchone()
    if row is None:
        return None
    holder, me = Holder(*row[:4]), Holder.this_process()
    if holder.host != me.host or not holder.started:
        is_alive = now - row[4] < STALE_SECONDS
    else:
        is_alive = holder.boot == me.boot and start_time(holder.pid) == holder.started
    return holder if is_alive else None


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_time(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty if it is not running, a zombie, or not visible."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The command name may contain blanks and brackets. After its last bracket come state, ppid, ... and, as the 20th field, starttime.
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] == "Z" else fields[19]


FILE_NAME = "journal.mark"

SLOT_BYTES = 512
"""Size of one slot: a sector, which a disk writes completely or not at all. crmctl writes two slots in turn, so one survives a torn
write."""

SYNC_SECONDS = 5.0
"""Seconds after which a mark is on the disk. A power cut may lose newer ones: the journal, which is on the disk before each request, then
knows more than the mark."""

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
        self._sync_due = 0.0

    def read(self) -> tuple[Mark, bool]:
        """Return the mark, and whether it proves that nothing more was sent. A missing, damaged, copied or restored file proves nothing."""
        try:
            content, changed = self._path.read_bytes(), self._path.stat().st_ctime
        except OSError:
            return Mark(), False
        slots = [slot for at in (0, SLOT_BYTES) if (slot := _parse(content[at : at + SLOT_BYTES])) is not None]
        if not slots:
            return Mark(), False
        mark, written = max(slots)
        return mark, os.name != "posix" or abs(changed - written) <= TOUCHED_SECONDS

    def write(self, mark: Mark) -> None:
        """Write the mark, which outlives the process from now on and a power cut within SYNC_SECONDS. Raises StorageError."""
        try:
            if self._file is None:
                self._file = self._open()
            os.lseek(self._file, SLOT_BYTES * (mark.sends % 2), os.SEEK_SET)
            os.write(self._file, _encode(mark))
            if (now := time.monotonic()) >= self._sync_due:
                os.fsync(self._file)
                self._sync_due = now + SYNC_SECONDS
        except OSError as error:
            raise storage_error(error, self._path, StorageError(f"cannot write {self._path}: {reason(error)}")) from error

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the content is written; a disk that fails now has failed the journal too
                os.fsync(self._file)
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
                sync_path(self._path.parent)
                sync_path(self._path.parent.parent)
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


FORMAT = 10

TABLES = """
CREATE TABLE job (one INTEGER PRIMARY KEY CHECK (one = 1), header TEXT NOT NULL, state TEXT NOT NULL, rows INTEGER NOT NULL DEFAULT 0);
CREATE TABLE batch (
    no INTEGER PRIMARY KEY, parent INTEGER, first INTEGER NOT NULL, last INTEGER NOT NULL, size INTEGER NOT NULL, digest BLOB NOT NULL,
    state TEXT NOT NULL, attempt INTEGER NOT NULL, sent_at REAL NOT NULL, settled_at REAL,
    created INTEGER NOT NULL DEFAULT 0, updated INTEGER NOT NULL DEFAULT 0, reason TEXT
);
CREATE TABLE row (ordinal INTEGER PRIMARY KEY, batch INTEGER, state TEXT, record_id TEXT, created_id TEXT, error TEXT);
CREATE INDEX row_state ON row (state) WHERE state IS NOT NULL;
CREATE TABLE fact (kind TEXT NOT NULL, key NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE merge_group (no INTEGER PRIMARY KEY, survivor TEXT NOT NULL, losers TEXT NOT NULL, state TEXT NOT NULL, error TEXT);
CREATE TABLE merge_step (
    no INTEGER PRIMARY KEY, merge INTEGER NOT NULL, kind TEXT NOT NULL, object_id TEXT NOT NULL, target TEXT NOT NULL,
    before TEXT NOT NULL, after TEXT NOT NULL, state TEXT NOT NULL, error TEXT
);
CREATE INDEX merge_step_group ON merge_step (merge, kind);
CREATE VIEW doubtful AS SELECT * FROM batch WHERE state IN ('SENDING', 'IN_DOUBT', 'UNKNOWN');
CREATE VIEW taken AS
    SELECT ordinal FROM row LEFT JOIN batch ON batch.no = row.batch
    WHERE row.state IS NOT NULL OR batch.state IS NULL OR batch.state NOT IN ('PLANNED', 'BISECT');
"""
"""Tables and views of a journal.

`doubtful`: batches that may or may not be in the service; `size` counts their open rows. `taken`: rows that must not be sent. `fact`: JSON
values by kind and by name, row or record. `merge_group`: the rows of a merge job. `merge_step`: its steps. The `before` of a deletion is
the whole record.
"""
