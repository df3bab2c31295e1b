"""`crmctl bulk` for users and scripts: summaries, exit codes, files, questions."""

from __future__ import annotations

import csv
import gzip
import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import expect_exit, spawn
from tests.support.inprocess import run_here
from tests.support.service import RunningService

KEYS = {
    "job", "object", "mode", "rows", "created", "updated", "unchanged", "failed", "rejected", "skipped", "inDoubt", "unsent", "duplicates",
    "requests", "elapsedSeconds", "files",
}  # fmt: skip
COUNTS = ("created", "updated", "unchanged", "failed", "rejected", "skipped", "inDoubt", "unsent")


def write(name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")


def rows(count: int, start: int = 0) -> str:
    return "Email,Score\n" + "".join(f"p{number}@acme.com,{number}\n" for number in range(start, start + count))


def test_an_import_and_its_summary(crm: RunningService) -> None:
    write("people.csv", rows(250))
    done = run_here("bulk", "import", "people", "people.csv", "--set", "status=new").ok()
    summary = done.json()
    assert set(summary) == KEYS
    assert (summary["rows"], summary["created"], summary["requests"], summary["mode"]) == (
        250, 250, len(requests_of(crm)), "create",
    )  # fmt: skip
    assert summary["rows"] == sum(summary[name] for name in COUNTS)
    assert run_here("records", "count", "people", "--filter", "status=new").ok().json() == {"count": 250}


def test_no_row_is_in_doubt_because_one_of_other_columns_is_empty(crm: RunningService) -> None:
    texts = {"name": "Ada", "email": "ada@acme.com", "job_title": "x", "birthday": "1990-01-01", "address": "x", "notes": "x"}
    filled = {**texts, "subscribed": True, "score": 1, "phone": "+49301234567"}
    write("people.jsonl", "".join(json.dumps(row) + "\n" for row in ({"tags": []}, *({slug: filled[slug]} for slug in filled))))
    assert run_here("bulk", "import", "people", "people.jsonl").ok().json()["created"] == 10


def test_a_dry_run_reports_everything_and_sends_nothing(crm: RunningService) -> None:
    write("people.csv", rows(250) + "not-an-address,x\n")
    shown = run_here("bulk", "import", "people", "people.csv", "--dry-run").exits(9)
    document = shown.json()
    assert (document["dryRun"], document["requests"], document["rejected"], document["unsent"]) == (
        True,
        len(requests_of(crm)) + 5,
        1,
        250,
    )
    found = {(item["line"], item["column"], item["value"]) for item in document["report"]["findings"]}
    assert found == {(252, "Email", "not-an-address"), (252, "Score", "x")}
    assert {method for method, _ in requests_of(crm)} == {"GET"}
    table = run_here("bulk", "import", "people", "people.csv", "--dry-run", "-o", "table").exits(9)
    assert "line 252, column Score: not a number (value 'x')" in table.err
    assert "251 rows: 250 valid, 1 invalid" in table.out
    assert run_here("bulk", "jobs").ok().json() == []


def test_one_bad_row_stops_everything_by_default(crm: RunningService) -> None:
    write("people.csv", rows(3) + "bad,1\n")
    stopped = run_here("bulk", "import", "people", "people.csv").exits(9)
    assert (stopped.json()["rejected"], stopped.json()["unsent"], stopped.json()["requests"]) == (1, 3, len(requests_of(crm)))
    assert stopped.error()["details"]["findings"][0]["line"] == 5
    assert crm.outbox() == []
    partly = run_here("bulk", "import", "people", "people.csv", "--on-error", "continue", "--failed", "again.csv").exits(10)
    assert (partly.json()["created"], partly.json()["rejected"]) == (3, 1)
    assert partly.error()["exitCode"] == 10
    assert partly.error()["hint"].startswith("again.csv holds the rows"), "the hint names the file that the user asked for"
    corrected = Path("again.csv").read_text(encoding="utf-8").replace("bad,", "good@acme.com,")
    write("again.csv", corrected)
    assert run_here("bulk", "import", "people", "again.csv").ok().json()["created"] == 1


def test_a_file_without_one_readable_record_is_invalid_and_not_misused(crm: RunningService) -> None:
    write("people.jsonl", '{"email":"a@acme.com","email":"b@acme.com"}\n{"email":\n')
    stopped = run_here("bulk", "import", "people", "people.jsonl").exits(9)
    assert [finding["code"] for finding in stopped.error()["details"]["findings"]] == ["duplicate_key", "invalid_json"]
    assert run_here("bulk", "jobs", "-o", "ids").ok().out == f"{stopped.json()['job']}\n"


@pytest.mark.parametrize("output", ["json", "table"])
def test_a_doubtful_value_is_written_and_warned_about(crm: RunningService, output: str) -> None:
    write("companies.csv", "Name\n1.23E+11\n")
    done = run_here("bulk", "import", "companies", "companies.csv", "-o", output).ok()
    assert "warning: line 2, column Name: a spreadsheet has probably turned a long number into this" in done.err
    assert run_here("records", "list", "companies", "-q", "[].data.name").ok().json() == ["1.23E+11"]


def test_the_same_content_is_not_imported_twice(crm: RunningService) -> None:
    write("companies.csv", "Name\nAcme\n")
    run_here("bulk", "import", "companies", "companies.csv").ok()
    assert "--again" in run_here("bulk", "import", "companies", "companies.csv").exits(2).error()["hint"]
    run_here("bulk", "import", "companies", "companies.csv", "--again").ok()
    assert run_here("records", "count", "companies").ok().json() == {"count": 2}


def test_upsert_by_id_from_stdin(people: list[str], crm: RunningService) -> None:
    text = "".join(json.dumps({"id": identity, "score": 1000 + place}) + "\n" for place, identity in enumerate(people[:120]))
    summary = run_here("bulk", "import", "people", "-", "--mode", "upsert", input=text).ok().json()
    assert (summary["updated"], summary["created"]) == (120, 0)
    assert run_here("records", "count", "people", "--filter", "score>=1000").ok().json() == {"count": 120}


def test_jobs_and_resume(crm: RunningService) -> None:
    write("people.csv", rows(5))
    job = run_here("bulk", "import", "people", "people.csv").ok().json()["job"]
    listed = run_here("bulk", "jobs").ok().json()
    assert [(item["job"], item["state"], item["resumable"]) for item in listed] == [(job, "finished", False)]
    assert run_here("bulk", "resume", job).ok().json()["created"] == 5
    assert run_here("bulk", "resume").exits(2).error()["code"] == "nothing_to_resume"
    assert run_here("bulk", "resume", "nothing").exits(3).out == ""


def test_a_job_whose_service_went_away_goes_on_later(crm: RunningService, tmp_path: Path) -> None:
    write("people.csv", rows(5))
    run_here("records", "count", "people").ok()
    denied = {"CRMCTL_API_KEY": crm.key_for(["objects:read", "attributes:read", "records:read"])}
    stopped = run_here("bulk", "import", "people", "people.csv", env=denied).exits(4)
    assert (stopped.json()["created"], stopped.json()["unsent"]) == (0, 5)
    assert stopped.error()["requiredScope"] == "records:write"
    assert stopped.error()["hint"] == f"crmctl bulk resume {stopped.json()['job']}"
    assert run_here("bulk", "resume", "--last", "--max-wait", "1").ok().json()["created"] == 5


@pytest.mark.parametrize(
    ("arguments", "text", "code", "said"),
    [
        (["missing.csv"], None, 2, "missing.csv"),
        (["people.csv"], "Email,Shoe size\na@acme.com,43\n", 2, "Shoe size"),
        (["people.csv"], "Email,Email\na@acme.com,b@acme.com\n", 2, "duplicate"),
        (["people.csv"], "Email,Score\na@acme.com\n", 9, "invalid"),
        (["people.csv", "--mode", "merge"], "Email\n", 2, "create, upsert or update"),
        (["people.csv", "--on-error", "panic"], "Email\n", 2, "stop or continue"),
        (["people.csv", "--mode", "upsert"], "Email\na@acme.com\n", 2, "record ids"),
        (["people.csv", "--map", "Nope=email"], "Email\na@acme.com\n", 2, "Nope"),
    ],
)
def test_import_refusals(crm: RunningService, arguments: list[str], text: str | None, code: int, said: str) -> None:
    if text is not None:
        write("people.csv", text)
    refused = run_here("bulk", "import", "people", *arguments).exits(code)
    assert said in json.dumps(refused.error())
    assert crm.outbox() == []


def test_export_to_stdout_and_to_files(people: list[str], crm: RunningService) -> None:
    lines = run_here("bulk", "export", "people").ok().lines()
    assert [record["id"] for record in lines] == people
    some = run_here("bulk", "export", "people", "--filter", "email endsWith @example.org", "-o", "csv").ok()
    assert len(list(csv.reader(some.out.splitlines()))) == 41
    summary = run_here("bulk", "export", "people", "-O", "people.jsonl.gz").ok().json()
    assert (summary["rows"], summary["format"], summary["file"]) == (120, "jsonl", "people.jsonl.gz")
    with gzip.open("people.jsonl.gz", "rt", encoding="utf-8") as file:
        assert [json.loads(line)["id"] for line in file] == people
    assert "--yes" in run_here("bulk", "export", "people", "-O", "people.jsonl.gz").exits(2).error()["hint"]
    run_here("bulk", "export", "people", "-O", "people.jsonl.gz", "--yes").ok()
    assert run_here("bulk", "export", "people", "-O", "people.docx").exits(2).error()["code"] == "unknown_format"
    assert run_here("bulk", "export", "people", "-o", "ids").exits(2).out == ""


@pytest.mark.parametrize(
    "command",
    [
        "bulk delete people --filter email=nobody@example.com --yes",
        "bulk update people --filter email=nobody@example.com --set notes=x --yes",
        "bulk dedupe people --match email --plan plan.jsonl",
        "org pull folder",
        "mirror sync",
        "mirror verify",
    ],
)
def test_a_summary_counts_the_requests_of_its_process(people: list[str], crm: RunningService, command: str) -> None:
    """Count all requests, also those for the schema and those of a command that has nothing to do."""
    if command == "mirror verify":
        run_here("mirror", "sync").ok()
    before = len(requests_of(crm))
    done = run_here(*command.split()).ok()
    said = re.search(r"(\d+) requests", done.err) if command.startswith("mirror") else None
    assert (int(said[1]) if said else done.json()["requests"]) == len(requests_of(crm)) - before


def test_delete_by_ids_and_by_filter(people: list[str], crm: RunningService) -> None:
    write("ids.txt", "\n".join(people[:101]))
    earlier = len(requests_of(crm))
    shown = run_here("bulk", "delete", "people", "--ids", "ids.txt", "--dry-run").ok().json()
    reads = len(requests_of(crm)) - earlier
    assert (shown["method"], shown["records"], shown["requests"]) == ("DELETE", 101, reads + 2 + 2)
    assert "--yes" in run_here("bulk", "delete", "people", "--ids", "ids.txt").exits(2).error()["hint"]
    assert {method for method, _ in requests_of(crm)} <= {"GET"}
    before = len(requests_of(crm))
    done = run_here("bulk", "delete", "people", "--ids", "-", "--yes", input="\n".join(people[:101])).ok().json()
    assert (done["deleted"], done["requests"]) == (101, len(requests_of(crm)) - before)
    by_filter = run_here("bulk", "delete", "people", "--filter", "email~example", "--yes").ok().json()
    assert by_filter["deleted"] == 7
    assert run_here("records", "count", "people").ok().json() == {"count": 12}
    assert run_here("bulk", "delete", "people", "--yes").exits(2).out == ""
    write("bad.txt", f"{people[110]}\nnot-an-id\n")
    assert run_here("bulk", "delete", "people", "--ids", "bad.txt", "--yes").exits(9).error()["code"] == "malformed_id"


def test_the_question_before_a_deletion_says_how_many(people: list[str], crm: RunningService) -> None:
    terminal = spawn("bulk", "delete", "people", "--filter", "score>100")
    terminal.expect("Delete 20 records of people")
    terminal.sendline("n")
    assert expect_exit(terminal)[0] == 130
    assert run_here("records", "count", "people").ok().json() == {"count": 120}


def test_inspect(crm: RunningService) -> None:
    write("contacts.csv", "Work Email;Score\na@acme.com;1\nb@acme.com;\n")
    report = run_here("bulk", "inspect", "contacts.csv", "--object", "people").ok().json()
    assert (report["rows"], report["dialect"]["delimiter"], report["unknown"], report["map"]) == (
        2,
        ";",
        ["Work Email"],
        ["Work Email=email"],
    )
    assert [column["fillRate"] for column in report["columns"]] == [1.0, 0.5]
    table = run_here("bulk", "inspect", "contacts.csv", "--object", "people", "-o", "table").ok()
    assert "--map 'Work Email=email'" in table.err
    assert run_here("bulk", "inspect", "contacts.csv", env={"CRMCTL_BASE_URL": None, "CRMCTL_API_KEY": None}).ok().json()["rows"] == 2


@pytest.mark.parametrize(
    "arguments", [["import", "people", "people.csv"], ["delete", "people", "--ids", "ids.txt", "--yes"], ["resume", "--last"]]
)
def test_read_only_refuses_before_any_request(crm: RunningService, arguments: list[str]) -> None:
    write("people.csv", rows(1))
    write("ids.txt", "00000000-0000-0000-0000-000000000000\n")
    assert run_here("bulk", *arguments, env={"CRMCTL_READ_ONLY": "1"}).exits(2).error()["code"] == "read_only"
    assert requests_of(crm) == []


def test_findings_are_in_the_error_document_of_a_program_and_warnings_without_one(crm: RunningService) -> None:
    write("people.csv", rows(3) + "bad,1\n")
    partly = run_here("bulk", "import", "people", "people.csv", "--on-error", "continue").exits(10)
    details = json.loads(partly.err)["error"]["details"]
    assert (details["rejected"], [finding["line"] for finding in details["findings"]]) == (1, [5])
    write("phones.csv", "Email,Name\nx@acme.com,1.23E+11\n")
    fine = run_here("bulk", "import", "people", "phones.csv").ok()
    assert [line for line in fine.err.splitlines() if line.startswith("warning: line 2, column Name")], fine.err
    person = run_here("bulk", "import", "people", "people.csv", "--again", "--on-error", "continue", "-o", "table").exits(9)
    assert "warning: line 5, column Email" in person.err
