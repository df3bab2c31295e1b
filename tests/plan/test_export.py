"""Exports over a real socket: complete while other clients write, and files that are whole or absent."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import resource
import stat
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import InterruptedByUser, ServiceError, StorageError, UsageError
from crmctl.files.export_formats import Layout, export_format
from crmctl.models.resources import Attribute
from crmctl.plan import export as exporting
from crmctl.plan.export import Export, ExportRequest, ExportSummary, Subject, resume_path
from crmctl.read.export_passes import Staging
from tests.support.bulkcontext import QuietContext
from tests.support.bulkserver import OBJECT_ID, BulkServer
from tests.support.campaigns import rest_in_campaigns
from tests.support.clock import FakeClock


def new_export(server: BulkServer, layout: Layout | None = None, **options: Any) -> Export:
    subject = Subject("people", OBJECT_ID, server.origin, "digest")
    return Export(QuietContext(server.crm(), FakeClock()), subject, layout or Layout(), ExportRequest(object="people", **options))


def export(server: BulkServer, layout: Layout | None = None, **options: Any) -> tuple[str, ExportSummary]:
    texts: list[str] = []
    summary = new_export(server, layout, **options).to_stream(texts.append)
    return "".join(texts), summary


def attribute(slug: str, kind: str = "text", **more: Any) -> Attribute:
    return Attribute.parse({"id": slug, "slug": slug, "type": kind, **more})


def exported_ids(text: str) -> list[str]:
    return [json.loads(line)["id"] for line in text.splitlines()]


def same_moment(size: int) -> object:
    """Return a creation time for each number, shared by `size` records."""
    return lambda n: f"2026-01-01T00:00:00.{n // size:06d}Z"


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 199, 250])
def test_every_record_is_exported_once_in_order_of_creation(count: int) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(count)])
    text, summary = export(server)
    assert exported_ids(text) == ids
    assert summary.rows == count
    assert summary.requests <= 4 + count // 98


@pytest.mark.parametrize("group", rest_in_campaigns([10, 100, 2, 40, 98, 250], 2))
@pytest.mark.parametrize("ordered", [True, False])
def test_shared_creation_times_cost_few_requests_and_lose_nothing(group: int, ordered: bool) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(1000)], same_moment(group))  # type: ignore[arg-type]
    if not ordered:
        chance = random.Random(group)
        server.order_ties = lambda _: chance.random()
    text, summary = export(server)
    assert sorted(exported_ids(text)) == sorted(ids)
    assert summary.requests <= (18 if ordered or group < 98 else 120)


def test_records_deleted_while_reading_hide_none_of_the_others() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(600)])

    def delete_some(page: int) -> None:
        if page in (1, 3):
            with server.lock:
                del server.records[:60]

    server.before_page = delete_some
    text, summary = export(server)
    got = exported_ids(text)
    assert set(ids[120:]) <= set(got)
    assert len(got) == len(set(got))
    assert summary.repeated > 0


def test_records_created_while_reading_shift_nothing() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(300)])
    server.before_page = lambda page: server.seed([{"n": -page}] * 3) and None if page < 3 else None
    text, _ = export(server)
    assert exported_ids(text)[:300] == ids


def test_deleting_everything_behind_the_reader_ends_the_export() -> None:
    server = BulkServer()
    server.seed([{"n": n} for n in range(300)])
    server.before_page = lambda page: server.records.clear() if page == 2 else None
    text, _ = export(server)
    assert len(exported_ids(text)) == 100


def test_a_service_that_does_not_heed_the_offset_is_an_error_not_a_loop() -> None:
    server = BulkServer()
    server.seed([{"n": n} for n in range(300)])
    page = server.page
    server.page = lambda query: page({**query, "offset": ["0"]})  # type: ignore[method-assign]
    with pytest.raises(ServiceError) as caught:
        export(server)
    assert caught.value.code == "no_progress"


def test_a_service_that_gives_short_pages_and_no_total_is_read_to_the_end() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(130)])
    page = server.page
    server.page = lambda query: {"records": page({**query, "limit": ["50"]})["records"]}  # type: ignore[method-assign]
    text, _ = export(server)
    assert exported_ids(text) == ids


def test_csv_has_ids_attributes_in_order_and_times_with_nested_values_as_json() -> None:
    server = BulkServer()
    server.seed([{"name": {"first": "Ada"}, "note": 'say "hi",\nplease', "extra": 1}, {"note": None, "n": 1.50}])
    text, _ = export(server, Layout("csv", [attribute("note"), attribute("name"), attribute("n")]))
    first, second = (f"2026-01-01T00:00:00.00000{n}Z" for n in (1, 2))
    assert text == (
        "id,note,name,n,createdAt,updatedAt\n"
        f'00000000-0000-0000-0000-000000000001,"say ""hi"",\nplease","{{""first"":""Ada""}}",,{first},{first}\n'
        f"00000000-0000-0000-0000-000000000002,,,1.5,{second},{second}\n"
    )


@pytest.mark.parametrize("count", [0, 1, 150])
def test_json_is_one_array(count: int) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(count)])
    text, _ = export(server, Layout("json"))
    assert [record["id"] for record in json.loads(text)] == ids


def to_file(server: BulkServer, path: Path, *, replace: bool = False, **options: Any) -> ExportSummary:
    return new_export(server, Layout(export_format(path.name, None)), **options).to_file(path, replace=replace)


def test_a_file_is_replaced_only_on_request_and_only_by_a_complete_one(tmp_path: Path) -> None:
    target = tmp_path / "people.jsonl"
    target.write_text("before")
    server = BulkServer()
    server.seed([{"n": n} for n in range(150)])
    with pytest.raises(UsageError, match="exists"):
        to_file(server, target)
    page = server.page
    server.page = lambda query: page(query) if len(server.reads) < 2 else {"nothing": 1}  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="list of records") as caught:
        to_file(server, target, replace=True)
    assert "100 records" in str(caught.value.hint)
    assert target.read_text() == "before"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["people.jsonl", "people.jsonl.resume"]
    server.page = page  # type: ignore[method-assign]
    before = len(server.reads)
    summary = to_file(server, target, replace=True)
    asked = [query["offset"] for query in server.reads[before:]]
    assert asked[0] == ["98"]
    assert summary.resumed
    assert len(set(exported_ids(target.read_text()))) == 150
    assert sorted(one.name for one in tmp_path.iterdir()) == ["people.jsonl", "people.jsonl.manifest.json"]
    assert summary.to_document() | {"consistentAsOf": ""} == {
        "object": "people", "format": "jsonl", "rows": 150, "requests": 5, "repeated": 202, "elapsedSeconds": 0.0, "resumed": True,
        "consistentAsOf": "", "flags": [], "file": str(target), "manifest": f"{target}.manifest.json",
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
    }  # fmt: skip


def test_records_collected_for_another_export_or_long_ago_are_not_reused(tmp_path: Path) -> None:
    target = tmp_path / "people.jsonl"
    server = BulkServer()
    server.seed([{"n": n} for n in range(150)])
    page = server.page
    for options in ({"prune": True}, {"restart": True}):
        server.page = lambda query: page(query) if len(server.reads) < 2 else {"nothing": 1}  # type: ignore[method-assign]
        server.reads.clear()
        with pytest.raises(ServiceError):
            to_file(server, target, replace=True)
        server.page = page  # type: ignore[method-assign]
        assert not to_file(server, target, replace=True, **options).resumed  # type: ignore[arg-type]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    target = tmp_path / "people.csv"
    server = BulkServer()
    server.seed([{"n": n} for n in range(250)])
    run = new_export(server, Layout("csv"))
    merge, pages = Staging.merge, iter(range(9))

    def interrupted(staging: Staging, rows: list[Any]) -> int:
        if next(pages) == 2:
            raise KeyboardInterrupt
        return merge(staging, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "merge", interrupted)
        with pytest.raises(InterruptedByUser) as caught:
            run.to_file(target)
    assert "the same command goes on after the 198 records" in str(caught.value.hint)
    assert new_export(server, Layout("csv")).to_file(target).resumed
    assert len(target.read_text().splitlines()) == 251


def test_two_exports_into_one_file_are_one_too_many(tmp_path: Path) -> None:
    target = tmp_path / "people.csv"
    server = BulkServer()
    with Staging(resume_path(target)), pytest.raises(UsageError) as caught:
        new_export(server, Layout("csv")).to_file(target)
    assert caught.value.code == "export_running"


def test_the_manifest_describes_the_file(tmp_path: Path) -> None:
    target = tmp_path / "people.csv"
    server = BulkServer()
    server.seed([{"n": n} for n in range(5)])
    layout = Layout("csv", [attribute("n", "number")], excel_safe=True)
    new_export(server, layout, prune=True).to_file(target)
    manifest = json.loads((tmp_path / "people.csv.manifest.json").read_text())
    assert manifest["columns"] == ["id", "n", "createdAt", "updatedAt"]
    assert manifest["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
    assert (manifest["rows"], manifest["bytes"], manifest["excelSafe"]) == (5, target.stat().st_size, True)
    assert [one["pass"] for one in manifest["passes"]] == ["sweep", "prune", "changes"]
    assert (manifest["pruned"], manifest["flags"], manifest["filters"]) == (0, [], [])
    assert manifest["startedAt"] <= manifest["consistentAsOf"] <= manifest["finishedAt"]


def test_records_deleted_while_reading_are_left_out_on_request(tmp_path: Path) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(300)])

    def delete_some(page: int) -> None:
        if page == 3:
            with server.lock:
                del server.records[:60]

    server.before_page = delete_some
    text, _ = export(server, prune=True)
    assert exported_ids(text) == ids[60:]


def test_a_name_ending_in_gz_is_compressed_and_reproducible(tmp_path: Path) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(5)])
    to_file(server, tmp_path / "a.jsonl.gz")
    to_file(server, tmp_path / "b.jsonl.gz")
    assert exported_ids(gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).decode()) == ids
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_a_link_keeps_pointing_and_a_device_is_written_directly(tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.write_text("old")
    link.symlink_to(real)
    server = BulkServer()
    server.seed([{"n": 1}])
    to_file(server, link, replace=True)
    null = new_export(server).to_file(Path("/dev/null"))
    assert link.is_symlink()
    assert len(real.read_text().splitlines()) == 1
    assert null.rows == 1
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_the_format_comes_from_the_name() -> None:
    assert [export_format(name, None) for name in ("a.csv", "a.CSV", "a.tsv.gz", "a.ndjson", "a.json")] == [
        "csv",
        "csv",
        "tsv",
        "jsonl",
        "json",
    ]
    assert export_format(None, None) == "jsonl"
    assert export_format("a.txt", "csv") == "csv"
    for name, declared in (("a.txt", None), ("a.csv", "xml"), (None, "parquet"), ("a.xlsx.gz", None)):
        with pytest.raises(UsageError):
            export_format(name, declared)


@pytest.mark.parametrize(("name", "pages"), [("people.csv", 12), ("people.parquet", 12), ("people.csv.gz", 90)])
def test_a_full_disk_is_named_and_the_same_command_goes_on(name: str, pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's own limit stands in for a full disk under the collected records."""
    target, opened = tmp_path / name, Staging.__init__
    full = True

    def on_a_small_disk(staging: Staging, path: Path | None = None) -> None:
        opened(staging, path)
        if full:
            staging._db.execute(f"PRAGMA max_page_count = {pages}")

    monkeypatch.setattr(Staging, "__init__", on_a_small_disk)
    server = BulkServer()
    ids = server.seed([{"n": "x" * 1000} for _ in range(450)])
    with pytest.raises(StorageError) as caught:
        to_file(server, target)
    assert caught.value.code == "no_space"
    assert f"no space left on the disk of {target}.resume" in caught.value.message
    assert not target.exists()
    assert not list(tmp_path.glob("*.part"))
    kept = resume_path(target).exists()
    assert kept == ("the same command goes on after the" in str(caught.value.hint))
    full = False
    assert to_file(server, target).resumed == kept
    assert json.loads((tmp_path / f"{name}.manifest.json").read_text())["rows"] == len(ids)


@pytest.mark.parametrize("name", ["people.csv", "people.jsonl", "people.json", "people.csv.gz", "people.parquet", "people.xlsx"])
def test_a_disk_that_fills_while_the_file_is_written_leaves_no_half_of_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process's limit on file sizes stands in for a full disk under the exported file."""
    target, written = tmp_path / name, exporting.write_file

    def on_a_full_disk(*given: Any) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        try:
            written(*given)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    server = BulkServer()
    server.seed([{"n": f"{random.getrandbits(2000):x}"} for _ in range(120)])
    layout = Layout(export_format(name, None), [attribute("n")])
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "write_file", on_a_full_disk)
        with pytest.raises(StorageError) as caught:
            new_export(server, layout).to_file(target)
    assert caught.value.code == "no_space"
    assert "goes on after the 120 records" in str(caught.value.hint)
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.resume"]
    asked = len(server.reads)
    assert new_export(server, layout).to_file(target).rows == 120
    assert len(server.reads) == asked
