"""API keys, members and rate windows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from crmctl.service.faults import BadRequest, Conflict, NotFound
from crmctl.service.store import keys, members
from crmctl.service.store.keys import RateState, RateWindows
from tests.service.store.conftest import Store, new_id


def create(store: Store, **named: Any) -> tuple[keys.Key, str]:
    made: tuple[keys.Key, str] = store.write(keys.create_key, **{"name": "CI", "scopes": None} | named)
    return made


def test_a_key_is_found_only_by_its_secret(store: Store) -> None:
    key, secret = create(store, scopes=frozenset({"records:read", "members:read"}))
    assert secret.startswith("crs_")
    assert len(secret) >= 4 + 43
    found = store.read(lambda tx: keys.find_key(tx, secret))
    assert found == key
    assert found.allows("records:read")
    assert not found.allows("records:write")
    assert key.wire()["scopes"] == ["members:read", "records:read"]
    for wrong in (secret[:-1], secret.upper(), "", "crs_", "\ud800", key.id):
        assert store.read(lambda tx, wrong=wrong: keys.find_key(tx, wrong)) is None


def test_the_secret_is_nowhere_in_the_database(sqlite_store: Store, sqlite_path: Path) -> None:
    _, secret = create(sqlite_store)
    sqlite_store.engine.close()
    files = [path.read_bytes() for path in sqlite_path.parent.iterdir()]
    assert files
    assert not any(secret[4:].encode() in content for content in files)
    assert sqlite_path.stat().st_mode & 0o077 == 0


def test_full_access_allows_everything_and_two_keys_differ(store: Store) -> None:
    (first, one), (second, two) = create(store), create(store)
    assert one != two
    assert first.allows("webhooks:manage")
    assert [key.id for key in store.read(keys.list_keys)] == sorted([first.id, second.id])


def test_a_key_expires_at_its_time(store: Store) -> None:
    key, secret = create(store, expires_at=store.clock.now() + 60)
    assert not key.is_expired(store.clock.now() + 59.9)
    assert key.is_expired(store.clock.now() + 60)
    assert key.wire()["expiresAt"] == "2027-01-15T08:01:00.000000Z"
    assert store.read(lambda tx: keys.find_key(tx, secret)) == key


def test_a_revoked_key_stops_working_at_once(store: Store) -> None:
    key, secret = create(store)
    revoked = store.engine.write(lambda tx: keys.revoke_key(tx, key.id, now=store.clock.now()))
    assert revoked.revoked_at is not None
    assert store.read(lambda tx: keys.find_key(tx, secret)) is None
    store.clock.advance(5)
    assert store.engine.write(lambda tx: keys.revoke_key(tx, key.id, now=store.clock.now())) == revoked
    with pytest.raises(NotFound):
        store.engine.write(lambda tx: keys.revoke_key(tx, new_id(), now=0.0))


@pytest.mark.parametrize(
    ("named", "field"),
    [
        ({"scopes": frozenset({"records:all"})}, "scope"),
        ({"scopes": frozenset()}, "scopes"),
        ({"name": ""}, "name"),
        ({"expires_at": 1.0}, "expiresAt"),
    ],
)
def test_a_meaningless_key_is_refused(store: Store, named: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest, match=field):
        create(store, **named)
    assert store.read(keys.list_keys) == []


def test_member_emails_are_unique(store: Store) -> None:
    ada = store.write(members.create_member, name="Ada", email="Ada@x.org", role="admin")
    assert ada == {
        "id": ada["id"],
        "role": "admin",
        "createdAt": "2027-01-15T08:00:00.000000Z",
        "user": {"id": ada["user"]["id"], "name": "Ada", "email": "Ada@x.org", "image": None},
    }
    assert sorted(member["role"] for member in store.read(members.list_members)) == ["admin", "owner"]
    assert store.read(lambda tx: members.find_member_by_email(tx, "ADA@x.org")) == ada
    with pytest.raises(Conflict):
        store.write(members.create_member, name="Eve", email="ada@X.ORG")
    for wrong in ("", "ada", None):
        with pytest.raises(BadRequest, match="email"):
            store.write(members.create_member, name="Eve", email=wrong)
    renamed = store.engine.write(lambda tx: members.update_member(tx, ada["id"], name="Ada L.", role="member"))
    assert (renamed["user"]["name"], renamed["role"]) == ("Ada L.", "member")


@pytest.fixture
def windows(store: Store) -> RateWindows:
    """Held in memory on SQLite and in the database on PostgreSQL."""
    return store.engine.rate_windows()


def test_a_window_ends_at_a_multiple_of_its_length(windows: RateWindows) -> None:
    assert windows.take("a", 2, 60, 119.9) == RateState(True, 1, 120)
    assert windows.take("a", 2, 60, 119.95) == RateState(True, 0, 120)
    assert windows.take("a", 2, 60, 119.99) == RateState(False, 0, 120)
    assert windows.take("b", 2, 60, 119.99) == RateState(True, 1, 120)
    assert windows.take("a", 2, 60, 120.0) == RateState(True, 1, 180)
    assert windows.take("c", 100, 3, 1_800_000_001.0) == RateState(True, 99, 1_800_000_003)


def test_ended_windows_are_forgotten() -> None:
    windows = RateWindows()
    for n in range(25_000):
        windows.take(str(n), 1, 1, float(n // 1000))
    assert [len(window) for window in windows._here.values()] == [1000]


def test_windows_of_other_lengths_are_kept() -> None:
    windows = RateWindows()
    windows.take("a", 1, 900, 0.0)
    for n in range(10):
        windows.take("a", 1, 60, 60.0 * n)
    assert not windows.take("a", 1, 900, 600.0).allowed
    assert not windows.take("a", 1, 60, 599.0).allowed


def test_a_limit_holds_under_threads(windows: RateWindows) -> None:
    allowed: list[bool] = []

    def take() -> None:
        for _ in range(200):
            allowed.append(windows.take("a", 500, 60, 0.0).allowed)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(allowed) == 500
