"""Imports by key: rows match their records in any spelling; crmctl doubles and guesses nothing, and sends no unchanged record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import ExitCode, UsageError
from crmctl.match.keys import key_rule
from crmctl.models.ids import reference_ids
from crmctl.values.equality import ids_only, is_unchanged, key_form
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import BulkServer, Fault
from tests.support.keydesk import ATTRIBUTES, KeyDesk, counts
from tests.support.outcomes import code_of


@pytest.fixture
def desk(tmp_path: Path) -> KeyDesk:
    server = BulkServer()
    return KeyDesk(server, tmp_path)


def people(count: int, note: str = "x") -> str:
    return "Email,Note\n" + "".join(f"p{n}@acme.com,{note}\n" for n in range(count))


def test_the_second_run_of_a_file_changes_nothing(desk: KeyDesk) -> None:
    assert counts(desk.load(people(250), "email")) == {"created": 250}
    desk.server.writes.clear()
    again = desk.load(people(250), "email")
    assert counts(again) == {"unchanged": 250}
    assert (desk.server.writes, code_of(again)) == ([], ExitCode.OK)
    assert again.summary.requests <= 3 + 2 + 3
    assert len(desk.server.records) == 250


def test_only_differences_are_sent_and_new_rows_are_created(desk: KeyDesk) -> None:
    ids = desk.server.seed([{"email": "p0@acme.com", "note": "x"}, {"email": "p1@acme.com", "note": "old", "n": 7}])
    result = desk.load(people(3), "email")
    assert counts(result) == {"created": 1, "updated": 1, "unchanged": 1}
    sent = desk.server.writes[0]
    assert (sent["mode"], [row.get("id") for row in sent["records"]]) == ("upsert", [ids[1], None])
    assert desk.server.records[1]["data"] == {"email": "p1@acme.com", "note": "x", "n": 7}


def test_result_files_name_the_records(desk: KeyDesk) -> None:
    ids = desk.server.seed([{"email": "p0@acme.com", "note": "x"}, {"email": "p1@acme.com", "note": "old"}])
    ok = desk.load(people(2), "email").summary.files["ok"]
    assert ok is not None
    lines = ok.read_text().splitlines()
    assert [line.split(",")[-3:-1] for line in lines[1:]] == [["unchanged", ids[0]], ["updated", ids[1]]]


@pytest.mark.parametrize(
    ("key", "there", "typed"),
    [
        ("email", "Ada@ACME.com", "ada@acme.com"),
        ("email", " ada@acme.com ", "ADA@acme.com"),
        ("phone", "+44 20 7946 0958", "+44(20)79460958"),
        ("n", 12.0, "12"),
        ("code", "Stra\u00dfe\u0301", " Stra\u00dfe\u0301"),
        ("code", "caf\u00e9", "cafe\u0301"),
    ],
)
def test_a_key_is_found_in_any_spelling(desk: KeyDesk, key: str, there: Any, typed: str) -> None:
    desk.server.seed([{key: there, "note": "old"}])
    assert counts(desk.load(f"{key},note\n{typed},new\n", key)) == {"updated": 1}
    assert len(desk.server.records) == 1


def test_text_keys_of_another_case_are_others(desk: KeyDesk) -> None:
    desk.server.seed([{"code": "a-1"}])
    assert counts(desk.load("code\nA-1\n", "code")) == {"created": 1}


def test_an_ambiguous_key_is_an_error_that_names_the_records(desk: KeyDesk) -> None:
    ids = desk.server.seed([{"email": "p0@acme.com"}, {"email": "P0@acme.com"}])
    stopped = desk.load(people(2), "email")
    assert (code_of(stopped), desk.server.writes, desk.codes) == (ExitCode.REJECTED, [], ["ambiguous_key"])
    assert all(record_id in desk.findings[0].message for record_id in ids)
    partly = desk.load(people(2), "email", stop=False)
    assert counts(partly) == {"created": 1, "rejected": 1}
    assert code_of(partly) == ExitCode.PARTIAL


DOUBLED = "Email,Note\na@acme.com,first\nb@acme.com,x\nA@acme.com,last\n"


def test_a_key_twice_in_the_file_is_an_error_that_names_the_first_line(desk: KeyDesk) -> None:
    assert counts(desk.load(DOUBLED, "email")) == {"rejected": 1, "unsent": 2}
    assert (desk.codes, desk.findings[0].first_line) == (["duplicate_key"], 4)
    assert "line 2" in desk.findings[0].message


@pytest.mark.parametrize("policy", ["first", "last"])
def test_one_of_two_rows_with_a_key_may_count(desk: KeyDesk, policy: str) -> None:
    assert counts(desk.load(DOUBLED, "email", duplicates=policy)) == {"created": 2, "skipped": 1}
    assert desk.server.values("note") == {policy: 1, "x": 1}


def test_a_blank_key_is_an_error(desk: KeyDesk) -> None:
    assert counts(desk.load("Email,Note\n,x\n", "email")) == {"rejected": 1}
    assert desk.codes == ["blank_key"]


def test_several_keys_tell_a_record_together(desk: KeyDesk) -> None:
    desk.server.seed([{"code": "a", "n": 1, "note": "x"}, {"code": "a", "n": 2, "note": "x"}])
    assert counts(desk.load("code,n,note\na,2,new\na,3,new\n", "code", "n")) == {"created": 1, "updated": 1}
    assert [record["data"]["note"] for record in desk.server.records] == ["x", "new", "new"]


def test_required_attributes_are_required_of_new_records_only(desk: KeyDesk) -> None:
    desk.attributes.append(attribute("name", isRequired=True))
    desk.server.seed([{"email": "p0@acme.com", "name": "Ada"}])
    assert counts(desk.load(people(2), "email", stop=False)) == {"updated": 1, "rejected": 1}
    assert desk.codes == ["required_missing"]


def test_a_record_made_while_the_object_is_read_is_not_made_again(desk: KeyDesk) -> None:
    desk.server.seed([{"email": f"q{n}@acme.com"} for n in range(250)])
    later = "2026-01-01T00:10:00.000000Z"

    def somebody(page: int) -> None:
        if page == 4:  # every page except the last has been read
            desk.server.add({"email": "P1@acme.com"}, later)

    desk.server.before_page = somebody
    assert counts(desk.load(people(3), "email")) == {"created": 2, "updated": 1}
    assert len(desk.server.records) == 253


def test_many_keys_read_the_object_and_few_keys_use_filters(desk: KeyDesk) -> None:
    desk.server.seed([{"code": f"no{n}", "note": "old"} for n in range(1000)], lambda n: f"2025-01-01T00:{n // 60:02}:{n % 60:02}Z")
    few = desk.load("code,note\nno101,new\nno999,new\nno1000,new\n", "code")
    assert counts(few) == {"created": 1, "updated": 2}
    filtered = [query for query in desk.server.reads if any(name.startswith("filter") for name in query)]
    assert (len(filtered), len(desk.server.reads)) == (4, 6)  # one proves the filter; the newest page; the count
    desk.server.reads.clear()
    many = "code,note\n" + "".join(f"no{n},newer\n" for n in range(20))
    assert counts(desk.load(many, "code")) == {"updated": 20}
    assert not any(name.startswith("filter[code]") for query in desk.server.reads for name in query)
    assert len(desk.server.reads) <= 1 + 12 + 2 + 2


@pytest.mark.parametrize(
    "finds", [lambda text, value: False, lambda text, value: True, lambda text, value: value == "no7" or value in text]
)
def test_a_filter_is_tested_before_it_is_trusted(desk: KeyDesk, monkeypatch: pytest.MonkeyPatch, finds: Callable[[str, str], bool]) -> None:
    monkeypatch.setattr("tests.support.bulkserver.OPERATORS", {"contains": finds, "equals": finds, "greaterThanOrEqual": str.__ge__})
    desk.server.seed([{"code": f"no{n}", "note": "old"} for n in range(500)])
    assert counts(desk.load("code,note\nno7,new\nno8,new\n", "code")) == {"updated": 2}
    assert len(desk.server.records) == 500


@pytest.mark.parametrize("applies", [True, False])
def test_a_request_without_an_answer_doubles_nothing(desk: KeyDesk, applies: bool) -> None:
    desk.server.seed([{"email": "p1@acme.com", "note": "old"}])
    desk.server.faults[0] = Fault(applies=applies, drop=True)
    result = desk.load(people(150), "email")
    assert code_of(result) == ExitCode.OK
    assert len(desk.server.records) == 150
    assert desk.server.values("note") == {"x": 150}
    assert sum(counts(result).values()) == 150


KEYS = {
    "code": [f"{n}-{letter}" for n in range(50) for letter in "xX"],
    "phone": [f"+44 20 7946 {n:04}" for n in range(100)],
    "email": [f"p{n}@acme.com" for n in range(100)],
    "n": [str(n) for n in range(100)],
}


def spelt(key: str, value: Any) -> Any:
    return {"phone": {"number": str(value).replace(" ", "-")}, "email": str(value).upper()}.get(key, value)


def lose_first_batch(desk: KeyDesk, key: str, applied: int, note: str) -> None:
    """Let the first write end without an answer; its first rows have records with this note."""

    def write(rows: list[dict[str, Any]]) -> tuple[int, str] | None:
        if len(desk.server.writes) > 1:
            return None
        for row in rows[:applied]:
            desk.server.add({"note": note, key: spelt(key, row["data"][key])})
        return 502, "bad gateway"

    desk.server.refuse_batch = write
    desk.server.seed([{"note": "there before"}])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("applied", [0, 50, 100])
def test_rows_in_doubt_are_known_by_their_key(desk: KeyDesk, key: str, applied: int) -> None:
    """Even if the service alters values and has confirmed nothing yet."""
    lose_first_batch(desk, key, applied, "a no")
    result = desk.load(f"{key},note\n" + "".join(f"{value},a note\n" for value in KEYS[key]), key)
    if not applied:  # a list that shows nothing newer proves nothing
        assert (counts(result), code_of(result)) == ({"inDoubt": 100}, ExitCode.PARTIAL)
        assert desk.server.values("note") == Counter({"there before": 1})
        return
    assert (counts(result), code_of(result)) == ({"created": 100}, ExitCode.OK)
    assert desk.server.values("note") == Counter({"there before": 1, "a no": applied, "a note": 100 - applied})


def test_records_that_another_client_created_from_the_same_rows_are_updated(desk: KeyDesk) -> None:
    """The records have the keys of all rows in doubt and another note: crmctl does not take them for its own."""
    lose_first_batch(desk, "email", 100, "theirs")
    result = desk.load("email,note\n" + "".join(f"{value},a note\n" for value in KEYS["email"]), "email")
    assert (counts(result), code_of(result)) == ({"updated": 100}, ExitCode.OK)
    assert desk.server.values("note") == Counter({"there before": 1, "a note": 100})


def test_a_resumed_job_reuses_its_matches(desk: KeyDesk) -> None:
    desk.server.seed([{"email": "p1@acme.com", "note": "old"}])
    desk.server.faults[1] = Fault(status=401, body={"error": "unauthorized", "message": "no"})
    first = desk.load(people(250), "email")
    assert (first.is_resumable, counts(first)["unsent"]) == (True, 150)
    desk.server.add({"email": "P249@acme.com", "note": "theirs"}, "2026-01-01T00:10:00.000000Z")
    assert counts(desk.resume()) == {"created": 248, "updated": 2}
    assert len(desk.server.records) == 250
    assert desk.server.values("note") == {"x": 250}


@pytest.mark.parametrize(
    ("keys", "code"), [(("nope",), "unknown_attribute"), (("id",), "unknown_attribute"), (("n",), "missing_key_column")]
)
def test_a_key_that_cannot_be_is_refused(desk: KeyDesk, keys: tuple[str, ...], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        desk.load(people(1), *keys)
    assert caught.value.code == code
    assert desk.store.list() == []


def test_ids_in_a_file_with_a_key_mean_nothing(desk: KeyDesk) -> None:
    ids = desk.server.seed([{"email": "p0@acme.com"}, {"email": "other@acme.com"}])
    assert counts(desk.load(f"id,Email,Note\n{ids[1]},p0@acme.com,new\n", "email")) == {"updated": 1}
    assert desk.server.records[0]["data"]["note"] == "new"


def test_values_are_compared_as_a_service_shows_them() -> None:
    known = {each.slug: each for each in [*ATTRIBUTES, attribute("born", "date"), attribute("tags", "text", isList=True)]}
    there = {"n": Decimal("12.50"), "note": "a", "born": "2020-02-01T00:00:00.000Z", "email": "a@b.c", "tags": ["x"]}
    assert is_unchanged({"n": 12.5, "note": " a ", "born": "2020-02-01", "email": "A@b.c", "tags": ["x"], "code": None}, there, known)
    for slug, value in (("n", 12.6), ("note", "A"), ("born", "2020-02-02"), ("note", None), ("tags", ["x", "y"]), ("code", "c")):
        assert not is_unchanged({slug: value}, there, known), slug
    assert is_unchanged({"n": 12.5}, {"n": "12.50"}, known)
    assert not is_unchanged({"n": 12.5}, {"n": "12.6"}, known)
    assert not is_unchanged({"note": "12.5"}, {"note": "12.50"}, known)


@pytest.mark.parametrize(
    "stored", ["A1", ["a1"], {"id": "a1"}, [{"id": "a1"}], {"objectId": "o", "recordId": "a1"}, [{"objectId": "o", "recordId": "a1"}]]
)
def test_a_reference_is_the_same_in_every_form(stored: Any) -> None:
    known = {"boss": attribute("boss", "reference")}
    assert is_unchanged({"boss": "a1"}, {"boss": stored}, known)
    assert is_unchanged({"boss": ["a1"]}, {"boss": stored}, known)
    assert not is_unchanged({"boss": "a2"}, {"boss": stored}, known)
    assert [*reference_ids(ids_only(stored))] == ["a1"]


def test_a_key_has_one_form() -> None:
    assert key_form("phone_number", {"countryCode": "+44", "number": "20 79"}) == key_form("phone_number", "+44 20-79") == "442079"
    assert key_form("number", Decimal("1E+2")) == "100"
    rule = key_rule(["email", "code"], ATTRIBUTES)
    assert rule.key({"email": "A@b.c", "code": "x "}) == rule.key({"email": "a@b.c", "code": "x"})
    assert rule.key({"email": "A@b.c", "code": " "}) is None
