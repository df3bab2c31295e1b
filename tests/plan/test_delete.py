"""Bulk deletions: a copy of each record is on disk before its deletion, under faults and kills at every step, and an undo restores all."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crmctl import Client
from crmctl.client.answers import Page
from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.clock import Backoff, SystemClock
from crmctl.errors import NotFoundError, PartialError, RejectedError, ServiceError, StorageError, UsageError
from crmctl.models import jsontext
from crmctl.models.resources import Attribute, BulkResult, Record
from crmctl.plan.deletions import DeleteSummary, Deletion
from crmctl.plan.undo import Undo
from crmctl.plan.undo_deletions import LostRecords, Recreation, link_referrers
from crmctl.read.read_back import Walk
from crmctl.write import effect, reconcile, sender
from crmctl.write.journal import Journal
from crmctl.write.send_context import DeliveryOptions, SendContext
from tests.support.bulkjobs import Silent
from tests.support.campaigns import rest_in_campaigns
from tests.support.inprocess import run_here
from tests.support.mishaps import STEPS, Mishaps, killed_at
from tests.support.outcomes import error_of
from tests.support.service import RunningService, opened

COUNT = 130


def people(client: Client, count: int = COUNT) -> list[dict[str, Any]]:
    rows = ({"score": n, "email": f"p{n}@acme.com", "address.city": "Rome", "tags": ["a", "b"]} for n in range(count))
    client.bulk.import_records("people", rows, again=True).raise_for_error()
    return held(client)


def held(client: Client) -> list[dict[str, Any]]:
    return sorted((record.data for record in client.records("people").list()), key=lambda data: data["score"])


def undone(client: Client, job: str | None) -> Recreation:
    plan = client.bulk.undo(str(job))
    assert isinstance(plan, Recreation)
    plan.raise_for_error()
    return plan


def test_a_deletion_is_in_a_private_file_and_comes_back_once(client: Client, tmp_path: Path) -> None:
    before = people(client)
    mishaps = Mishaps(client)
    done = client.bulk.delete("people", filter="score>=0", backup=tmp_path / "copy.jsonl")
    done.raise_for_error()
    summary = done.summary
    assert summary is not None
    assert (summary.deleted, summary.not_found, summary.requests) == (COUNT, 0, 9), "five reads, two deletions, and a look after each"
    assert [method for method, _ in mishaps.bulk] == ["DELETE", "DELETE"]
    assert summary.backup == tmp_path / "copy.jsonl"
    assert summary.backup.stat().st_mode & 0o777 == 0o600
    lines = [jsontext.loads(line)["data"] for line in summary.backup.read_text(encoding="utf-8").splitlines()]
    assert sorted(lines, key=lambda data: data["score"]) == before
    assert held(client) == []
    assert undone(client, summary.job).to_document()["created"] == COUNT
    assert held(client) == before
    again = undone(client, summary.job)
    assert (again.found, again.done, held(client)) == (0, COUNT, before)


@pytest.mark.parametrize(("number", "fault"), rest_in_campaigns([(1, "after"), (0, 404), (0, "before"), (0, 500)], 2))
def test_a_lost_request_deletes_the_rest_all_the_same(client: Client, number: int, fault: str | int) -> None:
    before = people(client)
    Mishaps(client, {number: fault})
    done = client.bulk.delete("people", filter="score>=0", concurrency=1)
    done.raise_for_error()
    assert done.summary is not None
    assert (done.summary.deleted + done.summary.not_found, held(client)) == (COUNT, [])
    assert undone(client, done.summary.job).carried_out
    assert held(client) == before


def test_a_service_without_bulk_deletion_has_the_records_and_none_is_called_gone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, watch: AttemptObserver, **__: object) -> int:
        watch.sending()
        raise NotFoundError("no such path", status=404)

    before = people(client, 12)
    with monkeypatch.context() as lost:
        lost.setattr(Crm, "bulk_delete", refuse)
        done = client.bulk.delete("people", filter="score>=0")
    assert done.summary is not None
    assert (done.summary.deleted, done.summary.not_found, done.summary.failed, held(client)) == (0, 0, 12, before)


def test_an_undo_whose_lists_lead_nowhere_names_the_service_and_goes_on_later(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before = people(client, 12)
    done = client.bulk.delete("people", filter="score>=0")
    assert done.summary is not None
    with monkeypatch.context() as lost:
        lost.setattr(Walk, "is_stuck", True)
        failed = client.bulk.undo(str(done.summary.job))
    assert (failed.error and failed.error.code, held(client)) == ("unreadable_list", before)
    assert undone(client, done.summary.job).unknown == 0
    assert held(client) == before


def test_an_undo_names_the_deleted_records_that_the_service_refuses_to_create(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    people(client, 12)
    ids = {record.id for record in client.records("people").list()}
    done = client.bulk.delete("people", filter="score>=0")
    assert done.summary is not None

    def refuse(*_: object, watch: AttemptObserver, **__: object) -> BulkResult:
        watch.sending()
        raise RejectedError("no more people", status=422)

    with monkeypatch.context() as full:
        full.setattr(Crm, "bulk_write", refuse)
        refused = client.bulk.undo(str(done.summary.job)).to_document()["rows"]["failed"]
    assert ({row["id"] for row in refused}, {row["error"] for row in refused}) == (ids, {"no more people"})


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """The service keeps some of the records and tells only by its count."""
    kept: set[str] = set()
    delete = Crm.bulk_delete

    def bulk_delete(crm: Crm, object_id: str, ids: Sequence[str], **options: Any) -> int | None:
        return delete(crm, object_id, [one for one in ids if one not in kept], **options)

    monkeypatch.setattr(Crm, "bulk_delete", bulk_delete)
    yield kept
    kept.clear()


@pytest.mark.parametrize("fault", ["before", 503])
def test_a_repeated_delete_counts_only_deleted_records(client: Client, stubborn: set[str], fault: str | int) -> None:
    people(client, 20)
    stubborn.update(record.id for record in client.records("people").list(filter="score<6"))
    Mishaps(client, {0: fault})
    done = client.bulk.delete("people", filter="score>=0", concurrency=1)
    assert done.summary is not None
    assert (done.summary.deleted, done.summary.failed) == (14, 6)
    assert isinstance(error_of(done), PartialError)
    assert [data["score"] for data in held(client)] == [0, 1, 2, 3, 4, 5]


def test_records_silently_kept_are_not_called_deleted_nor_recreated(client: Client, stubborn: set[str]) -> None:
    before = people(client)
    stubborn |= {record.id for record in client.records("people").list() if record.data["score"] in (3, 7)}
    done = client.bulk.delete("people", filter="score>=0")
    assert done.summary is not None
    assert (done.summary.deleted, done.summary.failed, done.summary.not_found) == (COUNT - 2, 2, 0)
    with pytest.raises(PartialError):
        done.raise_for_error()
    assert [data["score"] for data in held(client)] == [3, 7]
    undone(client, done.summary.job)
    assert held(client) == before


@pytest.mark.parametrize("count", [True, False], ids=["a count", "no count"])
def test_an_answer_without_effect_is_not_called_a_deletion(client: Client, monkeypatch: pytest.MonkeyPatch, count: bool) -> None:
    people(client)
    monkeypatch.setattr(effect, "LOOKS", Backoff(first=0.0, jitter=0.0))
    delete = Crm.bulk_delete

    def bulk_delete(crm: Crm, object_id: str, ids: Sequence[str], **options: Any) -> int | None:
        if len(ids) == 100:
            return delete(crm, object_id, ids, **options)
        options["watch"].sending()
        return len(ids) if count else None

    monkeypatch.setattr(Crm, "bulk_delete", bulk_delete)
    done = client.bulk.delete("people", filter="score>=0")
    assert done.summary is not None
    assert (done.summary.deleted, done.summary.failed, len(held(client))) == (100, COUNT - 100, COUNT - 100)
    assert done.summary.refusals == (effect.UNTRUE,)
    assert isinstance(error_of(done), PartialError)
    monkeypatch.setattr(Crm, "bulk_delete", delete)
    client.bulk.delete("people", filter="score>=0").raise_for_error()


@pytest.mark.parametrize("kind", ["import", "update", "delete"])
def test_a_job_whose_journal_is_removed_sends_no_further_request(client: Client, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Without its journal and the backup, crmctl could not find out what was written, nor take it back."""
    people(client, 150)
    settle, new = Journal.settle, [{"score": n, "email": f"n{n}@acme.com"} for n in range(150)]
    older = {job.id for job in client.bulk.jobs()}

    def settle_and_vanish(journal: Journal, *words: Any) -> None:
        settle(journal, *words)
        if journal.folder.name not in older:
            shutil.rmtree(journal.folder)

    monkeypatch.setattr(Journal, "settle", settle_and_vanish)
    runs: dict[str, Callable[[], Any]] = {
        "import": lambda: client.bulk.import_records("people", new, concurrency=1).raise_for_error(),
        "update": lambda: client.bulk.update("people", {"status": "contacted"}, filter="score>=0", concurrency=1),
        "delete": lambda: client.bulk.delete("people", filter="score>=0", concurrency=1),
    }
    with pytest.raises(StorageError, match=r"journal\.sqlite is damaged: it was removed while the job ran") as caught:
        runs[kind]()
    assert caught.value.hint is None
    assert kind == "import" or caught.value.message.endswith("; carried out: 100 of 150 rows")
    assert {job.id for job in client.bulk.jobs()} == older
    assert len(held(client)) == {"import": 250, "update": 150, "delete": 50}[kind]
    monkeypatch.undo()
    client.bulk.delete("people", filter="score>=0").raise_for_error()


