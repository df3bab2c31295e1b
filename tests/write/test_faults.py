"""Imports under faults: whichever request fails and whenever crmctl dies, every row exists once, or the job names it."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from crmctl.write.database import RowState
from crmctl.write.journal import Journal
from tests.support.bulkjobs import new_journal, prepared, run
from tests.support.campaigns import rest_in_campaigns
from tests.support.clock import FakeClock
from tests.support.faultruns import POINTS, RECOGNITIONS, Scenario, fault_pairs, play, single_faults
from tests.support.faultservice import FAULTS, READING, FaultServer, FaultService, Habits

BY_NAME = {fault.name: fault for fault in FAULTS}
EVERY = 100
"""The tests play every 100th scenario; benchmarks/fault_runs.py plays all of them."""


def sample(scenarios: list[Scenario]) -> list[list[Scenario]]:
    """Return every EVERY-th scenario, always the same ones, in four portions."""
    chosen = random.Random(7).sample(scenarios, len(scenarios) // EVERY)
    return [chosen[start::4] for start in range(4)]


@pytest.mark.parametrize("portion", rest_in_campaigns(range(4)))
def test_no_single_fault_and_no_pair_loses_or_doubles_a_row(portion: int) -> None:
    for scenario in (*sample(single_faults())[portion], *sample(fault_pairs())[portion]):
        outcome = play(scenario)
        assert outcome.is_right, f"{scenario}: {outcome}"


@pytest.mark.parametrize("recognition", RECOGNITIONS)
@pytest.mark.parametrize("name", ["502 html, applied all", "502 html, applied no", "hang, applied half", "drop, applied late"])
def test_rows_are_settled_wherever_possible(recognition: str, name: str) -> None:
    """If the service behaves, no row stays in doubt."""
    outcome = play(Scenario(recognition, ((1, BY_NAME[name]),)))
    assert (outcome.is_right, outcome.duplicates) == (True, 0)
    assert outcome.in_doubt == 0 or recognition == "twins"


@pytest.mark.parametrize("recognition", RECOGNITIONS)
def test_lists_that_hide_an_acknowledged_batch_prove_no_other_batch_absent(recognition: str) -> None:
    """The lists stop between two acknowledged batches. The first batch, carried out late, is in doubt and must not be sent again."""
    outcome = play(Scenario(recognition, ((0, BY_NAME["500, applied late"]),), Habits(stopped=2)))
    assert outcome.is_right
    assert outcome.in_doubt == 15


def test_a_row_written_twice_by_a_proxy_is_named_with_both_records() -> None:
    for recognition in RECOGNITIONS:
        assert play(Scenario(recognition, ((1, BY_NAME["drop, applied twice"]),))).duplicates == 5


@pytest.mark.parametrize("applies", ["no", "all", "half"])
def test_the_only_request_of_a_job_is_sent_again_only_where_the_lists_move(tmp_path: Path, applies: str) -> None:
    """Half of them prove that lists are current; no list of such a scenario may count as standing still."""
    service = FaultService(FakeClock(), {0: BY_NAME[f"500, applied {applies}"]})
    with closing(new_journal(tmp_path / "job")) as journal, FaultServer(service) as server:
        run_over_socket(server, service, journal, 50)
        assert journal.counts()[RowState.IN_DOUBT if applies == "no" else RowState.CREATED] == 50
    assert sorted(one["wire"]["data"]["n"] for one in service.records) == list(range(1, 51) if applies != "no" else [])


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 12, 40, 90, 110, 130])
def test_an_answer_cut_at_any_byte_changes_nothing(tmp_path: Path, cut: int, reset: bool) -> None:
    service = FaultService(FakeClock())
    with closing(new_journal(tmp_path / "job")) as journal, FaultServer(service, cut=cut, reset=reset) as server:
        run_over_socket(server, service, journal, 250)
        assert journal.counts()[RowState.CREATED] == 250
    assert sorted(one["wire"]["data"]["n"] for one in service.records) == list(range(1, 251))


def run_over_socket(server: FaultServer, service: FaultService, journal: Journal, rows: int) -> None:
    from crmctl.client.crm import Crm
    from crmctl.client.session import Session
    from crmctl.client.transport import HttpTransport
    from crmctl.config.credentials import Credential

    session = Session(server.origin, Credential("key", "test", server.origin), HttpTransport(), clock=service.clock)
    run(Crm(session), journal, prepared(rows), clock=service.clock)
    session.close()


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(
            "unique",
            ((0, BY_NAME["index out of range, applied no"]), (1, BY_NAME["no json, applied no"]), (2, BY_NAME["417, applied all"])),
        ),
        Scenario("content", ((0, BY_NAME["hang, applied no"]), (1, BY_NAME["hang, applied no"]), (2, BY_NAME["400"])), Habits(lag=40.0)),
    ],
    ids=str,
)
def test_a_refusal_among_doubts_does_not_deadlock_with_held_batches(scenario: Scenario) -> None:
    outcome = play(scenario)
    assert outcome.is_right
    assert outcome.in_doubt == 0


AFTER_THE_HANDLER = [fault for fault in FAULTS if not fault.comes_first]
TROUBLE = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(AFTER_THE_HANDLER)), max_size=5, unique_by=lambda pair: pair[0])
DEATHS = st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=4)


@pytest.mark.campaign
@settings(max_examples=20)
@given(st.sampled_from(RECOGNITIONS), TROUBLE, st.sampled_from(READING), DEATHS, st.sampled_from([120.0, 30.0]))
def test_any_number_of_faults_and_deaths(
    recognition: str, faults: list[tuple[int, object]], habits: Habits, deaths: list[tuple[str, int]], settle: float
) -> None:
    scenario = Scenario(recognition, tuple(faults), habits, tuple(deaths), settle)  # type: ignore[arg-type]
    assume(not scenario.is_beyond_promise)
    outcome = play(scenario)
    assert outcome.is_right, f"{scenario}: {outcome}"
