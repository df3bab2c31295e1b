"""Bulk deletions over a real socket: accepted ids, requests and messages."""

from __future__ import annotations

import gzip
from itertools import chain
from pathlib import Path

import pytest

from crmctl.client.crm import Crm
from crmctl.errors import RejectedError, UsageError
from crmctl.plan.changes import read_ids
from crmctl.read.records import scan
from crmctl.read.stable_pages import Listing, SeenIds
from crmctl.write.steps import StepOutcome, StepSender, deletions, take_steps
from tests.support.bulkjobs import Silent
from tests.support.bulkserver import OBJECT_ID, BulkServer, Fault
from tests.support.clock import FakeClock

A, B = "aaaaaaaa-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"


def ids_of(path: Path) -> list[str]:
    with SeenIds() as ids:
        read_ids(path, path.name, ids)
        return [*chain.from_iterable(ids.chunks(2))]


@pytest.mark.parametrize(
    "text",
    [
        f"{A}\n{B}\n",
        f"\ufeff\n  {A.upper()}\r\n\r\n{B}\n{A}",
        f"id\n{A}\n{B}\n",
        f"name,ID\nAda,{A}\n\nBob,{B}\nBob,{B}\n",
        f'{{"id": "{A}"}}\n{{"id": "{B}", "x": 1}}\n',
        f'[{{"id": "{A}"}}, {{"id": "{B}"}}]',
        f'["{A}", "{B}"]',
        f'\ufeff[\r\n  "{A.upper()}",\r\n  "{A}",\r\n  "{B}"\r\n]\r\n',
        f'"{A}"\n"{B}"\n"{A}"\n',
        f'\ufeffname;ID\r\n\r\nAda;{A.upper()}\r\n"Bo\nb";{B}\r\n',
    ],
    ids=["lines", "odd lines", "one column", "csv", "jsonl", "json", "array", "odd array", "strings", "odd csv"],
)
def test_ids_come_from_lines_or_from_an_id_column(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    assert ids_of(path) == [A, B]


def test_an_export_that_was_packed_can_be_given_back(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv.gz"
    path.write_bytes(gzip.compress(f"id,name\n{A},Ada\n{B},Bob\n".encode()))
    assert ids_of(path) == [A, B]


@pytest.mark.parametrize(("text", "line"), [(f"{A}\nnonsense\n", 2), (f"nonsense\n{A}\n", 1), (f"id,n\n{A},1\n12,2\n", 3)])
def test_a_malformed_id_is_named_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(RejectedError) as caught:
        ids_of(path)
    assert caught.value.details[0]["line"] == line


@pytest.mark.parametrize("text", ["", "\ufeff", "\n \r\n\n", "[]", " [ ]\n", "id\n", "id,name\r\n"])
def test_a_file_without_rows_is_nothing_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    assert ids_of(path) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", 1), ("\n\n{}\n", 3), ("[{}]", 1), ('[\n{"id": null},\n{"x": 1}]', 2), ('{"name": "Ada"}\n', 1), ("null\n", 1),
        ("[1, 2]", 1), ("[null]", 1), ("[[]]", 1), ("hello\nworld\n", 1), ("{\n", 1), ("id,name\n,Ada\n,Bob\n", 2),
        ("id\nnone\n", 2), ('{"ids": []}', 1), ("name,age\nAda,36\n", 1), ("x\n" * 50, 1),
    ],
)  # fmt: skip
def test_a_file_that_holds_something_but_no_id_is_a_usage_error_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"ids, line {line}: "):
        ids_of(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f'{{"id": "{A}"}}\n{{}}\n', 2), (f'[{{"id": "{A}"}},\n{{"id": 7}}]', 2), (f'["{A}",\n\n"x"]', 3), (f"id,n\n{A},1\n,2\n", 3),
        (f"{A}\n{{}}\n", 2), (f"{A}\n\n{A} {B}\n", 3), ("x\n" * 50 + A, 1), (f'{{"id": "{A}"}}\n{{"id"\n', 2),
    ],
)  # fmt: skip
def test_anything_beside_ids_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(RejectedError, match=f"ids, line {line}: .*nothing was written"):
        ids_of(path)


def test_a_table_without_a_column_of_ids_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    path.write_text("name,age\nAda,36\n")
    with pytest.raises(UsageError):
        ids_of(path)
    with pytest.raises(UsageError):
        ids_of(tmp_path / "absent")


