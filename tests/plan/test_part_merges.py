"""Rows that name parts of values, by key and by id: other parts stay, also if the job stops half-way and other clients edit."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crmctl.files.cell_values import ValueOptions
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.sources import GivenInput
from crmctl.models.findings import Finding
from crmctl.plan.dry_run import dry_run
from crmctl.plan.import_plan import ImportPlan, open_input
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportJob, ImportTarget, JobOptions, start_import
from crmctl.plan.results import ImportResult
from crmctl.plan.resume import reopen
from crmctl.plan.undo import WrittenRecords, carry_out, plan_undo
from crmctl.plan.undo_updates import Updates, written_rows
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.write.database import JobState
from crmctl.write.jobs import JobStore
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkjobs import Silent
from tests.support.bulkserver import OBJECT_ID, BulkServer, Fault
from tests.support.clock import FakeClock
from tests.support.outcomes import code_of

ATTRIBUTES = [attribute("code"), attribute("home", "address"), attribute("person", "name"), attribute("budget", "currency")]
HOME = {"street": "1 Main St", "city": "Paris", "postal_code": "75"}
MONEY = {"amount": 5, "currency": "EUR"}


@dataclass
class PartsDesk:
    """A user who imports a CSV by the ids or the codes of records."""

    server: BulkServer
    folder: Path
    by_key: bool
    clock: FakeClock = field(default_factory=FakeClock)
    findings: list[Finding] = field(default_factory=list)
    options: DeliveryOptions = field(default_factory=lambda: DeliveryOptions(concurrency=1, max_rows=2))

    blank: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> JobStore:
        return JobStore(self.folder / "state", self.clock)

    @property
    def data(self) -> list[dict[str, Any]]:
        return [record["data"] for record in self.server.records]

    def plan(self, *, stop: bool = True, currency: str | None = None) -> ImportPlan:
        samples = tuple(record["data"] for record in self.server.records[:20])
        values = ValueOptions(samples=samples, currency=currency, blank=self.blank)
        return ImportPlan(mapping=MappingOptions(Mode.UPSERT, keys=("code",) if self.by_key else ()), stop_on_error=stop, values=values)

    def file(self, header: str, *rows: str) -> Path:
        """Return rows in the order of the records' codes; one more than there are records, so that one is created."""
        path = self.folder / f"{len(list(self.folder.glob('*.csv')))}.csv"
        names = [record["id"] for record in self.server.records] + [""] * 9
        lines = [f"{names[place]},c{place},{row}" for place, row in enumerate(rows)]
        path.write_text("\n".join([f"{'_' if self.by_key else ''}id,code,{header}", *lines]) + "\n")
        return path

    def start(self, path: Path, **options: Any) -> ImportJob:
        return start_import(self.store, self.target, GivenInput.at(path), JobOptions(self.plan(**options)))

    @property
    def target(self) -> ImportTarget:
        return ImportTarget("people", OBJECT_ID, self.server.origin, ATTRIBUTES, self.server.crm(self.clock))

    def run(self, job: ImportJob) -> ImportResult:
        self.clock.advance(1)
        self.findings.clear()
        context = QuietContext(self.server.crm(self.clock), self.clock)
        result = run_job(context, JobHooks(job), self.options)
        self.findings += result.findings.kept
        return result

    def load(self, header: str, *rows: str, **options: Any) -> ImportResult:
        return self.run(self.start(self.file(header, *rows), **options))

    def resume(self) -> ImportResult:
        (job,) = [job for job in self.store.list() if job.is_resumable]
        return self.run(reopen(self.store, job, self.server.origin, ATTRIBUTES))

    def undo(self) -> None:
        job = self.store.list()[0]
        ready = reopen(self.store, job, self.server.origin, ATTRIBUTES)
        crm = self.server.crm(self.clock)
        with closing(ready.journal) as journal, closing(ready.input), SeenIds() as ids, Updates(ATTRIBUTES) as updates:
            written = WrittenRecords(journal, written_rows(ready, self.clock), ids, updates)
            carry_out(written, plan_undo(written, Reader(crm, OBJECT_ID)), crm, Silent())


@pytest.fixture(params=[True, False], ids=["by key", "by id"])
def desk(tmp_path: Path, request: pytest.FixtureRequest) -> PartsDesk:
    server = BulkServer()
    server.seed([{"code": f"c{place}", "home": dict(HOME), "budget": dict(MONEY), "note": place} for place in range(5)])
    return PartsDesk(server, tmp_path, request.param)


def test_named_parts_change_and_the_others_stay_and_an_undo_puts_all_back(desk: PartsDesk) -> None:
    before = [dict(data) for data in desk.data]
    desk.blank = {"home.city": "clear"}
    result = desk.load("home.city,home.zip,budget", "Rome,,7", ",1,", "Oslo,2,8 USD")
    assert result.summary.counts["updated"] == 3
    assert [data["home"] for data in desk.data[:3]] == [
        HOME | {"city": "Rome"},
        HOME | {"city": None, "postal_code": "1"},
        HOME | {"city": "Oslo", "postal_code": "2"},
    ]
    assert [data["budget"] for data in desk.data[:3]] == [{"amount": 7, "currency": "EUR"}, MONEY, {"amount": 8, "currency": "USD"}]
    assert desk.data[3:] == before[3:]
    desk.undo()
    assert desk.data == before


def test_new_records_are_made_of_their_parts(desk: PartsDesk) -> None:
    desk.load("home.city,budget", *[","] * 5, "Rome,7", currency="USD")
    assert desk.data[5] == {"code": "c5", "home": {"city": "Rome"}, "budget": {"amount": 7, "currency": "USD"}}


