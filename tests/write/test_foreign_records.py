"""Another client creates a record with the key of a row in doubt: crmctl takes it neither for the row's record nor for a copy."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.transport import Response
from crmctl.write.database import RowState
from crmctl.write.journal import Journal, RowEntry, surplus_records
from crmctl.write.reconcile import TAKEN
from tests.support.bulkjobs import header
from tests.support.clock import FakeClock
from tests.support.faultruns import ORIGIN, Scenario, audit_job, rows_for, run_once
from tests.support.faultservice import Fault, FaultService, Lost

ROW = 7
"""The second batch, rows 6 to 10."""

RECOGNIZED: list[dict[str, Any]] = [{"unique": "email"}, {"keys": ["email"], "key_types": ["email"]}]
THEIRS = {"n": -1, "note": "theirs", "email": f"P{ROW}@acme.com"}


class Shared(FaultService):
    """Let another client create a record with the row's key before, or after, the second write."""

    comes = "before"

    def _write(self, body: dict[str, Any], timeout: float) -> Response:
        is_second = self.writes == 1
        if is_second and self.comes == "before":
            self.create(THEIRS)
        try:
            return self._do(body, timeout)
        finally:
            if is_second and self.comes == "after":
                self.create(THEIRS)

    def _do(self, body: dict[str, Any], timeout: float) -> Response:
        return super()._write(body, timeout)


class Enforced(Shared):
    """Refuse the row alone, or with its batch (`as_a_whole`); lose the answer to the second write, or not."""

    as_a_whole = is_lost = False

    def _do(self, body: dict[str, Any], timeout: float) -> Response:
        self.writes += 1
        taken = {str(one["wire"]["data"]["email"]).casefold() for one in self.records}
        failed = [{"index": at, "error": "email is taken"} for at, row in enumerate(body["records"]) if row["data"]["email"] in taken]
        if failed and self.as_a_whole:
            return _answer(409, {"error": "conflict", "message": "email is taken"})
        good = [row for at, row in enumerate(body["records"]) if at not in {one["index"] for one in failed}]
        self._apply(good)
        if self.writes == 2 and self.is_lost:
            raise Lost
        return _answer(200, {"created": len(good), "updated": 0, "failed": failed})


def _answer(status: int, document: Any) -> Response:
    return Response(status, {"content-type": "application/json"}, json.dumps(document).encode())


def imported(folder: Path, service: FaultService, recognized: dict[str, Any]) -> tuple[RowEntry, dict[int, list[str]]]:
    """Return the job's and the audit's state of the row, and the records they call surplus; every other row must exist."""
    Journal.create(folder, dataclasses.replace(header(origin=ORIGIN), **recognized), service.clock).close()
    with closing(Journal(folder, service.clock)) as journal:
        rows = rows_for("unique")
        run_once(service, journal, rows, Scenario("unique"), service.clock)  # type: ignore[arg-type]
        service.clock.sleep(1000)
        audit_job(service, journal, rows, service.clock)  # type: ignore[arg-type]
        states = journal.rows(1, len(rows))
        assert {row: entry.state for row, entry in states.items() if row != ROW} == {
            row.ordinal: RowState.CREATED for row in rows if row.ordinal != ROW
        }
        return states[ROW], surplus_records(journal)


def ids(service: FaultService, note: str) -> list[str]:
    return [one["wire"]["id"] for one in service.records if one["wire"]["data"]["note"] == note]


@pytest.mark.parametrize("recognized", RECOGNIZED, ids=str)
@pytest.mark.parametrize("comes", ["before", "after"])
def test_the_record_with_the_written_values_is_the_row_and_the_other_no_copy(
    tmp_path: Path, comes: str, recognized: dict[str, Any]
) -> None:
    service = Shared(FakeClock(), {1: Fault("drop, applied all", "all", "drop")})
    service.comes = comes
    entry, duplicates = imported(tmp_path / "job", service, recognized)
    assert (entry.state, [entry.record_id], duplicates) == (RowState.CREATED, ids(service, f"row {ROW}"), {})


@pytest.mark.parametrize("recognized", RECOGNIZED, ids=str)
def test_a_repeating_proxy_is_reported_with_its_own_records_only(tmp_path: Path, recognized: dict[str, Any]) -> None:
    service = Shared(FakeClock(), {1: Fault("drop, applied twice", "twice", "drop")})
    entry, duplicates = imported(tmp_path / "job", service, recognized)
    assert {str(entry.record_id), *duplicates[ROW]} == set(ids(service, f"row {ROW}"))
    assert sorted(map(len, duplicates.values())) == [1] * 5


@pytest.mark.parametrize("recognized", RECOGNIZED, ids=str)
def test_a_record_of_another_client_does_not_make_an_unwritten_row_created(tmp_path: Path, recognized: dict[str, Any]) -> None:
    service = Shared(FakeClock(), {1: Fault("drop, applied no", "no", "drop")})
    entry, _ = imported(tmp_path / "job", service, recognized)
    assert (entry.state, entry.error) == (RowState.FAILED if "keys" in recognized else RowState.IN_DOUBT, TAKEN)


@pytest.mark.parametrize("recognized", RECOGNIZED, ids=str)
def test_a_row_refused_since_its_key_is_taken_is_not_called_created(tmp_path: Path, recognized: dict[str, Any]) -> None:
    for name, as_a_whole, is_lost, told in (
        ("whole", True, False, (RowState.FAILED, "email is taken")),
        ("row", False, False, (RowState.FAILED, "email is taken")),
        ("lost", False, True, (RowState.FAILED if "keys" in recognized else RowState.IN_DOUBT, TAKEN)),
    ):
        service = Enforced(FakeClock())
        service.as_a_whole, service.is_lost = as_a_whole, is_lost
        entry, _ = imported(tmp_path / name, service, recognized)
        assert (entry.state, entry.error) == told, name
        assert ids(service, f"row {ROW}") == []
