"""Restoring an object's records to a moment, whatever happened since, on both engines."""

from __future__ import annotations

import random
from typing import Any

import pytest

from crmctl.service.context import Context, Kept, ServiceSettings
from crmctl.service.faults import BadRequest
from crmctl.service.jobs.worker import forget_old
from crmctl.service.store import change_log, objects, record_history, records, webhooks
from crmctl.service.store.record_history import RestoreOutcome
from tests.service.store.conftest import Store, new_id

Contents = dict[str, tuple[dict[str, Any], str]]


def contents(store: Store, object_id: str) -> Contents:
    return {record["id"]: (record["data"], record["createdAt"]) for record in store.find(object_id)}


def restore(store: Store, object_id: str, moment: float) -> RestoreOutcome:
    now = store.clock.now()
    found = store.read(lambda tx: record_history.find_candidates(tx, object_id, moment, now=now))
    return record_history.restore(found, store.engine.write, object_id, lambda: {"ids": new_id, "now": store.clock.now()})


def things(store: Store) -> str:
    fields = ({"slug": "code", "type": "text", "is_unique": True}, {"slug": "n", "type": "number"}, {"slug": "words", "type": "list"})
    return store.object("things", *fields)


def change_something(store: Store, object_id: str, chance: random.Random) -> None:
    """Make one random change; the clock sometimes stands still."""
    known = list(contents(store, object_id))
    store.clock.sleep(chance.choice([0, 0, 1]))
    data = {"code": chance.choice([None, *"abcdef"]), "n": chance.choice([None, 0, 1, 1.0, 2]), "words": chance.choice([None, [], ["x"]])}
    some = {slug: value for slug, value in data.items() if chance.random() < 0.6}
    match chance.choice(["create", "create", "update", "update", "update", "delete", "bulk"]):
        case "create":
            store.write(records.bulk_write, object_id, "create", [{"data": some}])
        case "update" if known:
            store.write(records.bulk_write, object_id, "upsert", [{"id": chance.choice(known), "data": some}])
        case "delete" if known:
            store.write(records.bulk_delete, object_id, [chance.choice(known)])
        case "bulk" if known:
            store.write(records.bulk_write, object_id, "upsert", [{"id": chance.choice(known), "data": {"n": n}} for n in (7, 8)])
        case _:
            pass


def test_random_histories_are_restored_to_any_moment(store: Store) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown only when the test fails
    chance, made = random.Random(seed), things(store)
    past: dict[float, Contents] = {}
    for _ in range(60):
        change_something(store, made, chance)
        past[store.clock.now()] = contents(store, made)
    for moment in chance.sample(sorted(past), 4):
        store.clock.sleep(1)
        restored = restore(store, made, moment)
        now = contents(store, made)
        # Records that exchanged unique values since cannot be restored one by one: they are named and stay as they are.
        assert {record_id: now.get(record_id) for record_id in now.keys() | past[moment].keys() if record_id not in restored.failed} == {
            record_id: past[moment].get(record_id) for record_id in now.keys() | past[moment].keys() if record_id not in restored.failed
        }
        assert all("unique" in reason for reason in restored.failed.values())
        assert not restore(store, made, moment).counts.keys() - {"unchanged"}
        assert store.total(made) == len(now)
        held = {(data["code"], each) for each, (data, _) in now.items() if "code" in data}
        assert set(store.rows("SELECT key, record_id FROM unique_value")) == held
        past[store.clock.now()] = now


def test_the_history_shows_a_restore(store: Store) -> None:
    made = things(store)
    one = store.create(made, code="a", n=1)["id"]
    store.clock.sleep(60)
    moment = store.clock.now()
    store.clock.sleep(60)
    store.write(records.bulk_delete, made, [one])
    two = store.create(made, code="a", n=2)["id"]
    store.clock.sleep(60)
    assert restore(store, made, moment).counts == {"deleted": 1, "created": 1}
    assert store.find(made)[0]["data"] == {"code": "a", "n": 1}
    history = store.read(lambda tx: record_history.read_history(tx, made, one))
    assert [change["type"] for change in history.changes] == ["record.created", "record.deleted", "record.created"]
    assert history.since is None
    history = store.read(lambda tx: record_history.read_history(tx, made, two))
    assert [change["type"] for change in history.changes] == ["record.deleted", "record.created"]


