"""Following the run that one call of Run Workflow started, although its answer names no run and others may start runs at the same time.

A run is ours when it was not in the list before, came through the API under the workflow's title, and was created while our request was
under way. Where several fit and cannot be told apart, all of them are waited for, and only when all completed is it a success.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from crmctl.backoff import Backoff
from crmctl.client.crm import Crm, Fields
from crmctl.client.paging import iterate
from crmctl.client.runs import newest_pages
from crmctl.client.shapes import Page
from crmctl.clock import Clock
from crmctl.errors import NetworkError, RateLimitedError, ServiceError
from crmctl.models.timestamps import seconds_of
from crmctl.models.workflows import WorkflowRun, WorkflowStart

SUCCEEDED = frozenset({"completed", "complete", "succeeded", "success", "successful", "finished", "done", "ok"})
FAILED = frozenset(
    {"failed", "failure", "error", "errored", "cancelled", "canceled", "aborted", "terminated", "killed", "rejected"}
    | {"timed_out", "timedout", "timeout", "timed-out", "timed out", "expired", "crashed"}
)
GAPS = Backoff(longest=5.0, growth=1.5, jitter=0.0)
"""Seconds between two looks at the list; the gap grows by half each time."""

SKEW = 2.0
"""Seconds by which the time of a run may lie before our request without being too early: several machines, several clocks."""

STRANGE_CLOCK = 15.0
"""Seconds after which a run that is new but seems too early is taken all the same, when no other has come."""


@dataclass(frozen=True)
class Span:
    """A stretch of the service's own time, in Unix seconds."""

    start: float = -math.inf
    end: float = math.inf

    def distance(self, created: float | None, precision: float) -> float:
        """How far a moment known to `precision` seconds lies outside, at least; zero for an unknown one."""
        return 0.0 if created is None else max(self.start - (created + precision), created - self.end, 0.0)


@dataclass
class ServerClock:
    """How far the service's clock is ahead of ours, narrowed by every answer: its Date is a whole second, rounded down."""

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
    """What came of it: the runs that are, or may be, ours, likeliest first, and whether all of them ended within the time."""

    runs: tuple[WorkflowRun, ...]
    ended: bool

    @property
    def failed(self) -> WorkflowRun | None:
        return next((run for run in self.runs if outcome_of(run) is False), None)


def outcome_of(run: WorkflowRun) -> bool | None:
    """True when the run completed, False when it failed, None while it goes on; a word nobody knows counts as going on."""
    status = (run.status or "").strip().lower()
    return True if status in SUCCEEDED else False if status in FAILED else None


@dataclass
class RunFollower:
    """Use in this order: `look` (what is there before), `start`, `follow`. `note` takes remarks, `tell` how things stand at each look."""

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
        """Remember which runs there are. Raises what a request raises: without it nothing is started."""
        self._known = {run.id for run in self._list(self.crm, ())}

    def start(self, data: Fields | None) -> WorkflowStart:
        """Start the run; remembers when, by the service's clock."""
        started, date = self.crm.run_workflow(self.workflow_id, data, watch=self)
        received = self.clock.monotonic()
        self._server.saw(date, self._sent, received)
        self._span = self._server.span(self._sent, received)
        names = {name.strip() for name in (self.name, started.workflow_name) if name}
        self._titles = {f"API: {name}" for name in names}
        return started

    def follow(self, seconds: float) -> Followed:
        """Look at the list until the run has ended, for at most so many seconds."""
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
        """An attempt leaves now: what a refused one before it did does not count."""
        self._sent = self.clock.monotonic()

    def refused(self) -> None:
        return None

    def _refresh(self, seconds: float, ours: Sequence[WorkflowRun]) -> None:
        """The list as it is now. A failure that may pass is no reason to give up: the run goes on without us."""
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
        """The runs that may be new, and the wanted ones however far down the list they have come."""

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
        """Started through the API, of this workflow. What the service leaves out cannot speak against it."""
        if run.trigger_event is not None and run.trigger_event.strip().lower() != "api":
            return False
        return run.title is None or not self._titles or run.title.strip() in self._titles

    def _ours(self, *, patient: bool) -> tuple[WorkflowRun, ...]:
        """The new runs nearest to our request; several when they cannot be told apart."""
        candidates = [run for run in self._new.values() if self._distance(run) <= SKEW or not self._is_early(run)]
        if not candidates and not patient:
            candidates = list(self._new.values())
        if not candidates:
            return ()
        nearest = min(map(self._distance, candidates))
        # Inside the span nothing tells runs apart; outside of it a second is not much.
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
    """Seconds to which the time of the run is known."""
    text = run.created_at if seconds_of(run.created_at) is not None else run.started_at
    return 0.001 if text and "." in text else 1.0


def _order(run: WorkflowRun) -> tuple[float, str]:
    return (_created(run) or 0.0, run.id)


def _standing(ours: Sequence[WorkflowRun]) -> str:
    if not ours:
        return "the run is not in the list yet"
    return "; ".join(f"run {run.id}: {run.status or 'no status'}" for run in ours)
