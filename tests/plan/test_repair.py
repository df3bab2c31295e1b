"""`bulk repair` reads the copies of rows again and deletes one only if the row's own record exists and the copy is unchanged."""

from __future__ import annotations

import csv
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crmctl.client.crm import Crm
from crmctl.client.transport import Response
from crmctl.errors import ExitCode, PartialError, UsageError
from crmctl.files.sources import GivenInput
from crmctl.models.resources import Attribute
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportTarget, JobOptions, start_import
from crmctl.plan.results import outcome_of
from crmctl.plan.resume import RepairRequest, RepairResult, repair
from crmctl.plan.undo import Undo, UndoRequest, undo
from crmctl.write.database import RowState
from crmctl.write.jobs import JobStore
from crmctl.write.journal import RowEntry
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import OBJECT_ID
from tests.support.clock import FakeClock
from tests.support.faultruns import ORIGIN, client_of
from tests.support.faultservice import Fault, FaultService
from tests.support.outcomes import code_of, error_of


@dataclass
class RepairDesk(QuietContext):
    """Run a job of nine rows whose second request, rows 4 to 6, a proxy repeats."""

    state: Path = field(kw_only=True)
    recognition: str = field(kw_only=True)
    origin: str = ORIGIN
    job: str = ""

    def __post_init__(self) -> None:
        self.faulty = FaultService(self.clock, {1: Fault("drop, applied twice", "twice", "drop")})
        self.service: Crm = client_of(self.faulty, self.clock)
        self.directory = SimpleNamespace(attributes=lambda _, refresh=False: self.attributes, object_id=lambda _: OBJECT_ID)
        file = self.state / "people.csv"
        file.write_text("n,note,email\n" + "".join(f"{n},row {n},p{n}@acme.com\n" for n in range(1, 10)))
        target = ImportTarget("people", OBJECT_ID, ORIGIN, self.attributes, self.service)
        job = start_import(JobStore(self.state, self.clock), target, GivenInput.at(file), JobOptions(ImportPlan()))
        self.job = job.id
        self.result = run_job(self, JobHooks(job), DeliveryOptions(concurrency=1, max_rows=3))  # type: ignore[arg-type]
        self.clock.sleep(1000)
        assert self.there == Counter({n: 1 + (4 <= n <= 6) for n in range(1, 10)})

    @property
    def attributes(self) -> list[Attribute]:
        unique = {"isUnique": True} if self.recognition == "unique" else {}
        return [attribute("n", "number"), attribute("note"), attribute("email", "email", **unique)]

    def repair(self, *, delete: bool = False) -> RepairResult:
        return repair(self, RepairRequest(self.job, delete_duplicates=delete))  # type: ignore[arg-type]

    @property
    def there(self) -> Counter[int]:
        return Counter(one["wire"]["data"]["n"] for one in self.faulty.records)

    def record(self, record_id: str) -> dict[str, Any]:
        (found,) = (one["wire"] for one in self.faulty.records if one["wire"]["id"] == record_id)
        return dict(found)

    def remove(self, record_id: str) -> None:
        self.faulty.records = [one for one in self.faulty.records if one["wire"]["id"] != record_id]

    def change(self, record_id: str) -> None:
        for one in self.faulty.records:
            if one["wire"]["id"] == record_id:
                one["wire"] |= {"data": one["wire"]["data"] | {"note": "by hand"}, "updatedAt": "2099-01-01T00:00:00Z"}

    def named(self) -> dict[int, str]:
        """Return the ids in the result file of created rows."""
        (file,) = self.state.rglob("ok.csv")
        return {int(row["_row"]): row["_id"] for row in csv.DictReader(file.read_text().splitlines()) if row["_id"]}


def desk(folder: Path, recognition: str) -> RepairDesk:
    return RepairDesk(None, FakeClock(), state=folder, recognition=recognition)


def test_copies_are_named_and_deleted_once_on_request(tmp_path: Path) -> None:
    people = desk(tmp_path, "unique")
    found = people.repair()
    assert (sorted(found.found.duplicates), getattr(error_of(found), "hint", None)) == (
        [4, 5, 6],
        f"crmctl bulk repair {people.job} --delete-duplicates",
    )
    done = people.repair(delete=True)
    assert (done.deleted, error_of(done)) == (3, None)
    assert people.there == Counter(range(1, 10))
    assert {people.record(record_id)["data"]["n"]: row for row, record_id in people.named().items()} == {n: n for n in people.named()}
    assert people.repair(delete=True).to_document()["duplicates"] == []


