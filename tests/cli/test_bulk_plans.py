"""`bulk import --plan` and `bulk apply`: crmctl carries out exactly the plan it showed, or nothing."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

PEOPLE = "Email,Score\na@acme.com,1\nb@acme.com,2\nnew@acme.com,3\n"
APPLY = ("bulk", "apply", "people.plan")

SCHEMA = 4
"""At most this many requests read the schema; crmctl caches it once a plan exists."""


def plan(*options: str, text: str = PEOPLE, code: int = 0) -> Any:
    Path("people.csv").write_text(text, encoding="utf-8")
    return run_here("bulk", "import", "people", "people.csv", "--dry-run", "--plan", "people.plan", *options).exits(code).json()


@pytest.fixture
def known(crm: RunningService) -> dict[str, str]:
    """Create a@acme.com as in the file and b@acme.com with other values; return the ids by address."""
    ids = {}
    for name, score in (("a", 1), ("b", 7)):
        made = run_here("records", "create", "people", "--set", f"email={name}@acme.com", "--set", f"score={score}").ok().json()
        ids[f"{name}@acme.com"] = made["id"]
    return ids


def scores() -> dict[str, Any]:
    return {record["data"]["email"]: record["data"].get("score") for record in run_here("records", "list", "people").ok().json()}


def refused(*arguments: str, code: int, changed: str) -> str:
    """Apply a plan that no longer fits; return the message."""
    error = run_here(*(arguments or APPLY)).exits(code).error()
    assert (error["code"], error["details"]["changed"]) == ("plan_outdated", [changed])
    return str(error["message"])


@pytest.mark.parametrize("options", [(), ("--input", "people.csv")])
def test_the_copy_of_failed_rows_never_replaces_the_input(crm: RunningService, options: tuple[str, ...]) -> None:
    plan()
    for place in ("people.csv", "people.plan"):
        before = Path(place).read_bytes()
        assert run_here(*APPLY, *options, "--failed", place).exits(2).error()["message"] == f"{place} is the file that is imported"
        assert Path(place).read_bytes() == before
    assert scores() == {}


def test_a_plan_shows_and_does_the_same(crm: RunningService, known: dict[str, str]) -> None:
    before = crm.outbox()
    planned = plan("--key", "email")
    assert (planned["plan"], planned["predicted"]["create"], planned["predicted"]["update"], planned["predicted"]["unchanged"]) == (
        "people.plan", 1, 1, 1,
    )  # fmt: skip
    shown = run_here(*APPLY, "--dry-run", "-o", "table").ok().out
    assert f"3     update  {known['b@acme.com']}  score" in shown
    checked = run_here(*APPLY, "--dry-run").ok().json()
    assert (checked["differences"], checked["planned"]["predicted"]) == ([], planned["predicted"])
    assert crm.outbox() == before
    done = run_here(*APPLY).ok().json()
    assert (done["created"], done["updated"], done["unchanged"]) == (1, 1, 1)
    assert done["requests"] <= planned["requests"] <= done["requests"] + SCHEMA
    assert scores() == {"a@acme.com": 1, "b@acme.com": 2, "new@acme.com": 3}
    assert "unchanged" in run_here("bulk", "resume", done["job"], "-o", "table").ok().out
    assert "update when the plan was made, unchanged now" in refused(code=9, changed="records")


def test_the_file_of_a_plan_is_private_and_holds_neither_key_nor_values(crm: RunningService, known: dict[str, str]) -> None:
    plan("--key", "email")
    content = Path("people.plan").read_text(encoding="utf-8")
    assert stat.S_IMODE(Path("people.plan").stat().st_mode) == 0o600
    assert crm.key not in content
    assert "acme.com" not in content
    head, *rows = map(json.loads, content.splitlines())
    assert (head["format"], head["decisions"], head["origin"]) == (4, 3, crm.base_url)
    assert [(row["row"], row["line"], row["action"]) for row in rows] == [(1, 2, "unchanged"), (2, 3, "update"), (3, 4, "create")]


def test_a_record_that_changed_is_named_and_nothing_is_sent(crm: RunningService, known: dict[str, str]) -> None:
    plan("--key", "email")
    touched = known["b@acme.com"]
    run_here("records", "update", "people", touched, "--set", "job_title=Boss").ok()
    before = crm.outbox()
    assert touched in refused(code=9, changed="records")
    again = run_here(*APPLY, "--dry-run").exits(9)
    assert [(one["line"], one["id"]) for one in again.json()["differences"]] == [(3, touched)]
    run_here("records", "update", "people", touched, "--set", "job_title=").ok()
    run_here("records", "create", "people", "--set", "email=NEW@acme.com").ok()
    assert "create when the plan was made, update now" in refused(code=9, changed="records")
    assert len(crm.outbox()) == len(before) + 2
    assert {job["state"] for job in run_here("bulk", "jobs").ok().json()} == {"rejected"}


def test_a_record_that_a_row_names_by_id_must_be_as_it_was(crm: RunningService, known: dict[str, str]) -> None:
    plan("--mode", "upsert", text=f"id,Score,Email\n{known['a@acme.com']},5,\n,6,c@acme.com\n")
    run_here(*APPLY, "--dry-run").ok()
    run_here("records", "update", "people", known["a@acme.com"], "--set", "score=9").ok()
    assert known["a@acme.com"] in refused(code=9, changed="records")
    run_here("records", "update", "people", known["a@acme.com"], "--set", "score=1").ok()
    assert run_here(*APPLY).ok().json()["updated"] == 1
    assert scores()["a@acme.com"] == 5


def test_a_plan_knows_its_file_its_mapping_and_its_schema(crm: RunningService, known: dict[str, str]) -> None:
    plan("--key", "email")
    Path("people.csv").write_text(PEOPLE.replace(",3", ",4"), encoding="utf-8")
    assert "people.csv has changed" in refused(code=2, changed="input")
    Path("people.csv").unlink()
    refused(code=2, changed="input")
    Path("elsewhere.csv").write_text(PEOPLE, encoding="utf-8")
    run_here(*APPLY, "--input", "elsewhere.csv", "--dry-run").ok()
    run_here("attributes", "create", "people", "--name", "Shoe size", "--type", "number").ok()
    assert "attributes of people" in refused(*APPLY, "--input", "elsewhere.csv", code=2, changed="schema")
    assert {method for method, path in requests_of(crm) if "bulk" in path} == set()


def test_a_plan_belongs_to_its_service(crm: RunningService, known: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan("--key", "email")
    with running_service(tmp_path / "other") as other:
        monkeypatch.setenv("CRMCTL_BASE_URL", other.base_url)
        monkeypatch.setenv("CRMCTL_API_KEY", other.key)
        assert crm.base_url in refused(code=2, changed="service")
        assert requests_of(other) == []


def test_creating_by_plan_follows_the_rules_of_an_import(crm: RunningService) -> None:
    planned = plan()
    run_here(*APPLY, "--expect", "2").exits(9)
    done = run_here(*APPLY, "--expect", "3").ok().json()
    assert done["created"] == 3
    assert done["requests"] <= planned["requests"] <= done["requests"] + SCHEMA
    assert run_here(*APPLY).exits(2).error()["code"] == "already_imported"
    assert len(scores()) == 3


def test_an_inapplicable_plan_is_not_saved(crm: RunningService) -> None:
    wrong = PEOPLE + "nobody,x\n"
    assert plan("--key", "email", text=wrong, code=9)["plan"] is None
    assert plan("--key", "email", "--expect", "7", code=9)["plan"] is None
    assert not Path("people.plan").exists()
    plan("--key", "email", "--on-error", "continue", text=wrong, code=9)
    done = run_here(*APPLY).exits(10).json()
    assert (done["created"], done["rejected"]) == (3, 1)


def test_a_plan_of_stdin_or_over_another_file_is_refused(crm: RunningService) -> None:
    run_here("bulk", "import", "people", "-", "--plan", "people.plan", input=PEOPLE).exits(2)
    Path("people.csv").write_text(PEOPLE, encoding="utf-8")
    load = ("bulk", "import", "people", "people.csv", "--plan")
    for place in ("people.csv", "nowhere/people.plan", "."):
        run_here(*load, place, "--yes").exits(2)
    assert Path("people.csv").read_text(encoding="utf-8") == PEOPLE
    run_here(*load, "people.plan").ok()  # --plan implies --dry-run
    assert scores() == {}
    assert "--yes" in run_here(*load, "people.plan").exits(2).error()["hint"]
    run_here(*load, "people.plan", "--yes").ok()
    assert [path.name for path in Path().glob("people.plan*")] == ["people.plan"]


def test_an_edited_or_truncated_plan_is_refused(crm: RunningService) -> None:
    plan("--key", "email")
    whole = Path("people.plan").read_bytes()
    for content, code in (
        (whole[: whole.rindex(b"\n", 0, -1) + 1], "damaged_plan"),
        (whole.replace(b'"create"', b'"skip"'), "damaged_plan"),
        (PEOPLE.encode(), "not_a_plan"),
        (re.sub(rb'"format": ?4', b'"format": 1', whole), "not_a_plan"),
    ):
        Path("people.plan").write_bytes(content)
        assert run_here(*APPLY).exits(2).error()["code"] == code
    run_here("bulk", "apply", "nothing.plan").exits(2)


def test_a_reference_that_means_another_record_now_is_noticed(crm: RunningService) -> None:
    acme = run_here("records", "create", "companies", "--set", "name=Acme").ok().json()["id"]
    plan("--ref", "company=companies.name", text="Email,Company\na@acme.com,Acme\n")
    run_here(*APPLY, "--dry-run").ok()
    run_here("records", "delete", "companies", acme, "--yes").ok()
    run_here("records", "create", "companies", "--set", "name=Acme").ok()
    assert "a reference means another record" in refused(code=9, changed="records")
