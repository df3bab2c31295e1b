"""`crmctl bulk import --mode update`: rows without a record are skipped, named and counted. Nothing is created."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from tests.cli.conftest import requests_of
from tests.support.inprocess import run_here
from tests.support.service import RunningService

IMPORT = ("bulk", "import", "people", "people.csv", "--mode", "update")
FILE = "Email,Score\na@acme.com,2\nnew@acme.com,2\nB@acme.com,1\n"
NOBODY = "00000000-0000-4000-8000-00000000dead"


def people() -> dict[str, Any]:
    found = run_here("records", "list", "people", "--all", "-q", "[].[data.email, data.score, id]").ok().json()
    return {email: (score, record_id) for email, score, record_id in found}


def existing() -> dict[str, str]:
    run_here("bulk", "import", "people", "-", input="Email,Score\na@acme.com,1\nb@acme.com,1\n").ok()
    return {email: record_id for email, (_, record_id) in people().items()}


def counts(document: dict[str, Any]) -> dict[str, int]:
    return {
        name: document[name] for name in ("created", "updated", "unchanged", "skipped", "failed", "rejected", "unsent") if document[name]
    }


def test_by_key_rows_without_a_record_are_skipped_and_named(crm: RunningService) -> None:
    existing()
    Path("people.csv").write_text(FILE, encoding="utf-8")
    by_key = (*IMPORT, "--key", "email")
    predicted = run_here(*by_key, "--dry-run").ok()
    assert predicted.json()["predicted"] == {"create": 0, "update": 1, "unchanged": 1, "skip": 1, "invalid": 0, "ambiguous": 0}
    assert "line 3, column email: skipped: no record has this email (value 'new@acme.com')" in predicted.err
    run_here(*by_key, "--plan", "people.plan").ok()
    done = run_here("bulk", "apply", "people.plan").ok()
    assert counts(done.json()) == {"updated": 1, "unchanged": 1, "skipped": 1}
    assert (done.json()["mode"], done.json()["rows"]) == ("update", 3)
    assert done.json()["requests"] <= predicted.json()["requests"] <= done.json()["requests"] + 4, "the schema is cached by then"
    assert "line 3, column email: skipped: no record has this email (value 'new@acme.com')" in done.err
    with Path(done.json()["files"]["ok"]).open(encoding="utf-8") as file:
        told = [(row["_status"], row["_error"]) for row in csv.DictReader(file)]
    assert told == [("updated", ""), ("skipped", "no record has this email"), ("unchanged", "")]
    assert {email: score for email, (score, _) in people().items()} == {"a@acme.com": 2, "b@acme.com": 1}
    run_here("bulk", "undo", done.json()["job"], "--yes").ok()
    assert {email: score for email, (score, _) in people().items()} == {"a@acme.com": 1, "b@acme.com": 1}


def test_by_id_rows_without_an_id_or_with_an_unknown_one_are_skipped(crm: RunningService) -> None:
    ids = existing()
    Path("people.csv").write_text(f"id,Score\n{ids['a@acme.com']},2\n,2\n{NOBODY},2\n", encoding="utf-8")
    assert run_here(*IMPORT, "--dry-run").ok().json()["predicted"]["skip"] == 1
    done = run_here(*IMPORT).ok()
    assert counts(done.json()) == {"updated": 1, "skipped": 2}
    assert "line 3: skipped: the row has no id, so there is nothing to update" in done.err
    assert f"line 4, column id: skipped: no record has this id (value '{NOBODY}')" in done.err
    assert {email: score for email, (score, _) in people().items()} == {"a@acme.com": 2, "b@acme.com": 1}


def test_mode_update_creates_nothing_in_other_ways_either(crm: RunningService) -> None:
    Path("people.csv").write_text(FILE, encoding="utf-8")
    refused = run_here(*IMPORT, "--key", "email", "--on-missing-ref", "create").exits(2)
    assert "--mode update creates nothing" in refused.error()["message"]
    assert run_here(*IMPORT).exits(2).error()["code"] == "missing_id_column"
    assert {method for method, _ in requests_of(crm)} <= {"GET"}
    assert counts(run_here(*IMPORT, "--key", "email").ok().json()) == {"skipped": 3}
    assert people() == {}
