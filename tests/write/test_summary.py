"""The exit code of a job, by the states of its rows."""

from __future__ import annotations

import pytest

from crmctl.errors import ExitCode
from crmctl.write.database import RowState
from crmctl.write.jobs import FeedCounts, exit_code

NO_ROWS = dict.fromkeys(RowState, 0)


@pytest.mark.parametrize("state", [RowState.CREATED, RowState.UPDATED, RowState.UNCHANGED, RowState.SKIPPED])
def test_complete_success_is_ok_and_a_mixture_is_partial(state: RowState) -> None:
    assert exit_code(NO_ROWS | {state: 3}) is ExitCode.OK
    for other in (RowState.FAILED, RowState.REJECTED, RowState.IN_DOUBT, RowState.UNSENT):
        assert exit_code(NO_ROWS | {state: 3, other: 1}) is ExitCode.PARTIAL


@pytest.mark.parametrize("counts", [{RowState.FAILED: 2}, {RowState.REJECTED: 2}, {RowState.FAILED: 1, RowState.REJECTED: 1}])
def test_refused_and_nothing_written_is_rejected(counts: dict[RowState, int]) -> None:
    assert exit_code(NO_ROWS | counts) is ExitCode.REJECTED
    assert exit_code(NO_ROWS | counts | {RowState.UNSENT: 1}) is ExitCode.REJECTED
    assert exit_code(NO_ROWS | counts | {RowState.IN_DOUBT: 1}) is ExitCode.PARTIAL, "it may have been written"


def test_other_ends_of_a_job() -> None:
    assert exit_code(NO_ROWS) is ExitCode.OK
    assert exit_code(NO_ROWS | {RowState.UNSENT: 1}) is ExitCode.PARTIAL
    assert FeedCounts() == (0, 0)
