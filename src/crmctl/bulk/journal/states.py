"""The states of jobs, batches and rows, as the journal stores them. Data only."""

from __future__ import annotations

from enum import StrEnum


class JobKind(StrEnum):
    IMPORT = "import"
    UPDATE = "update"
    """The same values for many records."""
    DELETE = "delete"


class JobState(StrEnum):
    CHECKING = "checking"
    """The input is being read and validated; nothing was sent."""
    OPEN = "open"
    """Rows may still be sent, or their outcome settled: the job can be resumed."""
    FINISHED = "finished"
    """Every row has a final state."""
    REJECTED = "rejected"
    """Invalid rows stopped the job before anything was sent."""
    UNDONE = "undone"
    """What it created was deleted again."""


class BatchState(StrEnum):
    PLANNED = "PLANNED"
    """Definitely not applied: its rows may be sent again, in this or another batch."""
    SENDING = "SENDING"
    """May be on the wire. Found after a crash it is the same as IN_DOUBT."""
    CONFIRMED = "CONFIRMED"
    """The service accounted for every row."""
    BISECT = "BISECT"
    """Refused as a whole, nothing applied: its rows go on in smaller batches."""
    IN_DOUBT = "IN_DOUBT"
    """The service may have applied it; never repeated before its rows are proven absent."""
    RECONCILED = "RECONCILED"
    """It was in doubt, and every row of it was found or proven absent since."""
    UNKNOWN = "UNKNOWN"
    """Watched, and still nobody can tell: for the user to decide."""


DOUBTFUL = frozenset({BatchState.SENDING, BatchState.IN_DOUBT, BatchState.UNKNOWN})
"""States whose rows may or may not be in the service."""


RESULT_FILES = ("ok", "failed", "inDoubt", "unsent")
"""The result files of a job, in the order of the summary."""


class RowState(StrEnum):
    """What is known of one row; the values are the `_status` of result files."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    IN_DOUBT = "inDoubt"
    UNSENT = "unsent"


MAY_BE_THERE = frozenset({RowState.CREATED, RowState.IN_DOUBT})
"""Rows of which the service may have a new record."""