def test_values_of_deleted_attributes_are_left_out_and_named(store: Store) -> None:
    made = things(store)
    one = store.create(made, code="a", n=1, words=["x"])["id"]
    moment = store.clock.now()
    store.clock.sleep(60)
    store.write(records.update_record, made, one, {"n": 2, "words": ["y"]})
    words = store.attribute(made, "words")["id"]
    store.engine.write(lambda tx: objects.delete_attribute(tx, made, words))
    restored = restore(store, made, moment)
    assert (restored.counts, restored.left_out, restored.failed) == ({"updated": 1}, {"words"}, {})
    assert store.find(made)[0]["data"] == {"code": "a", "n": 1}


def test_a_renamed_option_comes_back_as_it_was(store: Store) -> None:
    made = store.object("things", {"slug": "stage", "type": "select", "config": {"options": ["new", "done"]}})
    store.create(made, stage="new")
    moment = store.clock.now()
    store.clock.sleep(60)
    stage = store.attribute(made, "stage")["id"]
    store.write(objects.edit_options, made, stage, {"rename": {"new": "fresh"}})
    assert store.find(made)[0]["data"] == {"stage": "fresh"}
    restored = restore(store, made, moment)
    assert (restored.counts, restored.left_out) == ({"updated": 1}, set())
    assert store.find(made)[0]["data"] == {"stage": "new"}


def test_moments_outside_the_history_are_refused(store: Store) -> None:
    made = things(store)
    store.create(made, n=1)
    with pytest.raises(BadRequest, match="future"):
        restore(store, made, store.clock.now() + 1)
    store.engine.write(lambda tx: change_log.take_waiting(tx, 10))
    settings = ServiceSettings(kept=Kept(history=100 * 86400))
    store.clock.advance(101 * 86400)
    forget_old(Context(settings, store.engine, store.clock, new_id))
    with pytest.raises(BadRequest, match="known since"):
        restore(store, made, store.clock.now() - 100 * 86400 - 1)
    assert restore(store, made, store.clock.now() - 100 * 86400).counts == {}
    one = store.find(made)[0]["id"]
    history = store.read(lambda tx: record_history.read_history(tx, made, one))
    assert (history.changes, history.since is None) == ([], False)


def test_a_change_kept_only_for_a_delivery_is_not_history(store: Store) -> None:
    made = things(store)
    store.clock.sleep(60)
    one = store.create(made, n=1)["id"]
    store.engine.write(lambda tx: change_log.take_waiting(tx, 100))
    for endpoint in store.read(webhooks.list_endpoints):
        store.engine.write(lambda tx, endpoint=endpoint: webhooks.delete_endpoint(tx, endpoint["id"]))
    store.write(webhooks.create_endpoint, url="http://127.0.0.1:9/")
    store.clock.sleep(60)
    store.write(records.update_record, made, one, {"n": 2})
    store.engine.write(lambda tx: change_log.take_waiting(tx, 100))
    update = store.rows("SELECT event_id FROM change_log WHERE type = 'record.updated'")
    assert update[0][0] is not None
    kept = "UPDATE change_log SET waiting = 1 WHERE type = 'record.updated'"
    store.engine.write(lambda tx: tx.execute(kept))
    [endpoint] = store.read(webhooks.list_endpoints)
    store.engine.write(lambda tx: webhooks.delete_endpoint(tx, endpoint["id"]))
    store.clock.sleep(60)
    store.write(records.update_record, made, one, {"n": 3})
    store.clock.sleep(60)
    store.engine.write(lambda tx: change_log.forget(tx, store.clock.now(), 100))
    assert [row[0] for row in store.rows("SELECT type FROM change_log")] == ["record.updated"]
    history = store.read(lambda tx: record_history.read_history(tx, made, one))
    # The history lost the change to 2, so it must not attribute the change to 3 to the wrong author.
    assert (history.changes, history.since is None) == ([], False)


def test_events_without_receivers_have_no_body_and_the_others_wait(store: Store) -> None:
    for endpoint in store.read(webhooks.list_endpoints):
        store.engine.write(lambda tx, endpoint=endpoint: webhooks.delete_endpoint(tx, endpoint["id"]))
    made = things(store)
    store.create(made, n=1)
    store.write(webhooks.create_endpoint, url="http://127.0.0.1:9/", event_types=["record.deleted"])
    one = store.create(made, n=2)["id"]
    store.write(records.bulk_delete, made, [one])
    rows = store.rows("SELECT type, event_id IS NOT NULL, payload IS NOT NULL, waiting FROM change_log ORDER BY sequence")
    assert [tuple(map(int, row[1:])) for row in rows] == [(0, 0, 0), (0, 0, 0), (1, 1, 1)]
