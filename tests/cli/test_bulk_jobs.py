"""`bulk jobs`, `repair` and `undo`, and the import flags that belong to them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.cli.test_bulk import rows, write
from tests.support.inprocess import run_here
from tests.support.service import RunningService


def imported(*options: str, count: int = 150) -> dict[str, object]:
    write("people.csv", rows(count))
    summary: dict[str, object] = run_here("bulk", "import", "people", "people.csv", *options).ok().json()
    return summary


def count() -> int:
    return int(run_here("records", "count", "people").ok().json()["count"])


def test_a_job_is_shown_and_removed(crm: RunningService) -> None:
    job = str(imported(count=3)["job"])
    assert run_here("bulk", "jobs", job).ok().json()["created"] == 3
    assert "--yes" in run_here("bulk", "jobs", job, "--remove").exits(2).error()["hint"]
    assert run_here("bulk", "jobs", job, "--remove", "--yes").ok().json() == {"removed": job}
    assert run_here("bulk", "jobs").ok().json() == []
    run_here("bulk", "jobs", job).exits(3)


def test_undo_deletes_created_records_and_keeps_changed_ones(crm: RunningService) -> None:
    run_here("records", "create", "people", "--set", "email=before@acme.com").ok()
    job = str(imported()["job"])
    edited = run_here("records", "list", "people", "--filter", "email=p7@acme.com").ok().json()[0]["id"]
    run_here("records", "update", "people", edited, "--set", "score=99").ok()
    shown = run_here("bulk", "undo", job, "--dry-run").ok().json()
    assert (shown["dryRun"], shown["found"], shown["conflicts"]) == (True, 149, 1)
    assert "--yes" in run_here("bulk", "undo", job).exits(2).error()["hint"]
    assert count() == 151
    done = run_here("bulk", "undo", job, "--yes").exits(10).json()
    assert (done["deleted"], done["rows"]["conflicts"]) == (149, [{"row": 8, "id": edited}])
    assert count() == 2
    again = run_here("bulk", "undo", job, "--yes").exits(10).json()
    assert (again["deleted"], again["undoneBefore"], again["conflicts"], again["unknown"]) == (0, 149, 1, 0)


def score_of(record_id: object) -> object:
    return run_here("records", "get", "people", str(record_id)).ok().json()["data"].get("score")


def test_undo_restores_records_changed_by_an_import_by_key(crm: RunningService) -> None:
    before = imported(count=120)
    everybody = {record["data"]["email"]: record["id"] for record in run_here("records", "list", "people", "--all").ok().json()}
    write("changes.csv", "Email,Score,Status\n" + "".join(f"P{n}@acme.com,{n + 1000},contacted\n" for n in range(150)))
    job = str(run_here("bulk", "import", "people", "changes.csv", "--key", "email").ok().json()["job"])
    run_here("records", "update", "people", everybody["p3@acme.com"], "--set", "score=7").ok()
    run_here("records", "delete", "people", everybody["p4@acme.com"], "--yes").ok()
    shown = run_here("bulk", "undo", job, "--dry-run").ok().json()
    assert (shown["restorable"], shown["found"], shown["gone"]) == (118, 30, 1)
    text = run_here("bulk", "undo", job, "--dry-run", "-o", "table").ok().out
    assert f"30 records to delete, 118 to put back; {shown['requests']} requests" in text
    assert score_of(everybody["p5@acme.com"]) == 1005
    done = run_here("bulk", "undo", job, "--yes").exits(10).json()
    assert (done["restored"], done["deleted"], done["conflicts"], done["gone"]) == (118, 30, 1, 1)
    assert shown["requests"] <= done["requests"] <= shown["requests"] + 6, "the undo also tests the lists"
    assert done["rows"]["conflicts"] == [{"row": 4, "id": everybody["p3@acme.com"], "attributes": ["score"]}]
    assert done["rows"]["gone"] == [{"row": 5, "id": everybody["p4@acme.com"]}]
    records = {record["id"]: record["data"] for record in run_here("records", "list", "people", "--all").ok().json()}
    assert len(records) == 119
    assert records[everybody["p3@acme.com"]] == {"email": "P3@acme.com", "score": 7, "status": "contacted"}
    assert all(
        records[one] == {"email": email, "score": int(email[1:-9])}
        for email, one in everybody.items()
        if email not in ("p3@acme.com", "p4@acme.com")
    )
    again = run_here("bulk", "undo", job, "--yes").exits(10).json()
    assert (again["restored"], again["deleted"], again["undoneBefore"], again["requests"]) == (0, 0, 148, 3)
    assert run_here("bulk", "undo", str(before["job"]), "--yes").exits(10).json()["deleted"] == 118


def test_undo_of_updates_by_id_names_records_it_cannot_restore(crm: RunningService) -> None:
    imported(count=3)
    write("ids.csv", run_here("records", "list", "people", "--all", "-o", "csv", "--fields", "id,score").ok().out)
    job = str(run_here("bulk", "import", "people", "ids.csv", "--mode", "upsert", "--set", "status=new").ok().json()["job"])
    done = run_here("bulk", "undo", job, "--yes").exits(10)
    assert (done.json()["restored"], done.json()["updatesKept"]) == (0, 3)
    assert "--key" in done.error()["hint"]


def test_undone_content_can_be_imported_again(crm: RunningService) -> None:
    job = str(imported()["job"])
    run_here("bulk", "undo", job, "--yes").ok()
    assert count() == 0
    assert imported()["created"] == 150


def test_undo_deletes_the_parents_it_created_unless_others_use_them(crm: RunningService) -> None:
    run_here("records", "create", "companies", "--set", "name=Umbrella").ok()
    umbrella = run_here("records", "list", "companies").ok().json()[0]["id"]
    run_here("records", "create", "people", "--set", "email=old@x.com", "--set", f"company={umbrella}").ok()
    write("people.csv", "Email,Company\na@x.com,Acme\nb@x.com,Umbrella\nold@x.com,Acme\nc@x.com,Used\nd@x.com,Edited\ne@x.com,Dealt\n")
    options = ("--key", "email", "--ref", "company=companies.name", "--on-missing-ref", "create")
    job = str(run_here("bulk", "import", "people", "people.csv", *options).ok().json()["job"])
    made = {record["data"]["name"]: record["id"] for record in run_here("records", "list", "companies").ok().json()}
    assert set(made) == {"Umbrella", "Acme", "Used", "Edited", "Dealt"}
    run_here("records", "create", "deals", "--set", "name=Big", "--set", f"company={made['Dealt']}").ok()
    run_here("records", "create", "people", "--set", "email=late@x.com", "--set", f"company={made['Used']}").ok()
    run_here("records", "update", "companies", made["Edited"], "--set", "domain=edited.org").ok()
    shown = run_here("bulk", "undo", job, "--dry-run").ok().json()
    assert (shown["found"], shown["restorable"], shown["parents"], shown["conflicts"]) == (5, 1, 3, 0)
    done = run_here("bulk", "undo", job, "--yes").exits(10).json()
    assert (done["deleted"], done["restored"], done["parentsDeleted"], done["parentsKept"]) == (5, 1, 1, 3)
    assert set(done["rows"]["parents"]) == {made["Used"], made["Edited"], made["Dealt"]}
    left = run_here("records", "list", "companies").ok().json()
    assert {record["data"]["name"] for record in left} == {"Umbrella", "Used", "Edited", "Dealt"}
    people = {record["data"]["email"]: record["data"].get("company") for record in run_here("records", "list", "people").ok().json()}
    assert people == {"old@x.com": umbrella, "late@x.com": made["Used"]}
    again = run_here("bulk", "undo", job, "--yes").exits(10).json()
    assert (again["deleted"], again["restored"], again["parentsDeleted"], again["parentsKept"]) == (0, 0, 0, 3)


def test_undo_of_rows_that_refer_to_one_another(crm: RunningService) -> None:
    people = crm.object_id("people")
    manager = {"name": "Manager", "type": "reference", "isRequired": False, "isUnique": False, "config": {"allowed_object_id": people}}
    assert crm.client.post(f"/api/v1/objects/{people}/attributes", json=manager).status_code == 201
    run_here("records", "create", "people", "--set", "email=boss@x.com").ok()
    boss = run_here("records", "list", "people").ok().json()[0]["id"]
    run_here("records", "create", "people", "--set", "email=old@x.com", "--set", f"manager={boss}").ok()
    write("people.csv", "Email,Manager\na@x.com,b@x.com\nb@x.com,a@x.com\nold@x.com,a@x.com\nlast@x.com,old@x.com\n")
    job = str(run_here("bulk", "import", "people", "people.csv", "--key", "email", "--ref", "manager=people.email").ok().json()["job"])
    linked = {record["data"]["email"]: record["data"].get("manager") for record in run_here("records", "list", "people").ok().json()}
    assert all(linked[email] not in (None, boss) for email in ("a@x.com", "b@x.com", "old@x.com", "last@x.com"))
    done = run_here("bulk", "undo", job, "--yes").ok().json()
    assert (done["deleted"], done["restored"]) == (3, 1)
    people_left = run_here("records", "list", "people").ok().json()
    assert {record["data"]["email"]: record["data"].get("manager") for record in people_left} == {"boss@x.com": None, "old@x.com": boss}


def test_a_dry_run_counts_the_requests_of_an_import_by_key(crm: RunningService) -> None:
    write("firms.csv", "Name\n" + "".join(f"Firm {n}\n" for n in range(120)))
    options = ("companies", "firms.csv", "--key", "name")
    predicted = run_here("bulk", "import", *options, "--dry-run").ok().json()["requests"]
    done = run_here("bulk", "import", *options, "--capture-ids").ok().json()
    assert done["created"] == 120
    assert predicted - 4 <= done["requests"] <= predicted + 3  # the lookup of the ids takes two or three
    ok = list(csv.DictReader(Path(done["files"]["ok"]).read_text(encoding="utf-8").splitlines()))
    assert len({row["_id"] for row in ok}) == 120


def test_resuming_a_finished_job_has_its_exit_code_and_writes_result_files_again(crm: RunningService) -> None:
    write("people.csv", "Email,Score\na@acme.com,1\nb@acme.com,many\n")
    done = run_here("bulk", "import", "people", "people.csv", "--on-error", "continue").exits(10).json()
    job, ok = str(done["job"]), Path(done["files"]["ok"])
    before = ok.read_text()
    ok.unlink()
    again = run_here("bulk", "resume", job, "--failed", "again.csv").exits(10).json()
    assert (again["created"], again["rejected"]) == (1, 1)
    assert ok.read_text() == before
    assert "b@acme.com,many" in Path("again.csv").read_text()
    Path("people.csv").unlink()
    assert run_here("bulk", "resume", job).exits(10).json()["created"] == 1
    assert count() == 1


def test_undo_with_include_changed_restores_changed_records_too(crm: RunningService) -> None:
    imported(count=3)
    ids = {record["data"]["email"]: record["id"] for record in run_here("records", "list", "people").ok().json()}
    write("changes.csv", "Email,Score\n" + "".join(f"p{n}@acme.com,{n + 1000}\n" for n in range(4)))
    job = str(run_here("bulk", "import", "people", "changes.csv", "--key", "email").ok().json()["job"])
    new = run_here("records", "list", "people", "--filter", "email=p3@acme.com").ok().json()[0]["id"]
    for record_id in (ids["p1@acme.com"], new):
        run_here("records", "update", "people", record_id, "--set", "score=7").ok()
    shown = run_here("bulk", "undo", job, "--dry-run").ok().json()
    assert (shown["restorable"], shown["found"], shown["conflicts"]) == (2, 0, 2)
    shown = run_here("bulk", "undo", job, "--include-changed", "--dry-run").ok().json()
    assert (shown["restorable"], shown["found"], shown["conflicts"]) == (3, 1, 0)
    done = run_here("bulk", "undo", job, "--include-changed", "--yes").ok().json()
    assert (done["restored"], done["deleted"]) == (3, 1)
    assert score_of(ids["p1@acme.com"]) == 1
    assert count() == 3


def test_rows_without_a_unique_value_are_distinguished_by_their_content(crm: RunningService) -> None:
    lines = ["name,domain", "Acme,acme.com", *(f"Company {number}," for number in range(5))]
    Path("companies.csv").write_text("\n".join(lines) + "\n")
    attribute = {"name": "Code", "type": "text", "isUnique": True}
    crm.client.post(f"/api/v1/objects/{crm.object_id('companies')}/attributes", json=attribute)
    run_here("bulk", "import", "companies", "companies.csv", "--map", "domain=code", "--capture-ids").ok()
    undone = run_here("bulk", "undo", "last", "--yes").ok().json()
    assert (undone["deleted"], undone["duplicates"]) == (6, 0)
    assert run_here("records", "count", "companies").ok().json() == {"count": 0}


def test_a_row_with_fewer_values_differs_from_rows_with_the_same_ones_and_more(crm: RunningService) -> None:
    rows = [{"name": "Acme"}, {"name": "Acme", "industry": "retail"}, {"name": "Acme", "employees": 3}]
    Path("companies.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_here("bulk", "import", "companies", "companies.jsonl", "--capture-ids").ok()
    undone = run_here("bulk", "undo", "last", "--yes").ok().json()
    assert (undone["deleted"], undone["unknown"]) == (3, 0)