def delete(server: BulkServer, wanted: list[str]) -> StepOutcome:
    return delete_counted(server, wanted)[0]


def delete_counted(server: BulkServer, wanted: list[str]) -> tuple[StepOutcome, int]:
    """Delete the records; also return the number of requests."""
    with SeenIds() as ids:
        for each in wanted:
            ids.add(each)
        crm = server.crm()
        return delete_all(crm, ids), crm.session.take_requests()


def delete_all(crm: Crm, ids: SeenIds) -> StepOutcome:
    return take_steps(StepSender(crm, FakeClock()), Silent(), deletions(OBJECT_ID, ids), len(ids), lambda _: None)


def test_ids_go_in_requests_of_100() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(250)])
    outcome, requests = delete_counted(server, [*ids[:230], A])
    assert [len(request) for request in server.deletes] == [100, 100, 31]
    assert [record["id"] for record in server.records] == ids[230:]
    assert (outcome.done, outcome.absent, outcome.left) == (231, 1, 0)
    assert requests == 3 + 2 + 31, "one look after a full count; after the last request one at each record, because one was gone"


@pytest.mark.parametrize("applies", [True, False])
def test_a_delete_of_unknown_outcome_is_repeated(applies: bool) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(10)])
    server.faults[0] = Fault(applies=applies, drop=True)
    outcome = delete(server, ids)
    assert server.records == []
    assert (outcome.done, outcome.absent) == (10, 0)


def test_a_delete_that_was_refused_and_carried_out_is_done() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(10)])
    server.faults[0] = Fault(applies=True, status=403)
    outcome = delete(server, ids)
    assert (server.records, outcome.done, outcome.absent, outcome.error) == ([], 10, 0, None)


def test_a_repeated_delete_that_deletes_too_few_reports_the_others() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(10)])
    server.faults[0] = Fault(status=503)
    accept = server.delete
    server.delete = lambda wanted: accept(wanted[:7])  # type: ignore[method-assign]
    outcome = delete(server, ids)
    assert [record["id"] for record in server.records] == ids[7:]
    assert (outcome.done, len(outcome.failed), outcome.absent) == (7, 3, 0)
    assert all("still there" in why for why in outcome.failed.values())


def test_a_delete_that_stays_doubtful_ends_the_run() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(250)])
    server.faults = {n: Fault(status=500) for n in range(9)}
    outcome = delete(server, ids)
    assert len(server.deletes) == 4
    assert (outcome.in_doubt, outcome.unsent) == (100, 150)
    assert outcome.error is not None


def test_a_refusal_of_the_whole_request_is_narrowed_down_to_the_id() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(8)])
    known, accept = set(ids), server.delete

    def all_or_nothing(wanted: list[str]) -> dict[str, int]:
        return accept(wanted)

    server.delete = all_or_nothing  # type: ignore[method-assign]
    server.faults = {0: Fault(status=400), 1: Fault(status=400), 2: Fault(status=400), 3: Fault(status=400)}
    outcome = delete(server, ids)
    assert len(known) - len(server.records) == 7
    assert (outcome.done, len(outcome.failed)) == (7, 1)


def test_a_record_called_missing_is_not_deleted_while_the_service_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crm, "get_object", lambda *_: None)
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(3)])
    server.faults = {n: Fault(status=404) for n in range(9)}
    outcome = delete(server, [*ids, A])
    assert (outcome.done, outcome.absent, len(outcome.failed), len(server.records)) == (1, 1, 3, 3)


def test_a_refused_key_stops_at_once() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(250)])
    server.faults[1] = Fault(status=403)
    outcome = delete(server, ids)
    assert len(server.deletes) == 2
    assert (outcome.done, outcome.unsent) == (100, 150)
    assert outcome.error is not None
    assert outcome.error.exit_code == 4


def test_all_ids_of_a_filter_are_collected_before_anything_is_deleted() -> None:
    server = BulkServer()
    with SeenIds() as ids:
        expected = server.seed([{"n": n} for n in range(350)])
        for page in scan(server.crm(), Listing(OBJECT_ID)):
            assert all(ids.add(record.id) for record in page)
        assert server.deletes == []
        assert sorted(chain.from_iterable(ids.chunks(100))) == sorted(expected)
        outcome = delete_all(server.crm(), ids)
        assert server.records == []
    assert outcome.done == 350
