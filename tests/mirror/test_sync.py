"""After a sync the mirror holds the service's records, or the sync says that it could not prove it."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.answers import Page
from crmctl.errors import NetworkError, PendingError, ServiceError, UsageError
from crmctl.mirror.file import writing_turn
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncReport, SyncRequest, sync_mirror
from crmctl.mirror.verify import verify_mirror
from crmctl.models.resources import Record
from tests.support.campaigns import rest_in_campaigns
from tests.support.historypair import PairService
from tests.support.historyservice import MINUTE, HistoryService, Manners
from tests.support.mirrorhistories import MirrorContext, Tally, contents, difference, play

DAY = 24 * 60 * MINUTE


@pytest.mark.parametrize("block", rest_in_campaigns(range(3)))
def test_random_histories_leave_nothing_wrong(block: int, tmp_path: Path) -> None:
    tally = Tally()
    for seed in range(block * 4, block * 4 + 4):
        play(seed, tmp_path / str(seed), tally)
    assert tally.wrong == []
    assert tally.syncs > 8


@pytest.mark.parametrize("seed", rest_in_campaigns([1041, 1223, 1235, 2020, 4023]))
def test_histories_that_were_wrong_once(seed: int, tmp_path: Path) -> None:
    """Activities of one moment in another order each time while others write; lists not sorted by time of change."""
    tally = Tally()
    play(seed, tmp_path, tally)
    assert tally.wrong == []


def test_a_changed_record_is_not_gone_where_it_stands_by_its_creation(tmp_path: Path) -> None:
    service = HistoryService(7, Manners(gives_total=False, sorts_changes=False))
    service.create(100)
    service.advance(MINUTE)
    service.create(95)
    service.advance(MINUTE)
    service.update(list(service.rows)[:1])
    service.advance(DAY)
    [result] = sync(service, MirrorContext(service, tmp_path, service.clock)).results
    assert (result.state.records, result.state.proven) == (195, True)


def filled(count: int, folder: Path, **manners: object) -> tuple[HistoryService, MirrorContext]:
    """Make a service with old records of different times, and its mirror."""
    service = HistoryService(7, Manners(**manners))  # type: ignore[arg-type]
    for _ in range(count // 10):
        service.create(10)
        service.advance(MINUTE)
    service.advance(DAY)
    context = MirrorContext(service, folder, service.clock)
    sync(service, context)
    service.advance(DAY)
    return service, context


def sync(service: HistoryService, context: MirrorContext, **request: object) -> SyncReport:
    service.begin()
    report = sync_mirror(context, SyncRequest(**request))  # type: ignore[arg-type]
    assert difference(context, service.truths[-1]) is None
    return report


def test_an_unchanged_object_takes_a_request_or_two(tmp_path: Path) -> None:
    service, context = filled(2000, tmp_path)
    before = service.requests
    [result] = sync(service, context).results
    assert (result.how, result.written.created, result.written.deleted) == ("changes", 0, 0)
    assert result.state.proven
    assert service.requests - before == 6, "objects, members, attributes, changes, the look-back, one page compared again"


def test_few_deletions_are_found_with_few_requests(tmp_path: Path) -> None:
    service, context = filled(5000, tmp_path)
    ids = list(service.rows)
    service.delete([ids[17], ids[1234], ids[4999]])
    service.update([ids[3], ids[2000]])
    service.create(2)
    before = service.requests
    [result] = sync(service, context).results
    assert (result.written.created, result.written.updated, result.written.deleted) == (2, 2, 3)
    assert result.how == "changes"
    assert service.requests - before < 30


def test_a_block_of_deletions_is_found_at_once(tmp_path: Path) -> None:
    service, context = filled(5000, tmp_path)
    service.delete(list(service.rows)[1000:2000])
    before = service.requests
    [result] = sync(service, context).results
    assert (result.how, result.written.deleted) == ("changes", 1000)
    assert service.requests - before < 25


def test_a_backup_put_back_is_read_anew(tmp_path: Path) -> None:
    service, context = filled(1500, tmp_path)
    service.back_up()
    service.update(list(service.rows)[:30])
    sync(service, context)
    service.advance(DAY)
    service.restore()
    [result] = sync(service, context).results
    assert result.how == "everything"
    assert "backup" in result.reason


@pytest.mark.parametrize("count", [50, 1500])
@pytest.mark.parametrize("full", [False, True])
def test_lists_older_than_the_mirror_delete_nothing(count: int, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that stands still lacks records of the mirror, as if they were deleted; single reads return them."""
    service, context = filled(count, tmp_path)
    old = dict(service.rows)
    service.create(20)
    sync(service, context)
    service.advance(DAY)
    with monkeypatch.context() as patch:
        patch.setattr(service, "_in_order", lambda by_change, sign: service._sorted(old, by_change, sign))
        with pytest.raises(ServiceError) as caught:
            sync(service, context, full=full)
    assert (caught.value.code, caught.value.retryable) == ("stale_lists", True)
    [result] = sync(service, context).results
    assert (result.how, result.written.created, result.written.deleted, result.state.records) == ("changes", 0, 0, count + 20)