def test_a_new_amount_without_a_currency_is_refused_where_records_have_one(desk: PartsDesk) -> None:
    result = desk.load("budget", *["6"] * 5, "7")
    assert ([finding.code for finding in desk.findings], result.summary.counts["rejected"]) == (["missing_currency"], 1)
    assert desk.server.writes == []


def test_a_text_is_refused_before_anything_is_sent(desk: PartsDesk) -> None:
    desk.server.records[1]["data"]["home"] = "1 Main St, Paris"
    result = desk.load("home.city", "Rome", "Rome")
    (finding,) = desk.findings
    assert (finding.code, finding.first_line, finding.column) == ("text_without_parts", 3, "home")
    assert "1 Main St, Paris" in finding.message
    assert (desk.server.writes, code_of(result)) == ([], 9)
    assert code_of(desk.load("home.city", "Rome", "Rome", stop=False)) == 10
    assert [data["home"] for data in desk.data[:2]] == [HOME | {"city": "Rome"}, "1 Main St, Paris"]


def test_a_resumed_job_respects_changes_of_other_clients(desk: PartsDesk) -> None:
    desk.server.faults[1] = Fault(status=403)  # the second request ends the run without effect
    first = desk.load("home.city", *["Rome"] * 5)
    assert first.summary.counts["unsent"] == 3
    desk.clock.advance(3600)
    desk.server.records[4]["data"]["home"] = HOME | {"street": "9 Side St"}
    desk.server.records[4]["updatedAt"] = "2030-01-01T00:00:00Z"
    desk.server.records[1]["data"]["home"]["street"] = "edited after it was written"
    assert desk.resume().summary.counts["updated"] == 5
    streets = [data["home"]["street"] for data in desk.data]
    assert streets == ["1 Main St", "edited after it was written", "1 Main St", "1 Main St", "9 Side St"]
    assert {data["home"]["city"] for data in desk.data} == {"Rome"}


def test_a_dry_run_counts_the_reads(desk: PartsDesk) -> None:
    path = desk.file("home.city", *["Rome"] * 5)
    planned = open_input(desk.plan().frozen(ATTRIBUTES), path, "a.csv", ATTRIBUTES)
    target = desk.target
    predicted = dry_run(QuietContext(target.service, desk.clock), target, planned, desk.findings.append)  # type: ignore[arg-type]
    assert predicted.summary.counts["unsent"] == 5
    desk.options = DeliveryOptions(concurrency=1)
    result = desk.load("home.city", *["Rome"] * 5)
    assert result.summary.requests == predicted.summary.requests


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("edits", [True, False])
def test_a_merge_in_doubt_is_not_repeated_over_an_edit(desk: PartsDesk, applies: bool, edits: bool) -> None:
    def somebody(_: str) -> None:
        if edits and desk.server.writes:
            home = desk.server.records[0]["data"]["home"]
            if home.get("street") == "1 Main St":
                desk.server.records[0]["data"]["home"] = home | {"street": "9 Side St"}
                desk.server.records[0]["updatedAt"] = "2030-01-01T00:00:00Z"

    desk.server.faults[0] = Fault(applies=applies, drop=True)
    desk.server.before_record = somebody
    result = desk.load("home.city", "Rome", "Oslo")
    street, city = ("9 Side St" if edits else "1 Main St"), ("Rome" if applies or not edits else "Paris")
    assert desk.data[0]["home"] == HOME | {"street": street, "city": city}
    assert desk.data[1]["home"] == HOME | {"city": "Oslo"}
    assert result.summary.counts["inDoubt"] == (1 if edits else 0)


VALUE = st.sampled_from(["", "x", "y z"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    by_key=st.booleans(),
    rows=st.lists(st.tuples(VALUE, VALUE, st.sampled_from(["", "7", "8"])), min_size=1, max_size=6),
    seed=st.integers(0, 999),
    ends=st.none() | st.integers(0, 2),
)
def test_unnamed_parts_never_change(
    tmp_path_factory: pytest.TempPathFactory, by_key: bool, rows: list[tuple[str, str, str]], seed: int, ends: int | None
) -> None:
    chance = random.Random(seed)
    parts = ("street", "city", "postal_code", "floor")
    server = BulkServer()
    homes = [{part: chance.choice(["a", "b", None]) for part in parts if chance.random() < 0.7} for _ in rows]
    server.seed([{"code": f"c{place}", "home": dict(home), "budget": dict(MONEY)} for place, home in enumerate(homes)])
    desk = PartsDesk(server, tmp_path_factory.mktemp("parts"), by_key)
    if ends is not None:
        server.faults[ends] = Fault(status=403)
    desk.load("home.street,home.zip,budget", *(",".join(row) for row in rows))
    if ends is not None and any(job.state is JobState.OPEN for job in desk.store.list()):
        victim = chance.randrange(len(rows))
        homes[victim]["floor"] = "edited"
        server.records[victim]["data"]["home"] = server.records[victim]["data"]["home"] | {"floor": "edited"}
        server.records[victim]["updatedAt"] = "2030-01-01T00:00:00Z"
        desk.resume()
    for home, (street, code, amount), data in zip(homes, rows, desk.data, strict=True):
        named = {"street": street, "postal_code": code}
        wanted = home | {part: value for part, value in named.items() if value}
        there = {"postal_code" if part == "zip" else part: value for part, value in (data["home"] or {}).items() if value}
        assert there == {part: value for part, value in wanted.items() if value}
        assert data["budget"] == (MONEY | {"amount": int(amount)} if amount else MONEY)
