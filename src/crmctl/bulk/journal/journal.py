"""The memory of a job: one SQLite file, written before and after every request, so that a crash at any point loses and doubles nothing.

Rows are ordinals, batches are digests; payloads and keys are not in it. No HTTP and no decisions here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk.journal import lease
from crmctl.bulk.journal.database import OneAtATime, damaged
from crmctl.bulk.journal.high_water_mark import HighWaterMark, Mark
from crmctl.bulk.journal.sends import JournalSends
from crmctl.bulk.journal.states import DOUBTFUL, BatchState, JobKind, JobState, RowState
from crmctl.bulk.journal.tables import FORMAT, TABLES
from crmctl.bulk.journal.verdicts import Verdict
from crmctl.bulk.rows.batches import Batch
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, StorageError, UsageError, reason
from crmctl.models import jsontext
from crmctl.write_ahead_log import begin_log

FILE_NAME = "journal.sqlite"


@dataclass(frozen=True)
class Header:
    """What a job is about, fixed when it starts. `plan` is everything besides the input that decides the payloads, as JSON values."""

    job: str
    object: str
    object_id: str
    origin: str
    mode: str
    input: str
    """The file as the user named it, `-` for stdin."""
    path: str
    """Where the bytes are: the absolute path, or the spooled copy."""
    sha256: str
    size: int
    mapping: str
    """Digest of the decided mapping."""
    schema: str
    """Digest of the object's attributes."""
    created_at: float
    version: str
    plan: dict[str, Any] = field(default_factory=dict)
    marker: str | None = None
    """The attribute that holds the import marker of every created record."""
    unique: str | None = None
    """A mapped attribute no two rows share, by which a row can be recognised."""
    keys: list[str] = field(default_factory=list)
    """The attributes by which rows find the records they update."""
    key_types: list[str] = field(default_factory=list)
    """Their types, in the same order."""
    before_images: str = "auto"
    """Whether what updates overwrite is kept: yes, no, or auto: where it costs no request."""
    kind: str = JobKind.IMPORT
    guard: dict[str, Any] = field(default_factory=dict)
    """How much it may change, whoever goes on with it."""
    shown: dict[str, Any] | None = None  # of an edit, the record as it was shown: it is written over nothing else


class Doubt(NamedTuple):
    """A batch in doubt: its number, how many rows hang on it, the digest of what was sent, and the Unix time of the last send."""

    number: int
    size: int
    digest: bytes
    sent_at: float
    state: BatchState


class RowEntry(NamedTuple):
    """What the journal knows of one row; `record_id` is the id given in an upsert or learnt later."""

    state: RowState
    record_id: str | None = None
    error: str | None = None


CREATED = RowEntry(RowState.CREATED)