def confirm_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let the service carry out each deletion and answer 500."""
    delete = Crm.bulk_delete

    def bulk_delete(*words: Any, **options: Any) -> int:
        delete(*words, **options)
        raise ServiceError("boom", status=500, outcome_unknown=True)

    for module in (reconcile, sender):
        patch.setattr(module, "PATIENCE", Backoff(first=0.0, jitter=0.0))
    patch.setattr(Crm, "bulk_delete", bulk_delete)


def test_a_deletion_that_is_never_confirmed_counts_the_records_that_are_gone(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before = people(client, 12)
    with monkeypatch.context() as unconfirmed:
        confirm_nothing(unconfirmed)
        done = client.bulk.delete("people", filter="score>=0")
    done.raise_for_error()
    assert done.summary is not None
    assert (done.summary.deleted, done.summary.unsent, held(client)) == (12, 0, [])
    undone(client, done.summary.job)
    assert held(client) == before


def test_a_deletion_that_can_be_neither_confirmed_nor_read_stays_in_doubt(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    people(client, 12)
    with monkeypatch.context() as unconfirmed:
        confirm_nothing(unconfirmed)
        unconfirmed.setattr(effect, "read_one", lambda *_: (_ for _ in ()).throw(ServiceError("boom", status=500)))
        done = client.bulk.delete("people", filter="score>=0")
    assert done.summary is not None
    assert (done.summary.deleted, done.summary.in_doubt, done.summary.unsent) == (0, 12, 0)
    assert "12 in doubt" in error_of(done).message


def test_records_silently_kept_are_not_called_undone(client: Client, stubborn: set[str]) -> None:
    job = client.bulk.import_records("people", ({"score": n} for n in range(COUNT))).summary.job
    stubborn |= {record.id for record in client.records("people").list() if record.data["score"] in (3, 7)}
    plan = client.bulk.undo(job)
    assert isinstance(plan, Undo)
    assert plan.deleted is not None
    assert {row["id"] for row in plan.to_document()["rows"]["failed"]} == stubborn
    assert (plan.to_document()["deleted"], len(plan.deleted.failed)) == (COUNT - 2, 2)
    assert (plan.tested, plan.deleted.absent) == (1, 0), "the record whose deletion tested the lists is not deleted again"
    assert [data["score"] for data in held(client)] == [3, 7]
    stubborn.clear()
    again = client.bulk.undo(job)
    assert isinstance(again, Undo)
    assert (again.left, held(client)) == ({}, [])


@pytest.mark.parametrize(("step", "count"), rest_in_campaigns([*((step, 1) for step in STEPS), ("after begin", 2)]))
def test_a_process_that_dies_goes_on_or_is_taken_back(service: RunningService, client: Client, step: str, count: int) -> None:
    before = people(client)
    with killed_at(step, count):
        client.bulk.delete("people", filter="score>=0", concurrency=1)
    with opened(service) as again:
        job = again.bulk.jobs()[0]
        assert (job.to_document()["mode"], job.is_resumable) == ("delete", True)
        if count == 1:
            again.bulk.resume(job.id).raise_for_error()
            assert held(again) == []
            assert again.bulk.jobs()[0].to_document()["deleted"] == COUNT
        undone(again, job.id)
        assert held(again) == before
        with pytest.raises(UsageError, match="no job to resume"):
            again.bulk.resume()


@pytest.mark.parametrize("step", ["after begin", "before settle", "after settle"])
def test_an_undo_that_dies_creates_nothing_twice(service: RunningService, client: Client, step: str) -> None:
    before = people(client)
    job = client.bulk.delete("people", filter="score>=0").summary.job  # type: ignore[union-attr]
    with killed_at(step, 1):
        client.bulk.undo(str(job))
    with opened(service) as again:
        Mishaps(again)
        undone(again, job)
        assert held(again) == before


def test_references_among_them_and_activities_are_linked_again(service: RunningService, client: Client) -> None:
    path = f"/api/v1/objects/{service.object_id('people')}/attributes"
    fields = {"name": "Manager", "type": "reference", "config": {"allowed_object_id": service.object_id("people")}}
    service.client.post(path, json=fields).raise_for_status()
    boss = client.records("people").create({"score": 1, "email": "boss@acme.com"})
    report = client.records("people").create({"score": 2, "email": "report@acme.com", "manager": boss.id})
    link = {"objectId": service.object_id("people"), "recordId": boss.id}
    body = {"title": "Call", "linkedRecords": [link], "participants": [{"type": "person", "id": report.id}]}
    activity = service.client.post("/api/v1/activities", json=body).json()["id"]
    no_link = {"title": "Mail", "participants": body["participants"]}
    unlinked = service.client.post("/api/v1/activities", json=no_link).json()["id"]
    done = client.bulk.delete("people", [boss.id, report.id])
    assert undone(client, done.summary.job).to_document()["activities"] == 2  # type: ignore[union-attr]
    new = {record.data["email"]: record for record in client.records("people").list()}
    assert new["report@acme.com"].data["manager"] == new["boss@acme.com"].id != boss.id
    shown = service.client.get(f"/api/v1/activities/{activity}").json()
    assert (shown["linkedRecords"], shown["participants"]) == (
        [{**link, "recordId": new["boss@acme.com"].id}],
        [{"type": "person", "id": new["report@acme.com"].id}],
    )
    assert service.client.get(f"/api/v1/activities/{unlinked}").json()["participants"] == shown["participants"]


@pytest.mark.parametrize("others", [3, 230], ids=["read", "asked"])
def test_other_records_refer_to_them_again(service: RunningService, client: Client, others: int) -> None:
    """References from other objects and from the same one, single and in lists. A reference that another client changed meanwhile stays."""
    people_id = service.object_id("people")
    for name, extra in (("Mentor", {}), ("Friends", {"isList": True})):
        fields = {"name": name, "type": "reference", "config": {"allowed_object_id": people_id}, **extra}
        service.client.post(f"/api/v1/objects/{people_id}/attributes", json=fields)
    gone = [client.records("people").create({"score": n, "email": f"gone{n}@acme.com"}) for n in (1, 2)]
    stays = client.records("people").create({"score": 3, "email": "stays@acme.com", "mentor": gone[0].id})
    friends = [stays.id, gone[1].id] if others == 3 else gone[1].id
    client.records("people").update(stays.id, {"friends" if others == 3 else "mentor": friends})
    rows = [{"name": f"Deal {n}", "contact": gone[n % 2].id if n < 3 else stays.id} for n in range(others)]
    client.bulk.import_records("deals", rows, again=True).raise_for_error()
    moved = next(one for one in client.records("deals").list() if one.data["name"] == "Deal 2")
    done = client.bulk.delete("people", [one.id for one in gone])
    client.records("deals").update(moved.id, {"contact": stays.id})
    document = undone(client, done.summary.job).to_document()  # type: ignore[union-attr]
    new = {record.data["email"]: record for record in client.records("people").list()}
    deals = {one.data["name"]: one.data["contact"] for one in client.records("deals").list()}
    assert (deals["Deal 0"], deals["Deal 1"], deals["Deal 2"]) == (new["gone1@acme.com"].id, new["gone2@acme.com"].id, stays.id)
    assert set(deals.values()) == {record.id for record in new.values()}
    held_now = new["stays@acme.com"].data
    assert held_now["mentor"] == new["gone1@acme.com" if others == 3 else "gone2@acme.com"].id
    if others == 3:
        assert held_now["friends"] == [stays.id, new["gone2@acme.com"].id]
    assert (document["references"], document["unreferenced"]) == (3, 0)
    client.bulk.delete("deals", list(_ids(client)), backup=False)


def _ids(client: Client) -> Iterator[str]:
    return (record.id for record in client.records("deals").list())


def _moment(number: int) -> str:
    return f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"


class Blind:
    """A service with many deals. Its filter by reference finds none, although one deal names a person."""

    def __init__(self) -> None:
        wires = ({"id": f"d{n:03}", "data": {"contact": "ab" if n == 7 else f"c{n}"}, "createdAt": _moment(n)} for n in range(900))
        self.rows = [Record.parse(wire) for wire in wires]
        self.written: list[Any] = []

    def list_records(
        self, _: str, *, filters: Any = (), sort: str | None = None, order: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Record]:
        rows = [] if filters else self.rows if order == "asc" else self.rows[::-1]
        return Page(rows[offset : offset + limit], len(rows), limit, offset)

    def bulk_write(self, _: str, records: Any, *, mode: str = "create") -> BulkResult:
        self.written += map(jsontext.loads, records)
        return BulkResult(updated=len(records))

    def get_record(self, _: str, record_id: str) -> Record:
        return Record.parse({"id": record_id, "data": next(row["data"] for row in self.written if row["id"] == record_id)})


def test_a_service_that_finds_nothing_by_reference_is_read_whole() -> None:
    service, done = Blind(), Recreation("job", "people")
    contact = Attribute.parse({"id": "a", "slug": "contact", "name": "Contact", "type": "reference"})
    run = SendContext(service, None, DeliveryOptions(), SystemClock(), Silent())  # type: ignore[arg-type]
    link_referrers(run, {"deals": [contact]}, {"ab": "new"}, done)
    assert service.written == [{"id": "d007", "data": {"contact": "new"}}]
    assert (done.references, done.unreferenced) == (1, 0)


class Hasty(SystemClock):
    """A clock that advances by each sleep instead of sleeping."""

    def __init__(self) -> None:
        self.slept = 0.0

    def now(self) -> float:
        return super().now() + self.slept

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def test_an_undo_in_which_nothing_is_lost_waits_for_nothing(
    service: RunningService, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both phases: the records refer to each other, and the service refuses one because its address is taken meanwhile."""
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    monkeypatch.chdir(tmp_path)
    object_id = service.object_id("people")
    definition = {"name": "Boss", "slug": "boss", "type": "reference", "config": {"allowed_object_id": object_id}}
    made = service.client.post(f"/api/v1/objects/{object_id}/attributes", json=definition).raise_for_status().json()
    people(client, 4)
    found = list(client.records("people").list())
    for one, other in pairwise(found):
        service.client.patch(f"/api/v1/objects/{object_id}/records/{one.id}", json={"data": {"boss": other.id}}).raise_for_status()
    clock = Hasty()
    run_here("bulk", "delete", "people", "--filter", "score>=0", "--yes", clock=clock).ok()
    service.client.post(f"/api/v1/objects/{object_id}/records", json={"data": {"email": "p3@acme.com", "score": 9}}).raise_for_status()
    result = run_here("bulk", "undo", "last", "--yes", "-o", "json", clock=clock)
    assert (result.code, clock.slept < 2.0) == (10, True), (result, clock.slept)
    assert len(held(client)) == 4
    service.client.delete(f"/api/v1/objects/{object_id}/attributes/{made['id']}").raise_for_status()


