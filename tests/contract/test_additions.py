"""Changing options of a select and members through HTTP (additions to the interface)."""

from __future__ import annotations

from typing import Any

import pytest

from crmctl.service.store import keys, logs, members, objects
from tests.support.service import RunningService, new_id


@pytest.fixture
def status(crm: RunningService) -> str:
    """Path of the options of the attribute `status` of people."""
    path = f"/api/v1/objects/{crm.object_id('people')}/attributes"
    [attribute] = [attribute for attribute in crm.client.get(path).json()["attributes"] if attribute["slug"] == "status"]
    return f"{path}/{attribute['id']}"


def records_path(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def audited(crm: RunningService, action: str) -> list[Any]:
    return crm.engine.read(lambda tx: logs.list_entries(tx, action=action))


def test_options_are_added_renamed_and_retired(crm: RunningService, status: str) -> None:
    old = crm.client.get(status).json()["config"]["options"]
    made = [crm.client.post(records_path(crm), json={"data": {"status": option}}).json() for option in old[:2]]
    edits = {"add": ["paused", "lost"], "rename": {old[0]: "fresh", old[2]: old[3], old[3]: old[2]}, "retire": [old[1]]}
    crm.clock.sleep(60)
    events = len(crm.outbox())
    changed = crm.client.post(f"{status}/options", json=edits)
    assert changed.status_code == 200, changed.text
    options = ["fresh", old[3], old[2], *old[4:], "paused", "lost"]
    assert changed.json() == crm.client.get(status).json()
    assert changed.json()["config"] == {"options": options}
    after = [crm.client.get(f"{records_path(crm)}/{record['id']}").json() for record in made]
    assert [record["data"]["status"] for record in after] == ["fresh", old[1]]
    assert [kind for kind, _ in crm.outbox()[events:]] == ["record.updated"]
    newest = crm.client.get(f"{records_path(crm)}/{made[0]['id']}/history").json()["changes"][0]
    assert newest["changes"] == [{"attributeSlug": "status", "old": old[0], "new": "fresh"}]
    # A record keeps a retired option, and its updates may repeat it, but no other record can have it any more.
    holder, other = (f"{records_path(crm)}/{record['id']}" for record in reversed(made))
    assert crm.client.patch(holder, json={"data": {"score": 1}}).status_code == 200
    assert crm.client.patch(holder, json={"data": {"status": old[1]}}).status_code == 200
    assert crm.client.patch(other, json={"data": {"status": old[1]}}).status_code == 400
    assert crm.client.post(records_path(crm), json={"data": {"status": old[1]}}).status_code == 400
    [entry] = audited(crm, "attribute.updated")
    assert (entry["about"]["changes"]["options"], entry["by"]["type"]) == ([old, options], "key")


def test_renaming_an_option_keeps_retired_ones(crm: RunningService) -> None:
    people = f"/api/v1/objects/{crm.object_id('people')}"
    config = {"options": ["a", "b", "c"]}
    fields = {"name": "Colours", "slug": "colours", "type": "select", "isList": True, "config": config}
    attribute = crm.client.post(f"{people}/attributes", json=fields).json()
    record = crm.client.post(f"{people}/records", json={"data": {"colours": ["a", "b"]}}).json()
    path = f"{people}/attributes/{attribute['id']}/options"
    assert crm.client.post(path, json={"retire": ["b"]}).status_code == 200
    assert crm.client.post(path, json={"rename": {"a": "z"}}).json()["config"] == {"options": ["z", "c"]}
    assert crm.client.get(f"{people}/records/{record['id']}").json()["data"] == {"colours": ["z", "b"]}
    assert crm.client.post(f"{people}/records", json={"data": {"colours": ["b"]}}).status_code == 400


def test_wrong_changes_of_options_change_nothing(crm: RunningService, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = crm.client.get(status).json()
    first, second, *rest = before["config"]["options"]
    for _ in range(2):
        crm.client.post(records_path(crm), json={"data": {"status": first}})
    monkeypatch.setattr(objects, "MOST_RENAMED", 1)
    for edits, part in (
        ({"rename": {"none": "x"}}, "'none' is no option of status (new, "),
        ({"retire": ["none"]}, "'none' is no option"),
        ({"add": [second]}, "has the option 'contacted' already"),
        ({"rename": {first: second}}, "has the option 'contacted' already"),
        ({"add": ["x", "x"]}, "has the option 'x' already"),
        ({"add": [" "]}, "must not be empty"),
        ({"retire": [first, second, *rest]}, "non-empty"),
        ({"rename": {first: "x"}, "retire": [first]}, "renamed and retired"),
        ({"rename": {first: "x"}}, "2 records have the option 'new'"),
        ({"rename": [first]}, "rename must be an object"),
        ({"drop": [first]}, "drop is not a field"),
    ):
        refused = crm.client.post(f"{status}/options", json=edits)
        assert (refused.status_code, part in refused.json()["message"]) == (400, True), refused.text
    assert crm.client.get(status).json() == before
    name = next(attribute for attribute in crm.client.get(status.rpartition("/")[0]).json()["attributes"] if attribute["slug"] == "email")
    no_select = crm.client.post(f"{status.rpartition('/')[0]}/{name['id']}/options", json={"add": ["x"]})
    assert (no_select.status_code, "not a select" in no_select.json()["message"]) == (400, True)
    with crm.client_with(crm.key_for({"attributes:read", "records:write"})) as reader:
        assert reader.post(f"{status}/options", json={"add": ["x"]}).status_code == 403


def add_member(crm: RunningService, name: str, role: str) -> str:
    stamp = {"ids": new_id, "now": crm.clock.now()}
    created = crm.engine.write(lambda tx: members.create_member(tx, name=name, email=f"{name.lower()}@acme.com", role=role, **stamp))
    return str(created["id"])


def key_of(crm: RunningService, member_id: str) -> str:
    stamp = {"ids": new_id, "now": crm.clock.now()}
    return crm.engine.write(lambda tx: keys.create_key(tx, name="theirs", scopes=None, created_by=member_id, **stamp))[1]


def test_the_role_of_a_member_can_change(crm: RunningService) -> None:
    ada = f"/api/v1/members/{add_member(crm, 'Ada', 'member')}"
    changed = crm.client.patch(ada, json={"role": "admin"})
    assert (changed.status_code, changed.json()["role"], changed.json()["user"]["email"]) == (200, "admin", "ada@acme.com")
    assert changed.json() in crm.client.get("/api/v1/members").json()["members"]
    [entry] = audited(crm, "member.updated")
    assert (entry["about"]["changes"], entry["by"]["type"]) == ({"role": ["member", "admin"]}, "key")
    assert crm.client.patch(ada, json={"role": "king"}).json()["details"]["valid"] == ["owner", "admin", "member", "viewer"]
    assert crm.client.patch(ada, json={}).status_code == 400


def test_the_last_owner_cannot_be_changed_or_removed(crm: RunningService) -> None:
    [owner] = crm.client.get("/api/v1/members").json()["members"]
    path = f"/api/v1/members/{owner['id']}"
    for refused in (crm.client.patch(path, json={"role": "admin"}), crm.client.delete(path)):
        assert (refused.status_code, refused.json()["error"]) == (409, "conflict")
    second = add_member(crm, "Ada", "owner")
    assert crm.client.patch(path, json={"role": "viewer"}).status_code == 200
    assert crm.client.delete(f"/api/v1/members/{second}").status_code == 409


def test_a_key_has_the_rights_of_its_creator_over_members(crm: RunningService) -> None:
    roles = {role: add_member(crm, role.title(), role) for role in ("owner", "admin", "member")}
    other = f"/api/v1/members/{add_member(crm, 'Ada', 'viewer')}"
    owner = f"/api/v1/members/{roles['owner']}"
    with crm.client_with(key_of(crm, roles["member"])) as client:
        assert client.patch(other, json={"role": "member"}).status_code == 403
        assert client.delete(other).status_code == 403
    with crm.client_with(crm.key_for({"members:read"})) as client:
        assert "full access" in client.patch(other, json={"role": "member"}).json()["message"]
    with crm.client_with(key_of(crm, roles["admin"])) as client:
        assert client.patch(other, json={"role": "owner"}).status_code == 403
        assert client.patch(owner, json={"role": "admin"}).status_code == 403
        assert client.delete(owner).status_code == 403
        assert client.patch(other, json={"role": "admin"}).status_code == 200
        assert client.patch(f"/api/v1/members/{roles['admin']}", json={"role": "viewer"}).status_code == 200
        assert client.patch(other, json={"role": "viewer"}).status_code == 403


def test_removing_a_member_names_the_remaining_keys(crm: RunningService) -> None:
    ada = add_member(crm, "Ada", "admin")
    secret = key_of(crm, ada)
    code = crm.engine.write(lambda tx: members.make_code(tx, ada, now=crm.clock.now()))
    removed = crm.client.delete(f"/api/v1/members/{ada}")
    assert removed.status_code == 200, removed.text
    assert (removed.json()["deleted"], [key["name"] for key in removed.json()["keys"]]) == (True, ["theirs"])
    assert ada not in {member["id"] for member in crm.client.get("/api/v1/members").json()["members"]}
    assert crm.client.delete(f"/api/v1/members/{ada}").status_code == 404
    assert crm.engine.read(lambda tx: members.find_by_code(tx, code, now=crm.clock.now())) is None
    with crm.client_with(secret) as client:
        assert client.get("/api/v1/members").status_code == 200
        assert (
            client.patch(
                f"/api/v1/members/{crm.client.get('/api/v1/members').json()['members'][0]['id']}", json={"role": "viewer"}
            ).status_code
            == 403
        )
    [entry] = audited(crm, "member.removed")
    assert entry["about"] == {"name": "Ada", "email": "ada@acme.com", "role": "admin"}
