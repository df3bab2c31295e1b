"""The verdict on a batch after an answer or an error: certain only if the answer fits every row."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crmctl.errors import (
    CrmctlError,
    DeniedError,
    NetworkError,
    NotFoundError,
    RateLimitedError,
    RejectedError,
    ServiceError,
)
from crmctl.files.validation import Batch, entry_of
from crmctl.models.resources import BulkFailure, BulkResult
from crmctl.write.database import BatchState
from crmctl.write.verdicts import judge, refuse_all
from tests.support.bulkjobs import Prepared


def batch(size: int = 4, *, with_ids: int = 0) -> Batch:
    return Batch(tuple(entry_of(Prepared(n, {"n": n}, id=f"id-{n}" if n <= with_ids else None), with_id=True) for n in range(1, size + 1)))


def result(created: int, updated: int = 0, failed: tuple[int, ...] = ()) -> BulkResult:
    return BulkResult(created=created, updated=updated, failed=[BulkFailure(index=index, error=f"no {index}") for index in failed])


@given(st.integers(1, 100), st.data())
def test_an_answer_that_accounts_for_every_row_is_believed(size: int, data: st.DataObject) -> None:
    with_ids = data.draw(st.integers(0, size))
    failed = data.draw(st.sets(st.integers(0, size - 1)))
    updated = data.draw(st.integers(0, min(with_ids, size - len(failed))))
    verdict = judge(batch(size, with_ids=with_ids), result(size - len(failed) - updated, updated, tuple(failed)), mode="upsert")
    assert verdict.state is BatchState.CONFIRMED
    assert verdict.failures == {index: f"no {index}" for index in failed}
    assert verdict.created + verdict.updated + len(verdict.failures) == size


@given(
    st.integers(1, 20),
    st.integers(-3, 25),
    st.integers(-3, 25),
    st.lists(st.integers(-3, 25), max_size=6),
    st.sampled_from(["create", "upsert"]),
    st.integers(0, 20),
)
def test_a_verdict_of_confirmed_always_adds_up(size: int, created: int, updated: int, failed: list[int], mode: str, with_ids: int) -> None:
    verdict = judge(batch(size, with_ids=min(with_ids, size)), result(created, updated, tuple(failed)), mode=mode)
    assert verdict.state in (BatchState.CONFIRMED, BatchState.IN_DOUBT)
    if verdict.state is BatchState.CONFIRMED:
        assert created >= 0 <= updated
        assert created + updated + len(set(failed)) == size == created + updated + len(failed)
        assert set(failed) <= set(range(size))
        assert updated == 0 or mode == "upsert"
    else:
        assert verdict.reason


@pytest.mark.parametrize(
    "error",
    [
        NetworkError("timeout", outcome_unknown=True),
        ServiceError("500", status=500, outcome_unknown=True),
        ServiceError("503", status=503),
        ServiceError("not JSON", status=200, outcome_unknown=True),
        RejectedError("408", status=408),
        RateLimitedError("429 of a proxy", status=429, outcome_unknown=True),
    ],
)
def test_whatever_may_have_been_applied_is_in_doubt(error: CrmctlError) -> None:
    verdict = judge(batch(), error, mode="create")
    assert (verdict.state, verdict.repeatable, verdict.fatal) == (BatchState.IN_DOUBT, False, None)


@pytest.mark.parametrize(("with_ids", "mode", "repeatable"), [(4, "upsert", True), (3, "upsert", False), (4, "create", False)])
def test_only_an_upsert_with_every_id_may_be_repeated(with_ids: int, mode: str, repeatable: bool) -> None:
    assert judge(batch(with_ids=with_ids), ServiceError("500", status=500), mode=mode).repeatable is repeatable


@pytest.mark.parametrize(
    "error",
    [
        DeniedError("401", status=401),
        DeniedError("403", status=403),
        NotFoundError("404", status=404),
        RateLimitedError("429"),
        NetworkError("refused"),
    ],
)
def test_a_permanent_failure_without_effect_stops_the_job(error: CrmctlError) -> None:
    verdict = judge(batch(), error, mode="create")
    assert (verdict.state, verdict.fatal) == (BatchState.PLANNED, error)


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refusal_of_the_whole_batch_is_split_down_to_the_row(status: int) -> None:
    error = RejectedError("bad", status=status)
    assert judge(batch(2), error, mode="create").state is BatchState.BISECT
    assert judge(batch(2), error, mode="create").too_large is (status == 413)
    single = judge(batch(1), error, mode="create")
    assert (single.state, single.failures) == (BatchState.CONFIRMED, {0: "bad"})


def test_refusing_all_accounts_for_all() -> None:
    verdict: Any = refuse_all(batch(3), "no")
    assert (verdict.state, verdict.created, verdict.failures) == (BatchState.CONFIRMED, 0, {0: "no", 1: "no", 2: "no"})
