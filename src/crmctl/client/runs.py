"""Runs of reports and workflows, and waiting for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TypeVar

from crmctl.client.answers import Page, iterate
from crmctl.client.crm import Crm, Fields
from crmctl.client.session import AttemptObserver
from crmctl.clock import Backoff, Clock
from crmctl.errors import NetworkError, RateLimitedError, ServiceError
from crmctl.models.resources import ReportRun, Resource, WorkflowRun, WorkflowStart
from crmctl.values.moments import seconds_of

R = TypeVar("R", bound=Resource)


def newest_report_run(crm: Crm, report_id: str) -> ReportRun | None:
    """Return the run that started last, or None."""

    def age(run: ReportRun) -> float | None:
        return next((found for text in (run.started_at, run.created_at, run.completed_at) if (found := seconds_of(text)) is not None), None)

    pages = newest_pages(lambda limit, offset: crm.list_report_runs(report_id, limit=limit, offset=offset), age)
    runs = [run for page in pages for run in page]
    return max(runs, key=lambda run: known if (known := age(run)) is not None else float("-inf"), default=None)


def newest_pages(fetch: Callable[[int, int], Page[R]], age: Callable[[R], float | None]) -> Iterator[list[R]]:
    """Yield the pages that may hold the newest runs: only the first if it is in descending order, else all."""
    for number, page in enumerate(iterate(fetch)):
        yield page.items
        ages = [age(run) for run in page.items]
        known = [age for age in ages if age is not None]
        if number == 0 and len(known) == len(ages) > 1 and known == sorted(known, reverse=True) and known[0] > known[-1]:
            return


SUCCEEDED = frozenset({"completed", "complete", "succeeded", "success", "successful", "finished", "done", "ok"})
FAILED = frozenset(
    {"failed", "failure", "error", "errored", "cancelled", "canceled", "aborted", "terminated", "killed", "rejected"}
    | {"timed_out", "timedout", "timeout", "timed-out", "timed out", "expired", "crashed"}
)
GAPS = Backoff(longest=5.0, growth=1.5, jitter=0.0)
"""Seconds between two looks at the list; each gap is half as long again."""

SKEW = 2.0
"""Seconds by which a run's time may precede our request: clocks differ."""

STRANGE_CLOCK = 15.0
"""Seconds after which a new run that seems too early is accepted if no other has come."""


@dataclass(frozen=True)
class Span:
    """A span of the service's time, in Unix seconds."""

    start: float = -math.inf
    end: float = math.inf

    def distance(self, created: float | None, precision: float) -> float:
        """Return by how much a moment known to `precision` seconds lies outside, at least; 0 for an unknown one."""
        return 0.0 if created is None else max(self.start - (created + precision), created - self.end, 0.0)


@dataclass
class ServerClock:
    """How far the service's clock is ahead of ours. Every Date, a whole second rounded down, narrows it."""

    least: float = -math.inf
    most: float = math.inf

    def saw(self, date: str | None, sent: float, received: float) -> None:
        try:
            second = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        least, most = second - received, second + 1 - sent
        agrees = least <= self.most and most >= self.least
        self.least, self.most = (max(self.least, least), min(self.most, most)) if agrees else (least, most)

    def span(self, sent: float, received: float) -> Span:
        return Span(sent + self.least, received + self.most)


@dataclass(frozen=True)
class Followed:
    """The runs that are or may be ours, likeliest first, and whether all of them ended in time."""

    runs: tuple[WorkflowRun, ...]
    ended: bool

    @property
    def failed(self) -> WorkflowRun | None:
        return next((run for run in self.runs if outcome_of(run) is False), None)


def outcome_of(run: WorkflowRun) -> bool | None:
    """Return True for a completed run, False for a failed one, None for a running one or an unknown word."""
    status = (run.status or "").strip().lower()
    return True if status in SUCCEEDED else False if status in FAILED else None