def test_an_obstacle_at_the_start_deletes_nothing(client: Client, tmp_path: Path) -> None:
    before = people(client, 3)
    jobs = len(client.bulk.jobs())
    if Path("/dev/full").exists():
        with pytest.raises(StorageError, match="nothing was deleted: no space left"):
            client.bulk.delete("people", filter="score>=0", backup="/dev/full")
    with pytest.raises(UsageError, match="no directory"):
        client.bulk.delete("people", filter="score>=0", backup=tmp_path / "absent" / "copy")
    with pytest.raises(RejectedError, match="3 records would be deleted, --expect says 2"):
        client.bulk.delete("people", filter="score>=0", expect=2)
    assert (held(client), len(client.bulk.jobs())) == (before, jobs)


def test_a_copy_that_is_gone_or_was_changed_is_not_believed(client: Client, tmp_path: Path) -> None:
    people(client, 3)
    copy = tmp_path / "copy.jsonl"
    job = client.bulk.delete("people", filter="score>=0", backup=copy).summary.job  # type: ignore[union-attr]
    kept = copy.read_bytes()
    copy.write_bytes(kept + b"{}\n")
    with pytest.raises(UsageError, match="is not what was written"):
        client.bulk.undo(str(job))
    copy.unlink()
    with pytest.raises(UsageError, match="cannot read the backup"):
        client.bulk.undo(str(job))
    copy.write_bytes(kept)
    undone(client, job)
    assert Counter(data["email"] for data in held(client)) == {f"p{n}@acme.com": 1 for n in range(3)}


