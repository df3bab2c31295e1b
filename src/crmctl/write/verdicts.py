"""Verdicts: what the answer to a batch says about its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from crmctl.errors import CrmctlError, RejectedError, ServiceError
from crmctl.files.validation import Batch
from crmctl.frozen import frozen
from crmctl.models.resources import BulkResult
from crmctl.write.database import BatchState

TOO_LARGE = 413

REFUSALS = (401, 403, 404)
"""Statuses that end a job, and may come from a proxy after the service carried out the request."""

TIMED_OUT = 408
"""The only status below 500 that leaves the outcome open."""


@frozen
class Verdict:
    """The next state of a batch.

    `failures` maps indexes in the batch to the service's messages. `repeatable`: a batch in doubt may be sent again at once, because a
    second write changes nothing. `questionable`: crmctl believes the refusal only if no row of the batch exists. `fatal` is an error that
    every further batch would meet. `too_large`: the service accepts only smaller requests.
    """

    state: BatchState
    created: int = 0
    updated: int = 0
    failures: Mapping[int, str] = field(default_factory=dict)
    reason: str = ""
    repeatable: bool = False
    questionable: bool = False
    fatal: CrmctlError | None = None
    too_large: bool = False


def judge(batch: Batch, outcome: BulkResult | CrmctlError, *, mode: str) -> Verdict:
    """Derive the verdict on a batch from its answer."""
    if isinstance(outcome, BulkResult):
        problem = _misfit(batch, outcome, mode)
        if problem is None:
            failures = {failure.index: failure.error for failure in outcome.failed}
            return Verdict(BatchState.CONFIRMED, outcome.created, outcome.updated, failures)
        return _doubtful(batch, f"the answer does not fit what was sent: {problem}", mode)
    if outcome.outcome_unknown or isinstance(outcome, ServiceError) or outcome.status == TIMED_OUT:
        return _doubtful(batch, outcome.message, mode)
    creates = any(entry.id is None for entry in batch.entries)
    if isinstance(outcome, RejectedError):
        if len(batch) == 1:
            return Verdict(BatchState.CONFIRMED, failures={0: outcome.message}, reason=outcome.message, questionable=creates)
        return Verdict(BatchState.BISECT, reason=outcome.message, too_large=outcome.status == TOO_LARGE, questionable=creates)
    return Verdict(BatchState.PLANNED, reason=outcome.message, fatal=outcome)


def disbelieve(verdict: Verdict) -> Verdict:
    """Return the verdict on a refusal that may be false: the service may have carried out the batch."""
    reason = f"it was refused ({verdict.reason}), and may have been carried out all the same"
    return Verdict(BatchState.IN_DOUBT, reason=reason, fatal=verdict.fatal, too_large=verdict.too_large)


def refuse_all(batch: Batch, reason: str) -> Verdict:
    """Return the verdict on a batch that was refused as a whole and is not split further."""
    return Verdict(BatchState.CONFIRMED, failures=dict.fromkeys(range(len(batch)), reason))


def _doubtful(batch: Batch, reason: str, mode: str) -> Verdict:
    repeatable = mode != "create" and all(entry.id for entry in batch.entries)
    return Verdict(BatchState.IN_DOUBT, reason=reason, repeatable=repeatable)


def _misfit(batch: Batch, result: BulkResult, mode: str) -> str | None:
    """Explain why an answer cannot belong to this batch; None if it accounts for every row."""
    indexes = [failure.index for failure in result.failed]
    if any(not 0 <= index < len(batch) for index in indexes):
        return f"a failure at an index outside 0..{len(batch) - 1}"
    if len(set(indexes)) != len(indexes):
        return "two failures with one index"
    if result.created < 0 or result.updated < 0 or result.created + result.updated + len(indexes) != len(batch):
        return f"{result.created} created, {result.updated} updated and {len(indexes)} failed of {len(batch)}"
    with_id = sum(1 for entry in batch.entries if entry.id) if mode != "create" else 0
    if result.updated > with_id:
        return f"{result.updated} updated, but only {with_id} had an id"
    return None
