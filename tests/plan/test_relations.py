"""Parents and links when the service refuses some, when other clients create them first, and when two references need the same parent."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import ExitCode, RejectedError
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.sources import GivenInput
from crmctl.match.references import Reference, ReferenceMap
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportJob, ImportTarget, JobOptions, start_import
from crmctl.plan.results import ImportResult
from crmctl.plan.resume import choose_job, reopen
from crmctl.write.database import RowState
from crmctl.write.jobs import JobStore
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkserver import OBJECT_ID, BulkServer, Fault
from tests.support.clock import FakeClock
from tests.support.keydesk import counts
from tests.support.outcomes import code_of

ATTRIBUTES = [
    attribute("email", "email"),
    attribute("manager", "reference", config={"allowed_object_id": OBJECT_ID}),
    attribute("friends", "reference", isList=True, config={"allowed_object_id": OBJECT_ID}),
]


class Desk:
    """A user who imports people that refer to one another by address."""

    def __init__(self, server: BulkServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.clock = FakeClock()
        self.store = JobStore(folder / "state", self.clock)
        self.attributes = list(ATTRIBUTES)

    def load(self, text: str, *keys: str, missing: str = "create", stop: bool = True, **options: Any) -> ImportResult:
        return self.run(self.start(text, *keys, missing=missing, stop=stop, **options))

    def start(self, text: str, *keys: str, missing: str = "create", stop: bool = True, **options: Any) -> ImportJob:
        path = self.folder / "people.csv"
        path.write_text(text, encoding="utf-8")
        given = (Reference(slug, "people", OBJECT_ID, "email", "email", **options) for slug in ("manager", "friends"))
        mapping = MappingOptions(Mode.UPSERT if keys else Mode.CREATE, keys=keys)
        plan = ImportPlan(mapping=mapping, references=tuple(given), missing_references=missing, stop_on_error=stop)
        target = ImportTarget("people", OBJECT_ID, self.server.origin, self.attributes, self.server.crm(self.clock))
        return start_import(self.store, target, GivenInput.at(path), JobOptions(plan))

    def resume(self) -> ImportResult:
        return self.run(reopen(self.store, choose_job(self.store, None), self.server.origin, self.attributes))

    def run(self, job: ImportJob) -> ImportResult:
        context = QuietContext(self.server.crm(self.clock), self.clock)
        return run_job(context, JobHooks(job), DeliveryOptions(concurrency=1))

    def people(self) -> dict[str, dict[str, Any]]:
        """Return everyone's values by address, with addresses in place of ids."""
        names = {record["id"]: record["data"]["email"] for record in self.server.records}

        def named(value: Any) -> Any:
            return [names[one] for one in value] if isinstance(value, list) else names.get(value)

        return {
            record["data"]["email"]: {slug: named(value) for slug, value in record["data"].items() if slug != "email"}
            for record in self.server.records
        }


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    server = BulkServer()
    return Desk(server, tmp_path)


def test_two_references_to_one_missing_record_make_it_once(desk: Desk) -> None:
    done = desk.load("Email,Manager,Friends\na@x.com,g@x.com,b@x.com;G@x.com;a@x.com\nb@x.com,,a@x.com\n")
    assert counts(done) == {"created": 2}
    assert desk.people() == {
        "a@x.com": {"manager": "g@x.com", "friends": ["b@x.com", "g@x.com", "a@x.com"]},
        "b@x.com": {"friends": ["a@x.com"]},
        "g@x.com": {},
    }


@pytest.mark.parametrize("form", ["id", "recordId"])
def test_a_service_that_shows_references_as_objects_is_sent_none_again(desk: Desk, form: str) -> None:
    text = "Email,Manager\na@x.com,b@x.com\nb@x.com,\n"
    desk.load(text, "email")
    named = next(record for record in desk.server.records if "manager" in record["data"])
    named["data"]["manager"] = {"objectId": OBJECT_ID, form: named["data"]["manager"]}
    assert counts(desk.load(text, "email")) == {"unchanged": 2}


