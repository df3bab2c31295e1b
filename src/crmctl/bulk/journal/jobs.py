"""The import jobs of this machine: one folder each under the state directory. Making, listing, finding and removing them."""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.journal.journal import FILE_NAME, Header, Journal
from crmctl.bulk.journal.states import RESULT_FILES, JobState, RowState
from crmctl.bulk.journal.summary import Summary
from crmctl.clock import Clock, SystemClock
from crmctl.errors import ConfigError, CrmctlError, NotFoundError, UsageError, reason

LAST = "last"
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
            "mode": self.header.mode,
            "input": self.header.input,
            "origin": self.header.origin,
            "state": "running" if self.is_running else str(self.state),
            "resumable": self.is_resumable,
            "createdAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.header.created_at)),
            "rows": sum(self.counts.values()),
            **{str(state): self.counts[state] for state in RowState},
        }


class JobStore:
    """All jobs under one state directory. Folders without a journal are no jobs."""

    def __init__(self, state_directory: Path, clock: Clock) -> None:
        self._root = state_directory / "jobs"
        self._clock = clock

    def new_folder(self) -> Path:
        """An empty folder (0700) named by the id of a new job: the date and five characters. Raises ConfigError where none can be made."""
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write to {self._root}: {reason(error)}", hint="CRMCTL_STATE_DIR names another directory") from error
        day = time.strftime("%Y%m%d", time.localtime(self._clock.now()))
        while True:
            folder = self._root / f"{day}-{''.join(secrets.choice(_ALPHABET) for _ in range(5))}"
            try:
                folder.mkdir(mode=0o700)
                return folder
            except FileExistsError:
                continue

    def open(self, job: JobInfo) -> Journal:
        return Journal(job.folder, self._clock)

    def list(self) -> list[JobInfo]:
        """All jobs, the newest first."""
        return sorted(self._all(), key=lambda job: (job.header.created_at, job.id), reverse=True)

    def find(self, reference: str) -> JobInfo:
        """A job by its id, the beginning or the end of it, or `last`. Raises NotFoundError, UsageError where several fit."""
        jobs = self.list()
        exact = [job for job in jobs if job.id == reference]
        found = (
            jobs[:1] if reference == LAST else exact or [job for job in jobs if job.id.startswith(reference) or job.id.endswith(reference)]
        )
        if not found:
            raise NotFoundError(f"there is no job {reference}", hint="crmctl bulk jobs lists them", code="job_not_found")
        if len(found) > 1:
            raise UsageError(f"several jobs fit {reference}: {', '.join(job.id for job in found)}", code="ambiguous_job")
        return found[0]

    def remove(self, job: JobInfo) -> None:
        """Delete a job's journal and result files. Raises UsageError while a process works on it."""
        if job.is_running:
            raise UsageError(f"job {job.id} is running", code="job_running")
        shutil.rmtree(job.folder)

    @contextmanager
    def registering(self) -> Iterator[None]:
        """Keep every other process of this machine from registering a job meanwhile; a process that dies lets go."""
        with closing(sqlite3.connect(self._root / LOCK_NAME, isolation_level=None, timeout=LOCK_SECONDS)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            yield

    def earlier_creation(self, sha256: str, object_id: str, origin: str) -> JobInfo | None:
        """The newest job that created records of the same object from the same content, or is doing so."""
        for job in self.list():
            header = job.header
            same = (header.mode, header.sha256, header.object_id, header.origin) == ("create", sha256, object_id, origin)
            if same and job.state is not JobState.UNDONE and (job.has_sent or job.is_running):
                return job
        return None

    def _all(self) -> Iterator[JobInfo]:
        folders = self._root.iterdir() if self._root.is_dir() else iter(())
        for folder in folders:
            if (folder / FILE_NAME).is_file() and (job := self._read(folder)) is not None:
                yield job

    def _read(self, folder: Path) -> JobInfo | None:
        """A job as its journal has it; None for one that is just being made, or that this version cannot read."""
        try:
            with closing(Journal(folder, self._clock)) as journal:
                return JobInfo(journal.header, folder, journal.state, journal.is_running, journal.has_sent, journal.counts())
        except (CrmctlError, sqlite3.Error):
            return None


def summarize(journal: Journal) -> Summary:
    """The summary of a job as its journal and folder have it."""
    header = journal.header
    requests, elapsed = journal.effort()
    for path in journal.folder.glob(f"*/{FILE_NAME}"):
        with closing(Journal(path.parent, SystemClock())) as phase:
            requests += phase.effort()[0]
    files = {name: next(iter(sorted(journal.folder.glob(f"{name}.*"))), None) for name in RESULT_FILES}
    return Summary(header.job, header.object, header.mode, journal.counts(), requests, elapsed, files)
