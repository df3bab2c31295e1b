"""Jobs for users: a file in; records, result files and a summary out. A second run continues the first."""

from __future__ import annotations

import csv
import gzip
import io
import json
import stat
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import CrmctlError, RejectedError, UsageError
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.models.findings import Finding
from crmctl.models.resources import Attribute
from crmctl.plan.dry_run import dry_run
from crmctl.plan.import_plan import Guard, ImportPlan, open_input
from crmctl.plan.job_run import JobHooks, finished_result, run_job
from crmctl.plan.job_start import ImportJob, ImportTarget, JobOptions, start_import, temporary_input
from crmctl.plan.results import ImportResult, write_results
from crmctl.plan.resume import choose_job, reopen
from crmctl.write.database import JobState
from crmctl.write.jobs import JobStore
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import OBJECT_ID, BulkServer, Fault
from tests.support.clock import FakeClock
from tests.support.outcomes import code_of

ATTRIBUTES = [
    attribute("name", isRequired=True),
    attribute("n", "number", name="Number"),
    attribute("note"),
]
SEQUENTIAL = DeliveryOptions(concurrency=1)


@dataclass
class Desk:
    """A user who imports files into one service."""

    server: BulkServer
    state: Path
    clock: FakeClock = field(default_factory=FakeClock)
    findings: list[Finding] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=lambda: list(ATTRIBUTES))

    @property
    def store(self) -> JobStore:
        return JobStore(self.state, self.clock)

    def load(
        self, file: Path | str, plan: ImportPlan | None = None, *, stdin: bytes = b"", again: bool = False, failed: Path | None = None,
        options: DeliveryOptions = SEQUENTIAL,
    ) -> ImportResult:  # fmt: skip
        self.clock.advance(1)
        with temporary_input(self.store, str(file), io.BytesIO(stdin)) as given:
            job = start_import(self.store, self.target, given, JobOptions(plan or ImportPlan(), again=again))
            return self._run(job, options, failed)

    @property
    def target(self) -> ImportTarget:
        return ImportTarget("people", OBJECT_ID, self.server.origin, self.attributes, self.server.crm())

    def _run(self, job: ImportJob, options: DeliveryOptions, failed: Path | None = None) -> ImportResult:
        return run_job(QuietContext(self.server.crm(), self.clock), JobHooks(job), options, failed)

    def resume(self, reference: str | None = None, *, last: bool = False) -> ImportResult:
        info = choose_job(self.store, reference, last=last)
        done = finished_result(self.store, info)
        if done is not None:
            return done
        job = reopen(self.store, info, self.server.origin, self.attributes)
        return self._run(job, SEQUENTIAL)


@pytest.fixture
def desk(tmp_path: Path) -> Any:
    server = BulkServer()
    return Desk(server, tmp_path / "state")


def people(folder: Path, count: int, *, bad: int | None = None) -> Path:
    path = folder / "people.csv"
    lines = [f'"Person, {n}",{"many" if n == bad else n},note {n}' for n in range(1, count + 1)]
    path.write_text("Name,Number,Note\n" + "\n".join(lines) + "\n")
    return path


CONTINUE = ImportPlan(stop_on_error=False)
UPSERT = ImportPlan(mapping=MappingOptions(mode=Mode.UPSERT))


def test_the_summary_has_every_key_and_the_rows_add_up(desk: Desk, tmp_path: Path) -> None:
    desk.server.refuse_row = lambda data: "taken" if data["n"] == 3 else None
    result = desk.load(people(tmp_path, 250, bad=7), CONTINUE)
    document = result.summary.to_document()
    job = desk.store.list()[0]
    assert list(document) == [
        "job", "object", "mode", "rows", "created", "updated", "unchanged", "failed", "rejected", "skipped", "inDoubt", "unsent",
        "duplicates", "requests", "elapsedSeconds", "files",
    ]  # fmt: skip
    assert document | {"elapsedSeconds": 0} == {
        "job": job.id, "object": "people", "mode": "create", "rows": 250, "created": 248, "updated": 0, "unchanged": 0, "failed": 1,
        "rejected": 1, "skipped": 0, "inDoubt": 0, "unsent": 0, "duplicates": 0, "requests": 5, "elapsedSeconds": 0,
        "files": {
            "ok": str(job.folder / "ok.csv"), "failed": str(job.folder / "failed.csv"), "inDoubt": None, "unsent": None, "duplicates": None,
        },
    }  # fmt: skip
    assert (code_of(result), result.is_resumable) == (10, False)