@pytest.mark.parametrize("count", [100, 250])
def test_a_total_that_counts_the_items_of_the_page_hides_no_record(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, _ = filled(count, tmp_path / "first")
    context, listed = MirrorContext(service, tmp_path / "second", service.clock), service.list_records

    def counted(*arguments: Any, **query: Any) -> Page[Record]:
        page = listed(*arguments, **query)
        return replace(page, total=len(page.items) if not query.get("offset") else None)

    monkeypatch.setattr(service, "list_records", counted)
    [result] = sync_mirror(context, SyncRequest()).results  # type: ignore[arg-type]
    assert result.state.records == count


def test_an_older_content_put_back_is_no_deletion_though_another_record_is_gone(tmp_path: Path) -> None:
    """The total lacks as many records as the list of changes, but not the same ones."""
    service, context = filled(1500, tmp_path)
    ids = list(service.rows)
    service.back_up()
    service.update([ids[40]])
    sync(service, context)
    service.advance(DAY)
    service.restore()
    service.delete([ids[700]])
    [result] = sync(service, context).results
    assert (result.how, result.written.deleted_ids) == ("everything", [ids[700]])
    assert result.reason == "a record is not among the changes and is there, as after a backup was put back"


def test_late_changes_are_found_on_smaller_pages(tmp_path: Path) -> None:
    """An update replaces a newer one within the minutes that crmctl reads again, so it is one place further down in the list."""
    service, context = filled(400, tmp_path, cap=30)
    ids = list(service.rows)
    for one in ids:
        service.update([one])
        service.advance(1_000_000)
    sync(service, context)
    service.advance(DAY)
    above = service.rows[ids[210]]
    service._put([replace(above, updated=service.rows[ids[209]].updated - 1, data={"n": "late", "note": "late"})])
    sync(service, context)


def test_a_late_group_that_does_not_fit_a_page_is_read_whole(tmp_path: Path) -> None:
    """A hundred records of one time appear late, and one is deleted: the 99 of the first page would fit the count."""
    service, context = filled(230, tmp_path, grain=1_000_000)
    service.create(100, 5 * MINUTE)
    service.advance(4 * 1_000_000)
    service.update(list(service.rows)[:1])
    sync(service, context)
    service.delete(list(service.rows)[100:101])
    service.advance(DAY)
    [result] = sync(service, context).results
    assert (result.state.records, result.written.created, result.written.deleted) == (329, 100, 1)


def readings(context: MirrorContext) -> list[Path]:
    """Return the files of interrupted readings."""
    return list(context.state.rglob("*.reading"))


def interrupted(service: HistoryService, context: MirrorContext) -> None:
    """Interrupt a full sync by a lost connection."""
    service.ends_at = service.requests + 6
    with pytest.raises(NetworkError):
        sync_mirror(context, SyncRequest(full=True))  # type: ignore[arg-type]
    service.ends_at = None
    assert readings(context)


def test_a_reading_of_other_attributes_is_not_resumed(tmp_path: Path) -> None:
    service, context = filled(300, tmp_path)
    interrupted(service, context)
    service.drop_attribute(remake=True)
    sync(service, context)


def test_a_reading_older_than_the_mirror_is_not_resumed(tmp_path: Path) -> None:
    service, context = filled(300, tmp_path, sorts_changes=False)
    interrupted(service, context)
    service.delete(list(service.rows)[40:])
    sync(service, context)
    assert readings(context) == []
    service.create(300)
    [result] = sync(service, context, full=True).results
    assert (result.how, result.state.records) == ("everything", 340)


def test_references_that_lead_nowhere_are_read_again_however_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All referenced companies disappear between the reading of the people and of the companies, and the service clears the references."""
    service = PairService(7, Manners(cleans=True))
    service.companies.create(150)
    service.create(400)
    service.advance(DAY)
    context, listed = MirrorContext(service, tmp_path, service.clock), service.companies.list_records

    def lists(*given: Any, **asked: Any) -> Any:
        service.companies.delete(list(service.companies.rows))
        return listed(*given, **asked)

    monkeypatch.setattr(service.companies, "list_records", lists)
    service.begin()
    report = sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    assert [result.reason for result in report.results if result.state.slug == "people"] == [
        "records referred to others that were deleted meanwhile"
    ]
    assert all('"company":null' in wire for wire in contents(context).values())


def test_an_attribute_made_anew_is_read_anew(tmp_path: Path) -> None:
    service, context = filled(300, tmp_path)
    service.drop_attribute(remake=True)
    [result] = sync(service, context).results
    assert result.reason == "the attribute note was made anew"


def test_the_values_of_a_deleted_attribute_are_dropped_without_a_full_read(tmp_path: Path) -> None:
    service, context = filled(300, tmp_path)
    service.drop_attribute(remake=False)
    service.create(2)
    [result] = sync(service, context).results
    assert (result.how, result.state.records) == ("changes", 302)
    assert difference(context, service.truths[-1]) is None


def test_a_service_that_keeps_the_values_of_a_deleted_attribute_is_read_anew(tmp_path: Path) -> None:
    service, context = filled(300, tmp_path)
    service.attributes.pop()
    [result] = sync(service, context).results
    assert result.how == "everything"
    assert difference(context, service.truths[-1]) is None


def test_a_full_read_above_20_requests_is_announced_with_its_reason(tmp_path: Path) -> None:
    service, context = filled(2_100, tmp_path)
    assert "reading all of people for the mirror, because it was never read: about 21 requests" in context.listener.progress.notes
    service.drop_attribute(remake=True)
    sync(service, context)
    said = "reading all of people for the mirror, because the attribute note was made anew: about 21 requests"
    assert context.listener.progress.notes[-1] == said
    assert verify_mirror(context, []).wrong == []  # type: ignore[arg-type]
    said = "reading all of people for the mirror, because every record is compared: about 21 requests"
    assert context.listener.progress.notes[-1] == said


def test_values_that_change_without_a_time_are_found_page_by_page(tmp_path: Path) -> None:
    service, context = filled(500, tmp_path)
    for one in service.rows:
        service.overwrite(one, {"n": "cleaned"})
    sync(service, context)
    service, context = filled(500, tmp_path / "other")
    service.overwrite(list(service.rows)[300], {"n": "cleaned"})
    reasons = []
    for _ in range(6):
        service.begin()
        reasons += [result.reason for result in sync_mirror(context, SyncRequest()).results]  # type: ignore[arg-type]
    assert "a record has changed without its time of change" in reasons
    assert difference(context, service.truths[-1]) is None


@pytest.mark.parametrize("manners", [{"gives_total": False}, {"sorts_changes": False}, {"cap": 30}, {"ties": "random", "grain": 1_000_000}])
def test_services_differ(manners: dict[str, object], tmp_path: Path) -> None:
    service, context = filled(400, tmp_path, **manners)
    ids = list(service.rows)
    service.delete(ids[50:53])
    service.update(ids[70:72])
    [result] = sync(service, context).results
    assert result.state.proven
    assert result.state.records == 397


def test_a_list_shorter_than_its_total_is_not_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, context = filled(400, tmp_path)
    honest = service.list_records

    def counts_one_more(*given: Any, **options: Any) -> Any:
        page = honest(*given, **options)
        return replace(page, total=page.total + 1)

    monkeypatch.setattr(service, "list_records", counts_one_more)
    report = sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    assert not report.is_proven
    assert report.results[0].state.proof == "not proven: 401 records are counted, 400 are listed"
    monkeypatch.undo()
    [result] = sync(service, context).results
    assert (result.how, result.reason) == ("everything", "the last reading could not be proven")


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    _, context = filled(20, tmp_path / "state")
    path = mirror_path(context.state, context.origin, context.key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir()} == {0o600}


def test_omitted_attributes_are_nowhere_in_the_file(tmp_path: Path) -> None:
    service, context = filled(200, tmp_path)
    path = mirror_path(context.state, context.origin, context.key)
    assert b"note17" in path.read_bytes()
    service.begin()
    asked = service.requests
    sync_mirror(context, SyncRequest(excluded={"people": ["note"]}))  # type: ignore[arg-type]
    assert service.requests - asked < 7, "what is there is made anew without it, nothing is read for it"
    service.create(3)
    sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    assert all(b"note17" not in one.read_bytes() for one in path.parent.iterdir())
    with closing(sqlite3.connect(path)) as db:
        assert "note" not in [row[1] for row in db.execute("PRAGMA table_info(people)")]
    with pytest.raises(UsageError, match="no attribute nope"):
        sync_mirror(context, SyncRequest(excluded={"people": ["nope"]}))  # type: ignore[arg-type]


def test_one_process_syncs_and_the_other_waits(tmp_path: Path) -> None:
    service, context = filled(20, tmp_path)
    path = mirror_path(context.state, context.origin, context.key)
    with writing_turn(path, service.clock, context.listener.note), pytest.raises(PendingError):
        sync_mirror(context, SyncRequest(patience=5))  # type: ignore[arg-type]
    assert "waiting" in context.listener.notes[0]
    assert contents(context)
    sync(service, context)


def test_the_first_change_shows_that_the_list_is_one_of_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service accepts any order: until the first change, its two orders are the same."""
    service = HistoryService(7)
    listed = service.list_records
    known = ("created_at", "updated_at")
    takes_all = lambda *given, sort, **more: listed(*given, sort=sort if sort in known else "created_at", **more)  # noqa: E731
    monkeypatch.setattr(service, "list_records", takes_all)
    for _ in range(60):
        service.create(10)
        service.advance(MINUTE)
    service.advance(DAY)
    context = MirrorContext(service, tmp_path, service.clock)
    sync(service, context)
    service.advance(DAY)
    [result] = sync(service, context).results
    assert (result.how, result.reason) == ("everything", "nothing shows yet that the service sorts by time of change")
    service.update(list(service.rows)[300:301])
    service.advance(DAY)
    [result] = sync(service, context).results
    assert (result.how, result.written.updated) == ("changes", 1)
