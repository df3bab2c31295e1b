"""The audit of a finished import names every surplus record, also those that the first comparison could not see."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from crmctl.plan.audit import audit
from crmctl.plan.import_run import rows_of
from crmctl.read.read_back import Reader
from crmctl.write.database import RowState
from crmctl.write.journal import DUPLICATE, Journal
from crmctl.write.send_context import further_records
from tests.support.answerruns import AnsweringService, AnswerPlay, know_truth, rows_of_play
from tests.support.bulkjobs import Prepared, header
from tests.support.clock import FakeClock
from tests.support.faultruns import ORIGIN, ROWS, MovingClock, Scenario, client_of, rows_for, run_once
from tests.support.faultservice import Fault, FaultService, Habits

DOUBLED = Fault("drop, applied twice", "twice", "drop")
"""The second batch, rows 6 to 10, is written twice. Row 7 resembles row 6, row 9 row 8, and row 11, of the next batch, row 10."""


@pytest.mark.parametrize("habits", [Habits("as it is"), Habits("text altered", alters=True)], ids=lambda habits: habits.name)
@pytest.mark.parametrize("seen_before_the_next", [False, True], ids=["all looked at in the end", "one looked at before its twin was sent"])
@pytest.mark.parametrize("never_sent", [0, 1], ids=["all sent", "one more like them was never sent"])
def test_all_doubles_of_rows_that_are_alike_are_named(tmp_path: Path, habits: Habits, never_sent: int, seen_before_the_next: bool) -> None:
    clock = FakeClock()
    service, rows = FaultService(clock, {1: DOUBLED}, habits), rows_for("twins")
    Journal.create(tmp_path / "job", header(origin=ORIGIN), clock).close()
    with closing(Journal(tmp_path / "job", clock)) as journal:
        run_once(service, journal, rows, Scenario("twins"), clock)
        assert journal.counts()[RowState.CREATED] == ROWS
        # Reading back the second batch may find the next one in flight, or not. The audit has to work out the names without it.
        for record_id in further_records(journal):
            journal.keep(DUPLICATE, [(record_id, None)])
        if seen_before_the_next:
            own, further = (one["wire"]["id"] for one in service.records if (one["write"], one["wire"]["data"]["n"]) == (1, 5))
            journal.name_rows({10: own})
            journal.add_duplicates({10: [own, further]})
        clock.advance(1000)
        again = [*rows, *(Prepared(ROWS + 1, rows[9].data) for _ in range(never_sent))]
        found = audit(journal, Reader(client_of(service, clock), journal.header.object_id), rows_of(journal, lambda: again))
    there = Counter(one["wire"]["data"]["n"] for one in service.records)
    named = Counter(rows[row - 1].data["n"] for row, (_, extra) in found.duplicates.items() for _ in extra)
    assert named == there - Counter(row.data["n"] for row in rows) == {3: 2, 4: 2, 5: 1}


@pytest.mark.parametrize("alteration", ["truncates text", "alters the unique attribute", "sorts lists"])
@pytest.mark.parametrize("altered", [None, 8], ids=["all altered", "one altered"])
def test_doubles_that_the_service_altered_are_named(tmp_path: Path, alteration: str, altered: int | None) -> None:
    """The values sent match no record: only the best agreement tells which rows exist twice."""
    clock = MovingClock()
    told = AnswerPlay(alteration=alteration, altered=altered)
    service, rows = AnsweringService(clock, told), rows_of_play(told)
    Journal.create(tmp_path / "job", header(origin=ORIGIN), clock).close()
    with closing(Journal(tmp_path / "job", clock)) as journal:
        service.faults = {1: Fault("drop, applied all", "all", "drop")}
        know_truth(service, rows)
        run_once(service, journal, rows, Scenario("content"), clock)
        assert journal.counts()[RowState.CREATED] == len(rows)
        service._apply([{"data": row.data | {"_truth": row.ordinal}} for row in rows[5:10]])
        clock.advance(1000)
        found = audit(journal, Reader(client_of(service, clock), journal.header.object_id), rows_of(journal, lambda: rows))
    there = {one["wire"]["id"]: one["wire"]["data"]["_truth"] for one in service.records}
    named = {row: [there[record_id] for record_id in extra] for row, (_, extra) in found.duplicates.items()}
    assert named == {row: [row] for row in range(6, 11)}