class Journal(JournalSends):
    """Opened by one process for work (`hold`), or by any for reading. Safe for several threads of that process."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        """Open an existing journal. Raises UsageError when there is none, it cannot be read, or is of another format."""
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
                    raise UsageError(f"{path} was written by another version of crmctl")
                try:
                    self.header = Header(**jsontext.loads(self._one("SELECT header FROM job")))
                except TypeError as error:
                    raise damaged(path, reason(error)) from error
        except BaseException as error:
            self._db.close()
            if isinstance(error, StorageError):
                raise UsageError(f"cannot read {path}: {reason(error.__cause__ or error)}", code="damaged_job") from error
            raise

    @classmethod
    def create(cls, folder: Path, header: Header, clock: Clock) -> Journal:
        """Start the journal of a new job in `folder`, which is made for it (0700)."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"new-{FILE_NAME}"  # renamed when complete: other processes list jobs at any moment
        path.touch(mode=0o600, exist_ok=False)
        with OneAtATime(path), closing(sqlite3.connect(path, isolation_level=None)) as db:
            begin_log(db, 0.0)  # nobody else knows the file yet
            db.executescript(f"{TABLES} {lease.TABLE};")
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
        """Keep every other process off this job. Raises UsageError when one works on it."""
        self.claim()
        try:
            yield
        finally:
            with suppress(StorageError), self._transaction():  # the lease of a process that has ended is free all the same
                lease.release(self._db)

    def claim(self) -> None:
        """Begin to hold the job, until `hold` ends or the process does. Raises UsageError when another process works on it."""
        with self._transaction():
            lease.acquire(self._db, self._clock.now())

    def beat(self) -> None:
        with self._transaction(durable=False):
            lease.beat(self._db, self._clock.now())

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def is_running(self) -> bool:
        with self._lock:
            return lease.is_held(self._db, self._clock.now())

    # -- the job ---------------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> JobState:
        return JobState(self._one("SELECT state FROM job"))

    def set_state(self, state: JobState) -> None:
        self._write("UPDATE job SET state = ?", state)

    def add_effort(self, requests: int, elapsed: float) -> None:
        """Add what this run cost besides the batches: requests that only read, and seconds. On a full disk it is not counted."""
        with suppress(StorageError):
            self._write("UPDATE job SET requests = requests + ?, elapsed = elapsed + ?", requests, elapsed)

    def effort(self) -> tuple[int, float]:
        """Requests and seconds of all runs so far; every attempt of a batch is a request."""
        with self._lock:
            row = self._db.execute("SELECT requests + (SELECT COALESCE(SUM(attempt), 0) FROM batch), elapsed FROM job").fetchone()
        return int(row[0]), float(row[1])

    def note(self, kind: str, text: str, batch: int | None = None) -> None:
        self._write("INSERT INTO event VALUES (?, ?, ?, ?)", self._clock.now(), kind, batch, text)

    # -- the check before anything is sent -------------------------------------------------------------------------------------------

    def restart_check(self) -> None:
        """Forget an unfinished check of the input."""
        with self._transaction():
            for table in ("row", "target", "before"):
                self._db.execute(f"DELETE FROM {table}")  # noqa: S608
            self._db.execute("UPDATE job SET rows = 0")

    def record_check(self, rows: int, rejected: Iterable[tuple[int, str]]) -> None:
        """Write down that `rows` more rows were read, and which of them are rejected and why."""
        with self._transaction(durable=False):
            entries = ((ordinal, RowState.REJECTED, error) for ordinal, error in rejected)
            self._db.executemany("INSERT INTO row (ordinal, state, error) VALUES (?, ?, ?)", entries)
            self._db.execute("UPDATE job SET rows = rows + ?", (rows,))

    # -- batches ---------------------------------------------------------------------------------------------------------------------

    def next_number(self) -> int:
        return int(self._one("SELECT COALESCE(MAX(no), 0) + 1 FROM batch"))

    def begin(self, number: int, batch: Batch, *, parent: int | None = None) -> None:
        """Make a batch durable as SENDING; must return before its first byte is sent (I1).

        Raises CrmctlError, and writes nothing, when a row of it may already be in the service (I2, I3).
        """
        self._before_first_send()
        with self._lock:
            with self._transaction():
                self._assert_free(batch)
                self._insert(number, batch, state=BatchState.SENDING, sent_at=self._clock.now(), parent=parent)
            self._raise_mark(batch.ordinals[-1])

    def again(self, number: int) -> None:
        """Another attempt of a batch whose last one was definitely refused, or which may be written twice."""
        with self._lock:
            self._write(
                "UPDATE batch SET state = ?, attempt = attempt + 1, sent_at = ? WHERE no = ?",
                BatchState.SENDING, self._clock.now(), number,
            )  # fmt: skip
            self._raise_mark(0)

    def settle(self, number: int, batch: Batch, verdict: Verdict) -> None:
        """Write down what became of a batch that was SENDING.

        Not brought to disk at once: a killed process loses nothing, and should a power cut lose it before the next batch is begun, the
        batch is in doubt, which is safe.
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
        """Batches a dead process left as SENDING are in doubt; returns how many there were."""
        with self._transaction():
            reason = "the program ended while it was sent"
            found = self._db.execute(
                "UPDATE batch SET state = ?, reason = ? WHERE state = ?", (BatchState.IN_DOUBT, reason, BatchState.SENDING)
            )
            self._remember_doubts()
            return found.rowcount

    def resolve(self, number: int, found: Mapping[int, str | None], absent: Collection[int], reason: str = "") -> None:
        """Settle the rows of a batch in doubt: `found` are in the service (with their ids where known), `absent` may be sent again.

        With rows left over nobody can tell about them, and the batch is UNKNOWN.
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

    def name_rows(self, ids: Mapping[int, str]) -> None:
        """Write down the ids of created records that are not known yet."""
        with self._transaction(durable=False):
            self._db.executemany(
                "UPDATE row SET created_id = COALESCE(created_id, ?) WHERE ordinal = ?",
                ((record_id, ordinal) for ordinal, record_id in ids.items()),
            )

    def _assert_free(self, batch: Batch) -> None:
        ordinals = set(batch.ordinals)
        taken = ordinals & self._taken(min(ordinals), max(ordinals))
        if taken or len(ordinals) != len(batch):
            raise CrmctlError(f"row {min(taken, default=0)} was about to be sent a second time")

    def taken(self, first: int, last: int) -> set[int]:
        """Ordinals in first..last that must not be sent: they have an outcome, are in doubt, or were rejected."""
        with self._lock:
            return self._taken(first, last)

    def _taken(self, first: int, last: int) -> set[int]:
        found = self._db.execute("SELECT ordinal FROM taken WHERE ordinal BETWEEN ? AND ?", (first, last))
        return {ordinal for (ordinal,) in found}

    # -- what became of the rows -----------------------------------------------------------------------------------------------------

    def counts(self) -> dict[RowState, int]:
        """How many rows are in each state; their sum is the rows read so far (I4)."""
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
        """The entries of the rows first..last; a row without one is unsent."""
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
        """How many of the rows first..last have the entry `CREATED`, without an id: nearly all, as a rule, and counted at once."""
        query = (
            "SELECT COUNT(*) FROM row JOIN batch ON batch.no = row.batch WHERE ordinal BETWEEN ? AND ? AND row.state IS NULL "
            "AND record_id IS NULL AND created_id IS NULL AND batch.state = 'CONFIRMED' AND (created OR NOT updated)"
        )
        return int(self._one(query, first, last))

    def doubts(self) -> list[Doubt]:
        """Every batch in doubt."""
        with self._lock:
            found = self._db.execute("SELECT no, size, digest, sent_at, state FROM doubtful ORDER BY no")
            return [Doubt(number, size, digest, sent_at, BatchState(state)) for number, size, digest, sent_at, state in found]

    def doubtful(self, first: int, last: int) -> dict[int, int]:
        """The rows first..last that are in doubt, each with the number of its batch."""
        with self._lock:
            found = self._db.execute(
                "SELECT ordinal, batch FROM row JOIN doubtful ON no = batch WHERE ordinal BETWEEN ? AND ? AND row.state IS NULL",
                (first, last),
            )
            return dict(found.fetchall())

    def doubted(self) -> dict[int, float]:
        """Every row that was ever in doubt, and when last."""
        with self._lock:
            return dict(self._db.execute("SELECT ordinal, at FROM doubted").fetchall())

    def duplicates(self) -> dict[int, list[str]]:
        """Records beyond the first, by row."""
        found: dict[int, list[str]] = {}
        with self._lock:
            for ordinal, record_id in self._db.execute("SELECT ordinal, record_id FROM duplicate ORDER BY ordinal, record_id"):
                found.setdefault(ordinal, []).append(record_id)
        return found

    def record_duplicates(self, records: Mapping[int, Iterable[str]]) -> None:
        """Rows with more records than they should have: all are further ones but those that rows became, or that are known as such."""
        rows = [(ordinal, record_id) for ordinal, ids in records.items() for record_id in ids]
        unless = "EXISTS (SELECT 1 FROM row WHERE created_id = ?2) OR EXISTS (SELECT 1 FROM duplicate WHERE record_id = ?2)"
        with self._transaction():
            self._db.executemany(f"INSERT INTO duplicate SELECT ?1, ?2 WHERE NOT ({unless})", rows)

    def forget_duplicate(self, record_id: str) -> None:
        self._write("DELETE FROM duplicate WHERE record_id = ?", record_id)

    @property
    def _created_at(self) -> float:
        return self.header.created_at