@dataclass
class RunFollower(AttemptObserver):
    """Follow a run: call `look` (existing runs), `start`, `follow`. `note` takes remarks, `tell` the state at each look."""

    crm: Crm
    workflow_id: str
    name: str | None
    clock: Clock
    note: Callable[[str], None]
    tell: Callable[[str], None]
    _known: set[str] = field(default_factory=set)
    _new: dict[str, WorkflowRun] = field(default_factory=dict)
    _server: ServerClock = field(default_factory=ServerClock)
    _titles: set[str] = field(default_factory=set)
    _span: Span = field(default_factory=Span)
    _sent: float = 0.0
    _noted: frozenset[str] = frozenset()

    def look(self) -> None:
        """Remember the existing runs. Raises what a request raises, before anything is started."""
        self._known = {run.id for run in self._list(self.crm, ())}

    def start(self, data: Fields | None) -> WorkflowStart:
        """Start the run and remember when, by the service's clock."""
        started, date = self.crm.run_workflow(self.workflow_id, data, watch=self)
        received = self.clock.monotonic()
        self._server.saw(date, self._sent, received)
        self._span = self._server.span(self._sent, received)
        names = {name.strip() for name in (self.name, started.workflow_name) if name}
        self._titles = {f"API: {name}" for name in names}
        return started

    def follow(self, seconds: float) -> Followed:
        """Look at the list until the run has ended, for at most `seconds`."""
        began = self.clock.monotonic()
        looks = 0
        ours: tuple[WorkflowRun, ...] = ()
        while True:
            left = began + seconds - self.clock.monotonic()
            self._refresh(max(left, 1.0), ours)
            waited = self.clock.monotonic() - began
            ours = self._ours(patient=waited < min(STRANGE_CLOCK, seconds))
            self.tell(_standing(ours))
            if ours and all(outcome_of(run) is not None for run in ours):
                return Followed(ours, ended=True)
            left = began + seconds - self.clock.monotonic()
            if left <= 0:
                return Followed(ours, ended=False)
            looks += 1
            self.clock.sleep(min(GAPS.gap(looks), left))

    def sending(self) -> None:
        """Take the time of this attempt: refused attempts do not count."""
        self._sent = self.clock.monotonic()

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

    def _list(self, crm: Crm, wanted: Sequence[str]) -> list[WorkflowRun]:
        """Return the runs that may be new, and the wanted ones wherever they are in the list."""

        def fetch(limit: int, offset: int) -> Page[WorkflowRun]:
            sent = self.clock.monotonic()
            page = crm.list_workflow_runs(self.workflow_id, limit=limit, offset=offset)
            self._server.saw(page.date, sent, self.clock.monotonic())
            return page

        runs = [run for page in newest_pages(fetch, _created) for run in page]
        missing = set(wanted) - {run.id for run in runs}
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
        candidates = [run for run in self._new.values() if self._distance(run) <= SKEW or not self._is_early(run)]
        if not candidates and not patient:
            candidates = list(self._new.values())
        if not candidates:
            return ()
        nearest = min(map(self._distance, candidates))
        # inside the span runs cannot be told apart; outside it a second is not much
        chosen = sorted((run for run in candidates if self._distance(run) <= nearest + (1.0 if nearest else 0.0)), key=_order)
        if len(candidates) > 1 and self._noted != (ids := frozenset(run.id for run in candidates)):
            self._noted = ids
            if len(chosen) == 1:
                self.note(f"{len(candidates)} runs were started through the API; {chosen[0].id} is the one of the time of this call")
            else:
                listed = ", ".join(run.id for run in chosen)
                self.note(f"{len(chosen)} runs were started at the same moment and cannot be told apart; waiting for all: {listed}")
        return tuple(chosen)

    def _distance(self, run: WorkflowRun) -> float:
        return self._span.distance(_created(run), _precision(run))

    def _is_early(self, run: WorkflowRun) -> bool:
        created = _created(run)
        return created is not None and created < self._span.start


def _created(run: WorkflowRun) -> float | None:
    return next((found for text in (run.created_at, run.started_at) if (found := seconds_of(text)) is not None), None)


def _precision(run: WorkflowRun) -> float:
    """Return the precision of a run's time in seconds."""
    text = run.created_at if seconds_of(run.created_at) is not None else run.started_at
    return 0.001 if text and "." in text else 1.0


def _order(run: WorkflowRun) -> tuple[float, str]:
    return (_created(run) or 0.0, run.id)


def _standing(ours: Sequence[WorkflowRun]) -> str:
    if not ours:
        return "the run is not in the list yet"
    return "; ".join(f"run {run.id}: {run.status or 'no status'}" for run in ours)