def test_a_job_stores_no_key_and_is_private(desk: Desk, tmp_path: Path) -> None:
    desk.load(people(tmp_path, 5))
    folder = desk.store.list()[0].folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"key-that-must-not-leak" not in path.read_bytes()
    assert b"note 3" not in (folder / "journal.sqlite").read_bytes()


def test_failed_rows_can_be_corrected_and_imported_as_they_are(desk: Desk, tmp_path: Path) -> None:
    failed = tmp_path / "failed.csv"
    result = desk.load(people(tmp_path, 5, bad=2), CONTINUE, failed=failed)
    assert code_of(result) == 10
    assert failed.read_text() == (
        'Name,Number,Note,_row,_line,_status,_id,_error\n"Person, 2",many,note 2,2,3,rejected,,' + failed.read_text().split("rejected,,")[1]
    )
    again = desk.load(failed, CONTINUE, failed=tmp_path / "failed2.csv")
    assert again.summary.to_document()["rejected"] == 1
    assert (tmp_path / "failed2.csv").read_text().splitlines()[0] == "Name,Number,Note,_row,_line,_status,_id,_error"
    assert (tmp_path / "failed2.csv").read_text().splitlines()[1].startswith('"Person, 2",many,note 2,1,2,rejected,,')
    failed.write_text(failed.read_text().replace("many", "2"))
    assert code_of(desk.load(failed)) == 0
    assert sorted(desk.server.values("n")) == [1, 2, 3, 4, 5]


def test_result_files_come_back_to_the_byte(desk: Desk, tmp_path: Path) -> None:
    desk.server.refuse_row = lambda data: 'said "no",\nreally' if data["n"] % 50 == 0 else None
    desk.server.faults[1] = Fault(drop=True, applies=True)
    desk.server.faults[3] = Fault(status=403)
    result = desk.load(people(tmp_path, 450, bad=20), CONTINUE)
    assert code_of(result) == 4
    files = {name: Path(path) for name, path in result.summary.to_document()["files"].items() if path}
    before = {name: path.read_bytes() for name, path in files.items()}
    for path in files.values():
        path.unlink()
    info = desk.store.list()[0]
    job = reopen(desk.store, info, desk.server.origin, desk.attributes)
    with closing(job.journal) as journal:
        write_results(journal, job.input.source)
    assert {name: path.read_bytes() for name, path in files.items()} == before
    rows = {name: list(csv.DictReader(io.StringIO(text.decode()))) for name, text in before.items()}
    assert sum(map(len, rows.values())) == 450
    assert {row["_status"] for row in rows["inDoubt"]} == {"inDoubt"}
    original = list(csv.DictReader(io.StringIO((tmp_path / "people.csv").read_text())))
    for row in (row for group in rows.values() for row in group):
        assert {key: row[key] for key in ("Name", "Number", "Note")} == original[int(row["_row"]) - 1]
        assert int(row["_line"]) == int(row["_row"]) + 1


RAW_TEXTS = {
    "semicolons.csv": ("Name;Number;Note\r\nAda;1;x\r\n\r\n'Bob';two;\"a;b\"\r\n", "'Bob';two;\"a;b\""),
    "tabs.tsv": ("name\tn\tnote\nAda\t1\t\nBob\ttwo\t \n", "Bob\ttwo\t "),
    "lines.jsonl": ('{"name":"Ada"}\n{ "name" : "Bob","n":"two" , "note":"\\u00e9" }\n', '{ "name" : "Bob","n":"two" , "note":"\\u00e9"'),
    "array.json": ('[{"name":"Ada"},\n {"name": "Bob", "n": "two"}]', '{"name": "Bob", "n": "two"'),
}


@pytest.mark.parametrize("name", RAW_TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("packed", [False, True])
def test_failed_rows_keep_format_dialect_and_encoding(desk: Desk, tmp_path: Path, name: str, encoding: str, packed: bool) -> None:
    text, kept = RAW_TEXTS[name]
    path = tmp_path / (f"{name}.gz" if packed else name)
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if packed else content)
    result = desk.load(path, CONTINUE)
    failed = result.summary.files["failed"]
    assert failed is not None
    assert failed.suffix == Path(name).suffix
    written = failed.read_bytes()
    assert written[:2] == content[:2] or encoding == "utf-8"
    lines = written.decode(encoding)
    assert kept in lines
    assert ("\r\n" in lines) == ("\r\n" in text)
    again = desk.load(failed, CONTINUE)
    assert (again.summary.rows, code_of(again)) == (1, 9)


