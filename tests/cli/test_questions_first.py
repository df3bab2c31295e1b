"""A change of many records: the reads and the preview before its question, and errors that come before any question."""

from __future__ import annotations

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService

NIL = "00000000-0000-4000-8000-000000000000"


def test_ids_and_undo_are_read_by_lists_of_100(people: list[str], crm: RunningService) -> None:
    chosen = people[5:95]
    done = run_here("bulk", "update", "people", "--ids", "-", "--set", "status=new", "--yes", input="\n".join(chosen)).ok().json()
    assert done["updated"] == 90
    reads = [path for method, path in requests_of(crm) if method == "GET" and "/records" in path]
    assert len(reads) <= 5, reads
    crm.log.clear()
    undone = run_here("bulk", "undo", done["job"], "--yes").ok().json()
    assert undone["restored"] == 90
    reads = [path for method, path in requests_of(crm) if method == "GET" and "/records" in path]
    # Two of them learn whether lists are late; a list that shows its effect follows each write.
    assert len(reads) <= 8, reads
    assert run_here("records", "count", "people", "--filter", "status=new").ok().json() == {"count": 0}


def test_an_undo_sees_records_that_changed_since_and_deleted_ones(people: list[str], crm: RunningService) -> None:
    done = run_here("bulk", "update", "people", "--ids", "-", "--set", "status=new", "--yes", input="\n".join(people[:20])).ok().json()
    run_here("records", "update", "people", people[0], "--set", "status=customer").ok()
    run_here("records", "delete", "people", people[1], "--yes").ok()
    undone = run_here("bulk", "undo", done["job"], "--yes").exits(10)
    assert {name: undone.json()[name] for name in ("restored", "conflicts", "gone")} == {"restored": 18, "conflicts": 1, "gone": 1}


@pytest.mark.parametrize("command", [("update", "--set", "score=1"), ("delete",)])
def test_a_missing_file_of_ids_comes_before_the_question(crm: RunningService, command: tuple[str, ...]) -> None:
    verb, *options = command
    assert run_here("bulk", verb, "people", "--ids", "nowhere.txt", *options).exits(2).error()["code"] == "unreadable_file"
    code, shown = expect_exit(spawn("bulk", verb, "people", "--ids", "nowhere.txt", *options))
    assert (code, "cannot read nowhere.txt" in shown, "?" in shown) == (2, True, False)


@pytest.mark.parametrize(
    "words",
    [
        ("records", "delete", "people", NIL),
        ("activities", "delete", NIL),
        ("attributes", "delete", "people", "shoe_size"),
        ("objects", "delete", "boats"),
    ],
)
def test_a_missing_target_comes_before_the_question(crm: RunningService, words: tuple[str, ...]) -> None:
    code, shown = expect_exit(spawn(*words))
    assert (code, "Delete" in shown) == (3, False), shown


def test_the_question_names_the_record(people: list[str], crm: RunningService) -> None:
    terminal = spawn("records", "delete", "people", people[0])
    terminal.expect_exact("(person001@acme.com)")
    terminal.sendline("n")
    assert expect_exit(terminal)[0] == 130


def test_samples_show_names_and_findings_name_the_record(crm: RunningService) -> None:
    company = (
        run_here("records", "create", "companies", "--set", "name=Acme", "--set", "domain=acme.com", "-q", "id", "-r").ok().out.strip()
    )
    create = ("records", "create", "people", "--set", "name.first=Ada", "--set", "name.last=Byron")
    run_here(*create, "--set", "email=ada@acme.com", "--set", "address=Rome, Italy", "--set", f"company={company}").ok()
    update = ("bulk", "update", "people", "--filter", "email=ada@acme.com", "--dry-run", "-o", "table")
    cleared = run_here(*update, "--set", "company=").ok()
    assert "company: Acme → nothing" in cleared.out
    refused = run_here(*update, "--set", "address.city=Paris").exits(9)
    assert "Ada Byron: " in refused.err
    assert "line " not in refused.err


def test_the_history_shows_old_and_new_values_as_tables_do(crm: RunningService) -> None:
    run_here("records", "create", "companies", "--set", "name=Acme", "--set", "domain=acme.com").ok()
    deal = run_here("records", "create", "deals", "--set", "name=Big", "--set", "amount=1000 USD", "--set", "won=false").ok().json()["id"]
    run_here(
        "records", "update", "deals", deal, "--set", "amount=71558.99 USD", "--set", "won=true", "--set", "company.domain=acme.com"
    ).ok()
    rows = run_here("records", "history", "deals", deal, "-o", "table").ok().out
    assert [text for text in ("1,000.00 USD", "71,558.99 USD", "yes", "Acme") if text not in rows] == []
    amounts = [line for line in run_here("records", "history", "deals", deal).ok().json() if line["attribute"] == "amount"]
    assert amounts[0]["new"] == {"amount": 71558.99, "currency": "USD"}


def test_one_unique_value_for_several_records_is_an_error_without_a_job(people: list[str]) -> None:
    refused = run_here("bulk", "update", "people", "--filter", "email~@acme.com", "--set", "email=same@acme.com", "--yes").exits(9)
    assert (refused.error()["code"], "email must be unique" in refused.error()["message"]) == ("duplicate_value", True)
    assert run_here("bulk", "jobs").ok().json() == []
