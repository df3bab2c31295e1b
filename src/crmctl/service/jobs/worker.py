"""The background threads of a service process: one for each job, asleep while there is nothing to do. What the jobs do is theirs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from crmctl.service.failures import FAILURES

POLL_SECONDS = 0.25
"""Longest sleep: how late work is noticed. A look costs one indexed read; being told instead would not see what other processes leave."""

REST_SECONDS = 5.0
"""Pause after a job failed, for example because the database is away."""


class BackgroundJob(Protocol):
    """A piece of repeating work, coordinated with other processes through the database alone."""

    def run_once(self) -> bool:
        """Do what is there to do now; whether there was anything."""
        ...

    def close(self) -> None:
        """Finish what is under way."""
        ...


class Worker:
    """Runs every job until stopped. A job that fails is reported and tried again; it never stops the others."""

    def __init__(self, jobs: Sequence[BackgroundJob]) -> None:
        self._jobs = jobs
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[job], name=type(job).__name__, daemon=True) for job in jobs]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish what is under way and end."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for job in self._jobs:
            job.close()

    def _run(self, job: BackgroundJob) -> None:
        while not self._stopping.is_set():
            try:
                pause = 0.0 if job.run_once() else POLL_SECONDS
            except Exception as error:
                FAILURES.tell(error)
                pause = REST_SECONDS
            self._stopping.wait(pause)
