"""The jobs of this machine: folders, summaries and the lock of an object."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.clock import Clock, SystemClock
from crmctl.errors import ConfigError, CrmctlError, ExitCode, NotFoundError, PendingError, StorageError, UsageError, reason, storage_error
from crmctl.files.turns import take_turn
from crmctl.frozen import frozen
from crmctl.write.database import RESULT_FILES, HighWaterMark, JobKind, JobState, RowState
from crmctl.write.journal import FILE_NAME, Header, Journal, surplus_records

EFFORT = "effort"
"""Name of the read requests and seconds of all runs."""

FEED_COUNTS = "feed counts"
"""Name of the journal fact that holds a feed's counts of values."""


class FeedCounts(NamedTuple):
    """Values of a feed: `kept` were changed by a person only; `conflicts` by both, or crmctl cannot tell."""

    kept: int = 0
    conflicts: int = 0


@frozen
class Summary:
    """Result of a job.

    `counts` has every row state. `files` maps the names in `RESULT_FILES` to paths. `job` is None for a dry run. `values` counts values
    written by both people and a feed; None unless the job imports a feed. `duplicates` counts rows that exist more than once.
    """

    job: str | None
    object: str
    mode: str
    counts: Mapping[RowState, int]
    requests: int
    elapsed: float
    files: Mapping[str, Path | None]
    values: FeedCounts | None = None
    duplicates: int = 0

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form of the contract. Every key is always present; those of a feed only for a feed."""
        return {
            "job": self.job,
            "object": self.object,
            "mode": self.mode,
            "rows": self.rows,
            **{str(state): self.counts[state] for state in RowState},
            "duplicates": self.duplicates,
            **(self.values._asdict() if self.values is not None else {}),
            "requests": self.requests,
            "elapsedSeconds": round(self.elapsed, 3),
            "files": {name: str(path) if (path := self.files.get(name)) is not None else None for name in RESULT_FILES},
        }


def exit_code(counts: Mapping[RowState, int]) -> ExitCode:
    """Return 0 if every row of a job succeeded, 9 if rows were rejected or refused and none was written, else 10."""
    succeeded = counts[RowState.CREATED] + counts[RowState.UPDATED] + counts[RowState.UNCHANGED] + counts[RowState.SKIPPED]
    if succeeded == sum(counts.values()):
        return ExitCode.OK
    refused = counts[RowState.REJECTED] + counts[RowState.FAILED]
    return ExitCode.REJECTED if refused and not succeeded + counts[RowState.IN_DOUBT] else ExitCode.PARTIAL


LAST = "last"
ELSEWHERE = "CRMCTL_STATE_DIR names another directory"
NO_JOURNAL = "its journal is gone, or not written yet"
OBJECTS = "objects"
"""Name of the folder for object locks. No job has this name."""

WAIT_SECONDS = 3600.0
"""Default time that an import waits for its turn."""

TELLING_SECONDS = 3.0
"""Time for the lock's holder to register a job that messages can name."""

LOCK_NAME = "registering.sqlite"
LOCK_SECONDS = 60.0
"""Longest wait for other processes that register a job. Registering takes milliseconds."""

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no characters that are easily confused


@frozen
class JobInfo:
    """A job as shown in lists. `is_running`: a live process is working on it."""

    header: Header
    folder: Path
    state: JobState
    is_running: bool
    has_sent: bool
    counts: Mapping[RowState, int]

    @property
    def id(self) -> str:
        return self.header.job

    @property
    def is_resumable(self) -> bool:
        return self.state in (JobState.CHECKING, JobState.OPEN) and not self.is_running

    def to_document(self) -> dict[str, Any]:
        counts, deletions = self.counts, {"deleted": 0}
        if self.header.kind == JobKind.DELETE:  # its `updated` rows were deleted, its `created` rows were already gone
            absent = counts[RowState.CREATED] + counts[RowState.SKIPPED]
            deletions = {"created": 0, "updated": 0, "skipped": absent, "deleted": counts[RowState.UPDATED]}
        return {
            "job": self.id,
            "object": self.header.object,
            "mode": shown_mode(self.header),
            "input": self.header.input,
            "origin": self.header.origin,
            "state": "running" if self.is_running else str(self.state),
            "resumable": self.is_resumable,
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.header.created_at)),
            "rows": sum(counts.values()),
            **{str(state): counts[state] for state in RowState},
            **deletions,
        }


