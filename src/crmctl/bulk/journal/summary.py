"""The summary of a job: eight counts that add up to the rows, what it cost, and the exit code that follows. Reads the journal only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk.journal.states import RESULT_FILES, RowState
from crmctl.errors import CrmctlError, ExitCode

FEED_COUNTS = "feed counts"
"""The journal's fact: the counts of values of a feed."""


class FeedCounts(NamedTuple):
    """Values of a feed: `kept` as somebody changed them, while the file did not; `conflicts`: both have, or nobody knows."""

    kept: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Summary:
    """`counts` has every row state; `files` maps ok, failed, inDoubt and unsent to paths. `job` is None for a dry run. `values`: those that
    people and a feed have both written; None where no feed is imported."""

    job: str | None
    object: str
    mode: str
    counts: Mapping[RowState, int]
    requests: int
    elapsed: float
    files: Mapping[str, Path | None]
    values: FeedCounts | None = None

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def to_document(self) -> dict[str, Any]:
        """The JSON form of the contract, every key always present, those of a feed where one is imported."""
        return {
            "job": self.job,
            "object": self.object,
            "mode": self.mode,
            "rows": self.rows,
            **{str(state): self.counts[state] for state in RowState},
            **(self.values._asdict() if self.values is not None else {}),
            "requests": self.requests,
            "elapsedSeconds": round(self.elapsed, 3),
            "files": {name: str(path) if (path := self.files.get(name)) is not None else None for name in RESULT_FILES},
        }


def exit_code(counts: Mapping[RowState, int], error: CrmctlError | None = None) -> ExitCode:
    """The exit code of a job.

    That of the error that ended it early; else 0 when all rows are as wanted, 9 when rows were rejected, here or by the service, and none
    was written, or 10.
    """
    if error is not None:
        return error.exit_code
    wanted = counts[RowState.CREATED] + counts[RowState.UPDATED] + counts[RowState.UNCHANGED] + counts[RowState.SKIPPED]
    if wanted == sum(counts.values()):
        return ExitCode.OK
    refused = counts[RowState.REJECTED] + counts[RowState.FAILED]
    return ExitCode.REJECTED if refused and not wanted + counts[RowState.IN_DOUBT] else ExitCode.PARTIAL
