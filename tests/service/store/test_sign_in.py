"""Passwords, sign-in links and sessions on both engines."""

from __future__ import annotations

from crmctl.service.store import members
from crmctl.service.store.members import MOST_SESSIONS, MemberRole
from tests.service.store.conftest import Store, new_id

NOW = 1_800_000_000.0


def test_a_link_is_used_once_and_a_session_belongs_to_its_member(store: Store) -> None:
    made = store.engine.write(lambda tx: members.create_member(tx, name="Ada", email="ada@example.com", role="viewer", ids=new_id, now=NOW))
    old, code = (store.engine.write(lambda tx: members.make_code(tx, made["id"], now=NOW)) for _ in range(2))
    assert store.engine.read(lambda tx: members.find_by_code(tx, old, now=NOW)) is None
    assert store.engine.read(lambda tx: members.find_by_code(tx, code, now=NOW + members.LINK_SECONDS)) is None
    assert store.engine.read(lambda tx: members.find_by_code(tx, code, now=NOW)) == made["id"]
    assert store.engine.read(lambda tx: members.access_of_members(tx, now=NOW)) == {made["id"]: "invited"}
    store.engine.write(lambda tx: members.put_password(tx, made["id"], "hash"))
    assert store.engine.read(lambda tx: members.find_by_code(tx, code, now=NOW)) is None
    assert store.engine.read(lambda tx: members.get_password(tx, made["id"])) == "hash"
    tokens = [
        store.engine.write(lambda tx, at=at: members.open_session(tx, "console", member_id=made["id"], now=NOW + at))
        for at in range(MOST_SESSIONS + 3)
    ]
    store.engine.write(lambda tx: members.open_session(tx, "console", now=NOW))
    found = [store.engine.read(lambda tx, token=token: members.find_session(tx, "console", token, now=NOW + 99)) for token in tokens]
    assert [session is None for session in found] == [True] * 3 + [False] * MOST_SESSIONS
    assert (found[-1].role, found[-1].name, found[-1].member_id) == (MemberRole.VIEWER, "Ada", made["id"])
    store.engine.write(lambda tx: members.end_sessions_of(tx, made["id"], but=found[-1].id))
    left = store.engine.read(lambda tx: members.list_sessions(tx, now=NOW + 99))
    assert [session["memberId"] for session in left] == [made["id"], None]
