"""The bulk jobs of this machine: one folder each under the state directory. Making, listing, finding and removing them."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.journal.high_water_mark import HighWaterMark
from crmctl.bulk.journal.journal import FILE_NAME, Header, Journal
from crmctl.bulk.journal.states import RESULT_FILES, JobKind, JobState, RowState
from crmctl.bulk.journal.summary import FEED_COUNTS, FeedCounts, Summary
from crmctl.clock import Clock, SystemClock
from crmctl.errors import ConfigError, CrmctlError, NotFoundError, UsageError, reason, storage_error

LAST = "last"
ELSEWHERE = "CRMCTL_STATE_DIR names another directory"
NO_JOURNAL = "its journal is gone, or not written yet"
OBJECTS = "objects"
"""The folder of the locks of objects; no job has such a name."""

LOCK_NAME = "registering.sqlite"
LOCK_SECONDS = 60.0
"""Longest wait for others that register a job; one takes milliseconds."""

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # nothing that is easily misread


@dataclass(frozen=True)
class JobInfo:
    """A job as a list shows it. `is_running`: a live process works on it at this moment."""

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
        """The JSON form, every key always present."""
        return {
            "job": self.id,
            "object": self.header.object,
            "mode": shown_mode(self.header),
            "input": self.header.input,
            "origin": self.header.origin,
            "state": "running" if self.is_running else str(self.state),
            "resumable": self.is_resumable,
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.header.created_at)),
            "rows": sum(self.counts.values()),
            **{str(state): self.counts[state] for state in RowState},
            **self._of_deletions,
        }

    @property
    def _of_deletions(self) -> dict[str, int]:
        """Of a deletion, `updated` rows are those whose record is gone, `created` ones those whose record was gone before."""
        if self.header.kind != JobKind.DELETE:
            return {"deleted": 0}
        counts = self.counts
        absent = counts[RowState.CREATED] + counts[RowState.SKIPPED]
        return {"created": 0, "updated": 0, "skipped": absent, "deleted": counts[RowState.UPDATED]}


@dataclass(frozen=True)
class DamagedJob:
    """What is left of a job whose journal is gone or cannot be read, and why."""

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
        self._root = state_directory / "jobs"
        self._clock = clock

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def root(self) -> Path:
        """The folder of all jobs."""
        return self._root

    def prepare(self) -> None:
        """Raises ConfigError where no job can be kept."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to {self._root}: {reason(error)}", hint=ELSEWHERE) from error
        if not os.access(self._root, os.W_OK | os.X_OK):
            raise ConfigError(f"cannot write to {self._root}: permission denied", hint=ELSEWHERE)

    def new_folder(self) -> Path:
        """An empty folder (0700) named by the id of a new job: the date and five characters. Raises ConfigError where none can be made."""
        self.prepare()
        day = time.strftime("%Y%m%d", time.localtime(self._clock.now()))
        while True:
            folder = self._root / f"{day}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            try:
                folder.mkdir(mode=0o700)
                return folder
            except FileExistsError:
                continue
            except OSError as error:
                raise storage_error(error, folder) or ConfigError(
                    f"cannot write to {self._root}: {reason(error)}", hint=ELSEWHERE
                ) from error

    def open(self, job: JobInfo) -> Journal:
        return Journal(job.folder, self._clock)

    def list(self) -> list[JobInfo]:
        """All jobs that can be read, the newest first."""
        jobs = (job for job in self._all() if isinstance(job, JobInfo))
        return sorted(jobs, key=lambda job: (job.header.created_at, job.id), reverse=True)

    def damaged(self) -> Sequence[DamagedJob]:
        """Jobs with a journal that cannot be read."""
        return [job for job in self._all() if isinstance(job, DamagedJob) and job.why != NO_JOURNAL]

    def find(self, reference: str) -> JobInfo:
        """A job by its id, the beginning or the end of it, or `last`. Raises NotFoundError; UsageError for several, and a damaged one."""
        found = self.find_any(reference)
        if isinstance(found, DamagedJob):
            raise found.error
        return found

    def find_any(self, reference: str) -> JobInfo | DamagedJob:
        """The same for damaged jobs too."""
        found = self.list()[:1] if reference == LAST else _named(reference, [*self._all()])
        if not found:
            raise NotFoundError(f"there is no job {reference!r}", hint="crmctl bulk jobs lists them", code="job_not_found")
        if len(found) > 1:
            fitting = ", ".join(sorted(job.id for job in found))
            raise UsageError(f"several jobs fit {reference!r}: {fitting}", hint="give more of the name", code="ambiguous_job")
        return found[0]

    def remove(self, job: JobInfo | DamagedJob) -> None:
        """Delete a job's journal and result files. Raises UsageError while a process works on it, and where that is not allowed."""
        if isinstance(job, JobInfo):
            refuse_running(job)
        try:
            shutil.rmtree(job.folder)
        except OSError as error:
            raise UsageError(f"cannot remove {job.folder}: {reason(error)}", code="unwritable_file") from error

    @contextmanager
    def registering(self) -> Iterator[None]:
        """Keep every other process of this machine from registering a job meanwhile; a process that dies lets go.

        Raises ConfigError where nothing can be locked.
        """
        path = self._root / LOCK_NAME
        with closing(sqlite3.connect(path, isolation_level=None, timeout=LOCK_SECONDS)) as lock:
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.Error as error:
                raise unlockable(path, error) from error
            yield

    def earlier_creation(self, sha256: str, object_id: str, origin: str) -> JobInfo | None:
        """The newest job that created records of the same object from the same content, or is doing so."""
        for job in self.list():
            header = job.header
            same = (header.mode, header.sha256, header.object_id, header.origin) == ("create", sha256, object_id, origin)
            if same and job.state is not JobState.UNDONE and (job.has_sent or job.is_running):
                return job
        return None

    def _all(self) -> Iterator[JobInfo | DamagedJob]:
        try:
            folders = [path for path in self._root.iterdir() if path.is_dir() and path.name != OBJECTS] if self._root.is_dir() else []
        except OSError as error:
            raise ConfigError(f"cannot read {self._root}: {reason(error)}", hint=ELSEWHERE) from error
        return map(self._read, folders)

    def _read(self, folder: Path) -> JobInfo | DamagedJob:
        """A job as its journal has it. One that is just being made has none yet."""
        try:
            if not (folder / FILE_NAME).is_file() and not HighWaterMark(folder).read()[0].sends:
                return DamagedJob(folder, NO_JOURNAL)
            with closing(Journal(folder, self._clock)) as journal:
                return JobInfo(journal.header, folder, journal.state, journal.is_running, journal.has_sent, journal.counts())
        except OSError as error:
            return DamagedJob(folder, reason(error), "is it another user's? CRMCTL_STATE_DIR names another directory")
        except (CrmctlError, sqlite3.Error) as error:
            return DamagedJob(folder, error.message if isinstance(error, CrmctlError) else reason(error))