@frozen
class DamagedJob:
    """A job whose journal is missing or unreadable, with the reason. `hint` helps where the journal may be read later."""

    folder: Path
    why: str
    hint: str | None = None

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def error(self) -> UsageError:
        return UsageError(
            f"job {self.id} cannot be opened: {self.why}",
            hint=self.hint or f"crmctl bulk jobs {self.id} --remove deletes what is left of it",
            code="damaged_job",
        )


class JobStore:
    """All jobs under one state directory."""

    def __init__(self, state_directory: Path, clock: Clock) -> None:
        self.root = state_directory / "jobs"
        self.clock = clock

    def prepare(self) -> None:
        """Create the folder of jobs. Raises ConfigError if jobs cannot be stored there."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to {self.root}: {reason(error)}", hint=ELSEWHERE) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise ConfigError(f"cannot write to {self.root}: permission denied", hint=ELSEWHERE)

    def new_folder(self) -> Path:
        """Create an empty folder (0700) for a new job, named by its id: the date and five characters. Raises ConfigError if that fails."""
        self.prepare()
        day = time.strftime("%Y%m%d", time.localtime(self.clock.now()))
        while True:
            folder = self.root / f"{day}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            try:
                folder.mkdir(mode=0o700)
                return folder
            except FileExistsError:
                continue
            except OSError as error:
                raise storage_error(error, folder, ConfigError(f"cannot write to {self.root}: {reason(error)}", hint=ELSEWHERE)) from error

    def open(self, job: JobInfo) -> Journal:
        return Journal(job.folder, self.clock)

    def list(self) -> list[JobInfo]:
        """Return all readable jobs, newest first."""
        jobs = (job for job in self._all() if isinstance(job, JobInfo))
        return sorted(jobs, key=lambda job: (job.header.created_at, job.id), reverse=True)

    def damaged(self) -> Sequence[DamagedJob]:
        return [job for job in self._all() if isinstance(job, DamagedJob) and job.why != NO_JOURNAL]

    def find(self, reference: str) -> JobInfo:
        """Return a job by its id, the beginning or end of its id, or `last`.

        Raises NotFoundError if there is none, UsageError if several match or the job is damaged.
        """
        jobs = self.find_any(reference)
        if isinstance(jobs, DamagedJob):
            raise jobs.error
        return jobs

    def find_any(self, reference: str) -> JobInfo | DamagedJob:
        """Like `find`, but also return damaged jobs."""
        every = self.list()[:1] if reference == LAST else [*self._all()]
        jobs: Sequence[JobInfo | DamagedJob] = [job for job in every if reference in (LAST, job.id)]
        if not jobs and reference:
            jobs = [job for job in every if job.id.startswith(reference) or job.id.endswith(reference)]
        if not jobs:
            message = "there is no job yet" if reference == LAST else f"there is no job {reference!r}"
            raise NotFoundError(message, hint="crmctl bulk jobs lists them", code="job_not_found")
        if len(jobs) > 1:
            fitting = ", ".join(sorted(job.id for job in jobs))
            raise UsageError(f"several jobs fit {reference!r}: {fitting}", hint="give more of the name", code="ambiguous_job")
        return jobs[0]

    def remove(self, job: JobInfo | DamagedJob) -> None:
        """Delete a job's journal and result files. Raises UsageError while a process works on it, or if the files cannot be deleted."""
        if isinstance(job, JobInfo):
            refuse_running(job)
        try:
            shutil.rmtree(job.folder)
        except OSError as error:
            raise UsageError(f"cannot remove {job.folder}: {reason(error)}", code="unwritable_file") from error

    def registering(self) -> AbstractContextManager[None]:
        """Keep other processes on this machine from registering a job; the lock ends with its process. Raises ConfigError."""
        path = self.root / LOCK_NAME
        held = ConfigError(f"cannot lock {path}: another process holds it", hint=ELSEWHERE)
        return take_turn(path, self.clock, LOCK_SECONDS, lambda _: True, lambda: held)

    def object_turn(
        self, object_id: str, object_name: str, note: Callable[[str], None], patience: float = WAIT_SECONDS
    ) -> AbstractContextManager[None]:
        """Make other imports by key into an object wait, whatever their profile. The turn ends with its process.

        `note` receives a message about a wait. Raises PendingError if that exceeds `patience` seconds, ConfigError if locking fails.
        """
        importing = f"is importing into {object_name} by key"

        def holder() -> str | None:
            """Return the job that holds the lock; None if it has just started."""
            jobs = (job for job in self.list() if job.is_running and job.header.keys and job.header.object_id.lower() == object_id.lower())
            return next((f"job {job.id}" for job in jobs), None)

        def tell(waited: float) -> bool:
            job = holder()
            is_due = job is not None or waited >= TELLING_SECONDS
            if is_due:
                note(f"{job or 'another process'} {importing}; waiting for its end (--lock-wait 0 does not)")
            return is_due

        def refusal() -> CrmctlError:
            message = f"{holder() or 'another process'} {importing}; nothing was sent"
            return PendingError(message, hint="--lock-wait SECONDS waits for its end", code="import_running", retryable=True)

        name = hashlib.sha256(object_id.lower().encode()).hexdigest()[:32]
        return take_turn(self.root / OBJECTS / f"{name}.sqlite", self.clock, patience, tell, refusal)

    def earlier_creation(self, sha256: str, object_id: str, origin: str) -> JobInfo | None:
        """Return the newest job that created, or is creating, records of the same object from the same content."""
        for job in self.list():
            header = job.header
            same = (header.mode, header.sha256, header.object_id, header.origin) == ("create", sha256, object_id, origin)
            if same and job.state is not JobState.UNDONE and (job.has_sent or job.is_running):
                return job
        return None

    def sent_since(self, moment: float) -> Iterator[tuple[Path, float]]:
        """Yield the folders of journals, with those of parents and steps, whose last request left after a Unix time, and that time."""
        for folder in [path for pattern in ("*", "*/*", "*/steps/*/jobs/*") for path in self.root.glob(pattern) if path.is_dir()]:
            if (sent_at := HighWaterMark(folder).read()[0].at) > moment and (folder / FILE_NAME).is_file():
                yield folder, sent_at

    def _all(self) -> Iterator[JobInfo | DamagedJob]:
        try:
            folders = [path for path in self.root.iterdir() if path.is_dir() and path.name != OBJECTS] if self.root.is_dir() else []
        except OSError as error:
            raise ConfigError(f"cannot read {self.root}: {reason(error)}", hint=ELSEWHERE) from error
        return map(self._read, folders)

    def _read(self, folder: Path) -> JobInfo | DamagedJob:
        """Read a job from its journal. A job being created has no journal yet."""
        try:
            if not (folder / FILE_NAME).is_file() and not HighWaterMark(folder).read()[0].sends:
                return DamagedJob(folder, NO_JOURNAL)
            with closing(Journal(folder, self.clock)) as journal:
                return JobInfo(journal.header, folder, journal.state, journal.is_running, journal.has_sent, journal.counts())
        except OSError as error:
            return DamagedJob(folder, reason(error), "is it another user's? CRMCTL_STATE_DIR names another directory")
        except CrmctlError as error:
            return DamagedJob(folder, error.message, error.hint)
        except sqlite3.Error as error:
            return DamagedJob(folder, reason(error))


