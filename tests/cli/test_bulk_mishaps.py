"""What goes wrong around bulk jobs: nothing to do, two at once, files that are gone or damaged. One clear error each, and a way out."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import Popen

import pytest

from tests.cli.conftest import requests_of
from tests.support.cli import run_crmctl, start_crmctl
from tests.support.service import RunningService


def imported(file: str = "people.csv", content: str = "Email\na@x.com\nb@x.com\n", *options: str) -> str:
    """Import a file; returns the job."""
    Path(file).write_text(content, encoding="utf-8")
    return str(run_crmctl("bulk", "import", "people", file, *options).ok().json()["job"])


EMPTY = {"empty.csv": "", "blank.csv": "\n\n", "header.csv": "Email\n", "empty.jsonl": "", "empty.json": " [ ]"}


@pytest.mark.parametrize("file", EMPTY)
def test_a_file_without_rows_is_nothing_to_do(crm: RunningService, file: str) -> None:
    Path(file).write_text(EMPTY[file], encoding="utf-8")
    for more in ((), ("--key", "email"), ("--dry-run",)):
        done = run_crmctl("bulk", "import", "people", file, *more).ok()
        assert done.json()["rows"] == 0
        assert f"{file} holds no rows: nothing to import" in done.err
    assert run_crmctl("bulk", "import", "people", file, "--expect", "3").exits(9).error()["code"] == "unexpected_changes"
    assert run_crmctl("bulk", "import", "people", "-", input=EMPTY[file]).ok().json()["rows"] == 0
    assert {method for method, _ in requests_of(crm)} == {"GET"}


@pytest.mark.parametrize("ids", ["", "\n", "id\n", "[]"])
def test_no_ids_are_nothing_to_delete(crm: RunningService, ids: str) -> None:
    done = run_crmctl("bulk", "delete", "people", "--ids", "-", "--yes", input=ids).ok()
    assert (done.json()["deleted"], done.json()["requests"]) == (0, 0)
    assert "stdin holds no ids: nothing to delete" in done.err


def finished(process: Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_one_of_two_imports_of_the_same_content_at_once_is_refused(crm: RunningService) -> None:
    arguments = ("bulk", "import", "people", "-", "--format", "jsonl")
    for attempt in range(1, 6):
        with start_crmctl(*arguments) as one, start_crmctl(*arguments) as two:
            for process in (one, two):
                assert process.stdin is not None
                # More than a pipe holds: when it is written, the process is reading, and has nothing left to do but to register its job.
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
        assert run_crmctl("records", "count", "people").ok().json() == {"count": attempt}


def test_a_job_whose_file_is_gone_says_which_and_how_to_go_on(crm: RunningService) -> None:
    job = imported()
    Path("people.csv").rename("elsewhere.csv")
    for command in (("undo", job, "--yes"), ("repair", job)):
        error = run_crmctl("bulk", *command).exits(2).error()
        assert error["message"] == f"job {job} cannot go on: cannot read {Path('people.csv').absolute()}: no such file or directory"
        assert "put the file back" in error["hint"]
    Path("elsewhere.csv").rename("people.csv")
    assert run_crmctl("bulk", "undo", job, "--yes").ok().json()["deleted"] == 2
