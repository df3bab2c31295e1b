"""`crmctl bulk import --key` for users and scripts. tests/write and tests/plan test the inside."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService


def rows(count: int, score: int = 1) -> str:
    return "Email,Score\n" + "".join(f"p{number}@acme.com,{score}\n" for number in range(count))


def load(text: str, *options: str) -> dict[str, int]:
    Path("people.csv").write_text(text, encoding="utf-8")
    done = run_here("bulk", "import", "people", "people.csv", "--key", "email", *options).ok().json()
    return {name: done[name] for name in ("created", "updated", "unchanged", "skipped")}


def test_the_same_file_twice_changes_nothing(crm: RunningService) -> None:
    assert load(rows(150)) == {"created": 150, "updated": 0, "unchanged": 0, "skipped": 0}
    before = crm.outbox()
    assert load(rows(150)) == {"created": 0, "updated": 0, "unchanged": 150, "skipped": 0}
    assert crm.outbox() == before
    assert load(rows(160, score=2).replace("acme.com", "ACME.com")) == {"created": 10, "updated": 150, "unchanged": 0, "skipped": 0}
    assert run_here("records", "count", "people").ok().json() == {"count": 160}


def test_a_row_without_a_record_is_skipped_although_its_amount_lacks_a_currency(crm: RunningService) -> None:
    path = f"/api/v1/objects/{crm.object_id('people')}"
    crm.client.post(f"{path}/attributes", json={"name": "Worth", "type": "currency"}).raise_for_status()
    known = {"email": "p0@acme.com", "worth": {"amount": 5, "currency": "EUR"}}
    crm.client.post(f"{path}/records", json={"data": known}).raise_for_status()
    done = load("email,worth\np0@acme.com,9\nnone@acme.com,1\n", "--mode", "update")
    assert done == {"created": 0, "updated": 1, "unchanged": 0, "skipped": 1}


def test_a_dry_run_predicts_what_the_import_then_does(crm: RunningService) -> None:
    load(rows(150))
    before = crm.outbox()
    changed = rows(140).replace("p7@acme.com,1", "p7@acme.com,2") + "new@acme.com,1\nold@@,x\np8@acme.com,5\n"
    Path("people.csv").write_text(changed, encoding="utf-8")
    arguments = ("bulk", "import", "people", "people.csv", "--key", "email", "--on-error", "continue")
    predicted = run_here(*arguments, "--dry-run").exits(9).json()
    assert predicted["predicted"] == {"create": 1, "update": 1, "unchanged": 139, "skip": 0, "invalid": 2, "ambiguous": 0}
    assert (predicted["unsent"], predicted["unchanged"], predicted["rejected"], predicted["rows"]) == (2, 139, 2, 143)
    assert crm.outbox() == before
    assert "1 to create, 1 to update, 139 unchanged" in run_here(*arguments, "--dry-run", "-o", "table").exits(9).out
    done = run_here(*arguments).exits(10).json()
    assert (done["created"], done["updated"], done["unchanged"], done["rejected"]) == (1, 1, 139, 2)
    assert done["requests"] <= predicted["requests"] <= done["requests"] + 4, "the schema is cached by then"


def test_more_changes_than_wanted_are_refused_before_any_write(crm: RunningService) -> None:
    load(rows(50))
    before = crm.outbox()
    Path("people.csv").write_text(rows(50, score=2), encoding="utf-8")
    arguments = ("bulk", "import", "people", "people.csv", "--key", "email")
    for guard in (("--expect", "49"), ("--max-changes", "49"), ("--max-changes", "99.5%")):
        run_here(*arguments, *guard, "--dry-run").exits(9)
        refused = run_here(*arguments, *guard).exits(9)
        assert (refused.json()["unsent"], refused.error()["code"]) == (50, "unexpected_changes")
        assert run_here("bulk", "resume", refused.json()["job"]).exits(9).error()["code"] == "rejected_job"
    assert crm.outbox() == before
    run_here(*arguments, "--max-changes", "many").exits(2)
    assert run_here(*arguments, "--expect", "50", "--max-changes", "100%").ok().json()["updated"] == 50
    assert run_here(*arguments, "--expect", "0").ok().json()["unchanged"] == 50


def test_an_impossible_key_is_refused_before_any_request(crm: RunningService) -> None:
    Path("people.csv").write_text(rows(1), encoding="utf-8")
    wrong = run_here("bulk", "import", "people", "people.csv", "--key", "emial").exits(2)
    assert "emial" in wrong.error()["message"]
    run_here("bulk", "import", "people", "people.csv", "--key", "email", "--mode", "create").exits(2)
    run_here("bulk", "import", "people", "people.csv", "--key", "email", "--on-duplicate-key", "any").exits(2)
    assert {method for method, _ in requests_of(crm)} <= {"GET"}


def test_one_row_takes_a_read_a_look_up_and_a_write(crm: RunningService) -> None:
    """Return the greatest number of requests for a file of changed or new rows, whatever the number of records.

    The requests for objects and attributes are not counted. A changed record is read once more. A new row takes one more request, which
    shows that the lookup would have found the record; if the service does not keep the key unique, it takes another one, which shows
    records that other clients created meanwhile.
    """
    load(rows(700))

    def asks(text: str) -> tuple[dict[str, int], list[str]]:
        crm.log.clear()
        done = load(text)
        return {name: count for name, count in done.items() if count}, [method for method, path in requests_of(crm) if "/records" in path]

    assert asks("Email,Score\nP7@ACME.com,1\n") == ({"unchanged": 1}, ["GET", "GET"])
    assert asks("Email,Score\nP7@ACME.com,2\n") == ({"updated": 1}, ["GET", "GET", "POST", "GET"])
    assert asks("Email,Score\nnew@acme.com,2\n") == ({"created": 1}, ["GET", "GET", "GET", "POST", "GET"])
    assert run_here("records", "count", "people").ok().json() == {"count": 701}
