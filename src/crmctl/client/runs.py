"""Runs of reports and workflows, and waiting for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from crmctl.client.answers import Page, iterate
from crmctl.client.crm import Crm, Fields
from crmctl.clock import Backoff, Clock
from crmctl.errors import NetworkError, RateLimitedError, ServiceError
from crmctl.frozen import frozen
from crmctl.models.resources import ReportRun, Resource, WorkflowRun, WorkflowStart
from crmctl.values.moments import MICROS, micros_of_date, seconds_of

R = TypeVar("R", bound=Resource)


def newest_report_run(crm: Crm, report_id: str) -> ReportRun | None:
    """Return the run that started last, or None."""

    def age(run: ReportRun) -> float | None:
        return _first_time(run.started_at, run.created_at, run.completed_at)

    pages = newest_pages(lambda limit, offset: crm.list_report_runs(report_id, limit=limit, offset=offset), age)
    runs = [run for page in pages for run in page]
    return max(runs, key=lambda run: seconds if (seconds := age(run)) is not None else float("-inf"), default=None)


def newest_pages(fetch: Callable[[int, int], Page[R]], age: Callable[[R], float | None]) -> Iterator[list[R]]:
    """Yield the pages that may hold the newest runs: only the first if it is in descending order, else all."""
    for number, page in enumerate(iterate(fetch)):
        yield page.items
        ages = [age(run) for run in page.items]
        ages_known = [age for age in ages if age is not None]
        if (
            number == 0
            and len(ages_known) == len(ages) > 1
            and ages_known == sorted(ages_known, reverse=True)
            and ages_known[0] > ages_known[-1]
        ):
            return


SUCCEEDED = frozenset({"completed", "complete", "succeeded", "success", "successful", "finished", "done", "ok"})
FAILED = frozenset(
    {"failed", "failure", "error", "errored", "cancelled", "canceled", "aborted", "terminated", "killed", "rejected"}
    | {"timed_out", "timedout", "timeout", "timed-out", "timed out", "expired", "crashed"}
)
GAPS = Backoff(longest=5.0, growth=1.5, jitter=0.0)
"""Seconds between two looks at the list; each gap is half as long again."""

STRANGE_CLOCK = 15.0
"""Seconds after which a new run that seems too early is accepted if no other has come."""


@frozen
class Followed:
    """The runs that are or may be ours, likeliest first, and whether all of them ended in time."""

    runs: tuple[WorkflowRun, ...]
    ended: bool

    @property
    def failed(self) -> WorkflowRun | None:
        return next((run for run in self.runs if outcome_of(run) is False), None)


def outcome_of(run: WorkflowRun | ReportRun) -> bool | None:
    """Return True for a completed run, False for a failed one, None for a running one or an unknown word."""
    status = (run.status or "").strip().lower()
    return True if status in SUCCEEDED else False if status in FAILED else None


@dataclass
class RunFollower:
    """Follow a run: call `look` (existing runs), `start`, `follow`. `note` takes remarks, `tell` the state at each look."""

    crm: Crm
    workflow_id: str
    name: str | None
    clock: Clock
    note: Callable[[str], None]
    tell: Callable[[str], None]
    _known: set[str] = field(default_factory=set)
    _new: dict[str, WorkflowRun] = field(default_factory=dict)
    _titles: set[str] = field(default_factory=set)
    _earliest: float = -math.inf
    _latest: float = math.inf
    _noted: frozenset[str] = frozenset()

    def look(self) -> None:
        """Remember the existing runs. Raises what a request raises, before anything is started."""
        self._known = {run.id for run in self._list(self.crm, ())}

    def start(self, data: Fields | None) -> WorkflowStart:
        """Start the run and remember when, by the service's clock."""
        sent = self.clock.monotonic()
        started, date = self.crm.run_workflow(self.workflow_id, data)
        if (micros := micros_of_date(date)) is not None:  # rounded down to a second, as times of runs may be
            second = micros / MICROS
            self._earliest, self._latest = second - (self.clock.monotonic() - sent) - 1, second + 1
        names = {name.strip() for name in (self.name, started.workflow_name) if name}
        self._titles = {f"API: {name}" for name in names}
        return started

    def follow(self, seconds: float) -> Followed:
        """Look at the list until the run has ended, for at most `seconds`."""
        began = self.clock.monotonic()
        looks = 0
        ours: tuple[WorkflowRun, ...] = ()
        while True:
            seconds_left = began + seconds - self.clock.monotonic()
            self._refresh(max(seconds_left, 1.0), ours)
            waited = self.clock.monotonic() - began
            ours = self._ours(patient=waited < min(STRANGE_CLOCK, seconds))
            self.tell("; ".join(f"run {run.id}: {run.status or 'no status'}" for run in ours) or "the run is not in the list yet")
            if ours and all(outcome_of(run) is not None for run in ours):
                return Followed(ours, ended=True)
            seconds_left = began + seconds - self.clock.monotonic()
            if seconds_left <= 0:
                return Followed(ours, ended=False)
            looks += 1
            self.clock.sleep(min(GAPS.gap(looks), seconds_left))

    def _refresh(self, seconds: float, ours: Sequence[WorkflowRun]) -> None:
        """Read the list. A passing failure ends nothing, because the run continues."""
        try:
            runs = self._list(Crm(self.crm.session.hurried(seconds)), [run.id for run in ours])
        except (NetworkError, RateLimitedError) as error:
            self.tell(error.message)
        except ServiceError as error:
            if error.status is None or error.status < 500:
                raise
            self.tell(error.message)
        else:
            self._new |= {run.id: run for run in runs if run.id not in self._known and self._fits(run)}

    def _list(self, crm: Crm, ids: Sequence[str]) -> list[WorkflowRun]:
        """Return the runs that may be new, and the wanted ones wherever they are in the list."""

        def fetch(limit: int, offset: int) -> Page[WorkflowRun]:
            return crm.list_workflow_runs(self.workflow_id, limit=limit, offset=offset)

        runs = [run for page in newest_pages(fetch, _created) for run in page]
        missing = set(ids) - {run.id for run in runs}
        if missing:
            for page in iterate(fetch, offset=len(runs)):
                runs += page.items
                missing -= {run.id for run in page.items}
                if not missing:
                    break
        return runs

    def _fits(self, run: WorkflowRun) -> bool:
        """Whether the API started this run of this workflow. Missing fields do not contradict."""
        if run.trigger_event is not None and run.trigger_event.strip().lower() != "api":
            return False
        return run.title is None or not self._titles or run.title.strip() in self._titles

    def _ours(self, *, patient: bool) -> tuple[WorkflowRun, ...]:
        """Return the new runs nearest to our request; several if they cannot be told apart."""
        runs = list(self._new.values())
        candidates = [run for run in runs if self._distance(run) >= 0] or ([] if patient else runs)
        if not candidates:
            return ()
        nearest = min(abs(self._distance(run)) for run in candidates)
        # runs within that time cannot be told apart; outside it a second is not much
        limit = nearest + (1.0 if nearest else 0.0)
        chosen = sorted((run for run in candidates if abs(self._distance(run)) <= limit), key=lambda run: (_created(run) or 0.0, run.id))
        if len(candidates) > 1 and self._noted != (ids := frozenset(run.id for run in candidates)):
            self._noted = ids
            if len(chosen) == 1:
                self.note(f"{len(candidates)} runs were started through the API; {chosen[0].id} is the one of the time of this call")
            else:
                listed = ", ".join(run.id for run in chosen)
                self.note(f"{len(chosen)} runs were started at the same moment and cannot be told apart; waiting for all: {listed}")
        return tuple(chosen)

    def _distance(self, run: WorkflowRun) -> float:
        """Return the seconds between our request and the run: negative for an earlier one, 0 if the run may be ours or has no time."""
        created = _created(run)
        return 0.0 if created is None else min(created - self._earliest, 0.0) or max(created - self._latest, 0.0)


def _first_time(*timestamps: str | None) -> float | None:
    return next((seconds for text in timestamps if (seconds := seconds_of(text)) is not None), None)


def _created(run: WorkflowRun) -> float | None:
    return _first_time(run.created_at, run.started_at)
