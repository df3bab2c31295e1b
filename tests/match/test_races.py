"""Imports by key while other clients write the same keys: crmctl guesses nothing and names the conflicts it could not prevent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import ExitCode
from crmctl.files.mapping import Mode
from crmctl.plan.results import ImportResult
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import BulkServer, Fault
from tests.support.keydesk import KeyDesk, counts, undo
from tests.support.outcomes import code_of

LATER = "2026-01-01T00:10:00.000000Z"
FILE = "Email,Note\n" + "".join(f"p{n}@acme.com,x\n" for n in range(150))


def rivals_of(result: ImportResult) -> Any:
    return [] if result.rivals is None else result.rivals.details["duplicates"]


@pytest.fixture
def desk(tmp_path: Path) -> KeyDesk:
    server = BulkServer()
    return KeyDesk(server, tmp_path)


def meanwhile(desk: KeyDesk, act: Callable[[], object]) -> None:
    """Let another client act when the first rows arrive."""

    def first(_: list[dict[str, Any]]) -> None:
        if len(desk.server.writes) == 1:
            act()

    desk.server.refuse_batch = first


def make_unique(desk: KeyDesk) -> None:
    """Let the service refuse a second record with the same address."""
    desk.attributes[0] = attribute("email", "email", isUnique=True)
    known = desk.server

    def refuse(data: dict[str, Any]) -> str | None:
        """Return the service's refusal of a record that it would have to create."""
        sent = known.writes[-1]["records"]
        is_update = any(row["data"] is data and row.get("id") for row in sent)
        taken = {str(record["data"].get("email")).casefold() for record in known.records}
        return "email is taken" if not is_update and data["email"].casefold() in taken else None

    known.refuse_row = refuse


def test_a_key_used_by_another_client_meanwhile_is_named(desk: KeyDesk) -> None:
    desk.server.seed([{"email": f"q{n}@acme.com"} for n in range(30)])
    meanwhile(desk, lambda: desk.server.add({"email": "P7@acme.com", "note": "theirs"}, LATER))
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result)) == ({"created": 150}, ExitCode.PARTIAL)
    both = [record["id"] for record in desk.server.records if str(record["data"]["email"]).lower() == "p7@acme.com"]
    assert rivals_of(result) == [{"row": 8, "key": "p7@acme.com", "ids": sorted(both)}]
    assert desk.store.list()[0].state == "finished"


def test_a_key_used_between_the_look_up_and_the_first_request_is_named(desk: KeyDesk) -> None:
    """crmctl looks up a few keys by filter. A record that was not on the newest page before is new."""
    desk.server.seed([{"code": f"no{n}", "note": "old"} for n in range(1000)], lambda n: f"2025-01-01T00:{n // 60:02}:{n % 60:02}Z")

    def somebody(page: int) -> None:
        if page == 5:  # after the newest page and four look-ups
            desk.server.add({"code": "no1000", "note": "theirs"}, LATER)

    desk.server.before_page = somebody
    result = desk.load("code,note\nno101,new\nno999,new\nno1000,new\n", "code")
    assert (counts(result), code_of(result)) == ({"created": 1, "updated": 2}, ExitCode.PARTIAL)
    assert [(rival["row"], len(rival["ids"])) for rival in rivals_of(result)] == [(3, 2)]


def test_without_other_clients_nothing_is_named_after_two_reads(desk: KeyDesk) -> None:
    plain = desk.load(FILE, "email")
    assert (rivals_of(plain), code_of(plain)) == ([], ExitCode.OK)
    assert len(desk.server.reads) == 2
    desk.server.records.clear()
    desk.server.reads.clear()
    make_unique(desk)
    assert code_of(desk.load(FILE.replace("x", "y"), "email")) == ExitCode.OK
    assert len(desk.server.reads) == 2  # the keys, which tell the existing records, and the newest page with the total


def test_a_supposedly_unique_key_that_is_not_is_found_by_a_count(desk: KeyDesk) -> None:
    desk.attributes[0] = attribute("email", "email", isUnique=True)
    meanwhile(desk, lambda: desk.server.add({"email": "P7@acme.com", "note": "theirs"}, LATER))
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result)) == ({"created": 150}, ExitCode.PARTIAL)
    assert [rival["key"] for rival in rivals_of(result)] == ["p7@acme.com"]


def test_a_refused_row_updates_the_record_another_client_created(desk: KeyDesk) -> None:
    make_unique(desk)
    meanwhile(desk, lambda: desk.server.add({"email": "P7@acme.com", "note": "theirs", "n": 5}, LATER))
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result), rivals_of(result)) == ({"created": 149, "updated": 1}, ExitCode.OK, [])
    (theirs,) = [record["data"] for record in desk.server.records if "n" in record["data"]]
    assert theirs == {"email": "p7@acme.com", "note": "x", "n": 5}
    assert len(desk.server.records) == 150
    undo(desk.folder, desk.server.origin, desk.server.crm(desk.clock), desk.clock, desk.attributes)
    assert [record["data"] for record in desk.server.records] == [{"email": "P7@acme.com", "note": "theirs", "n": 5}]


