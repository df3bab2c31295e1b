"""The journal of a job: one SQLite file, updated before and after every request."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from crmctl.clock import Clock
from crmctl.errors import CrmctlError, RejectedError, ServiceError, StorageError, UsageError, reason
from crmctl.files.validation import Batch
from crmctl.models import jsontext
from crmctl.models.resources import BulkResult
from crmctl.write.database import (
    DOUBTFUL,
    FORMAT,
    TABLES,
    BatchState,
    HighWaterMark,
    JobKind,
    JobState,
    JournalSends,
    Mark,
    OneAtATime,
    RowState,
    damaged,
)
from crmctl.write_ahead_log import begin_log

TOO_LARGE = 413

DOUBTFUL_STATUSES = frozenset({408})
"""Statuses below 500 that leave the outcome open: the request timed out."""


@dataclass(frozen=True)
class Verdict:
    """The next state of a batch.

    `failures` maps indexes in the batch to the service's messages. `repeatable`: a batch in doubt may be sent again at once, because a
    second write changes nothing. `questionable`: crmctl believes the refusal only if no row of the batch exists. `fatal` is an error that
    every further batch would meet. `too_large`: the service accepts only smaller requests.
    """

    state: BatchState
    created: int = 0
    updated: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""
    repeatable: bool = False
    questionable: bool = False
    fatal: CrmctlError | None = None
    too_large: bool = False
    deleted: int = 0


def judge(batch: Batch, outcome: BulkResult | CrmctlError, *, mode: str, doubt: frozenset[int] = frozenset()) -> Verdict:
    """Derive the verdict on a batch from its answer.

    `doubt` lists further statuses below 500 after which the batch may have been applied.
    """
    if isinstance(outcome, BulkResult):
        problem = _misfit(batch, outcome, mode)
        if problem is None:
            failures = {failure.index: failure.error for failure in outcome.failed}
            return Verdict(BatchState.CONFIRMED, outcome.created, outcome.updated, failures)
        return _doubtful(batch, f"the answer does not fit what was sent: {problem}", mode)
    if outcome.outcome_unknown or isinstance(outcome, ServiceError) or outcome.status in DOUBTFUL_STATUSES | doubt:
        return _doubtful(batch, outcome.message, mode)
    creates = any(entry.id is None for entry in batch.entries)
    if isinstance(outcome, RejectedError):
        if len(batch) == 1:
            return Verdict(BatchState.CONFIRMED, failures={0: outcome.message}, reason=outcome.message, questionable=creates)
        return Verdict(BatchState.BISECT, reason=outcome.message, too_large=outcome.status == TOO_LARGE, questionable=creates)
    return Verdict(BatchState.PLANNED, reason=outcome.message, fatal=outcome)


def question_refusal(batch: Batch, verdict: Verdict) -> Verdict:
    """Mark a 401, 403 or 404 as questionable. It ends the job, but a proxy may have sent it after the service carried out the request."""
    is_refused = verdict.state is BatchState.PLANNED and verdict.fatal is not None and verdict.fatal.status in (401, 403, 404)
    return replace(verdict, questionable=True) if is_refused and any(entry.id is None for entry in batch.entries) else verdict


def disbelieve(verdict: Verdict) -> Verdict:
    """Return the verdict on a refusal that may be false: the service may have carried out the batch."""
    reason = f"it was refused ({verdict.reason}), and may have been carried out all the same"
    return Verdict(BatchState.IN_DOUBT, reason=reason, fatal=verdict.fatal, too_large=verdict.too_large)


def refuse_all(batch: Batch, reason: str) -> Verdict:
    """Return the verdict on a batch that was refused as a whole and is not split further."""
    return Verdict(BatchState.CONFIRMED, failures=dict.fromkeys(range(len(batch)), reason))


def _doubtful(batch: Batch, reason: str, mode: str) -> Verdict:
    repeatable = mode != "create" and all(entry.id for entry in batch.entries)
    return Verdict(BatchState.IN_DOUBT, reason=reason, repeatable=repeatable)


def _misfit(batch: Batch, result: BulkResult, mode: str) -> str | None:
    """Explain why an answer cannot belong to this batch; None if it accounts for every row."""
    indexes = [failure.index for failure in result.failed]
    if any(not 0 <= index < len(batch) for index in indexes):
        return f"a failure at an index outside 0..{len(batch) - 1}"
    if len(set(indexes)) != len(indexes):
        return "two failures with one index"
    if result.created < 0 or result.updated < 0 or result.created + result.updated + len(indexes) != len(batch):
        return f"{result.created} created, {result.updated} updated and {len(indexes)} failed of {len(batch)}"
    with_id = sum(1 for entry in batch.entries if entry.id) if mode != "create" else 0
    if result.updated > with_id:
        return f"{result.updated} updated, but only {with_id} had an id"
    return None


HEARTBEAT_SECONDS = 10.0
"""Interval between a holder's signs of life."""