@pytest.mark.parametrize("keys", [(), ("email",)])
def test_rows_of_a_refused_parent_are_rejected_and_the_rest_is_sent(desk: Desk, keys: tuple[str, ...]) -> None:
    desk.server.refuse_row = lambda data: "not this one" if data.get("email") == "g@x.com" else None
    done = desk.load("Email,Manager\na@x.com,g@x.com\nb@x.com,h@x.com\n", *keys)
    assert (counts(done), code_of(done)) == ({"created": 1, "rejected": 1}, ExitCode.PARTIAL)
    assert desk.people() == {"b@x.com": {"manager": "h@x.com"}, "h@x.com": {}}
    failed = done.summary.files["failed"]
    assert failed is not None
    assert "people.email: not this one" in failed.read_text(encoding="utf-8")


def test_a_unique_parent_created_by_another_client_first_is_used(desk: Desk) -> None:
    """The service refuses the parent because another client has created it since the look-up: the rows are valid and refer to it."""

    def taken(data: dict[str, Any]) -> str | None:
        if data.get("email") != "g@x.com":
            return None
        if all(record["data"]["email"] != "g@x.com" for record in desk.server.records):
            desk.server.add({"email": "g@x.com"}, "2026-01-01T00:10:00.000000Z")
        return "email is already used"

    desk.server.refuse_row = taken
    done = desk.load("Email,Manager\na@x.com,g@x.com\nb@x.com,g@x.com\n")
    assert (counts(done), code_of(done)) == ({"created": 2}, ExitCode.OK)
    assert desk.people() == {"a@x.com": {"manager": "g@x.com"}, "b@x.com": {"manager": "g@x.com"}, "g@x.com": {}}


@pytest.mark.parametrize("late", [5.0, 1e9], ids=["5 s late", "never shown"])
def test_a_unique_parent_that_late_lists_hide_is_used_or_named_as_the_cause(desk: Desk, late: float) -> None:
    made: list[float] = []

    def taken(data: dict[str, Any]) -> str | None:
        if data.get("email") != "g@x.com":
            return None
        if not made:
            made.append(desk.clock.now())
            desk.server.add({"email": "g@x.com"}, "2026-01-01T00:10:00.000000Z")
        return "email is already used"

    desk.server.refuse_row = taken
    desk.server.visible = lambda record: record["data"]["email"] != "g@x.com" or desk.clock.now() >= made[0] + late
    done = desk.load("Email,Manager\na@x.com,g@x.com\nb@x.com,g@x.com\n", is_unique=True)
    if late == 5.0:
        assert (done.error, {**done.summary.counts}[RowState.CREATED]) == (None, 2)
        return
    assert done.error is not None
    assert done.error.message == (
        "2 rows were not sent; it refers to no record: people.email: email is already used; "
        "the service lists no record with this value, and may list it later"
    )
    assert "import the rows again in a minute" in str(done.error.hint)


def test_a_parent_created_by_another_client_meanwhile_is_used(desk: Desk) -> None:
    desk.server.faults[0] = Fault(status=401, body={"error": "unauthorized", "message": "no"})
    first = desk.load("Email,Manager\na@x.com,g@x.com\nb@x.com,h@x.com\n")
    assert (first.is_resumable, counts(first)) == (True, {"unsent": 2})
    desk.server.add({"email": "G@x.com"}, "2026-01-01T00:10:00.000000Z")
    assert counts(desk.resume()) == {"created": 2}
    assert desk.people() == {
        "G@x.com": {}, "h@x.com": {}, "a@x.com": {"manager": "G@x.com"}, "b@x.com": {"manager": "h@x.com"},
    }  # fmt: skip


def test_a_parent_that_exists_twice_is_named_and_not_picked(desk: Desk) -> None:
    desk.server.faults[0] = Fault(status=401, body={"error": "unauthorized", "message": "no"})
    assert counts(desk.load("Email,Manager\na@x.com,g@x.com\nb@x.com,h@x.com\n")) == {"unsent": 2}
    for minute in (10, 11):
        desk.server.add({"email": "g@x.com"}, f"2026-01-01T00:{minute}:00.000000Z")
    done = desk.resume()
    assert (counts(done), code_of(done)) == ({"created": 1, "rejected": 1}, ExitCode.PARTIAL)
    failed = done.summary.files["failed"]
    assert failed is not None
    assert "people.email: several records of people have this value" in failed.read_text(encoding="utf-8")
    assert len(desk.server.records) == 4, "both of g@x.com, h@x.com and b@x.com"


