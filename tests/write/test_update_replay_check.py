"""Updates sent long ago: which ones crmctl may repeat, and which records another client may have changed since."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from crmctl.client.answers import Page
from crmctl.errors import NotFoundError
from crmctl.files.validation import Entry
from crmctl.models.resources import Record
from crmctl.read.read_back import Reader
from crmctl.write.effect import CLOCK_MARGIN, DATE_MARGIN, compare
from crmctl.write.steps import Step, StepKind, StepSender, take_steps
from tests.support.bulkjobs import Silent
from tests.support.bulkserver import OBJECT_ID, BulkServer, Fault
from tests.support.clock import FakeClock

SENT_AT = 1_800_000_000.0
ENTRY = Entry(1, b'{"data":{"city":"Rome"},"id":"a"}', "a")


class Service:
    """A service with one record and the moment of its last change."""

    def __init__(self, city: str, updated_at: str | None, date: str | None = None) -> None:
        self.date = date
        self.record = None if updated_at == "gone" else Record.parse({"id": "a", "data": {"city": city}, "updatedAt": updated_at})

    def get_record(self, object_id: str, record_id: str) -> Record:
        if self.record is None:
            raise NotFoundError("no such record")
        return self.record

    def list_records(self, object_id: str, **query: object) -> Page[Record]:
        return Page([], 0, 100, 0, self.date)


def outcome(city: str, updated_at: str | None, date: str | None = None, now: float = SENT_AT) -> tuple[set[int], set[int]]:
    return compare(Reader(Service(city, updated_at, date), "people"), [ENTRY], SENT_AT, now=lambda: now)  # type: ignore[arg-type]


@pytest.mark.parametrize("zone", ["Z", ""])
@pytest.mark.parametrize(
    ("seconds", "is_repeatable"),
    [(-CLOCK_MARGIN - 1, True), (-CLOCK_MARGIN + 1, False), (0, False), (CLOCK_MARGIN + 1, False), (3600, False), (-3600, True)],
)
def test_only_records_unchanged_since_are_sent_again(seconds: float, is_repeatable: bool, zone: str) -> None:
    """Clocks may differ: a change up to a minute before the request may be younger than it."""
    moment = datetime.fromtimestamp(SENT_AT + seconds, UTC).isoformat().replace("+00:00", zone)
    assert outcome("Paris", moment) == (set(), {1} if is_repeatable else set())


@pytest.mark.parametrize("lead", [-600.0, 0.0, 600.0])
@pytest.mark.parametrize(("seconds", "is_repeatable"), [(-DATE_MARGIN - 1, True), (-DATE_MARGIN + 1, False), (0, False), (3600, False)])
def test_the_date_of_a_list_tells_when_the_request_was_sent_by_the_clock_of_the_service(
    lead: float, seconds: float, is_repeatable: bool
) -> None:
    """crmctl reads the list 20 s after the request; the service's clock is `lead` seconds ahead."""
    moment = datetime.fromtimestamp(SENT_AT + lead + seconds, UTC).isoformat()
    date = format_datetime(datetime.fromtimestamp(SENT_AT + lead + 20, UTC), usegmt=True)
    assert outcome("Paris", moment, date, now=SENT_AT + 20) == (set(), {1} if is_repeatable else set())


def test_the_margin_is_a_minute() -> None:
    assert CLOCK_MARGIN == 60.0


def test_records_with_the_values_are_done_and_deleted_ones_can_be_sent() -> None:
    assert outcome("Rome", "2000-01-01T00:00:00Z") == ({1}, set())
    assert outcome("", "gone") == (set(), {1})


@pytest.mark.parametrize("updated_at", [None, "", "yesterday"])
def test_without_a_time_nothing_is_overwritten(updated_at: str | None) -> None:
    assert outcome("Paris", updated_at) == (set(), set())


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("count", [2, 5])
def test_a_step_is_repeated_only_if_the_record_holds_the_old_values(applies: bool, count: int) -> None:
    """The answer is lost, and another client edits the first record before crmctl repeats the request."""
    server = BulkServer()
    ids = server.seed([{"city": "Paris", "n": n} for n in range(count)])
    server.faults[0] = Fault(applies=applies, drop=True)

    def edit(record_id: str) -> None:
        if record_id == ids[0]:
            server.records[0]["data"]["city"] = "Oslo"

    server.before_page = lambda _: edit(ids[0])
    server.before_record = edit
    steps = [Step(StepKind.UPDATE, OBJECT_ID, one, {"city": "Paris"}, {"city": "Rome"}, n) for n, one in enumerate(ids)]
    done: list[str] = []
    outcome = take_steps(StepSender(server.crm(), FakeClock()), Silent(), steps, count, done.extend)
    assert [record["data"]["city"] for record in server.records] == ["Oslo", *["Rome"] * (count - 1)]
    assert len(server.writes) == (1 if applies else 2)
    assert outcome.failed == {0: "another client changed city since the update was sent"}
    assert (sorted(done), outcome.in_doubt, outcome.error) == (sorted(ids[1:]), 0, None)


def test_a_step_without_an_old_value_is_repeated_without_reading() -> None:
    server = BulkServer()
    ids = server.seed([{"city": "Paris"}])
    server.faults[0] = Fault(drop=True)
    crm, step = server.crm(), Step(StepKind.UPDATE, OBJECT_ID, ids[0], {}, {"city": "Rome"})
    outcome = take_steps(StepSender(crm, FakeClock()), Silent(), [step], 1, list)
    assert (outcome.done, crm.session.take_requests(), server.reads) == (1, 3, [])
    assert server.records[0]["data"]["city"] == "Rome"