def shown_mode(header: Header) -> str:
    """Return the word for a job's kind or mode in lists and summaries."""
    return header.mode if header.kind == JobKind.IMPORT else header.kind


def refuse_running(job: JobInfo) -> None:
    if job.is_running:
        raise UsageError(f"job {job.id} is running", hint="wait for it, or interrupt it with Ctrl-C: it can be resumed", code="job_running")


def effort(journal: Journal, requests: int = 0, elapsed: float = 0.0) -> tuple[int, float]:
    """Return requests and seconds of all runs so far, after adding read requests and seconds. Every attempt of a batch is one request."""
    read, seconds = journal.recall(EFFORT) or (0, 0.0)
    if requests or elapsed:
        read, seconds = read + requests, seconds + elapsed
        with suppress(StorageError):  # on a full disk they are not counted
            journal.remember(EFFORT, (read, seconds))
    return read + sum(batch.attempt for batch in journal.batches()), seconds


def summarize(journal: Journal) -> Summary:
    header = journal.header
    requests, elapsed = effort(journal)
    for path in journal.folder.glob(f"*/{FILE_NAME}"):
        with closing(Journal(path.parent, SystemClock())) as phase:
            requests += effort(phase)[0]
    values = FeedCounts(*counted) if (counted := journal.recall(FEED_COUNTS)) is not None else None
    files = {name: next(iter(sorted(journal.folder.glob(f"{name}.*"))), None) for name in RESULT_FILES}
    return Summary(
        header.job, header.object, shown_mode(header), journal.counts(), requests, elapsed, files, values, len(surplus_records(journal))
    )