def test_a_list_of_lost_records_is_final_only_once_they_are_being_created(tmp_path: Path) -> None:
    """Until its journal is finished, the job may be resumed and delete more."""
    lost = LostRecords(tmp_path, "companies", [])
    record = Record.parse({"id": "00000000-0000-4000-8000-000000000001", "data": {}})
    assert [lost.keep([]), lost.keep([record])] == [0, 1]
    (tmp_path / "undo").mkdir()
    (tmp_path / "undo" / "journal.sqlite").touch()
    assert lost.keep([record, record]) == 1


def test_a_required_reference_to_a_record_of_the_same_object_is_sent_at_once(tmp_path: Path) -> None:
    config = {"allowed_object_id": "companies"}
    attributes = [
        Attribute.parse({"id": slug, "slug": slug, "type": "reference", "isRequired": slug == "head_office", "config": config})
        for slug in ("head_office", "parent")
    ]
    there = "00000000-0000-4000-8000-000000000009"
    lost = LostRecords(tmp_path, "companies", attributes)
    lost.keep([Record.parse({"id": "00000000-0000-4000-8000-000000000001", "data": {"head_office": there, "parent": there}})])
    assert [jsontext.loads(entry.encoded)["data"] for entry in lost.entries()] == [{"head_office": there}]
    later = lost.links({"00000000-0000-4000-8000-000000000001": "00000000-0000-4000-8000-000000000002"})
    assert [jsontext.loads(entry.encoded)["data"] for entry in later] == [{"parent": there}]


@pytest.mark.parametrize(("is_resumable", "hint"), [(True, "crmctl bulk resume j1"), (False, None)])
def test_an_unfinished_deletion_names_the_command_that_continues_it(is_resumable: bool, hint: str | None) -> None:
    summary = DeleteSummary("people", in_doubt=1, unsent=2, job="j1", refusals=["injected"], is_resumable=is_resumable)
    with pytest.raises(PartialError) as caught:
        Deletion("people", "", 3, (), summary).raise_for_error()
    assert caught.value.message == "not every record was deleted: 1 in doubt, 2 not sent; the service said: injected"
    assert caught.value.hint == hint
