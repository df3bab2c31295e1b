"""Feeds while people edit, over a real socket: no edit is lost, every change of the feed arrives, and the bases are never wrong."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from crmctl.plan import feed as feeds
from crmctl.write.jobs import JobStore
from crmctl.write.journal import Journal
from tests.support.bulkserver import BulkServer, Fault
from tests.support.keydesk import KeyDesk, counts, undo


@pytest.fixture
def desk(tmp_path: Path) -> KeyDesk:
    server = BulkServer()
    return KeyDesk(server, tmp_path)


def night(desk: KeyDesk, values: dict[str, str], policy: str = "keep", **options: Any) -> tuple[dict[str, int], tuple[int, int]]:
    text = "Email,Note\n" + "".join(f"{name}@acme.com,{value}\n" for name, value in values.items())
    result = desk.load(text, "email", feed=policy, **options)
    return counts(result), tuple(result.summary.values)


def notes(desk: KeyDesk) -> dict[str, str]:
    return {record["data"]["email"].partition("@")[0]: record["data"].get("note") for record in desk.server.records}


def person_writes(desk: KeyDesk, name: str, note: str) -> None:
    for record in desk.server.records:
        if record["data"]["email"].startswith(f"{name}@"):
            record["data"]["note"] = note


def test_a_week_of_a_feed(desk: KeyDesk) -> None:
    assert night(desk, {"ada": "a1", "bob": "b1", "eve": "e1"}) == ({"created": 3}, (0, 0))
    person_writes(desk, "ada", "hers")
    reads = len(desk.server.reads)
    assert night(desk, {"ada": "a1", "bob": "b2", "eve": "e1"}) == ({"updated": 1, "unchanged": 2}, (1, 0))
    assert len(desk.server.reads) - reads <= 2  # as many as without a feed
    assert notes(desk) == {"ada": "hers", "bob": "b2", "eve": "e1"}
    assert night(desk, {"ada": "a2", "bob": "b2", "eve": "e1"}) == ({"unchanged": 3}, (0, 1))
    assert notes(desk)["ada"] == "hers"
    assert night(desk, {"ada": "a2", "bob": "b3", "eve": "e1"}, "fail", stop=False) == (
        {"updated": 1, "unchanged": 1, "rejected": 1},
        (0, 1),
    )
    assert desk.codes == ["conflict"]
    assert "the record says 'hers', and both have changed since the last import" in desk.findings[0].message
    assert night(desk, {"ada": "a2", "bob": "b3", "eve": "e1"}, "keep,note=take") == ({"updated": 1, "unchanged": 2}, (0, 1))
    assert night(desk, {"ada": "a3", "bob": "b3", "eve": "e1"}) == ({"updated": 1, "unchanged": 2}, (0, 0))


def test_without_a_feed_everything_is_written_as_ever(desk: KeyDesk) -> None:
    night(desk, {"ada": "a1"})
    person_writes(desk, "ada", "hers")
    assert counts(desk.load("Email,Note\nada@acme.com,a1\n", "email")) == {"updated": 1}
    assert notes(desk) == {"ada": "a1"}


def test_the_first_night_decides_by_the_policy_alone(desk: KeyDesk) -> None:
    desk.server.seed([{"email": "ada@acme.com", "note": "old"}, {"email": "bob@acme.com"}, {"email": "eve@acme.com", "note": "e1"}])
    everything = {"ada": "a1", "bob": "b1", "eve": "e1"}
    assert night(desk, everything) == ({"unchanged": 3}, (0, 2))
    assert night(desk, everything, "fail", stop=True)[0] == {"rejected": 2, "unchanged": 1}
    assert night(desk, everything, "fill") == ({"updated": 1, "unchanged": 2}, (0, 1))
    assert notes(desk) == {"ada": "old", "bob": "b1", "eve": "e1"}
    assert night(desk, everything, "take") == ({"updated": 1, "unchanged": 2}, (0, 1))
    person_writes(desk, "eve", "hers")
    assert night(desk, everything | {"ada": "a2"}) == ({"updated": 1, "unchanged": 2}, (1, 0))


def test_the_bases_contain_no_values(desk: KeyDesk) -> None:
    night(desk, {"adalbertine": "remarkable", "bartholomew": "remarkable"})  # words that no hash contains by chance
    folder = desk.folder / "state" / "feeds"
    (file,) = folder.glob("*.sqlite")
    assert [path.stat().st_mode & 0o777 for path in (file, folder / "key", folder)] == [0o600, 0o600, 0o700]
    said = b"".join(path.read_bytes() for path in folder.iterdir())
    assert not any(word in said for word in (b"adalbert", b"barthol", b"acme.com", b"remarkable"))
    with closing(sqlite3.connect(file)) as base:
        hashes = [row for (row,) in base.execute("SELECT hashes FROM base")]
    assert len(set(hashes)) == 2  # one value in two rows has two hashes


def test_an_undo_restores_the_bases_too(desk: KeyDesk) -> None:
    night(desk, {"ada": "a1", "bob": "b1"})
    person_writes(desk, "bob", "his")
    night(desk, {"ada": "a2", "bob": "b1"})
    undo(desk.folder, desk.server.origin, desk.server.crm(desk.clock), desk.clock, desk.attributes)
    assert notes(desk) == {"ada": "a1", "bob": "his"}
    assert night(desk, {"ada": "a3", "bob": "b1"}) == ({"updated": 1, "unchanged": 1}, (1, 0))
    assert notes(desk) == {"ada": "a3", "bob": "his"}


@pytest.mark.parametrize("applies", [True, False])
def test_a_row_in_doubt_leaves_no_base(desk: KeyDesk, applies: bool) -> None:
    night(desk, {"ada": "a1", "bob": "b1"})
    desk.server.readable = True
    desk.server.faults[1] = Fault(applies=applies, drop=True)
    desk.options = type(desk.options)(concurrency=1, settle=0.0)

    def unreadable(_: Any) -> None:
        return None

    desk.server.refuse_batch = unreadable
    night(desk, {"ada": "a2", "bob": "b1"})
    now = notes(desk)["ada"]
    person_writes(desk, "bob", "his")
    after = night(desk, {"ada": "a3", "bob": "b1"})
    assert (notes(desk)["bob"], after[1][0]) == ("his", 1)
    assert notes(desk)["ada"] in ("a3", now)


class Killed(BaseException):
    """Simulate the death of the process."""


POINTS = ["intend", "settle", "_confirm"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_dies_leaves_no_wrong_base(desk: KeyDesk, monkeypatch: pytest.MonkeyPatch, point: str, times: int) -> None:
    """The next run reports a conflict or takes the base from the journal; it never calls the value an edit."""
    night(desk, {"ada": "a1", "bob": "b1"})
    person_writes(desk, "bob", "his")
    with monkeypatch.context() as patched:
        whole, calls = getattr(feeds.FeedBases, point), 0

        def dies(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= times:
                raise Killed
            return whole(*arguments, **options)

        patched.setattr(feeds.FeedBases, point, dies)
        with suppress(Killed):
            night(desk, {"ada": "a2", "bob": "b1"})
    was = notes(desk)["ada"]
    if JobStore(desk.folder / "state", desk.clock).list()[0].is_resumable:
        desk.resume()
    _, (kept, conflicts) = night(desk, {"ada": "a3", "bob": "b1"})
    assert (kept, conflicts, notes(desk)) == (1, 0, {"ada": "a3", "bob": "his"}), was


@pytest.mark.parametrize("applies", [True, False], ids=["its request was carried out", "its request was lost"])
def test_rows_in_flight_of_a_killed_feed_are_not_edits_of_people(desk: KeyDesk, monkeypatch: pytest.MonkeyPatch, applies: bool) -> None:
    """The killed job is not resumed. Each record holds the previous value of the feed or the new one, except the one a person edited."""
    names = [f"p{n}" for n in range(120)]
    night(desk, dict.fromkeys(names, "1"))
    with monkeypatch.context() as patched:

        def dies(*_: Any, **__: Any) -> None:
            raise Killed

        patched.setattr(Journal, "settle", dies)
        desk.server.faults[len(desk.server.writes)] = Fault(applies=applies, drop=True)
        with suppress(Killed):
            night(desk, dict.fromkeys(names, "2"))
    assert notes(desk)["p0"] == ("2" if applies else "1")
    person_writes(desk, "p7", "his")
    assert night(desk, dict.fromkeys(names, "3")) == ({"updated": 119, "unchanged": 1}, (0, 1))
    for number in ("4", "5"):
        _, (kept, conflicts) = night(desk, dict.fromkeys(names, number))
        assert kept + conflicts == 1
        assert notes(desk) == {**dict.fromkeys(names, number), "p7": "his"}


def test_random_nights_lose_no_edit_under_keep_and_no_change_of_the_feed_under_take(desk: KeyDesk) -> None:
    """Random values as in benchmarks/three_way_merges.py, which draws 10,000."""
    from benchmarks.three_way_merges import Nights

    for policy in ("keep", "take"):
        nights = Nights(desk, policy, random.Random(7), names=[f"{policy}{n}" for n in range(40)])
        nights.run(5)
        assert nights.lost == [], policy
        assert nights.merges == 200


def test_a_job_not_resumed_before_the_next_run_leaves_no_wrong_base(desk: KeyDesk) -> None:
    night(desk, {f"p{n}": "1" for n in range(250)})
    desk.server.faults[4] = Fault(status=401, body={"error": "unauthorized", "message": "no"})
    partly = desk.load("Email,Note\n" + "".join(f"p{n}@acme.com,2\n" for n in range(250)), "email", feed="keep")
    assert (partly.is_resumable, counts(partly)) == (True, {"updated": 100, "unsent": 150})
    assert night(desk, {f"p{n}": "3" for n in range(250)}) == ({"updated": 250}, (0, 0))
    late = desk.resume()
    assert counts(late) == {"updated": 100, "failed": 150}, "an old file, sent late, overwrites nothing of the other night"
    mixed = notes(desk)
    _, (kept, conflicts) = night(desk, {f"p{n}": "4" for n in range(250)})
    assert kept == 0
    assert conflicts == 0
    assert set(mixed.values()) == {"3"}
