"""Problems around bulk jobs: nothing to do, two jobs at once, missing or damaged files. Each gets one clear error with a way out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from subprocess import Popen

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import start_crmctl
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE
from tests.support.service import RunningService, running_service


def imported(file: str = "people.csv", content: str = "Email\na@x.com\nb@x.com\n", *options: str) -> str:
    """Import a file; return the job."""
    Path(file).write_text(content, encoding="utf-8")
    return str(run_here("bulk", "import", "people", file).ok().json()["job"])


EMPTY = {"header.csv": "Email\n", "empty.jsonl": "", "empty.json": " [ ]"}


@pytest.mark.parametrize("file", EMPTY)
def test_a_file_without_rows_is_nothing_to_do(crm: RunningService, file: str) -> None:
    Path(file).write_text(EMPTY[file], encoding="utf-8")
    for more in ((), ("--key", "email"), ("--dry-run",)):
        done = run_here("bulk", "import", "people", file, *more).ok()
        assert done.json()["rows"] == 0
        assert f"{file} holds no rows: nothing to import" in done.err
    assert run_here("bulk", "import", "people", file, "--expect", "3").exits(9).error()["code"] == "unexpected_changes"
    assert run_here("bulk", "import", "people", "-", input=EMPTY[file]).ok().json()["rows"] == 0
    assert {method for method, _ in requests_of(crm)} == {"GET"}


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_table_without_a_header_is_an_error(crm: RunningService, content: str) -> None:
    """A table without rows has a header: a program that writes a file without one has probably failed."""
    Path("people.csv").write_text(content, encoding="utf-8")
    for arguments in (("people.csv",), ("-", "--format", "csv")):
        ended = run_here("bulk", "import", "people", *arguments, input=content).exits(2)
        assert ended.error()["code"] == "empty_file"
    assert {method for method, _ in requests_of(crm)} <= {"GET"}
    assert run_here("bulk", "import", "people", "-", input=content).ok().json()["rows"] == 0


@pytest.mark.parametrize("ids", ["", "\n", "id\n", "[]"])
def test_no_ids_are_nothing_to_delete(crm: RunningService, ids: str) -> None:
    done = run_here("bulk", "delete", "people", "--ids", "-", "--yes", input=ids).ok()
    assert (done.json()["deleted"], done.json()["requests"]) == (0, 2), "the object and its attributes are looked up"
    assert "stdin holds no ids: nothing to delete" in done.err


def finished(process: Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_one_of_two_imports_of_the_same_content_at_once_is_refused(crm: RunningService) -> None:
    arguments = ("bulk", "import", "people", "-", "--format", "jsonl")
    for attempt in range(1, 4):
        with start_crmctl(*arguments) as one, start_crmctl(*arguments) as two:
            for process in (one, two):
                assert process.stdin is not None
                # More than a pipe holds: when the write returns, the process is reading and has only to register its job.
                process.stdin.write("\n" * 100_000 + json.dumps({"email": f"p{attempt}@x.com"}))
                process.stdin.flush()
            for process in (one, two):
                assert process.stdin is not None
                process.stdin.close()
                process.stdin = None
            (won, out, _), (lost, nothing, err) = sorted((finished(one), finished(two)))
        assert (won, lost, nothing) == (0, 2, ""), err
        error = json.loads(err.splitlines()[-1])["error"]
        assert (error["code"], error["details"]) == ("already_imported", {"job": json.loads(out)["job"]})
        assert run_here("records", "count", "people").ok().json() == {"count": attempt}


def test_a_job_without_its_file_names_it_and_the_way_out(crm: RunningService) -> None:
    job = imported()
    Path("people.csv").rename("elsewhere.csv")
    for command in (("undo", job, "--yes"), ("repair", job)):
        error = run_here("bulk", *command).exits(2).error()
        assert error["message"] == f"job {job} cannot go on: cannot read {Path('people.csv').absolute()}: no such file or directory"
        assert "put the file back" in error["hint"]
    Path("elsewhere.csv").rename("people.csv")
    assert run_here("bulk", "undo", job, "--yes").ok().json()["deleted"] == 2


def broken(folder: Path, how: str) -> None:
    journal = folder / "journal.sqlite"
    whole = journal.read_bytes()
    if how == "gone":
        journal.unlink()
    else:
        journal.write_bytes({"cut short": whole[:5000], "empty": b"", "no database": b"no database at all" * 100}[how])


@pytest.mark.parametrize("how", ["gone", "cut short", "empty", "no database"])
def test_a_damaged_job_is_not_called_unknown_and_can_be_removed(crm: RunningService, how: str) -> None:
    other, job = imported(), imported("more.csv", "Email\nc@x.com\n")
    folder = Path(os.environ["CRMCTL_STATE_DIR"]) / "jobs" / job
    broken(folder, how)
    listed = run_here("bulk", "jobs").ok()
    assert [one["job"] for one in listed.json()] == [other]
    assert job in listed.err
    for command in (("jobs", job), ("resume", job), ("repair", job), ("undo", job, "--yes"), ("undo", job[-5:], "--yes")):
        error = run_here("bulk", *command).exits(2).error()
        assert error["code"] == "damaged_job"
        assert error["message"].startswith(f"job {job} cannot be opened: ")
        assert error["hint"] == f"crmctl bulk jobs {job} --remove deletes what is left of it"
    assert run_here("bulk", "jobs", job, "--remove", "--yes").ok().json() == {"removed": job}
    assert not folder.exists()
    run_here("bulk", "jobs", job).exits(3)


def test_an_unknown_or_ambiguous_job_is_refused(crm: RunningService) -> None:
    for command in (
        ("undo", "last", "--yes"),
        ("repair", "last"),
        ("jobs", "last"),
        ("jobs", "last", "--remove", "--yes"),
        ("resume", "x"),
    ):
        error = run_here("bulk", *command).exits(3).error()
        assert (error["code"], error["hint"]) == ("job_not_found", "crmctl bulk jobs lists them")
    for command in (("resume",), ("resume", "--last")):
        assert run_here("bulk", *command).exits(2).error()["code"] == "nothing_to_resume"
    jobs = sorted((imported(), imported("more.csv", "Email\nc@x.com\n")))
    for command in ("resume", "repair", "jobs"):
        error = run_here("bulk", command, jobs[0][:6]).exits(2).error()
        assert (error["message"], error["code"]) == (f"several jobs fit '{jobs[0][:6]}': {jobs[0]}, {jobs[1]}", "ambiguous_job")
        assert error["hint"] == "give more of the name"
    assert run_here("bulk", "jobs", "").exits(3).error()["message"] == "there is no job ''"


def test_jobs_and_plans_of_another_service_are_refused_as_such(crm: RunningService, tmp_path: Path) -> None:
    job = imported()
    run_here("bulk", "import", "people", "people.csv", "--again", "--plan", "people.plan").ok()
    with running_service(tmp_path / "other") as other:
        env = {"CRMCTL_BASE_URL": other.base_url, "CRMCTL_API_KEY": other.key}
        for command in (("repair", job), ("undo", job, "--yes")):
            error = run_here("bulk", *command, env=env).exits(2).error()
            assert error["message"] == f"job {job} cannot go on: it belongs to {crm.base_url}, and this profile to {other.base_url}"
            assert error["hint"] == "crmctl auth switch PROFILE, or --profile"
        assert run_here("bulk", "apply", "people.plan", env=env).exits(2).error()["code"] == "plan_outdated"


@pytest.mark.parametrize(
    ("content", "code"),
    [(None, "unreadable_file"), (b"", "not_a_plan"), (b"\x00\xff", "not_a_plan"), (b"{}\n", "not_a_plan"), (b"[1", "not_a_plan")],
)
def test_a_file_without_a_plan_is_not_applied(crm: RunningService, content: bytes | None, code: str) -> None:
    if content is not None:
        Path("people.plan").write_bytes(content)
    error = run_here("bulk", "apply", "people.plan").exits(2).error()
    assert error["code"] == code
    assert "people.plan" in error["message"]


def test_a_plan_that_was_cut_short_is_not_applied(crm: RunningService) -> None:
    imported()
    run_here("bulk", "import", "people", "people.csv", "--plan", "people.plan").ok()
    plan = Path("people.plan")
    plan.write_bytes(plan.read_bytes()[:-20])
    error = run_here("bulk", "apply", "people.plan").exits(2).error()
    assert error["code"] == "damaged_plan"
    assert "--plan" in error["hint"]


def test_the_references_of_rows_belong_to_the_job(crm: RunningService) -> None:
    run_here("records", "create", "companies", "--set", "name=Acme").ok()
    Path("staff.csv").write_text("Email,Company\na@x.com,Acme\n", encoding="utf-8")
    job = run_here("bulk", "import", "people", "staff.csv", "--ref", "company=companies.name").ok().json()["job"]
    (Path(os.environ["CRMCTL_STATE_DIR"]) / "jobs" / job / "references.sqlite").unlink()
    error = run_here("bulk", "undo", job, "--yes").exits(2).error()
    assert "references.sqlite, which says what its rows refer to, is gone" in error["message"]
    assert error["hint"] == f"crmctl bulk jobs {job} --remove forgets the job"


def test_one_row_is_not_one_rows(crm: RunningService) -> None:
    Path("one.csv").write_text("Email\na@x.com\n", encoding="utf-8")
    refused = run_here("bulk", "import", "people", "one.csv", "--expect", "2").exits(9).error()
    assert refused["message"] == "1 of 1 rows would be written, --expect says 2; nothing was sent"
    job = run_here("bulk", "jobs").ok().json()[0]["job"]
    assert "1 row not sent, 0 in doubt" in run_here("bulk", "resume", job, "--dry-run", "-o", "table").ok().out


def test_the_list_of_jobs_shows_rejected_rows_and_the_host(crm: RunningService) -> None:
    run_here("bulk", "import", "people", "-", "--on-error", "continue", input="Email,Score\na@x.com,1\nb@x.com,much\n").exits(10)
    table = run_here("bulk", "jobs", "-o", "table", env={"COLUMNS": "250"}).ok().out.splitlines()
    assert "1 created, 1 invalid" in table[1]
    assert table[1].endswith(crm.base_url.removeprefix("http://"))
    (job,) = run_here("bulk", "jobs").ok().json()
    assert (job["rejected"], job["origin"], "host" in job) == (1, crm.base_url, False)


def test_the_reason_of_the_service_stands_in_the_error(crm: RunningService) -> None:
    imported(content="Email\na@x.com\n")
    Path("again.csv").write_text("Email,Name\na@x.com,Ada\n", encoding="utf-8")
    ended = run_here("bulk", "import", "people", "again.csv").exits(9).error()
    assert ended["code"] == "refused_rows"
    reason = ended["message"].removeprefix("the service refused the one row it was sent: ").removesuffix("; nothing was written")
    assert "email" in reason.lower()
    assert reason != ended["message"]
