"""The journal of a job: one SQLite file, updated before and after every request."""

from __future__ import annotations

import sqlite3
from bisect import insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from crmctl.clock import Clock
from crmctl.errors import CrmctlError, StorageError, UsageError, reason
from crmctl.files.spills import chunks
from crmctl.files.validation import Batch, Entry, Payload, SendableRow
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.write.database import (
    DOUBTFUL,
    FORMAT,
    LEASE_TABLE,
    ORPHANED,
    TABLES,
    BatchState,
    HighWaterMark,
    JobKind,
    JobState,
    Mark,
    OneAtATime,
    RowState,
    acquire,
    damaged,
    live_holder,
    release,
)
from crmctl.write.verdicts import Verdict
from crmctl.write_ahead_log import begin_log

FILE_NAME = "journal.sqlite"
REMOVED = "it was removed while the job ran, which can be neither resumed nor undone"


@frozen
class Header:
    """The job's definition, fixed at its start. `plan` holds everything besides the input that determines the payloads, as JSON values."""

    job: str
    object: str
    object_id: str
    origin: str
    mode: str
    input: str
    """The file as the user named it, `-` for stdin."""
    path: str
    """Path of the bytes: the absolute path of the file, or of the spooled copy."""
    sha256: str
    size: int
    mapping: str
    """Digest of the final mapping."""
    schema: str
    """Digest of the object's attributes."""
    created_at: float
    version: str
    plan: dict[str, Any] = field(default_factory=dict)
    unique: str | None = None
    """A mapped attribute whose values are unique in the file, used to recognise rows."""
    keys: list[str] = field(default_factory=list)
    """The attributes that identify the records to update."""
    key_types: list[str] = field(default_factory=list)
    """Types of `keys`, in the same order."""
    keeps_overwritten: bool = False
    """Whether to read and keep the values that rows with an id overwrite. An import by key keeps them anyway."""
    kind: str = JobKind.IMPORT
    guard: dict[str, Any] = field(default_factory=dict)
    """The user's limits of change. They also apply when the job is resumed."""
    attributes: list[dict[str, Any]] = field(default_factory=list)
    """The object's attributes when the job began. The job reads its input with them, whatever was added, renamed or deleted since."""
    shown: dict[str, Any] | None = None  # the record shown to the user of an edit; crmctl overwrites no other version


class SentBatch(NamedTuple):
    """A batch in the journal: its rows, the digest of the data sent, its attempts, Unix times of the last send and of the answer, and the
    reason for its state. `size` counts its rows; of a batch in doubt, those still open."""

    number: int
    first: int
    last: int
    size: int
    digest: bytes
    state: BatchState
    attempt: int
    sent_at: float
    settled_at: float | None
    created: int
    updated: int
    reason: str | None

    @property
    def was_acknowledged(self) -> bool:
        """Whether the batch holds rows in doubt that the service had answered as written."""
        return self.attempt == 0


class RowEntry(NamedTuple):
    """The journal's entry for one row. `record_id` is the id given in an upsert or learnt later."""

    state: RowState
    record_id: str | None = None
    error: str | None = None


CREATED = RowEntry(RowState.CREATED)

Row = TypeVar("Row", Entry, Payload, SendableRow)

TARGET, BEFORE, WHOLE = "target", "before", "whole"
"""Kinds of values by row: the record it updates, found by key; the values it overwrites; complete values of a row that gives parts."""

DOUBTED, DUPLICATE, RIVALS, MADE = "doubted", "duplicate", "rivals", "made"
"""Kinds of values: by row, when it was last in doubt; by surplus record, its row; by row, the key and the records that share it; by failed
row, that it created a record."""

UNDONE = "undone"
"""Kind of values by record that an undo deleted or restored."""


