"""Jobs resumed after a change of the object's attributes or of records still to be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from crmctl.errors import PartialError, UsageError
from crmctl.plan.audit import Audit
from crmctl.plan.resume import RepairResult
from tests.support.bulkfiles import attribute, select
from tests.support.bulkserver import BulkServer, Fault
from tests.support.cli import expect_exit, run_crmctl, spawn
from tests.support.keydesk import KeyDesk, counts, undo
from tests.support.mishaps import Mishaps, killed_at
from tests.support.service import opened, running_service

ROWS = "Email,Note\n" + "".join(f"p{n}@acme.com,new\n" for n in range(150))


@pytest.fixture
def desk(tmp_path: Path) -> KeyDesk:
    server = BulkServer()
    return KeyDesk(server, tmp_path)


def stopped(desk: KeyDesk) -> None:
    """Start an import of 150 rows that stops after the first 100."""
    desk.server.faults[1] = Fault(status=403)
    assert counts(desk.load(ROWS, "email")) == {"created": 100, "unsent": 50}
    desk.server.faults.clear()


def test_an_attribute_that_is_added_does_not_keep_a_job_from_going_on_or_from_being_undone(desk: KeyDesk) -> None:
    stopped(desk)
    desk.attributes.append(attribute("rating", "number", isRequired=True))
    assert counts(desk.resume()) == {"created": 150}
    crm = desk.server.crm(desk.clock)
    assert undo(desk.folder, desk.server.origin, crm, desk.clock, desk.attributes).left == {}
    assert desk.server.records == []


def test_an_attribute_that_is_gone_is_named_with_a_way_that_works(desk: KeyDesk) -> None:
    stopped(desk)
    note = next(each for each in desk.attributes if each.slug == "note")
    desk.attributes.remove(note)
    with pytest.raises(UsageError, match="people has no attribute note any more") as refused:
        desk.resume()
    assert refused.value.code == "job_changed"
    assert "crmctl attributes create people" in str(refused.value.hint)
    assert "crmctl bulk undo" in str(refused.value.hint)
    desk.attributes.append(note)
    assert counts(desk.resume()) == {"created": 150}


def test_a_changed_file_is_put_back_and_not_imported_anew(desk: KeyDesk, tmp_path: Path) -> None:
    stopped(desk)
    (file,) = tmp_path.glob("*.csv")
    before = file.read_bytes()
    file.write_bytes(before + b"late@acme.com,x\n")
    with pytest.raises(UsageError, match="has changed") as refused:
        desk.resume()
    assert str(refused.value.hint).startswith("put the file back as it was, then repeat this command")
    file.write_bytes(before)
    assert counts(desk.resume()) == {"created": 150}


def test_an_attribute_of_another_type_under_the_same_slug_is_refused(desk: KeyDesk) -> None:
    stopped(desk)
    desk.attributes[:] = [attribute("note", "number") if each.slug == "note" else each for each in desk.attributes]
    with pytest.raises(UsageError, match="attribute note of people changed"):
        desk.resume()


def test_no_change_of_the_attributes_keeps_a_job_from_being_undone(desk: KeyDesk) -> None:
    stopped(desk)
    desk.attributes[:] = [attribute("rating", "number")]
    assert undo(desk.folder, desk.server.origin, desk.server.crm(desk.clock), desk.clock, desk.attributes).left == {}
    assert desk.server.records == []


def test_an_undo_restores_the_values_of_the_attributes_that_still_exist(desk: KeyDesk) -> None:
    """The records lost the other values with their attribute, which is no edit, and the service accepts none back."""
    motto = attribute("motto")
    desk.attributes.append(motto)
    desk.server.seed([{"email": f"p{n}@acme.com", "note": "old", "motto": "old"} for n in range(150)])
    assert counts(desk.load(ROWS.replace("Note", "Note,Motto").replace("new", "new,new"), "email")) == {"updated": 150}
    desk.attributes.remove(motto)
    for record in desk.server.records:
        del record["data"]["motto"]
    assert undo(desk.folder, desk.server.origin, desk.server.crm(desk.clock), desk.clock, desk.attributes).left == {}
    assert [record["data"] for record in desk.server.records] == [{"email": f"p{n}@acme.com", "note": "old"} for n in range(150)]


def test_options_names_and_attributes_that_the_file_does_not_fill_may_change(desk: KeyDesk) -> None:
    own = list(desk.attributes)
    desk.attributes += [select("sector", "energy", "retail", name="Branch"), attribute("motto")]
    desk.server.faults[1] = Fault(status=403)
    rows = "Email,Branch\n" + "".join(f"p{n}@acme.com,energy\n" for n in range(150))
    assert counts(desk.load(rows, "email")) == {"created": 100, "unsent": 50}
    desk.server.faults.clear()
    desk.attributes[:] = [*own, select("sector", "retail", "farming", name="Sector")]
    assert counts(desk.resume()) == {"created": 150}
    assert {record["data"]["sector"] for record in desk.server.records} == {"energy"}, "the service judges its options"


@pytest.mark.parametrize("feed", [None, "keep"])
def test_a_record_that_was_edited_while_the_job_lay_is_not_overwritten(desk: KeyDesk, feed: str | None) -> None:
    desk.server.seed([{"email": f"p{n}@acme.com", "note": "old"} for n in range(150)])
    if feed is not None:
        desk.load(ROWS.replace("new", "old"), "email", feed=feed)
    desk.server.writes.clear()
    desk.server.faults[1] = Fault(status=403)
    begun = desk.load(ROWS, "email", feed=feed)
    assert counts(begun) == {"updated": 100, "unsent": 50}
    desk.server.faults.clear()
    edited = desk.server.records[120]
    edited["data"]["note"], edited["updatedAt"] = "theirs", "2026-01-01T00:10:00.000000Z"
    done = desk.resume()
    assert counts(done) == {"updated": 149, "failed": 1}
    assert isinstance(done.error, PartialError)
    assert "not sent: note changed since the job began" in done.error.message
    assert [record["data"]["note"] for record in desk.server.records if record["data"]["note"] != "new"] == ["theirs"]


def test_a_job_older_than_a_finished_one_by_the_same_key_is_refused(tmp_path: Path) -> None:
    with running_service(tmp_path / "service") as service:
        with opened(service) as client:
            client.bulk.import_records("people", ({"email": f"p{n}@acme.com", "score": 0} for n in range(150)))
            Mishaps(client)
            with killed_at("after settle", 1):
                client.bulk.import_records("people", scored(tmp_path, 1), key="email", concurrency=1)
        with opened(service) as client:
            Mishaps(client)
            client._context.clock.advance(3600)  # type: ignore[attr-defined]
            older = client.bulk.jobs()[0].id
            client.bulk.import_records("people", scored(tmp_path, 2), key="email").raise_for_error()
            with pytest.raises(UsageError, match=f"job {older} is older than job") as refused:
                client.bulk.resume(older)
            assert (refused.value.code, "--allow-older" in str(refused.value.hint)) == ("older_job", True)
            assert {record.data["score"] for record in client.records("people").list()} == {2}
            env = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}
            refusal = run_crmctl("bulk", "resume", older, "--yes", env=env)
            assert (refusal.code, refusal.error()["code"]) == (2, "older_job"), "--yes does not answer this question"
            terminal = spawn("bulk", "resume", older, env=env, columns=200)
            terminal.expect_exact("Send its rows anyway? [y/N]")
            terminal.sendline("n")
            assert expect_exit(terminal)[0] == 130
            assert {record.data["score"] for record in client.records("people").list()} == {2}
            done = client.bulk.resume(older, allow_older=True)
            assert done.summary.to_document()["failed"] == 50, "they hold what the newer job wrote, and keep it"
            assert {record.data["score"] for record in client.records("people").list()} == {2}


def scored(folder: Path, score: int) -> Path:
    path = folder / f"{score}.csv"
    path.write_text("email,score\n" + "".join(f"p{n}@acme.com,{score}\n" for n in range(150)))
    return path


def test_a_repair_that_could_not_read_rows_back_says_so() -> None:
    RepairResult("j", Audit(checked=3, unreadable=0)).raise_for_error()
    with pytest.raises(PartialError, match="2 rows in doubt could not be read back"):
        RepairResult("j", Audit(checked=3, unreadable=2)).raise_for_error()
