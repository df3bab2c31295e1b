"""A list that changes while crmctl reads it does not look like a service that ignores the offset."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from crmctl.errors import ServiceError
from crmctl.plan.audit import walk_new
from crmctl.read.read_back import Reader, read_newest
from crmctl.read.stable_pages import AnchoredPass, Listing, NoProgress, PassStatistics
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.write.journal import Journal
from tests.support.bulkjobs import header
from tests.support.bulkserver import OBJECT_ID, BulkServer
from tests.support.clock import FakeClock

MOMENT = "2026-02-01T00:00:00.{:06}Z"


def read(server: BulkServer, field: str = "updated_at") -> list[str]:
    """Return ids from the newest on."""
    reading = AnchoredPass(server.crm(), Listing(OBJECT_ID, field=field, descending=True), PassStatistics())
    return [record.id for page in reading.pages() for record in page]


@pytest.mark.parametrize("group", [1, 100])
@pytest.mark.parametrize("pages", [3, 8])
def test_a_hundred_new_records_before_each_page_do_not_stop_the_reading(group: int, pages: int) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(400)], lambda n: MOMENT.format(n // group))

    def write(page: int) -> None:
        if 0 < page < pages:
            server.seed([{"n": -1}] * 100, lambda _: MOMENT.format(1000 + page))

    server.before_page = write
    assert set(ids) <= set(read(server))


@pytest.mark.parametrize("count", [100, 257, 300])
def test_a_total_that_counts_the_items_of_the_page_ends_no_reading(count: int) -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(count)], MOMENT.format)
    page = server.page

    def counted(query: dict[str, list[str]]) -> dict[str, Any]:
        answer = page(query)
        return {**answer, "pagination": {"total": len(answer["records"])}}

    server.page = counted  # type: ignore[method-assign]
    assert set(read(server)) == set(ids)


def test_a_walk_through_a_list_that_never_stands_still_ends_with_a_hint(tmp_path: Path) -> None:
    server, clock = BulkServer(), FakeClock()
    server.seed([{"n": n} for n in range(400)], MOMENT.format)

    def write(page: int) -> None:
        server.seed([{}] * 100, lambda _: MOMENT.format(1000 + page))

    server.before_page = write
    Journal.create(tmp_path / "job", header(origin=server.origin), clock).close()
    with closing(Journal(tmp_path / "job", clock)) as journal, pytest.raises(ServiceError, match="goes on and on") as caught:
        list(walk_new(journal, Reader(server.crm(), OBJECT_ID)))
    assert caught.value.hint


@pytest.mark.parametrize("group", [7, 100])
@pytest.mark.parametrize("kept", [False, True], ids=["anew on every page", "its own on every page"])
def test_new_records_of_one_moment_are_read_whatever_their_order_on_each_page(tmp_path: Path, group: int, kept: bool) -> None:
    server, clock = BulkServer(), FakeClock()
    ids = server.seed([{"n": n} for n in range(620)], lambda n: MOMENT.format(n // group))

    def shuffle(page: int) -> None:
        offset = server.reads[page].get("offset", ["0"])[0]
        orders = {record_id: place for place, record_id in enumerate(Random(offset if kept else page).sample(ids, len(ids)))}
        server.order_ties = lambda record: orders[record["id"]]

    server.before_page = shuffle
    Journal.create(tmp_path / "job", header(origin=server.origin), clock).close()
    with closing(Journal(tmp_path / "job", clock)) as journal:
        found = {record.id for record in walk_new(journal, Reader(server.crm(), OBJECT_ID))}
    assert len(found) > 300
    assert len(server.reads) < 80


def test_the_error_names_constant_writing_as_the_reason() -> None:
    server = BulkServer()
    server.seed([{"n": n} for n in range(400)], MOMENT.format)

    def write(page: int) -> None:
        server.seed([{}] * 100, lambda _: MOMENT.format(1000 + page))

    server.before_page = write
    with pytest.raises(NoProgress) as caught:
        read(server)
    assert "the list changes while it is read" in caught.value.message
    assert caught.value.retryable


@pytest.mark.parametrize("shown", [0, 100, 150])
def test_a_total_of_more_records_than_the_list_shows_is_not_believed_and_not_waited_for(shown: int) -> None:
    server = BulkServer()
    server.seed([{"n": n} for n in range(shown)], MOMENT.format)
    page = server.page
    server.page = lambda query: {**page(query), "pagination": {"total": 400}}  # type: ignore[method-assign]
    with pytest.raises(NoProgress, match="the service does not list all of its records"):
        read(server)
    assert len(server.reads) < 20


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_total_that_ignores_the_filter_ends_no_short_list(count: int) -> None:
    server = BulkServer()
    server.seed([{"n": "x"}] * count, lambda _: MOMENT.format(0))
    page = server.page
    server.page = lambda query: {**page(query), "pagination": {"total": 400}}  # type: ignore[method-assign]
    listing = Listing(OBJECT_ID, [Condition("n", Operator.EQUALS, "x")])
    reading = AnchoredPass(server.crm(), listing, PassStatistics())
    assert sum(map(len, reading.pages())) == count
    assert len(server.reads) <= 2


@pytest.mark.parametrize(("group", "count"), [(1, 400), (400, 400), (1, 101), (1, 150), (1, 250), (400, 150)])
def test_a_service_that_does_not_heed_the_offset_is_named_as_such(group: int, count: int) -> None:
    server = BulkServer()
    server.seed([{"n": n} for n in range(count)], lambda n: MOMENT.format(n // group))
    page = server.page
    server.page = lambda query: page({**query, "offset": ["0"]})  # type: ignore[method-assign]
    with pytest.raises(NoProgress) as caught:
        read(server)
    assert "does not heed `offset`" in caught.value.message
    assert not caught.value.retryable


def test_reading_back_ends_where_the_offset_is_not_heeded() -> None:
    server = BulkServer()
    server.seed([{"n": n} for n in range(400)], MOMENT.format)
    page = server.page
    server.page = lambda query: page({**query, "offset": ["0"]})  # type: ignore[method-assign]
    reading = read_newest(Reader(server.crm(), OBJECT_ID), None, None)
    assert (len(reading.records), reading.complete) == (100, False)
    assert len(server.reads) == 4


def test_reading_back_goes_on_where_others_write_a_page_before_each_page() -> None:
    server = BulkServer()
    ids = server.seed([{"n": n} for n in range(400)], MOMENT.format)

    def write(page: int) -> None:
        if 0 < page < 3:
            server.seed([{"n": -1}] * 99, lambda _: MOMENT.format(1000 + page))

    server.before_page = write
    reading = read_newest(Reader(server.crm(), OBJECT_ID), None, None)
    assert set(ids) <= {record.id for record in reading.records}
    assert reading.complete