def test_ragged_rows_stay_ragged_and_a_broken_quote_swallows_nothing(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "ragged.csv"
    path.write_text('name,n,note\nAda,1\nBob,1,x,y\nCy,3,"open\n')
    result = desk.load(path, CONTINUE)
    failed = result.summary.files["failed"]
    assert failed is not None
    again = desk.load(failed, CONTINUE)
    assert again.summary.to_document()["rejected"] == result.summary.to_document()["rejected"] == 3
    assert code_of(again) == 9


def test_a_ragged_row_never_takes_its_row_number_as_a_value(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "ragged.csv"
    path.write_text('name,n\nAda\n"Bob"x,1\nCy,1,2\n')
    texts = []
    for _ in range(3):
        failed = desk.load(path, CONTINUE).summary.files["failed"]
        assert failed is not None
        path = failed
        texts.append([line.split(",rejected,")[0].rsplit(",", 2)[0] for line in failed.read_text().splitlines()[1:]])
    assert texts == [["Ada", '"""Bob""x,1"', "Cy,1,2"]] * 3
    assert not desk.server.values("n")


def test_columns_without_a_name_at_the_end_do_not_spoil_the_result_file(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "trailing.csv"
    path.write_text("name,n,,\nAda,1,,\nBob,two,,\n")
    failed = desk.load(path, CONTINUE).summary.files["failed"]
    assert failed is not None
    failed.write_text(failed.read_text().replace("two", "2"))
    assert code_of(desk.load(failed)) == 0


def test_the_same_content_is_created_once_without_again(desk: Desk, tmp_path: Path) -> None:
    path = people(tmp_path, 3)
    desk.load(path)
    copy = tmp_path / "copy.csv"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(UsageError) as caught:
        desk.load(copy)
    assert caught.value.code == "already_imported"
    assert len(desk.server.writes) == 1
    assert len(desk.store.list()) == 1
    assert code_of(desk.load(copy, again=True)) == 0
    assert max(desk.server.values("n").values()) == 2


def test_content_that_was_never_sent_is_not_a_repetition(desk: Desk, tmp_path: Path) -> None:
    path = people(tmp_path, 3, bad=1)
    assert code_of(desk.load(path)) == 9
    assert code_of(desk.load(path, CONTINUE)) == 10


def test_an_upsert_asks_nothing_and_uses_the_id_column(desk: Desk, tmp_path: Path) -> None:
    known = desk.server.seed([{"name": "old"}])[0]
    path = tmp_path / "u.csv"
    path.write_text(f"id,name\n{known},new\n,fresh\n")
    for _ in range(2):
        result = desk.load(path, UPSERT)
        document = result.summary.to_document()
        assert (document["created"], document["updated"]) == (1, 1)
    ok = list(csv.DictReader(io.StringIO(Path(document["files"]["ok"]).read_text())))
    assert [(row["_status"], row["_id"]) for row in ok] == [("updated", known), ("created", "")]
    assert desk.server.values("name") == {"new": 1, "fresh": 2}


def test_standard_input_is_kept_so_that_the_job_can_go_on(desk: Desk, tmp_path: Path) -> None:
    desk.server.faults[1] = Fault(status=401)
    content = people(tmp_path, 250).read_bytes()
    assert code_of(desk.load("-", stdin=content)) == 4
    (tmp_path / "people.csv").unlink()
    assert code_of(desk.resume()) == 0
    assert sum(desk.server.values("n").values()) == 250


def test_a_job_goes_on_where_it_was_and_a_finished_one_says_so(desk: Desk, tmp_path: Path) -> None:
    desk.server.faults[2] = Fault(status=401)
    first = desk.load(people(tmp_path, 450))
    assert first.error is not None
    assert first.error.hint == f"crmctl bulk resume {first.summary.job}"
    assert first.summary.to_document()["unsent"] == 250
    second = desk.resume()
    assert (code_of(second), second.summary.job) == (0, first.summary.job)
    assert max(desk.server.values("n").values()) == 1
    assert second.summary.to_document()["created"] == 450
    assert second.summary.to_document()["files"]["unsent"] is None
    (tmp_path / "people.csv").unlink()
    third = desk.resume(str(first.summary.job))
    assert (code_of(third), third.summary.to_document()) == (0, second.summary.to_document())
    assert len(desk.server.writes) == 6


def interrupted(desk: Desk, tmp_path: Path) -> str:
    desk.server.faults[len(desk.server.writes)] = Fault(status=401)
    return str(desk.load(people(tmp_path, 150), again=True).summary.job)


@pytest.mark.parametrize("change", ["file", "gone", "attributes", "service"])
def test_a_job_whose_ground_has_changed_does_not_go_on(desk: Desk, tmp_path: Path, change: str) -> None:
    job = interrupted(desk, tmp_path)
    sent = len(desk.server.writes)
    path = tmp_path / "people.csv"
    origin = desk.server.origin
    if change == "file":
        path.write_text(path.read_text().replace("note 7", "note 8"))
    elif change == "gone":
        path.unlink()
    elif change == "attributes":
        desk.attributes[1] = attribute("n", name="Number")
    else:
        desk.server.origin = "http://127.0.0.1:1"
    with pytest.raises(UsageError) as caught:
        desk.resume(job)
    desk.server.origin = origin
    assert caught.value.exit_code == 2
    assert {"file": "changed", "gone": "cannot read", "attributes": "attribute n of people changed", "service": "belongs to"}[
        change
    ] in caught.value.message
    assert len(desk.server.writes) == sent


@pytest.mark.parametrize("guard", [Guard(expect=3), Guard(most=50, percent=True)], ids=["expect", "percent"])
def test_limits_of_change_hold_for_a_resume(desk: Desk, tmp_path: Path, guard: Guard) -> None:
    """An import that stopped during its check has an expected number of rows, and keeps it."""
    with temporary_input(desk.store, str(people(tmp_path, 4)), io.BytesIO()) as given:
        begun = start_import(desk.store, desk.target, given, JobOptions(ImportPlan(), guard=guard))
    begun.journal.close()
    begun.input.close()
    result = desk.resume(begun.id)
    assert isinstance(result.error, RejectedError)
    assert result.error.code == "unexpected_changes"
    assert desk.server.records == []


def test_names_that_select_a_job(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no job to resume"):
        desk.resume()
    first, second = interrupted(desk, tmp_path), interrupted(desk, tmp_path)
    with pytest.raises(UsageError) as caught:
        desk.resume()
    assert first in caught.value.message
    assert second in caught.value.message
    assert desk.resume(last=True).summary.job == second
    assert desk.resume(last=True).summary.job == first
    assert desk.resume(last=True).summary.job == second, "nothing is left to do: the newest shows its summary again"
    assert desk.resume(first[-5:]).summary.job == first
    assert desk.store.find("last").id == second
    for unknown in ("nothing", ""):
        with pytest.raises(CrmctlError):
            desk.store.find(unknown)
    desk.store.remove(desk.store.find(first))
    assert [job.id for job in desk.store.list()] == [second]
    assert [job.to_document()["state"] for job in desk.store.list()] == ["finished"]


def test_a_broken_file_is_an_error_and_no_job_to_resume(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('[{"name":"Ada"}' + ', {"name":"Bob"}' * 50_000 + ', {"na')
    with pytest.raises(CrmctlError) as caught:
        desk.load(path)
    assert caught.value.exit_code == 9
    assert desk.server.writes == []
    assert [job.is_resumable for job in desk.store.list()] == [False]
    with pytest.raises(CrmctlError):
        desk.load(tmp_path / "absent.csv")
    assert [job.state for job in desk.store.list()] == [JobState.REJECTED]


def test_a_dry_run_counts_and_sends_nothing(desk: Desk, tmp_path: Path) -> None:
    with temporary_input(desk.store, "-", io.BytesIO(people(tmp_path, 1234, bad=5).read_bytes())) as given:
        planned = open_input(ImportPlan(), given.path, given.name, desk.attributes)
        run = dry_run(QuietContext(desk.server.crm(), desk.clock), desk.target, planned, desk.findings.append)  # type: ignore[arg-type]
    document = run.to_document()
    assert (document["rows"], document["rejected"], document["unsent"], document["requests"]) == (1234, 1, 1233, 15)
    assert document["job"] is None
    assert document["dryRun"] is True
    assert [finding.first_line for finding in desk.findings] == [6]
    assert desk.server.writes == []
    assert desk.store.list() == []
    assert json.loads(json.dumps(document["report"]))["findings"][0]["column"] == "Number"


def test_folders_that_hold_no_readable_job_are_in_nobodys_way(desk: Desk, tmp_path: Path) -> None:
    (desk.state / "jobs" / "empty").mkdir(parents=True)
    for name, content in (("begun", b""), ("broken", b"no database at all, but long enough to be taken for one" * 100)):
        (desk.state / "jobs" / name).mkdir()
        (desk.state / "jobs" / name / "journal.sqlite").write_bytes(content)
    assert code_of(desk.load(people(tmp_path, 3))) == 0
    assert [job.state for job in desk.store.list()] == [JobState.FINISHED]


def test_an_unwritable_state_directory_is_an_error(desk: Desk, tmp_path: Path) -> None:
    desk.state.write_text("a file stands here")
    with pytest.raises(CrmctlError) as caught:
        desk.load(people(tmp_path, 3))
    assert caught.value.exit_code == 2
    assert "CRMCTL_STATE_DIR" in str(caught.value.hint)
