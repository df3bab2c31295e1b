"""Undo of imports by key over a real socket: unchanged records are restored, once only, under any fault."""

from __future__ import annotations

import copy
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from crmctl.double_client import TestService
from crmctl.models.resources import Attribute
from crmctl.plan.undo import Undo
from crmctl.read import records as fetching
from crmctl.write.database import JobState
from crmctl.write.effect import StepStanding, standing
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import BulkServer, Fault
from tests.support.campaigns import rest_in_campaigns
from tests.support.cli import run_crmctl
from tests.support.keydesk import ATTRIBUTES, KeyDesk, counts, undo
from tests.support.patience import PATIENCE
from tests.support.warm_program import start_module

OLD, NEW = 250, 150
"""Existing records, all changed by the import, and records the import creates."""


@pytest.fixture
def desk(tmp_path: Path) -> KeyDesk:
    server = BulkServer()
    return KeyDesk(server, tmp_path)


def imported(desk: KeyDesk) -> list[dict[str, Any]]:
    """Import changes of all existing records, and new ones; return the records as they were before."""
    desk.server.seed([{"email": f"p{n}@acme.com", "note": f"old {n}", **({"n": n} if n % 2 else {})} for n in range(OLD)])
    before = copy.deepcopy(desk.server.records)
    text = "Email,Note,n\n" + "".join(f"P{n}@acme.com,new,{n + 1000}\n" for n in range(OLD + NEW))
    assert counts(desk.load(text, "email")) == {"updated": OLD, "created": NEW}
    desk.server.writes.clear()
    return before


def undone(desk: KeyDesk) -> Undo:
    desk.clock.advance(1)
    return undo(desk.folder, desk.server.origin, desk.server.crm(desk.clock), desk.clock)


def freeze_lists(server: BulkServer, records: list[dict[str, Any]]) -> None:
    """Let lists show these records from now on; a single record is shown as it is."""
    page = server.page

    def frozen(query: dict[str, list[str]]) -> dict[str, Any]:
        current, server.records = server.records, copy.deepcopy(records)
        try:
            return page(query)
        finally:
            server.records = current

    server.page = frozen  # type: ignore[method-assign]


