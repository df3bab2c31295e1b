"""Counts attempts where they are made, and writes the counts down once a second: no attempt waits for the count of another."""

from __future__ import annotations

from collections import Counter

from crmctl.service.context import Context
from crmctl.service.jobs.periodic import GatheringJob
from crmctl.service.store import attempt_counts
from crmctl.service.store.attempt_counts import CountedAttempts
from crmctl.service.store.delivery_claims import Attempt, Due
from crmctl.service.store.tx import Tx


class AttemptTally(GatheringJob[Counter[CountedAttempts]]):
    """`add` is called by whoever made an attempt."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, Counter())

    def add(self, due: Due, attempt: Attempt) -> None:
        with self._lock:
            self._held[CountedAttempts.of(due.endpoint, attempt.at, attempt.seconds, attempt.succeeded)] += 1

    def write(self, tx: Tx, held: Counter[CountedAttempts]) -> None:
        attempt_counts.add_counts(tx, held)