def test_a_row_in_doubt_with_another_clients_key_updates_their_record(desk: KeyDesk) -> None:
    """The request was lost before it had an effect; a record with its key does not prove the contrary."""

    def lose(_: list[dict[str, Any]]) -> tuple[int, str] | None:
        if len(desk.server.writes) > 1:
            return None
        desk.server.add({"email": "P7@acme.com", "note": "theirs", "n": 5}, LATER)
        return 400, "nobody hears this"

    desk.server.faults[0] = Fault(applies=True, drop=True)
    desk.server.refuse_batch = lose
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result), rivals_of(result)) == ({"created": 149, "updated": 1}, ExitCode.OK, [])
    assert desk.server.values("note") == {"x": 150}
    assert desk.server.values("n") == {None: 149, 5: 1}


def test_a_refused_row_that_is_there_already_is_unchanged(desk: KeyDesk) -> None:
    make_unique(desk)
    meanwhile(desk, lambda: desk.server.add({"email": "p7@acme.com", "note": "x"}, LATER))
    assert counts(desk.load(FILE, "email")) == {"created": 149, "unchanged": 1}


def test_a_row_whose_record_was_deleted_meanwhile_creates_it(desk: KeyDesk) -> None:
    desk.server.seed([{"email": f"p{n}@acme.com", "note": "old"} for n in range(30)])
    meanwhile(desk, lambda: desk.server.records.pop(7))
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result)) == ({"created": 121, "updated": 29}, ExitCode.OK)
    assert desk.server.values("email")["p7@acme.com"] == 1
    assert desk.server.values("note") == {"x": 150}


def test_a_row_whose_record_was_replaced_meanwhile_updates_the_new_one(desk: KeyDesk) -> None:
    desk.server.seed([{"email": f"p{n}@acme.com", "note": "old"} for n in range(30)])

    def replace() -> None:
        desk.server.records.pop(7)
        desk.server.add({"email": "P7@acme.com", "note": "theirs"}, LATER)

    meanwhile(desk, replace)
    assert counts(desk.load(FILE, "email")) == {"created": 120, "updated": 30}
    assert desk.server.values("note") == {"x": 150}


def test_a_row_refused_for_other_reasons_stays_refused(desk: KeyDesk) -> None:
    desk.server.seed([{"email": f"p{n}@acme.com", "note": "old"} for n in range(30)])
    desk.server.refuse_row = lambda data: "not this one" if data["email"] in ("p3@acme.com", "p99@acme.com") else None
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result)) == ({"created": 119, "updated": 29, "failed": 2}, ExitCode.PARTIAL)
    assert sum(len(body["records"]) for body in desk.server.writes) == 150


def test_a_failed_comparison_gets_a_note(desk: KeyDesk) -> None:
    def close(_: list[dict[str, Any]]) -> None:
        desk.server.readable = False

    desk.server.refuse_batch = close
    result = desk.load(FILE, "email")
    assert (counts(result), code_of(result)) == ({"created": 150}, ExitCode.OK)
    assert any("could not be compared with what was written" in note for note in result.notes)


def test_keys_that_a_job_just_created_are_found_while_lists_lag(desk: KeyDesk) -> None:
    """Each job waits until lists show its records, so the next one cannot miss them."""
    desk.server.seed([{"email": f"q{n}@acme.com"} for n in range(30)])
    created: dict[str, float] = {}
    desk.server.visible = lambda record: created.setdefault(str(record["id"]), desk.clock.now()) + 5.0 <= desk.clock.now()
    desk.clock.advance(60)
    assert counts(desk.load(FILE, "email")) == {"created": 150}
    assert counts(desk.load(FILE.replace(",x", ",y"), "email")) == {"updated": 150}
    assert len(desk.server.records) == 180


@pytest.mark.parametrize("key", ["email", None], ids=["by key", "new records"])
def test_a_file_rewritten_during_an_import_puts_no_other_rows_into_its_results(desk: KeyDesk, key: str | None) -> None:
    """crmctl writes unsent rows into no result file, and sends no other rows in place of the checked ones."""
    text = "Email,Note\n" + "".join(f"p{n}@acme.com,x\n" for n in range(1200))

    def rewrite() -> None:
        (desk.folder / "0.csv").write_text(text.replace("p", "other"))

    meanwhile(desk, rewrite)
    result = desk.load(text, key) if key else desk.load(text, mode=Mode.CREATE)
    assert result.error is not None
    assert result.error.code == "job_changed"
    said = result.error
    assert said is not None
    assert "put the file back" in str(said.hint)
    assert code_of(result) != ExitCode.OK
    assert not any("other" in str(record["data"]["email"]) for record in desk.server.records)
    assert not any(path is not None and "other" in path.read_text() for path in result.summary.files.values())
    (desk.folder / "0.csv").write_text(text)
    desk.server.refuse_batch = lambda _: None
    again = desk.resume()
    assert (counts(again), code_of(again)) == ({"created": 1200}, ExitCode.OK)
    ok = again.summary.files["ok"]
    assert ok is not None
    assert ok.read_text().count("acme.com,x") == 1200
