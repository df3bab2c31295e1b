"""Background jobs of one service process, among them webhook deliveries, and its figures."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from crmctl.service.context import Context
from crmctl.service.faults import Unavailable
from crmctl.service.jobs.worker import AGAIN_SECONDS, ClaimingJob, Job, RequestLogWriter, dispatch, forget_old, take_piece
from crmctl.service.outbound.caller import Caller
from crmctl.service.outbound.guard import LOOPBACK, TargetGuard
from crmctl.service.store import logs, webhooks
from crmctl.service.store.tx import Tx
from crmctl.service.store.webhooks import PROVEN, UNPROVEN, WINDOW, Attempt, Due, Lane, read_figures
from crmctl.service.workflows.run_executor import Runs, start_due, start_for_events

FIGURES_SECONDS = 5.0
FIGURES_WITHIN = 2.0


def target_guard(context: Context) -> TargetGuard:
    """Return what webhooks and workflows may call: with `--dev` this machine, too."""
    return TargetGuard(LOOPBACK if context.settings.development else ())


RETENTION_SECONDS = 600.0


def jobs(context: Context) -> list[Job]:
    caller = Caller(target_guard(context))
    claiming: list[ClaimingJob[Any]] = [Runs(context, caller)]
    claiming += [Deliveries(context, caller, random.random, lane) for lane in (PROVEN, UNPROVEN)]
    return [
        Job(lambda: dispatch(context, [webhooks.fan_out, start_for_events])),
        *(Job(job.run_once, close=job.close) for job in claiming),
        Job(lambda: forget_old(context), RETENTION_SECONDS),
        Job(lambda: take_piece(context.engine), AGAIN_SECONDS),
        Job(lambda: start_due(context)),
    ]


FIRST_GAP = 5.0
GROWTH = 3.0
LONGEST_GAP = 8 * 3600.0
JITTER = 0.2
"""Gaps vary by this share either way, so that a recovered receiver does not get all its deliveries at once."""


def next_try(attempt: int, first_tried_at: float, now: float, random: float) -> float | None:
    """Return the Unix time of the try after try number `attempt` (from 1), None when the delivery has failed for good. `random` in [0, 1)
    is the jitter.

    The last gap is shortened, so that one more try falls just inside the window.
    """
    deadline = first_tried_at + WINDOW
    gap = min(LONGEST_GAP, FIRST_GAP * GROWTH ** min(attempt - 1, 32)) * (1 - JITTER + 2 * JITTER * random)
    if now + gap <= deadline:
        return now + gap
    last_chance = deadline - 60.0
    return last_chance if now + gap / 2 < last_chance else None


class Deliveries(ClaimingJob[Due]):
    """Sends the due deliveries of one lane. `random` in [0, 1) is the jitter of retries.

    Tries that end while others are written are written together after them.
    """

    def __init__(self, context: Context, caller: Caller, random: Callable[[], float], lane: Lane) -> None:
        super().__init__(context, lane.places, lane.name)
        self._caller = caller
        self._random = random
        self._lane = lane
        self._written = threading.Condition()
        self._waiting: list[tuple[Attempt, Future[Due | None]]] = []
        self._is_writing = False
        self._is_closing = False

    def close(self) -> None:
        self._is_closing = True
        super().close()

    def is_due(self, tx: Tx) -> bool:
        return webhooks.is_claimable(tx, self._lane, now=self._context.clock.now())

    def claim(self, tx: Tx, most: int) -> list[Due]:
        return webhooks.claim(tx, self._lane, most, now=self._context.clock.now())

    def work(self, first: Due) -> None:
        due: Due | None = first
        while due is not None:
            attempt = self._caller.send(due, self._context.clock.now())
            again = None if attempt.succeeded else next_try(due.attempt, due.created_at, self._context.clock.now(), self._random())
            due = self._settle(replace(attempt, again=again))

    def _settle(self, attempt: Attempt) -> Due | None:
        """Write a try, by this thread or another. Returns a delivery claimed for this thread, if any. Only the thread that wrote raises the
        database's errors; the leases of unwritten tries end by themselves."""
        following: Future[Due | None] = Future()
        with self._written:
            self._waiting.append((attempt, following))
            # A thread whose try another one has written continues at once instead of queuing behind the next transaction.
            self._written.wait_for(lambda: following.done() or not self._is_writing)
            if following.done():
                return following.result()
            batch, self._waiting, self._is_writing = self._waiting, [], True
        claimed: list[Due] = []
        try:
            tries = [each for each, _ in batch]
            claimed = self._context.engine.write(lambda tx: self._write(tx, tries), by=logs.SERVICE)
        finally:
            with self._written:
                for (_, of_thread), due in zip_longest(batch, claimed):
                    of_thread.set_result(due)
                self._is_writing = False
                self._written.notify_all()
        return following.result()

    def _write(self, tx: Tx, tries: list[Attempt]) -> list[Due]:
        webhooks.settle(tx, tries, self._context.ids)
        return [] if self._is_closing else self.claim(tx, len(tries))


class Figures:
    """Figures of the database for /metrics, read at most every few seconds."""

    def __init__(self, context: Context, requests: RequestLogWriter | None) -> None:
        self._context = context
        self._requests = requests
        self._lock = threading.Lock()
        self._known: dict[str, float] = {}
        self._next_at = 0.0

    def read(self) -> dict[str, float]:
        """Return the figures, or none if the database does not answer in time: the other metrics do not depend on it."""
        context = self._context
        with self._lock:
            if context.clock.monotonic() >= self._next_at:
                try:
                    self._known = context.engine.read(lambda tx: read_figures(tx, now=context.clock.now()), within=FIGURES_WITHIN)
                    self._known |= context.engine.figures()
                except Unavailable:
                    self._known = {}
                self._next_at = context.clock.monotonic() + FIGURES_SECONDS
            return self._known | {"request_log_dropped": float(self._requests.dropped if self._requests else 0)}