def shown_mode(header: Header) -> str:
    """What a job does, in the word of lists and summaries."""
    return header.mode if header.kind == JobKind.IMPORT else header.kind


def unlockable(path: Path, error: Exception) -> CrmctlError:
    """The error of a lock that cannot be had for another reason than that somebody holds it."""
    failure = storage_error(error, path)
    return (
        failure
        if failure is not None and failure.code == "no_space"
        else ConfigError(f"cannot lock {path}: {reason(error)}", hint=ELSEWHERE)
    )


def refuse_running(job: JobInfo) -> None:
    """Raises UsageError while a process works on a job."""
    if job.is_running:
        raise UsageError(f"job {job.id} is running", hint="wait for it, or interrupt it with Ctrl-C: it can be resumed", code="job_running")


def _named(reference: str, jobs: Sequence[JobInfo | DamagedJob]) -> Sequence[JobInfo | DamagedJob]:
    """Those with this id, else those whose id begins or ends so."""
    exact = [job for job in jobs if job.id == reference]
    return exact or [job for job in jobs if reference and (job.id.startswith(reference) or job.id.endswith(reference))]


def summarize(journal: Journal) -> Summary:
    """The summary of a job as its journal and folder have it."""
    header = journal.header
    requests, elapsed = journal.effort()
    for path in journal.folder.glob(f"*/{FILE_NAME}"):
        with closing(Journal(path.parent, SystemClock())) as phase:
            requests += phase.effort()[0]
    values = FeedCounts(*counted) if (counted := journal.recall(FEED_COUNTS)) is not None else None
    files = {name: next(iter(sorted(journal.folder.glob(f"{name}.*"))), None) for name in RESULT_FILES}
    return Summary(header.job, header.object, shown_mode(header), journal.counts(), requests, elapsed, files, values)
