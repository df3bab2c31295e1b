"""Writing records: validation, merging, uniqueness, references, failures of bulk writes, and events."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from crmctl.models import jsontext
from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import objects, records
from tests.service.store.conftest import Store, new_id


def events(store: Store) -> list[tuple[str, dict[str, Any]]]:
    return [(name, jsontext.loads(payload)) for name, payload in store.rows("SELECT type, payload FROM change_log ORDER BY sequence")]


def unique_values(store: Store) -> set[tuple[str, str]]:
    return set(store.rows("SELECT key, record_id FROM unique_value"))


def test_values_are_stored_as_sent(store: Store) -> None:
    people = store.standard("people")
    data = {
        "name": {"last": "Łovelace", "first": "Ada", "nick": None},
        "email": "Ada@Example.com",
        "phone": "+44 20 7946 0000",
        "job_title": " Countess\n\"of\" 'numbers' 🎲 ",
        "birthday": "1815-12-10",
        "address": {"street": "1 St James's Sq", "city": "London"},
        "tags": ["a", 1, 2.5, Decimal("0.1000000000000000055511151231257827")],
        "subscribed": False,
        "status": "new",
        "score": Decimal("123456789012345678901234567890.25"),
        "notes": "",
    }
    made = store.create(people, **data)
    assert made["data"] == data
    again = store.read(lambda tx: records.get_record(tx, people, made["id"].upper()))
    assert again == made
    assert jsontext.dumps(again["data"]) == jsontext.dumps(data)
    assert made["createdAt"] == made["updatedAt"] == "2027-01-15T08:00:00.000000Z"


def test_an_update_merges_and_null_clears(store: Store) -> None:
    people = store.standard("people")
    made = store.create(people, email="a@x.org", score=1, name={"first": "A", "last": "B"}, status=None)
    assert "status" not in made["data"]
    store.clock.advance(2.5)
    changed = store.write(records.update_record, people, made["id"], {"score": None, "name": {"first": "C"}, "notes": "n"})
    assert changed["data"] == {"email": "a@x.org", "name": {"first": "C"}, "notes": "n"}
    assert changed["createdAt"] == made["createdAt"]
    assert changed["updatedAt"] == "2027-01-15T08:00:02.500000Z"
    assert store.find(people, ("score", "isEmpty", "true"), ("name", "equals", "C")) == [changed]


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ("text", ["data"]),
        ({"nope": 1, "\ud800": 2}, ["nope", "unknown"]),
        ({"email": "nobody", "score": "1", "status": "?"}, ["email", "score", "status"]),
        ({"subscribed": "true"}, ["subscribed"]),
        ({"birthday": "2023-02-30"}, ["birthday"]),
        ({"notes": "a\x00b"}, ["notes", "NUL"]),
        ({"notes": "\ud800"}, ["notes"]),
        ({"notes": "x" * 100_001}, ["notes", "100,000"]),
        ({"company": new_id()}, ["company"]),
        ({"tags": "a"}, ["tags"]),
        ({"tags": [True]}, ["tags"]),
    ],
)
def test_wrong_data_is_refused_by_name_and_nothing_is_written(store: Store, data: Any, named: list[str]) -> None:
    people = store.standard("people")
    with pytest.raises(BadRequest) as caught:
        store.write(records.create_record, people, data)
    for word in named:
        assert word in caught.value.message
    jsontext.dumps([caught.value.message, caught.value.details]).encode()
    assert store.find(people) == []
    assert events(store) == []


def test_the_size_of_a_record_is_limited(store: Store) -> None:
    things = store.object("things", *({"slug": f"t{n}", "type": "text"} for n in range(11)))
    fits = store.create(things, **{f"t{n}": "x" * 99_000 for n in range(10)})
    with pytest.raises(BadRequest, match="1,000,000"):
        store.write(records.update_record, things, fits["id"], {"t10": "x" * 20_000})
    assert store.find(things) == [fits]


def test_required_values_cannot_be_missing_or_removed(store: Store) -> None:
    companies = store.standard("companies")
    for data in ({}, {"name": None}, {"name": ""}):
        with pytest.raises(BadRequest, match="name is required"):
            store.create(companies, **data)
    made = store.create(companies, name="Acme")
    with pytest.raises(BadRequest, match="name is required"):
        store.write(records.update_record, companies, made["id"], {"name": None})
    assert store.write(records.update_record, companies, made["id"], {"notes": "n"})["data"] == {"name": "Acme", "notes": "n"}


def test_unique_values_can_be_moved_and_released(store: Store) -> None:
    people = store.standard("people")
    ada, bob = store.create(people, email="Ada@x.org"), store.create(people, email="bob@x.org")
    with pytest.raises(Conflict) as caught:
        store.create(people, email="ADA@X.ORG")
    assert caught.value.details == {"slug": "email"}
    with pytest.raises(Conflict):
        store.write(records.update_record, people, bob["id"], {"email": "ada@x.org"})
    assert store.write(records.update_record, people, ada["id"], {"email": "ADA@x.org"})["data"]["email"] == "ADA@x.org"
    store.write(records.update_record, people, ada["id"], {"email": "ada@y.org"})
    store.write(records.update_record, people, bob["id"], {"email": "ada@x.org"})
    assert unique_values(store) == {("ada@y.org", ada["id"]), ("ada@x.org", bob["id"])}
    store.write(records.delete_record, people, bob["id"])
    store.write(records.update_record, people, ada["id"], {"email": None})
    assert unique_values(store) == set()


def test_an_array_of_unique_values_shares_no_element(store: Store) -> None:
    things = store.object("things", {"slug": "codes", "type": "text", "is_list": True, "is_unique": True})
    first = store.create(things, codes=["a", "b", "b", ""])
    with pytest.raises(Conflict, match="codes"):
        store.create(things, codes=["c", "B"])
    store.write(records.update_record, things, first["id"], {"codes": ["b", "c"]})
    second = store.create(things, codes=["a"])
    assert unique_values(store) == {("b", first["id"]), ("c", first["id"]), ("a", second["id"])}


def test_references_point_to_records_of_the_right_object(store: Store) -> None:
    people, companies = store.standard("people"), store.standard("companies")
    acme, ada = store.create(companies, name="Acme"), store.create(people)
    linked = store.create(people, company=acme["id"].upper())
    with pytest.raises(BadRequest, match="company"):
        store.create(people, company=ada["id"])
    assert store.find(people, ("company", "equals", acme["id"])) == [linked]
    store.write(records.delete_record, companies, acme["id"])
    kept = store.write(records.update_record, people, linked["id"], {"notes": "still linked"})
    assert kept["data"]["company"] == acme["id"].upper()


def test_an_update_may_repeat_what_a_new_record_cannot_have(store: Store) -> None:
    people = store.standard("people")
    things = store.object(
        "things",
        {"slug": "owners", "type": "reference", "is_list": True, "config": {"allowed_object_id": people}},
        {"slug": "tags", "type": "select", "is_list": True, "config": {"options": ["a", "b", "c"]}},
    )
    gone, there, other = store.create(people), store.create(people), store.create(things)
    record = store.create(things, owners=[gone["id"]], tags=["b"])
    store.write(records.delete_record, people, gone["id"])
    store.write(objects.edit_options, things, store.attribute(things, "tags")["id"], {"retire": ["b"]})
    more = {"owners": [gone["id"], there["id"]], "tags": ["a", "b"]}
    assert store.write(records.update_record, things, record["id"], more)["data"] == more
    items = [{"id": record["id"], "data": more}, {"id": other["id"], "data": {"owners": [gone["id"]]}}, {"id": other["id"], "data": more}]
    answer = store.write(records.bulk_write, things, "upsert", items)
    assert (answer["updated"], [failure["index"] for failure in answer["failed"]]) == (1, [1, 2])
    for data in ({"owners": [gone["id"]]}, {"tags": ["b"]}):
        with pytest.raises(BadRequest, match=next(iter(data))):
            store.create(things, **data)


def test_unknown_records_are_not_found(store: Store) -> None:
    people = store.standard("people")
    elsewhere = store.create(store.standard("companies"), name="Acme")["id"]
    for record_id in (new_id(), elsewhere, "1", "\ud800"):
        with pytest.raises(NotFound):
            store.read(lambda tx, record_id=record_id: records.get_record(tx, people, record_id))
        with pytest.raises(NotFound):
            store.write(records.update_record, people, record_id, {"nope": 1})
        with pytest.raises(NotFound):
            store.write(records.delete_record, people, record_id)
    with pytest.raises(NotFound):
        store.create(new_id(), name="x")


def test_bulk_create_reports_each_bad_row_and_keeps_the_others(store: Store) -> None:
    people = store.standard("people")
    known = store.create(people, email="known@x.org")
    items: list[Any] = [
        {"data": {"email": "one@x.org"}, "id": known["id"]},
        {"data": {"email": "nobody"}},
        {"data": {"email": "ONE@x.org"}},
        {"data": {"email": "KNOWN@x.org"}},
        "text",
        {"data": {"company": new_id()}},
        {},
        {"data": {"nope": 1}},
        {"data": {}},
    ]
    outcome = store.write(records.bulk_write, people, "create", items)
    assert (outcome["created"], outcome["updated"]) == (2, 0)
    assert [failure["index"] for failure in outcome["failed"]] == [1, 2, 3, 4, 5, 6, 7]
    assert all(isinstance(failure["error"], str) and failure["error"] for failure in outcome["failed"])
    assert [record["data"] for record in store.find(people)] == [{"email": "known@x.org"}, {"email": "one@x.org"}, {}]
    assert store.total(people) == 3
    assert [name for name, _ in events(store)] == ["record.created"] * 3
    assert {key for key, _ in unique_values(store)} == {"known@x.org", "one@x.org"}


_SOUND = {"email": "%d@x.org", "name": {"first": "Ä", "last": "B%d"}, "score": 1.5, "status": None, "tags": ["A", 2], "notes": ""}


@pytest.mark.parametrize(
    "odd", [{}, {"email": "nobody"}, {"name": None}, {"name": 7}, {"nope": 1}, {"company": new_id()}, {"status": "gone"}]
)
def test_a_bulk_write_stores_the_same_as_single_writes(store: Store, odd: dict[str, Any]) -> None:
    people = store.standard("people")
    rows = [jsontext.loads(jsontext.dumps(_SOUND).replace("%d", str(number))) for number in range(8)]
    rows[3] |= odd
    together = store.write(records.bulk_write, people, "create", [{"data": row} for row in rows])
    columns = ", ".join(f"c{number}, x{number}" for (number,) in store.rows("SELECT number FROM attribute WHERE object_id = ?", people))
    table = "record_" + str(store.rows("SELECT number FROM crm_object WHERE id = ?", people)[0][0])
    stored = store.rows(f"SELECT data, {columns} FROM {table} ORDER BY seq")
    for record in store.find(people):
        store.write(records.delete_record, people, record["id"])
    failed = {}
    for number, row in enumerate(rows):
        try:
            store.write(records.create_record, people, row)
        except (BadRequest, Conflict) as fault:
            failed[number] = fault.message
    assert store.rows(f"SELECT data, {columns} FROM {table} ORDER BY seq") == stored
    assert {failure["index"]: failure["error"] for failure in together["failed"]} == failed
    assert len(stored) + len(failed) == 8


def test_upsert_matches_by_id_and_later_rows_see_earlier_ones(store: Store) -> None:
    people = store.standard("people")
    ada, bob = store.create(people, email="a@x.org"), store.create(people, email="b@x.org")
    items = [
        {"id": ada["id"], "data": {"email": "c@x.org"}},
        {"id": bob["id"].upper(), "data": {"email": "a@x.org"}},
        {"id": new_id(), "data": {}},
        {"id": "7", "data": {}},
        {"id": ada["id"], "data": {"score": 3, "email": "b@x.org"}},
        {"id": None, "data": {"email": "c@x.org"}},
        {"data": {"email": "a@x.org"}},
    ]
    outcome = store.write(records.bulk_write, people, "upsert", items)
    assert (outcome["created"], outcome["updated"]) == (1, 3)
    assert [failure["index"] for failure in outcome["failed"]] == [2, 3, 6]
    found = {record["id"]: record["data"] for record in store.find(people)}
    assert found.pop(ada["id"]) == {"email": "b@x.org", "score": 3}
    assert found.pop(bob["id"]) == {"email": "a@x.org"}
    assert list(found.values()) == [{"email": "c@x.org"}]
    assert {key: owner for key, owner in unique_values(store) if owner in (ada["id"], bob["id"])} == {
        "b@x.org": ada["id"],
        "a@x.org": bob["id"],
    }
    assert store.find(people, ("email", "equals", "b@x.org"), ("score", "equals", "3"))[0]["id"] == ada["id"]


def test_a_failed_row_after_a_good_one_for_the_same_record_changes_nothing(store: Store) -> None:
    people = store.standard("people")
    ada = store.create(people, email="a@x.org")
    items = [
        {"id": ada["id"], "data": {"score": 1}},
        {"id": ada["id"], "data": {"score": "two"}},
        {"id": ada["id"], "data": {"company": new_id()}},
    ]
    outcome = store.write(records.bulk_write, people, "upsert", items)
    assert (outcome["updated"], len(outcome["failed"])) == (1, 2)
    assert store.find(people)[0]["data"] == {"email": "a@x.org", "score": 1}


def test_bulk_delete_counts_existing_records(store: Store) -> None:
    people = store.standard("people")
    made = [store.create(people, email=f"{n}@x.org")["id"] for n in range(5)]
    foreign = store.create(store.standard("companies"), name="Acme")["id"]
    wanted = [made[0], made[1].upper(), made[0], new_id(), foreign, "x"]
    assert store.write(records.bulk_delete, people, wanted) == 2
    assert [record["id"] for record in store.find(people)] == made[2:]
    assert store.total(people) == 3
    assert len(unique_values(store)) == 3


def test_events_contain_the_data_of_their_moment_in_order(store: Store) -> None:
    things = store.object("things", {"slug": "n", "type": "number"})
    made = store.create(things, n=Decimal("1.00000000000000000001"))
    store.write(records.bulk_write, things, "upsert", [{"id": made["id"], "data": {"n": n}} for n in (2, 3)])
    store.write(records.delete_record, things, made["id"])
    found = events(store)
    assert [name for name, _ in found] == ["record.created", "record.updated", "record.updated", "record.deleted"]
    assert [payload["data"]["n"] for _, payload in found] == [Decimal("1.00000000000000000001"), 2, 3, 3]
    organisation = store.rows("SELECT id FROM organisation")[0][0]
    assert {key: value for key, value in found[0][1].items() if key != "data"} == {
        "organizationId": organisation,
        "recordId": made["id"],
        "objectId": things,
    }
    sequences = [sequence for (sequence,) in store.rows("SELECT sequence FROM change_log ORDER BY sequence")]
    assert sequences == sorted(set(sequences))


def test_events_roll_back_with_their_records(store: Store) -> None:
    things = store.object("things")

    def fail_late(tx: Any, **named: Any) -> None:
        records.create_record(tx, things, {}, **named)
        raise RuntimeError("after the write")

    with pytest.raises(RuntimeError, match="after the write"):
        store.write(fail_late)
    assert events(store) == []
    assert store.find(things) == []
    store.create(things)
    assert len(events(store)) == store.total(things) == 1
