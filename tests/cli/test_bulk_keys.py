"""`crmctl bulk import --key` as a person or a script meets it. The inside is tested in tests/bulk."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import requests_of
from tests.support.cli import run_crmctl
from tests.support.service import RunningService


def rows(count: int, score: int = 1) -> str:
    return "Email,Score\n" + "".join(f"p{number}@acme.com,{score}\n" for number in range(count))


def load(text: str, *options: str) -> dict[str, int]:
    Path("people.csv").write_text(text, encoding="utf-8")
    done = run_crmctl("bulk", "import", "people", "people.csv", "--key", "email", *options).ok().json()
    return {name: done[name] for name in ("created", "updated", "unchanged", "skipped")}


def test_the_same_file_twice_changes_nothing(crm: RunningService) -> None:
    assert load(rows(150)) == {"created": 150, "updated": 0, "unchanged": 0, "skipped": 0}
    before = crm.outbox()
    assert load(rows(150)) == {"created": 0, "updated": 0, "unchanged": 150, "skipped": 0}
    assert crm.outbox() == before
    assert load(rows(160, score=2).replace("acme.com", "ACME.com")) == {"created": 10, "updated": 150, "unchanged": 0, "skipped": 0}
    assert run_crmctl("records", "count", "people").ok().json() == {"count": 160}


def test_a_key_that_cannot_be_is_said_before_anything_is_sent(crm: RunningService) -> None:
    Path("people.csv").write_text(rows(1), encoding="utf-8")
    wrong = run_crmctl("bulk", "import", "people", "people.csv", "--key", "emial").exits(2)
    assert "emial" in wrong.error()["message"]
    run_crmctl("bulk", "import", "people", "people.csv", "--key", "email", "--mode", "create").exits(2)
    run_crmctl("bulk", "import", "people", "people.csv", "--key", "email", "--on-duplicate-key", "any").exits(2)
    assert {method for method, _ in requests_of(crm)} <= {"GET"}
