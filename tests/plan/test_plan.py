"""A job that carries out a plan and stops before its first request compares the plan again."""

from __future__ import annotations

from pathlib import Path

import pytest

from crmctl.errors import ExitCode
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.plan.dry_run import dry_run
from crmctl.plan.import_plan import ImportPlan, open_input
from crmctl.plan.job_start import ImportTarget, JobOptions, header_of, start_import
from crmctl.plan.plan_file import Decisions, open_plan, read_plan, write_plan
from crmctl.write.database import JobState
from tests.support.bulkcontext import QuietContext
from tests.support.bulkserver import OBJECT_ID, BulkServer, Fault
from tests.support.keydesk import KeyDesk, counts

ROWS = "Email,Note\n" + "".join(f"p{n}@acme.com,new\n" for n in range(150))


@pytest.fixture
def desk(tmp_path: Path) -> KeyDesk:
    server = BulkServer()
    server.seed([{"email": "p1@acme.com", "note": "old"}, {"email": "p2@acme.com", "note": "new"}])
    return KeyDesk(server, tmp_path)


def begin(desk: KeyDesk) -> None:
    """Make a plan and the job that will carry it out; delete the plan's own file."""
    source, place = desk.folder / "people.csv", desk.folder / "people.plan"
    source.write_text(ROWS, encoding="utf-8")
    target = ImportTarget("people", OBJECT_ID, desk.server.origin, desk.attributes, desk.server.crm(desk.clock))
    plan = ImportPlan(mapping=MappingOptions(Mode.UPSERT, keys=("email",))).frozen(desk.attributes)
    planned = open_input(plan, source, str(source), desk.attributes)
    with Decisions() as decisions:
        found = dry_run(QuietContext(target.service, desk.clock), target, planned, desk.findings.append, decisions)  # type: ignore[arg-type]
        write_plan(place, header_of(target, planned, JobOptions(plan), desk.clock.now()), found.prediction, decisions)
    saved = read_plan(place)
    given, planned = open_plan(saved, desk.attributes)
    options = JobOptions(planned.plan, plan_file=place)
    start_import(desk.store, target, given, options).journal.close()
    place.unlink()


def test_it_goes_on_when_everything_is_as_it_was(desk: KeyDesk) -> None:
    begin(desk)
    assert counts(desk.resume()) == {"created": 148, "updated": 1, "unchanged": 1}
    assert len(desk.server.records) == 150


@pytest.mark.parametrize("email", ["p1@acme.com", "p2@acme.com", "P7@acme.com"])
def test_it_refuses_when_a_record_was_changed_or_made(desk: KeyDesk, email: str) -> None:
    begin(desk)
    known = next((record for record in desk.server.records if record["data"]["email"] == email), None)
    if known is not None:
        known["data"]["n"] = 9
    else:
        desk.server.add({"email": email}, "2026-01-01T00:10:00.000000Z")
    refused = desk.resume()
    assert refused.error is not None
    assert (refused.error.code, refused.error.exit_code, desk.server.writes) == ("plan_outdated", ExitCode.REJECTED, [])
    assert [job.state for job in desk.store.list()] == [JobState.REJECTED]


def test_once_begun_its_journal_decides(desk: KeyDesk) -> None:
    begin(desk)
    desk.server.faults[1] = Fault(status=401, body={"error": "unauthorized", "message": "no"})
    assert desk.resume().is_resumable
    next(record for record in desk.server.records if record["data"]["email"] == "p2@acme.com")["data"]["n"] = 9
    assert counts(desk.resume()) == {"created": 148, "updated": 1, "unchanged": 1}