def test_rows_with_copies_have_a_count_and_a_result_file(tmp_path: Path) -> None:
    people = desk(tmp_path, "unique")
    document = people.result.summary.to_document()
    assert (document["duplicates"], document["created"], code_of(people.result)) == (3, 9, ExitCode.PARTIAL)
    named = [*csv.DictReader(Path(document["files"]["duplicates"]).read_text().splitlines())]
    assert [int(row["_row"]) for row in named] == [4, 5, 6]
    for row in named:
        ids = [row["_id"], row["_error"].removeprefix("exists more than once, also as ")]
        assert [people.record(record_id)["data"]["n"] for record_id in ids] == [int(row["n"])] * 2
    people.repair(delete=True)
    assert not Path(document["files"]["duplicates"]).exists()


def test_records_silently_kept_are_not_called_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = desk(tmp_path, "unique")
    with monkeypatch.context() as patch:
        patch.setattr(people.faulty, "_delete", lambda _: Response(200, {"content-type": "application/json"}, b'{"deleted": 0}'))
        done = people.repair(delete=True)
    assert (done.deleted, done.left, sorted(done.found.duplicates)) == (0, 3, [4, 5, 6])
    assert (people.repair(delete=True).deleted, people.there) == (3, Counter(range(1, 10)))


def test_later_changes_decide_which_copy_stays(tmp_path: Path) -> None:
    """Another client has deleted the named record of row 4 and the copy of row 5, and changed the copy of row 6."""
    people = desk(tmp_path, "unique")
    copies = people.repair().found.duplicates
    people.remove(str(copies[4][0]))
    people.remove(copies[5][1][0])
    people.change(copies[6][1][0])
    done = people.repair(delete=True)
    assert (done.deleted, sorted(done.found.duplicates), done.left) == (0, [6], 1)
    assert str(getattr(error_of(done), "hint", None)).endswith("crmctl bulk delete people --ids FILE")
    assert people.there == Counter(range(1, 10)) + Counter([6])
    assert people.named()[4] == copies[4][1][0]


@pytest.mark.parametrize("delete", [False, True])
def test_possible_records_of_other_clients_are_not_deleted_and_not_hinted_at(tmp_path: Path, delete: bool) -> None:
    people = desk(tmp_path, "content")
    found = people.repair()
    assert "--delete-duplicates" not in str(getattr(error_of(found), "hint", None))
    if delete:
        with pytest.raises(UsageError, match="no unique attribute"):
            people.repair(delete=True)
        for _, extra in found.found.duplicates.values():
            people.remove(extra[0])
        assert error_of(people.repair()) is None
    assert people.there == Counter(range(1, 10)) + Counter([] if delete else [4, 5, 6])


@pytest.mark.parametrize("recognition", ["content", "unique"])
def test_an_undo_names_copies_every_time(tmp_path: Path, recognition: str) -> None:
    """Nothing shows that the job created the second record."""
    people = desk(tmp_path, recognition)
    left = Counter([4, 5, 6])
    for _ in range(2):
        done = undo(people, UndoRequest(people.job), lambda _: None)  # type: ignore[arg-type]
        assert isinstance(done, Undo)
        assert (people.there, done.left) == (left, {"duplicates": 3})
        named = {str(row["id"]) for row in done.to_document()["rows"]["duplicates"]}
        assert {people.record(one)["data"]["n"] for one in named} == set(left)


@pytest.mark.parametrize("failed", [0, 2])
def test_rows_with_copies_are_reported_next_to_failed_rows(failed: int, tmp_path: Path) -> None:
    people = desk(tmp_path, "unique")
    store = JobStore(people.state, people.clock)
    with closing(store.open(store.find(people.job))) as journal:
        for ordinal in range(1, failed + 1):
            journal.overrule(ordinal, RowEntry(RowState.FAILED, None, "refused"))
        error = outcome_of(journal).error
    assert isinstance(error, PartialError)
    assert ("3 rows exist more than once" in error.message, error.details["duplicates"]) == (True, 3)
    assert f"crmctl bulk repair {people.job}" in error.message + str(error.hint)