def shown(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return data without empty attributes."""
    return [{slug: value for slug, value in record["data"].items() if value is not None} for record in records]


def test_an_undo_puts_everything_back_and_a_second_one_has_nothing_to_do(desk: KeyDesk) -> None:
    before = imported(desk)
    assert desk.store.list()[0].folder.joinpath("journal.sqlite").stat().st_mode & 0o777 == 0o600
    plan = undone(desk)
    assert (plan.left, plan.error, plan.restorable, plan.found) == ({}, None, OLD, NEW)
    assert shown(desk.server.records) == shown(before)
    assert desk.store.list()[0].state is JobState.UNDONE
    desk.server.writes.clear()
    desk.server.deletes.clear()
    desk.server.reads.clear()
    again = undone(desk)
    assert (again.left, again.work, again.done) == ({}, 0, OLD + NEW)
    assert (desk.server.writes, desk.server.deletes, desk.server.reads) == ([], [], [])


def test_records_changed_or_deleted_since_are_reported_and_stay(desk: KeyDesk) -> None:
    before = imported(desk)
    records = desk.server.records
    records[3]["data"]["note"] = "New"
    records[5]["data"]["n"] = None
    records[7]["data"]["note"] = "old 7"
    records[9]["data"] = {"email": "p9@acme.com", "note": "old 9", "n": 9}
    gone = records.pop(11)["id"]
    changed = {records[n]["id"]: copy.deepcopy(records[n]) for n in (3, 5, 9)}
    half_restored = records[7]
    plan = undone(desk)
    assert [(row["row"], row["attributes"]) for row in plan.changed.rows] == [(4, ["note"]), (6, ["n"])]
    assert (plan.gone.rows, plan.back) == ([{"row": 12, "id": gone}], 1)
    assert plan.left == {"conflicts": 2, "gone": 1}
    assert all(record == changed[record["id"]] for record in desk.server.records if record["id"] in changed)
    assert sum(record["data"]["note"] == f"old {n}" for n, record in enumerate(desk.server.records[:11])) == 9
    assert shown([half_restored]) == shown([before[7]])
    assert desk.store.list()[0].state is JobState.FINISHED


def test_a_change_during_the_prompt_is_seen(desk: KeyDesk) -> None:
    imported(desk)
    seen = 0

    def somebody(page: int) -> None:
        nonlocal seen
        if desk.server.reads[page].get("sort") == ["updated_at"]:
            seen += 1
            if seen == 2:  # the read after the answer
                record = desk.server.records[3]
                record["data"]["note"], record["updatedAt"] = "theirs", "2026-01-01T00:10:00.000000Z"

    desk.server.before_page = somebody
    plan = undone(desk)
    assert plan.left == {"conflicts": 1}
    assert desk.server.records[3]["data"]["note"] == "theirs"


UNCLEAR = [Fault(applies=True, drop=True), Fault(drop=True), Fault(status=502), Fault(applies=True, status=200, body=b"<html>")]


@pytest.mark.parametrize("fault", UNCLEAR)
def test_an_undo_repeats_writes_without_a_clear_answer(desk: KeyDesk, fault: Fault) -> None:
    before = imported(desk)
    desk.server.faults[1] = desk.server.faults[2] = fault
    assert undone(desk).left == {}
    assert shown(desk.server.records) == shown(before)


def test_a_record_the_service_refuses_is_named_and_the_others_are_put_back(desk: KeyDesk) -> None:
    before = imported(desk)
    desk.server.refuse_row = lambda data: "no old thing" if data.get("note") == "old 42" else None
    plan = undone(desk)
    assert (plan.left, plan.to_document()["rows"]["failed"]) == ({"failed": 1}, [{"row": 43, "error": "no old thing"}])
    desk.server.refuse_row = lambda _: None
    assert undone(desk).left == {}
    assert shown(desk.server.records) == shown(before)


def test_an_error_that_ends_it_leaves_the_rest_for_another_time(desk: KeyDesk) -> None:
    before = imported(desk)
    desk.server.faults[1] = Fault(status=401, body={"error": "unauthorized", "message": "no"})
    plan = undone(desk)
    assert plan.error is not None
    assert plan.left == {"failed": 150}
    desk.server.faults.clear()
    assert (plan.deleted, undone(desk).left) == (None, {})
    assert shown(desk.server.records) == shown(before)


@pytest.mark.parametrize("point", rest_in_campaigns(["restored:4", "restored:2", "marked:5", "restored:7", "restored:8", "marked:8"]))
def test_a_killed_undo_is_finished_by_the_next_one(double: TestService, point: str) -> None:
    people = double.client.records("people")

    def stored() -> list[dict[str, Any]]:
        return [record.data for record in people.list(order="asc")]

    old = [{"email": f"p{n}@acme.com", "notes": f"old {n}", **({"score": n} if n % 2 else {})} for n in range(OLD)]
    double.client.bulk.import_records("people", old)
    before = stored()
    new = [{"email": f"P{n}@acme.com", "notes": "new", "score": n + 1000} for n in range(OLD + NEW)]
    done = double.client.bulk.import_records("people", new, key="email", concurrency=1).summary.to_document()
    assert (done["updated"], done["created"]) == (OLD, NEW)
    words = ("bulk", "undo", "last", "--yes")
    with start_module("tests.support.commandchild", point, *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert (stored() == before) is point.endswith(":8")
    first = next(people.list(order="asc"))  # restored by now, then changed by another client
    people.update(first.id, {"notes": "theirs"})
    undone = run_crmctl(*words)
    assert (undone.code, undone.json()["conflicts"]) in ((0, 0), (10, 1)), undone
    assert stored() == [{**first.data, "notes": "theirs"}, *before[1:]]


def test_another_clients_record_with_the_same_key_is_not_deleted(desk: KeyDesk) -> None:
    assert counts(desk.load("Email,Note\na@acme.com,x\n", "email")) == {"created": 1}
    desk.server.add({"email": "A@acme.com", "note": "theirs"}, "2026-01-01T00:00:00.000001Z")
    plan = undone(desk)
    assert (plan.found, plan.left) == (1, {"conflicts": 1})
    assert [record["data"]["note"] for record in desk.server.records] == ["theirs"]


def test_a_created_record_with_later_additions_stays(desk: KeyDesk) -> None:
    assert counts(desk.load("Email,Note\na@acme.com,x\n", "email")) == {"created": 1}
    record = desk.server.records[0]
    record["data"]["phone"], record["updatedAt"] = "+44 20 7946 0958", "2026-01-01T00:10:00.000000Z"
    assert undone(desk).left == {"conflicts": 1}
    assert len(desk.server.records) == 1


def test_few_records_of_many_are_read_by_themselves(desk: KeyDesk) -> None:
    desk.server.seed([{"email": f"q{n}@acme.com"} for n in range(1000)])
    desk.server.seed([{"email": f"p{n}@acme.com", "note": "old"} for n in range(5)], lambda n: f"2026-01-01T00:10:0{n}Z")
    desk.load("Email,Note\n" + "".join(f"p{n}@acme.com,new\n" for n in range(5)), "email")
    desk.server.reads.clear()
    assert undone(desk).left == {}
    assert len(desk.server.reads) == 3  # the newest record, the total, and the records changed since
    assert fetching.reading_cost(desk.server.crm(desk.clock), "people", 12) == (11, True)


KNOWN: dict[str, Attribute] = {each.slug: each for each in ATTRIBUTES} | {
    "firm": attribute("firm", "reference"),
    "price": attribute("price", "currency"),
}


@pytest.mark.parametrize(
    ("sent", "before", "current", "expected"),
    [
        ({"note": "b"}, {"note": "a"}, {"note": "b"}, StepStanding.AFTER),
        ({"note": "b"}, {"note": "a"}, {"note": "a"}, StepStanding.BEFORE),
        ({"note": "b"}, {"note": None}, {}, StepStanding.BEFORE),
        ({"note": "b"}, {"note": "a"}, {}, StepStanding.CHANGED),
        ({"note": "b"}, {"note": "a"}, {"note": "B"}, StepStanding.CHANGED),
        ({"note": "b", "n": 1}, {"note": "a"}, {"note": "b", "n": 2}, StepStanding.CHANGED),
        ({"note": "b", "n": 1}, {}, {"note": "b", "n": 2}, StepStanding.BEFORE),
        ({"email": "A@b.c"}, {"email": "x@b.c"}, {"email": "a@b.c"}, StepStanding.AFTER),
        ({"email": "A@b.c"}, {"email": "a@b.c"}, {"email": "A@b.c"}, StepStanding.AFTER),
        ({"phone": "+44 20 79"}, {"phone": None}, {"phone": "+442079"}, StepStanding.AFTER),
        ({"firm": "11"}, {"firm": {"id": "22"}}, {"firm": {"id": "11", "name": "x"}}, StepStanding.AFTER),
        ({"n": 12}, {"n": 1}, {"n": "12.0"}, StepStanding.AFTER),  # the service keeps this number as text
        ({"n": 12}, {"n": 1}, {"n": 12.0}, StepStanding.AFTER),
        ({"note": "b", "n": 2}, {"note": "a", "n": 1}, {"note": "b", "n": 1}, StepStanding.AFTER),  # half of it is already restored
        ({"price": "12.50"}, {"price": 1}, {"price": 12.5}, StepStanding.AFTER),
        ({"price": "12.50 EUR"}, {"price": 1}, {"price": {"amount": 12.5, "currency": "EUR"}}, StepStanding.AFTER),
        ({"price": "12.50"}, {"price": 1}, {"price": 12.6}, StepStanding.CHANGED),
        ({"sum": {"amount": 2}}, {"sum": {"amount": 1}}, {"sum": {"amount": 3}}, StepStanding.CHANGED),
    ],
)
def test_the_standing_of_a_record(sent: dict[str, Any], before: dict[str, Any], current: dict[str, Any], expected: StepStanding) -> None:
    assert standing(before, sent, current, KNOWN)[0] is expected


@pytest.mark.parametrize("times", ["kept", "static", "missing"])
def test_added_values_stay_whatever_times_the_service_sends(desk: KeyDesk, times: str) -> None:
    """The service adds a default and truncates notes, which is no edit. One client adds a value, another replaces one."""
    add = desk.server.add
    moment = "2026-01-01T00:05:00.000000Z"

    def stored(data: dict[str, Any], at: str | None = None) -> dict[str, Any]:
        record = add({**data, "note": str(data["note"])[:8], "stage": "new"}, at)
        record["updatedAt"] = record["createdAt"] if times == "kept" else {"static": record["createdAt"], "missing": None}[times]
        return record

    desk.server.add = stored  # type: ignore[method-assign]
    text = "Email,Note,n\n" + "".join(f"p{n}@acme.com,a note that is cut off {n},{n}\n" for n in range(10))
    assert counts(desk.load(text, "email")) == {"created": 10}
    records = desk.server.records
    records[3]["data"]["phone"] = "+39 06 1"
    records[5]["data"]["n"] = 5000
    for n in (3, 5):
        records[n]["updatedAt"] = moment if times == "kept" else records[n]["updatedAt"]
    plan = undone(desk)
    assert [row["row"] for row in plan.edited.rows] == [4, 6]
    assert [record["data"]["n"] for record in desk.server.records] == [3, 5000]
    assert plan.left == {"conflicts": 2}


def test_lists_that_show_the_state_before_the_import_do_not_count_as_an_undo(desk: KeyDesk) -> None:
    """The list is older than the import; its records look as if an earlier undo had restored them."""
    desk.server.seed([{"email": f"p{n}@acme.com", "note": f"old {n}"} for n in range(OLD)])
    before = copy.deepcopy(desk.server.records)
    assert counts(desk.load("Email,Note\n" + "".join(f"p{n}@acme.com,new\n" for n in range(OLD)), "email")) == {"updated": OLD}
    freeze_lists(desk.server, before)
    plan = undone(desk)
    assert (plan.left, plan.error, plan.restorable, plan.back, plan.done) == ({}, None, OLD, 0, 0)
    assert shown(desk.server.records) == shown(before)


@pytest.mark.parametrize("count", [20, NEW])
def test_records_that_a_list_from_before_the_import_lacks_are_deleted_not_called_undone(desk: KeyDesk, count: int) -> None:
    """The ids are known from an undo that stopped before its first deletion."""
    desk.server.seed([{"email": f"p{n}@acme.com"} for n in range(5)])
    before = copy.deepcopy(desk.server.records)
    assert counts(desk.load("Email,Note\n" + "".join(f"n{n}@acme.com,new\n" for n in range(count)), "email")) == {"created": count}
    desk.server.faults.update(dict.fromkeys(range(len(desk.server.deletes), 100), Fault(status=403)))
    assert undone(desk).error is not None
    desk.server.faults.clear()
    freeze_lists(desk.server, before)
    plan = undone(desk)
    assert (plan.error, plan.left, plan.found, plan.done) == (None, {}, count, 0)
    assert shown(desk.server.records) == shown(before)