STALE_SECONDS = 90.0
"""Silence after which a holder on another host or in another container counts as dead."""

TABLE = """
CREATE TABLE IF NOT EXISTS lease (
    one INTEGER PRIMARY KEY CHECK (one = 1), host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL,
    beat REAL NOT NULL
)
"""


@dataclass(frozen=True)
class Holder:
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
    me = Holder.this_process()
    row = connection.execute("SELECT host, boot, pid, started, beat FROM lease").fetchone()
    if row is not None:
        holder = Holder(*row[:4])
        if holder != me and _is_alive(holder, me, silence=now - row[4]):
            raise UsageError(f"another process (pid {holder.pid} on {holder.host}) is working on this job", code="job_running")
    connection.execute("INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?, ?)", (*astuple(me), now))


def beat(connection: sqlite3.Connection, now: float) -> None:
    connection.execute("UPDATE lease SET beat = ?", (now,))


def release(connection: sqlite3.Connection) -> None:
    me = Holder.this_process()
    connection.execute("DELETE FROM lease WHERE host = ? AND boot = ? AND pid = ? AND started = ?", astuple(me))


def is_held(connection: sqlite3.Connection, now: float) -> bool:
    """Whether a live process works on the job."""
    row = connection.execute("SELECT host, boot, pid, started, beat FROM lease").fetchone()
    return row is not None and _is_alive(Holder(*row[:4]), Holder.this_process(), silence=now - row[4])


def _is_alive(holder: Holder, me: Holder, *, silence: float) -> bool:
    if holder.host != me.host or not holder.started:
        return silence < STALE_SECONDS
    return holder.boot == me.boot and start_time(holder.pid) == holder.started


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


FILE_NAME = "journal.sqlite"


@dataclass(frozen=True)
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
    marker: str | None = None
    """The attribute that holds the import marker of every created record."""
    unique: str | None = None
    """A mapped attribute whose values are unique in the file, used to recognise rows."""
    keys: list[str] = field(default_factory=list)
    """The attributes that identify the records to update."""
    key_types: list[str] = field(default_factory=list)
    """Types of `keys`, in the same order."""
    before_images: str = "auto"
    """Whether to keep the values that updates overwrite: yes, no, or auto (if that costs no request)."""
    kind: str = JobKind.IMPORT
    guard: dict[str, Any] = field(default_factory=dict)
    """The user's limits of change. They also apply when the job is resumed."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the object's attributes by slug. An attribute added later does not matter."""
    shown: dict[str, Any] | None = None  # the record shown to the user of an edit; crmctl overwrites no other version


class Doubt(NamedTuple):
    """A batch in doubt: number, count of open rows, digest of the data sent, and Unix time of the last send."""

    number: int
    size: int
    digest: bytes
    sent_at: float
    state: BatchState


class RowEntry(NamedTuple):
    """The journal's entry for one row. `record_id` is the id given in an upsert or learnt later."""

    state: RowState
    record_id: str | None = None
    error: str | None = None


CREATED = RowEntry(RowState.CREATED)