def test_a_link_the_service_refuses_fails_its_row_which_is_there(desk: Desk) -> None:
    desk.server.refuse_row = lambda data: "no such manager" if data.get("manager") and "email" not in data else None
    done = desk.load("Email,Manager\na@x.com,b@x.com\nb@x.com,a@x.com\n")
    assert (counts(done), code_of(done)) == ({"failed": 2}, ExitCode.PARTIAL)
    assert desk.people() == {"a@x.com": {}, "b@x.com": {}}
    failed = done.summary.files["failed"]
    assert failed is not None
    text = failed.read_text(encoding="utf-8")
    assert all(f"record {record['id']} was written, but not linked: no such manager" in text for record in desk.server.records)
    assert any("not linked" in note for note in done.notes)


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_an_answer_that_is_lost_doubles_nothing(desk: Desk, request_number: int, applies: bool) -> None:
    desk.server.faults[request_number] = Fault(applies=applies, drop=True)
    done = desk.load("Email,Manager\na@x.com,b@x.com\nb@x.com,g@x.com\nc@x.com,a@x.com\n")
    if request_number < 2 and not applies:  # these are the only records created: a list that shows nothing newer proves nothing
        assert (code_of(done), counts(done)) == (ExitCode.PARTIAL, {"unsent": 3} if request_number == 0 else {"inDoubt": 3})
        assert len(desk.server.records) == request_number
        left = done.summary.files["inDoubt" if request_number else "unsent"]
        assert left is not None
        done = desk.load(left.read_text(encoding="utf-8"))
    assert (counts(done), code_of(done)) == ({"created": 3}, ExitCode.OK)
    assert desk.people() == {
        "a@x.com": {"manager": "b@x.com"}, "b@x.com": {"manager": "g@x.com"}, "c@x.com": {"manager": "a@x.com"}, "g@x.com": {},
    }  # fmt: skip
    assert len(desk.server.records) == 4


@pytest.mark.parametrize("status", [401, 403, 404, 405, 422])
@pytest.mark.parametrize("request_number", [0, 1], ids=["the parents", "the rows"])
def test_a_refusal_after_the_commit_doubles_nothing_and_ends(desk: Desk, request_number: int, status: int) -> None:
    desk.server.faults[request_number] = Fault(applies=True, status=status, body={"error": "refused", "message": "no"})
    done = desk.load("Email,Manager\na@x.com,g@x.com\nb@x.com,h@x.com\n")
    done = desk.resume() if done.is_resumable else done
    assert (counts(done), code_of(done)) == ({"created": 2}, ExitCode.OK)
    assert desk.people() == {
        "g@x.com": {}, "h@x.com": {}, "a@x.com": {"manager": "g@x.com"}, "b@x.com": {"manager": "h@x.com"},
    }  # fmt: skip


def test_the_reference_index_is_closed_after_the_job(desk: Desk) -> None:
    job = desk.start("email,manager\nann@x.io,zoe@x.io\n")
    references = job.input.references
    assert references is not None
    assert [group.size for group in references.groups()] == [1]
    assert code_of(desk.run(job)) is ExitCode.OK
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        references.groups()


def test_the_reference_index_is_closed_without_a_job(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(ReferenceMap, "learn", lambda self, *_: opened.append(self) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        desk.start("email,manager\nann@x.io,zoe@x.io\n")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].groups()
    assert desk.store.list() == []


def test_a_required_reference_cannot_wait(desk: Desk) -> None:
    with pytest.raises(RejectedError) as caught:
        desk.load("Email,Manager\na@x.com,b@x.com\nb@x.com,a@x.com\n", is_required=True)
    assert (caught.value.code, desk.server.writes, desk.store.list()) == ("required_link", [], [])