class Journal:
    """A job's journal. One process opens it for work (`hold`), any process for reading. Safe for several threads of one process."""

    _sent: Mark | None = None

    def __init__(self, folder: Path, clock: Clock) -> None:
        """Open an existing journal. Raises UsageError if it is missing, unreadable or in another format, StorageError on a full disk."""
        self.folder = folder
        self.clock = clock
        self._water = HighWaterMark(folder)
        self._path = path = folder / FILE_NAME
        self._lock = OneAtATime(path)
        if not path.is_file():
            if (mark := self._water.read()[0]).sends:
                raise damaged(path, f"it is gone, and rows up to {mark.last:,} were sent")
            raise UsageError(f"no job in {folder}")
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        try:
            with self._lock:
                if self._one("PRAGMA user_version") != FORMAT:
                    self._refuse_other_version()
                try:
                    self.header = Header(**jsontext.loads(self._one("SELECT header FROM job")))
                except TypeError as error:
                    raise damaged(path, reason(error)) from error
        except BaseException as error:
            self._db.close()
            if isinstance(error, StorageError) and error.code != "no_space":
                raise UsageError(f"cannot read {path}: {reason(error.__cause__ or error)}", code="damaged_job") from error
            raise

    def _refuse_other_version(self) -> NoReturn:
        """Raise UsageError for a job in another format. Its header, if readable, names the version that can finish it."""
        version: object = None
        with suppress(sqlite3.Error, ValueError):
            header = jsontext.loads(self._one("SELECT header FROM job"))
            version = header.get("version") if isinstance(header, dict) else None
        job = self.folder.name
        if not isinstance(version, str):
            raise UsageError(f"job {job} was written by another version of crmctl", code="other_version")
        hint = f"finish it with that version: pipx run crmctl=={version} bulk resume {job}"
        raise UsageError(f"job {job} was written by crmctl {version}, in another format", hint=hint, code="other_version")

    @classmethod
    def create(cls, folder: Path, header: Header, clock: Clock) -> Journal:
        """Start the journal of a new job in `folder`, creating the folder (0700)."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"new-{FILE_NAME}"  # renamed when complete: other processes list jobs at any moment
        path.touch(mode=0o600, exist_ok=False)
        with OneAtATime(path), closing(sqlite3.connect(path, isolation_level=None)) as db:
            begin_log(db, 0.0)  # no other process knows the file yet
            db.executescript(f"{TABLES} {LEASE_TABLE}")
            db.execute("INSERT INTO job (one, header, state) VALUES (1, ?, ?)", (jsontext.dumps(asdict(header)), JobState.CHECKING))
            db.execute(f"PRAGMA user_version = {FORMAT}")
        with closing(HighWaterMark(folder)) as water:
            water.write(Mark())
        path.rename(folder / FILE_NAME)
        journal = cls(folder, clock)
        journal._sent = Mark()
        return journal

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._water.close()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other processes off this job, and put batches that a dead process was sending in doubt. Raises UsageError if it is held."""
        self.claim()
        with self._transaction():
            reason = "the program ended while it was sent"
            query = "UPDATE batch SET state = ?, reason = ? WHERE state = ?"
            self._db.execute(query, (BatchState.IN_DOUBT, reason, BatchState.SENDING))
            self._remember_doubts()
        try:
            yield
        finally:
            with suppress(StorageError), self._transaction():  # the lease of an ended process is free anyway
                release(self._db)

    def claim(self) -> None:
        """Hold the job until `hold` or the process ends, or show a sign of life. Raises UsageError if another process holds it."""
        with self._transaction():
            acquire(self._db, self.clock.now())

    @property
    def is_running(self) -> bool:
        with self._lock:
            return live_holder(self._db, self.clock.now()) is not None

    # -- values by name, row or record -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        return JobState(self._one("SELECT state FROM job"))

    @state.setter
    def state(self, state: JobState) -> None:
        with self._transaction():
            self._db.execute("UPDATE job SET state = ?", (state,))

    def remember(self, name: str, value: Any) -> None:
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO fact VALUES ('', ?, ?)", (name, jsontext.dumps(value)))

    def recall(self, key: str | int, kind: str = "") -> Any:
        """Return the value stored under a name, or of a kind by row or record; None without one."""
        return self.kept(kind, key, key).get(key)

    def keep(self, kind: str, values: Iterable[tuple[int | str, Any]]) -> None:
        """Store JSON values by row or record. None removes a value."""
        with self._transaction(durable=False):
            for key, value in values:
                if value is None:
                    self._db.execute("DELETE FROM fact WHERE kind = ? AND key = ?", (kind, key))
                else:
                    self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", (kind, key, jsontext.dumps(value)))

    def kept(self, kind: str, first: int | str | None = None, last: int | str | None = None) -> dict[Any, Any]:
        """Return the values of one kind, in order; from `first` to `last`, if given."""
        between, bounds = ("", ()) if first is None else ("AND key BETWEEN ? AND ?", (first, last))
        with self._lock:
            facts = self._db.execute(f"SELECT key, value FROM fact WHERE kind = ? {between} ORDER BY key", (kind, *bounds)).fetchall()
            return {key: jsontext.loads(value) for key, value in facts}

    def number_kept(self, kind: str) -> int:
        return int(self._one("SELECT COUNT(*) FROM fact WHERE kind = ?", kind))

    # -- batches ---------------------------------------------------------------------------------------------------------------------

    def batches(self) -> list[SentBatch]:
        query = "SELECT no, first, last, size, digest, state, attempt, sent_at, settled_at, created, updated, reason FROM batch ORDER BY 1"
        with self._lock:
            return [SentBatch._make((*row[:5], BatchState(row[5]), *row[6:])) for row in self._db.execute(query)]

    def batches_of(self, first: int, last: int) -> dict[int, int]:
        """Return the number of the last batch that included each of the rows first..last."""
        with self._lock:
            query = "SELECT ordinal, batch FROM row WHERE batch IS NOT NULL AND ordinal BETWEEN ? AND ?"
            return dict(self._db.execute(query, (first, last)).fetchall())

    @property
    def last_sent(self) -> int:
        """The ordinal of the last row that any request included; 0 before the first request."""
        return self._counted().last

    @property
    def has_sent(self) -> bool:
        """Whether any row may have been sent."""
        has_batch = self._one("SELECT EXISTS (SELECT 1 FROM batch WHERE state NOT IN ('PLANNED', 'BISECT'))")
        return bool(has_batch) or self._water.read()[0].sends > self._counted().sends

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

    def begin(self, number: int, batch: Batch, *, parent: int | None = None) -> None:
        """Store an attempt of a batch durably as SENDING. Must return before the first byte is sent (I1).

        A further attempt is one of a batch that was definitely refused, or that may be written twice. Raises CrmctlError and stores nothing
        if a row of a new batch may already be in the service (I2, I3), or the journal was removed.
        """
        if not self._path.is_file():
            raise damaged(self._path, REMOVED)
        if not (self._sent or self._counted()).sends:
            # Move the log into the database before the first request, so that a lost log loses no checks or look-ups.
            with self._lock:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        with self._lock:
            now = self.clock.now()
            with self._transaction():
                again = self._db.execute(
                    "UPDATE batch SET state = ?, attempt = attempt + 1, sent_at = ? WHERE no = ? AND digest = ? AND state IN (?, ?)",
                    (BatchState.SENDING, now, number, batch.digest, BatchState.SENDING, BatchState.PLANNED),
                )
                if not again.rowcount:
                    self._assert_free(batch)
                    self._insert(number, batch, state=BatchState.SENDING, sent_at=now, parent=parent)
            last, counted = batch.ordinals[-1], self._sent
            if counted is None or not counted.sends:
                counted = self._counted()
                self._sent = counted._replace(last=max(last, counted.last, self._water.read()[0].last))
            else:
                self._sent = Mark(counted.sends + 1, max(counted.last, last), now)
            self._water.write(self._sent)

    def settle(self, number: int, batch: Batch, verdict: Verdict) -> None:
        """Store the outcome of a SENDING batch, unsynced: after a power cut the batch is in doubt, which is safe."""
        with self._transaction(durable=False):
            done = self._db.execute(
                "UPDATE batch SET state = ?, created = ?, updated = ?, reason = ?, settled_at = ? WHERE no = ? AND state = ?",
                (verdict.state, verdict.created, verdict.updated, verdict.reason or None, self.clock.now(), number, BatchState.SENDING),
            )
            if done.rowcount != 1:
                raise CrmctlError(f"batch {number} was settled twice")
            ordinals = batch.ordinals
            failed = [(RowState.FAILED, error, ordinals[index]) for index, error in verdict.failures.items()]
            self._db.executemany("UPDATE row SET state = ?, error = ? WHERE ordinal = ?", failed)
            if verdict.state is BatchState.IN_DOUBT:
                self._remember_doubts()

    def resolve(self, number: int, record_ids: Mapping[int, str | None], absent: Collection[int], reason: str = "") -> None:
        """Settle the rows of a batch in doubt. If rows remain that are neither there, with their ids if known, nor `absent`, it is UNKNOWN.

        Absent rows may be sent again.
        """
        with self._transaction(durable=False):
            marked = ((RowState.CREATED, RowState.UPDATED, record_id, ordinal, number) for ordinal, record_id in record_ids.items())
            self._db.executemany(
                "UPDATE row SET state = CASE WHEN record_id IS NULL THEN ? ELSE ? END, created_id = ?, error = NULL "
                "WHERE ordinal = ? AND batch = ?",
                marked,
            )
            self._db.executemany("DELETE FROM row WHERE ordinal = ? AND batch = ?", ((ordinal, number) for ordinal in absent))
            query = "UPDATE batch SET size = size - ?1, reason = ?2, state = CASE size WHEN ?1 THEN ?3 ELSE ?4 END WHERE no = ?5"
            self._db.execute(query, (len(record_ids) + len(absent), reason or None, BatchState.RECONCILED, BatchState.UNKNOWN, number))

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

    # -- rows ------------------------------------------------------------------------------------------------------------------------

    def restart_check(self) -> None:
        """Delete the results of an unfinished check of the input."""
        with self._transaction():
            self._db.execute("DELETE FROM row")
            self._db.execute("DELETE FROM fact WHERE kind IN (?, ?, ?)", (TARGET, BEFORE, WHOLE))
            self._db.execute("UPDATE job SET rows = 0")

    def conclude(self, outcomes: Iterable[tuple[int, RowState, str | None, str | None]], rows: int = 0) -> None:
        """Store the final state of rows that were never sent (ordinal, state, record id and reason), and count `rows` rows as read.

        UNSENT frees a refused row: it may be sent again, as a create or an update.
        """
        with self._transaction(durable=False):
            for ordinal, state, record_id, error in outcomes:
                if state is not RowState.UNSENT:
                    # A row of a batch refused temporarily already has an entry.
                    values = (ordinal, state, record_id, error)
                    self._db.execute("INSERT OR REPLACE INTO row (ordinal, state, record_id, error) VALUES (?, ?, ?, ?)", values)
                    continue
                query = "DELETE FROM row WHERE ordinal = ? AND state = ? AND created_id IS NULL"
                if self._db.execute(query, (ordinal, RowState.FAILED)).rowcount:
                    self._db.execute("DELETE FROM fact WHERE kind IN (?, ?) AND key = ?", (TARGET, BEFORE, ordinal))
            if rows:
                self._db.execute("UPDATE job SET rows = rows + ?", (rows,))

    def name_rows(self, ids: Mapping[int, str], *, replaces: bool = False) -> None:
        """Store ids of created records that were unknown so far; `replaces` also those of records that replace deleted ones."""
        value = "?" if replaces else "COALESCE(created_id, ?)"
        with self._transaction(durable=False):
            rows = ((record_id, ordinal) for ordinal, record_id in ids.items())
            self._db.executemany(f"UPDATE row SET created_id = {value} WHERE ordinal = ?", rows)

    def overrule(self, ordinal: int, entry: RowEntry) -> None:
        """Change the outcome of a row that was sent: a written row failed, and keeps its record, or a refused one was created."""
        was = self.row(ordinal) or RowEntry(RowState.UNSENT)
        with self._transaction():
            query = "SELECT row.state, batch FROM row WHERE ordinal = ?"
            state, batch = self._db.execute(query, (ordinal,)).fetchone()
            if state is None:
                column = "updated" if was.state is RowState.UPDATED else "created"
                self._db.execute(f"UPDATE batch SET {column} = {column} - 1 WHERE no = ?", (batch,))
            query = "UPDATE row SET state = ?, error = ?, created_id = COALESCE(?, created_id) WHERE ordinal = ?"
            self._db.execute(query, (entry.state, entry.error, entry.record_id, ordinal))
            is_made = entry.state is RowState.FAILED and was.state is RowState.CREATED
            query = "INSERT OR REPLACE INTO fact VALUES (?, ?, 'true')" if is_made else "DELETE FROM fact WHERE kind = ? AND key = ?"
            self._db.execute(query, (MADE, ordinal))

    def add_duplicates(self, records: Mapping[int, Iterable[str]]) -> None:
        """Store surplus records of rows, except records already stored as a row's own or as surplus."""
        rows = [(record_id, ordinal) for ordinal, ids in records.items() for record_id in ids]
        unless = "EXISTS (SELECT 1 FROM row WHERE created_id = ?1)"
        with self._transaction():
            self._db.executemany(f"INSERT OR IGNORE INTO fact SELECT '{DUPLICATE}', ?1, ?2 WHERE NOT {unless}", rows)

    def counts(self) -> dict[RowState, int]:
        """Return the number of rows in each state. Their sum is the number of rows read so far (I4)."""
        with self._lock:
            rows = int(self._one("SELECT rows FROM job"))
            counts = dict.fromkeys(RowState, 0)
            for state, number in self._db.execute("SELECT state, COUNT(*) FROM row WHERE state IS NOT NULL GROUP BY state"):
                counts[RowState(state)] = number
            sums = self._db.execute(
                "SELECT COALESCE(SUM(created), 0), COALESCE(SUM(updated), 0), (SELECT COALESCE(SUM(size), 0) FROM doubtful) FROM batch"
            ).fetchone()
        counts[RowState.CREATED] += sums[0]
        counts[RowState.UPDATED] += sums[1]
        counts[RowState.IN_DOUBT] += sums[2]
        counts[RowState.UNSENT] = rows - sum(counts.values())
        if counts[RowState.UNSENT] < 0:
            raise damaged(self._path, "it accounts for more rows than were read")
        return counts

    def refusals(self) -> list[str]:
        """Return the first two different reasons for failed rows and rows without a parent, in input order."""
        query = (
            "SELECT error FROM row WHERE error IS NOT NULL AND (state = ? OR (state = ? AND substr(error, 1, ?) = ?)) "
            "GROUP BY error ORDER BY MIN(ordinal) LIMIT 2"
        )
        with self._lock:
            refusals = self._db.execute(query, (RowState.FAILED, RowState.REJECTED, len(ORPHANED), ORPHANED))
            return [error for (error,) in refusals]

    def rows(self, first: int, last: int) -> Mapping[int, RowEntry]:
        """Return the entries of the rows first..last. A row without an entry is unsent; the others must not be sent."""
        rows: dict[int, RowEntry] = {}
        with self._lock:
            cursor = self._db.execute(
                "SELECT ordinal, row.state, record_id, created_id, error, batch.state, batch.created, batch.updated, batch.reason "
                "FROM row LEFT JOIN batch ON batch.no = row.batch WHERE ordinal BETWEEN ? AND ?",
                (first, last),
            )
            for ordinal, state, record_id, created_id, error, batch_state, created, updated, reason in cursor:
                if state is not None:
                    rows[ordinal] = RowEntry(RowState(state), created_id or record_id, error)
                elif batch_state == BatchState.CONFIRMED:
                    was_update = updated and (record_id or not created)
                    state = RowState.UPDATED if was_update else RowState.CREATED
                    record_id = created_id or record_id
                    rows[ordinal] = RowEntry(state, record_id) if record_id or was_update else CREATED
                elif batch_state in DOUBTFUL:
                    rows[ordinal] = RowEntry(RowState.IN_DOUBT, record_id, reason)
        return rows

    def number_created(self, first: int, last: int) -> int:
        """Return how many of the rows first..last have the entry CREATED, without reading their entries."""
        return int(
            self._one(
                "SELECT COUNT(*) FROM row JOIN batch ON batch.no = row.batch WHERE ordinal BETWEEN ? AND ? AND row.state IS NULL "
                "AND record_id IS NULL AND created_id IS NULL AND batch.state = ? AND (batch.created OR NOT batch.updated)",
                first,
                last,
                BatchState.CONFIRMED,
            )
        )

    def row(self, ordinal: int) -> RowEntry | None:
        return self.rows(ordinal, ordinal).get(ordinal)

    # -- the database ----------------------------------------------------------------------------------------------------------------

    def _assert_free(self, batch: Batch) -> None:
        ordinals = set(batch.ordinals)
        query = "SELECT ordinal FROM taken WHERE ordinal BETWEEN ? AND ?"
        taken = ordinals & {ordinal for (ordinal,) in self._db.execute(query, (min(ordinals), max(ordinals)))}
        if taken or len(ordinals) != len(batch):
            raise CrmctlError(f"row {min(taken, default=0)} was about to be sent a second time")

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
        if ids := [(entry.id, entry.ordinal) for entry in batch.entries if entry.id]:
            self._db.executemany("UPDATE row SET record_id = ? WHERE ordinal = ?", ids)

    def _remember_doubts(self) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO fact SELECT ?, ordinal, sent_at FROM batch JOIN row ON ordinal BETWEEN first AND last AND batch = no "
            "WHERE batch.state = ?",
            (DOUBTED, BatchState.IN_DOUBT),
        )

    def _counted(self) -> Mark:
        """Return the mark according to the journal."""
        with self._lock:
            sends, last, at = self._db.execute(
                "SELECT COALESCE(SUM(attempt), 0), COALESCE(MAX(last), 0), COALESCE(MAX(sent_at), 0.0) FROM batch"
            ).fetchone()
            return Mark(sends, last, at)

    def _one(self, query: str, *values: Any) -> Any:
        with self._lock:
            return self._db.execute(query, values).fetchone()[0]

    @contextmanager
    def _transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Apply all statements of the block or none. With `durable`, they are on disk when the block ends."""
        with self._lock:
            self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield


def entries_of(journal: Journal, rows: Iterable[Row]) -> Iterator[tuple[Row, RowEntry | None]]:
    """Yield each row with its entry in the journal; None for an unsent row."""
    for chunk in chunks(rows):
        states = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
        yield from ((row, states.get(row.ordinal)) for row in chunk)


def add_rivals(journal: Journal, records: Iterable[tuple[int, str, str]]) -> None:
    """Store rows whose key several records have: ordinal, record id and key, once per record."""
    rivals: dict[int, tuple[str, list[str]]] = {}
    for ordinal, record_id, key in records:
        if ordinal not in rivals:
            rivals[ordinal] = journal.recall(ordinal, RIVALS) or (key, [])
        if record_id not in (ids := rivals[ordinal][1]):
            insort(ids, record_id)
    journal.keep(RIVALS, rivals.items())


def mark_undone(journal: Journal, record_ids: Iterable[str]) -> None:
    """Mark records as restored to their state before the job."""
    journal.keep(UNDONE, ((record_id.lower(), True) for record_id in record_ids))


def is_undone(journal: Journal, record_id: str) -> bool:
    return bool(journal.recall(record_id.lower(), UNDONE))


def last_sent_at(journal: Journal) -> float:
    return max((batch.sent_at for batch in journal.batches()), default=0.0)


def records_made(journal: Journal) -> int:
    return journal.counts()[RowState.CREATED] + journal.number_kept(MADE) + journal.number_kept(DUPLICATE)


def surplus_records(journal: Journal) -> dict[int, list[str]]:
    surplus: dict[int, list[str]] = {}
    for record_id, ordinal in journal.kept(DUPLICATE).items():
        surplus.setdefault(ordinal, []).append(record_id)
    return dict(sorted(surplus.items()))


def created_in(journal: Journal, batch: SentBatch) -> int:
    """Return how many rows were last sent with this batch and are created."""
    rows, numbers = journal.rows(batch.first, batch.last), journal.batches_of(batch.first, batch.last)
    return sum(numbers.get(ordinal) == batch.number and entry.state is RowState.CREATED for ordinal, entry in rows.items())


def doubtful(journal: Journal) -> list[SentBatch]:
    return [batch for batch in journal.batches() if batch.state in DOUBTFUL]