class Journal(JournalSends):
    """A job's journal. One process opens it for work (`hold`), any process for reading. Safe for several threads of one process."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """Open an existing journal. Raises UsageError if it is missing, unreadable, or in another format."""
        self.folder = folder
        self._clock = clock
        self._water = HighWaterMark(folder)
        path = folder / FILE_NAME
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
            if isinstance(error, StorageError):
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
            db.executescript(f"{TABLES} {TABLE};")
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
        """Keep other processes off this job. Raises UsageError if one is working on it."""
        self.claim()
        try:
            yield
        finally:
            with suppress(StorageError), self._transaction():  # the lease of an ended process is free anyway
                release(self._db)

    def claim(self) -> None:
        """Hold the job until `hold` or the process ends. Raises UsageError if another process is working on it."""
        with self._transaction():
            acquire(self._db, self._clock.now())

    def beat(self) -> None:
        with self._transaction(durable=False):
            beat(self._db, self._clock.now())

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def is_running(self) -> bool:
        with self._lock:
            return is_held(self._db, self._clock.now())

    # -- the job ---------------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        return JobState(self._one("SELECT state FROM job"))

    def set_state(self, state: JobState) -> None:
        self._write("UPDATE job SET state = ?", state)

    def add_effort(self, requests: int, elapsed: float) -> None:
        """Add this run's read requests and seconds. On a full disk they are not counted."""
        with suppress(StorageError):
            self._write("UPDATE job SET requests = requests + ?, elapsed = elapsed + ?", requests, elapsed)

    def effort(self) -> tuple[int, float]:
        """Return requests and seconds of all runs so far. Every attempt of a batch is one request."""
        with self._lock:
            row = self._db.execute("SELECT requests + (SELECT COALESCE(SUM(attempt), 0) FROM batch), elapsed FROM job").fetchone()
        return int(row[0]), float(row[1])

    def note(self, kind: str, text: str, batch: int | None = None) -> None:
        self._write("INSERT INTO event VALUES (?, ?, ?, ?)", self._clock.now(), kind, batch, text)

    # -- the check before anything is sent -------------------------------------------------------------------------------------------

    def restart_check(self) -> None:
        """Delete the results of an unfinished check of the input."""
        with self._transaction():
            for table in ("row", "target", "image"):
                self._db.execute(f"DELETE FROM {table}")
            self._db.execute("UPDATE job SET rows = 0")

    def record_check(self, rows: int, rejected: Iterable[tuple[int, str]]) -> None:
        """Add `rows` rows to those read, and store the rejected ones with their reasons."""
        with self._transaction(durable=False):
            entries = ((ordinal, RowState.REJECTED, error) for ordinal, error in rejected)
            self._db.executemany("INSERT INTO row (ordinal, state, error) VALUES (?, ?, ?)", entries)
            self._db.execute("UPDATE job SET rows = rows + ?", (rows,))

    # -- batches ---------------------------------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        return int(self._one("SELECT COALESCE(MAX(no), 0) + 1 FROM batch"))

    def begin(self, number: int, batch: Batch, *, parent: int | None = None) -> None:
        """Store a batch durably as SENDING. Must return before the first byte is sent (I1).

        Raises CrmctlError and stores nothing if one of its rows may already be in the service (I2, I3).
        """
        self._before_first_send()
        with self._lock:
            with self._transaction():
                self._assert_free(batch)
                self._insert(number, batch, state=BatchState.SENDING, sent_at=self._clock.now(), parent=parent)
            self._raise_mark(batch.ordinals[-1])

    def again(self, number: int) -> None:
        """Count another attempt of a batch that was definitely refused, or that may be written twice."""
        with self._lock:
            self._write(
                "UPDATE batch SET state = ?, attempt = attempt + 1, sent_at = ? WHERE no = ?",
                BatchState.SENDING, self._clock.now(), number,
            )  # fmt: skip
            self._raise_mark(0)

    def settle(self, number: int, batch: Batch, verdict: Verdict) -> None:
        """Store the outcome of a SENDING batch.

        The write is not synced. A killed process loses nothing, and after a power cut the batch is in doubt, which is safe.
        """
        with self._transaction(durable=False):
            done = self._db.execute(
                "UPDATE batch SET state = ?, created = ?, updated = ?, reason = ?, settled_at = ? WHERE no = ? AND state = ?",
                (verdict.state, verdict.created, verdict.updated, verdict.reason or None, self._clock.now(), number, BatchState.SENDING),
            )
            if done.rowcount != 1:
                raise CrmctlError(f"batch {number} was settled twice")
            ordinals = batch.ordinals
            failed = [(RowState.FAILED, error, ordinals[index]) for index, error in verdict.failures.items()]
            self._db.executemany("UPDATE row SET state = ?, error = ? WHERE ordinal = ?", failed)
            if verdict.state is not BatchState.CONFIRMED:
                self._db.execute("INSERT INTO event VALUES (?, ?, ?, ?)", (self._clock.now(), verdict.state, number, verdict.reason))
            if verdict.state is BatchState.IN_DOUBT:
                self._remember_doubts()

    def recover(self) -> int:
        """Put batches that a dead process left as SENDING in doubt, and return their number."""
        with self._transaction():
            reason = "the program ended while it was sent"
            found = self._db.execute(
                "UPDATE batch SET state = ?, reason = ? WHERE state = ?", (BatchState.IN_DOUBT, reason, BatchState.SENDING)
            )
            self._remember_doubts()
            return found.rowcount

    def resolve(self, number: int, found: Mapping[int, str | None], absent: Collection[int], reason: str = "") -> None:
        """Settle the rows of a batch in doubt.

        `found` are in the service, with their ids if known. `absent` may be sent again. If other rows remain, the batch is UNKNOWN.
        """
        with self._transaction(durable=False):
            marked = ((RowState.CREATED, RowState.UPDATED, record_id, ordinal, number) for ordinal, record_id in found.items())
            self._db.executemany(
                "UPDATE row SET state = CASE WHEN record_id IS NULL THEN ? ELSE ? END, created_id = ?, error = NULL "
                "WHERE ordinal = ? AND batch = ?",
                marked,
            )
            self._db.executemany("DELETE FROM row WHERE ordinal = ? AND batch = ?", ((ordinal, number) for ordinal in absent))
            self._db.execute(
                "UPDATE batch SET size = size - ?, reason = ? WHERE no = ?", (len(found) + len(absent), reason or None, number)
            )
            states = (BatchState.RECONCILED, BatchState.UNKNOWN, number)
            self._db.execute("UPDATE batch SET state = CASE size WHEN 0 THEN ? ELSE ? END WHERE no = ?", states)
            note = f"{len(found)} found, {len(absent)} absent{'; ' if reason else ''}{reason}"
            self._db.execute("INSERT INTO event VALUES (?, ?, ?, ?)", (self._clock.now(), "reconciled", number, note))

    def name_rows(self, ids: Mapping[int, str], *, replaces: bool = False) -> None:
        """Store ids of created records that were unknown so far; `replaces` also those of records that replace deleted ones."""
        value = "?" if replaces else "COALESCE(created_id, ?)"
        with self._transaction(durable=False):
            rows = ((record_id, ordinal) for ordinal, record_id in ids.items())
            self._db.executemany(f"UPDATE row SET created_id = {value} WHERE ordinal = ?", rows)

    def _assert_free(self, batch: Batch) -> None:
        ordinals = set(batch.ordinals)
        taken = ordinals & self._taken(min(ordinals), max(ordinals))
        if taken or len(ordinals) != len(batch):
            raise CrmctlError(f"row {min(taken, default=0)} was about to be sent a second time")

    def taken(self, first: int, last: int) -> set[int]:
        """Return the rows in first..last that must not be sent: they have an outcome, are in doubt, or were rejected."""
        with self._lock:
            return self._taken(first, last)

    def _taken(self, first: int, last: int) -> set[int]:
        found = self._db.execute("SELECT ordinal FROM taken WHERE ordinal BETWEEN ? AND ?", (first, last))
        return {ordinal for (ordinal,) in found}

    # -- outcomes of rows ------------------------------------------------------------------------------------------------------------

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
            raise damaged(self.folder / FILE_NAME, "it accounts for more rows than were read")
        return counts

    def rows(self, first: int, last: int) -> Mapping[int, RowEntry]:
        """Return the entries of the rows first..last. A row without an entry is unsent."""
        found: dict[int, RowEntry] = {}
        with self._lock:
            cursor = self._db.execute(
                "SELECT ordinal, row.state, record_id, created_id, error, batch.state, batch.created, batch.updated, batch.reason "
                "FROM row LEFT JOIN batch ON batch.no = row.batch WHERE ordinal BETWEEN ? AND ?",
                (first, last),
            )
            for ordinal, state, record_id, created_id, error, batch_state, created, updated, reason in cursor:
                if state is not None:
                    found[ordinal] = RowEntry(RowState(state), created_id or record_id, error)
                elif batch_state == BatchState.CONFIRMED:
                    was_update = updated and (record_id or not created)
                    state = RowState.UPDATED if was_update else RowState.CREATED
                    record_id = created_id or record_id
                    found[ordinal] = RowEntry(state, record_id) if record_id or was_update else CREATED
                elif batch_state in DOUBTFUL:
                    found[ordinal] = RowEntry(RowState.IN_DOUBT, record_id, reason)
        return found

    def count_created(self, first: int, last: int) -> int:
        """Return how many of the rows first..last have the entry `CREATED` without an id. A fast count, since most rows do."""
        query = (
            "SELECT COUNT(*) FROM row JOIN batch ON batch.no = row.batch WHERE ordinal BETWEEN ? AND ? AND row.state IS NULL "
            "AND record_id IS NULL AND created_id IS NULL AND batch.state = 'CONFIRMED' AND (created OR NOT updated)"
        )
        return int(self._one(query, first, last))

    def doubts(self) -> list[Doubt]:
        """Return every batch in doubt."""
        with self._lock:
            found = self._db.execute("SELECT no, size, digest, sent_at, state FROM doubtful ORDER BY no")
            return [Doubt(number, size, digest, sent_at, BatchState(state)) for number, size, digest, sent_at, state in found]

    def doubtful(self, first: int, last: int) -> dict[int, int]:
        """Return the rows in first..last that are in doubt, with the number of their batch."""
        with self._lock:
            found = self._db.execute(
                "SELECT ordinal, batch FROM row JOIN doubtful ON no = batch WHERE ordinal BETWEEN ? AND ? AND row.state IS NULL",
                (first, last),
            )
            return dict(found.fetchall())

    def doubted(self) -> dict[int, float]:
        """Return every row that was ever in doubt, with the last time."""
        with self._lock:
            return dict(self._db.execute("SELECT ordinal, at FROM doubted").fetchall())

    def duplicates(self) -> dict[int, list[str]]:
        """Return the surplus records of each row."""
        found: dict[int, list[str]] = {}
        with self._lock:
            for ordinal, record_id in self._db.execute("SELECT ordinal, record_id FROM duplicate ORDER BY ordinal, record_id"):
                found.setdefault(ordinal, []).append(record_id)
        return found

    def record_duplicates(self, records: Mapping[int, Iterable[str]]) -> None:
        """Store surplus records of rows, except records already stored as a row's own or as surplus."""
        rows = [(ordinal, record_id) for ordinal, ids in records.items() for record_id in ids]
        unless = "EXISTS (SELECT 1 FROM row WHERE created_id = ?2) OR EXISTS (SELECT 1 FROM duplicate WHERE record_id = ?2)"
        with self._transaction():
            self._db.executemany(f"INSERT INTO duplicate SELECT ?1, ?2 WHERE NOT ({unless})", rows)

    def forget_duplicates(self, record_ids: Iterable[str]) -> None:
        with self._transaction():
            self._db.executemany("DELETE FROM duplicate WHERE record_id = ?", ((record_id,) for record_id in record_ids))
