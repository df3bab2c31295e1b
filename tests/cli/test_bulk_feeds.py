"""`crmctl bulk import --feed` for users and scripts: its preview, its counts, and its state after a kill."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

from tests.cli.conftest import requests_of
from tests.support.cli import Result, start_crmctl
from tests.support.clock import HastyClock
from tests.support.inprocess import run_here
from tests.support.patience import PATIENCE, wait_until
from tests.support.service import RunningService

IMPORT = ("bulk", "import", "people", "people.csv", "--key", "email", "--feed", "erp")


def night(text: str, *options: str) -> Result:
    Path("people.csv").write_text(text, encoding="utf-8")
    return run_here(*IMPORT, *options)


def hasty_night(text: str, *options: str) -> Result:
    """A clock that skips the half minute crmctl waits for requests of a killed process."""
    Path("people.csv").write_text(text, encoding="utf-8")
    return run_here(*IMPORT, *options, clock=HastyClock())


def values(result: Result) -> dict[str, int]:
    return {name: count for name, count in result.json().items() if isinstance(count, int) and count and name not in ("rows", "requests")}


def person(email: str) -> dict[str, Any]:
    (found,) = run_here("records", "list", "people", "--filter", f"email={email}", "-q", "[].data").ok().json()
    return dict(found)


def edits(email: str, *assignments: str) -> None:
    (record_id,) = run_here("records", "list", "people", "--filter", f"email={email}", "-q", "[].id").ok().json()
    run_here("records", "update", "people", record_id, *(word for one in assignments for word in ("--set", one))).ok()


FIRST = """Email,Name,Phone,Score,Address.city,Address.street
ada@acme.com,Ada,+442079460958,1,Rome,Via 1
bob@acme.com,Bob,+442079460000,1,Oslo,Vei 2
"""


def test_edits_of_people_are_shown_kept_and_counted(crm: RunningService) -> None:
    assert values(night(FIRST).ok()) == {"created": 2}
    edits("ada@acme.com", "phone=+442079460001", "address.city=Roma")
    edits("bob@acme.com", "score=7")
    tonight = FIRST.replace("Via 1", "Via 9").replace("Bob,+442079460000,1", "Bob,+442079460000,2")
    predicted = night(tonight, "--dry-run").ok()
    assert {name: predicted.json()[name] for name in ("kept", "conflicts")} == {"kept": 2, "conflicts": 1}
    listed = [
        [one[name] for name in ("line", "attribute", "choice", "conflict", "baseKnown", "file", "record")]
        for one in predicted.json()["choices"]
    ]
    assert listed == [
        [2, "phone", "kept", False, True, "+442079460958", "+442079460001"],
        [2, "address.city", "kept", False, True, "Rome", "Roma"],
        [3, "score", "kept", True, True, 2, 7],
    ]
    shown = night(tonight, "--dry-run", "-o", "table").ok().out
    assert "2 values kept as people changed them, 1 conflict" in shown
    assert "3     score         conflict: kept  known  2              7" in shown
    run_here(*IMPORT, "--plan", "people.plan").ok()
    done = run_here("bulk", "apply", "people.plan").ok()
    assert values(done) == {"updated": 1, "unchanged": 1, "kept": 2, "conflicts": 1}
    assert done.json()["requests"] <= predicted.json()["requests"] <= done.json()["requests"] + 4, "the schema is cached by then"
    with Path(done.json()["files"]["ok"]).open() as ok:
        rows = list(csv.DictReader(ok))
    assert [(row["_status"], row["_kept"]) for row in rows] == [("updated", "phone, address.city"), ("unchanged", "score (conflict)")]
    assert (person("ada@acme.com")["phone"], person("ada@acme.com")["address"]) == ("+442079460001", {"city": "Roma", "street": "Via 9"})
    run_here("bulk", "undo", done.json()["job"], "--yes").ok()
    assert person("ada@acme.com")["address"] == {"city": "Roma", "street": "Via 1"}
    assert values(night(tonight).ok()) == {"updated": 1, "unchanged": 1, "kept": 2, "conflicts": 1}
    assert person("ada@acme.com")["address"]["street"] == "Via 9"


def test_a_conflict_can_be_refused_taken_or_filled_by_attribute(crm: RunningService) -> None:
    night(FIRST).ok()
    edits("ada@acme.com", "phone=+442079460001", "score=7")
    edits("bob@acme.com", "phone=")
    tonight = FIRST.replace("0958", "0777").replace("0000", "0888").replace(",1,Rome", ",2,Rome")
    refused = night(tonight, "--on-conflict", "fail").exits(9)
    assert (refused.error()["code"], values(refused)) == ("invalid_rows", {"rejected": 2, "conflicts": 3})
    partly = night(tonight, "--on-conflict", "fill,score=fail", "--on-error", "continue").exits(10)
    assert values(partly) == {"updated": 1, "rejected": 1, "conflicts": 3}
    failed = Path(partly.json()["files"]["failed"]).read_text()
    assert "score: conflict: the record says '7', and both have changed since the last import" in failed
    assert person("bob@acme.com")["phone"] == "+442079460888"
    assert values(night(tonight, "--on-conflict", "take,phone=keep").ok()) == {"updated": 1, "unchanged": 1, "conflicts": 2}
    assert (person("ada@acme.com")["phone"], person("ada@acme.com")["score"]) == ("+442079460001", 2)


def test_a_meaningless_feed_is_refused_before_any_request(crm: RunningService) -> None:
    Path("people.csv").write_text(FIRST, encoding="utf-8")
    for wrong in (
        ("--feed", "erp"),
        ("--feed", " ", "--key", "email"),
        ("--key", "email", "--on-conflict", "mine"),
        ("--key", "email", "--on-conflict", "fax=keep"),
    ):
        run_here("bulk", "import", "people", "people.csv", *wrong).exits(2)
    assert {method for method, _ in requests_of(crm)} <= {"GET"}
    run_here("bulk", "import", "people", "people.csv", "--key", "email", "--on-conflict", "keep", "--dry-run").ok()
    assert not list(Path(run_here("config", "path", "-o", "json").ok().json().get("state", "none")).glob("feeds/*"))


def test_a_killed_run_causes_no_false_conflict(crm: RunningService) -> None:
    rows = 600

    def file(score: int) -> str:
        return "Email,Score\n" + "".join(f"p{n}@acme.com,{score}\n" for n in range(rows))

    night(file(1)).ok()
    crm.log.clear()
    Path("people.csv").write_text(file(2), encoding="utf-8")
    with start_crmctl(*IMPORT) as killed:
        wait_until(lambda: any(entry["method"] == "POST" for entry in crm.log) or killed.poll() is not None)
        killed.send_signal(signal.SIGKILL)
        killed.wait(PATIENCE)
    edits("p7@acme.com", "score=99")
    done = hasty_night(file(3)).ok()
    in_doubt = done.json()["conflicts"] - 1 if done.json()["conflicts"] else 0
    assert done.json()["kept"] == 0  # crmctl takes no value that the killed job wrote for an edit by a user
    assert in_doubt <= 200  # at most two requests were in flight
    assert person("p7@acme.com")["score"] == 99
    assert values(hasty_night(file(4), "--on-conflict", "take").ok())["updated"] == rows
