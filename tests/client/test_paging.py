"""Pages of lists with right totals, wrong totals, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crmctl.client.answers import Page, iterate
from crmctl.errors import ServiceError
from crmctl.models.resources import Record, StoredFile


def records(start: int, count: int) -> list[Record]:
    return [Record.parse({"id": f"r{number}"}) for number in range(start, start + count)]


class Service:
    """A list of `size` records. `cap` is the largest page, whatever the client requests."""

    def __init__(self, size: int, *, counts: bool = True, cap: int = 100, says_cap: bool = False, overcount: int = 0) -> None:
        self.size, self.counts, self.cap, self.says_cap, self.overcount = size, counts, cap, says_cap, overcount
        self.asked: list[tuple[int, int]] = []

    def __call__(self, limit: int, offset: int) -> Page[Record]:
        self.asked.append((limit, offset))
        given = min(limit, self.cap)
        items = records(offset, max(0, min(given, self.size - offset)))
        return Page(items, self.size + self.overcount if self.counts else None, given if self.says_cap else limit, offset)


def walk(service: Any, **options: Any) -> list[str]:
    return [item.id for page in iterate(service, **options) for item in page.items]


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("size", [0, 1, 19, 20, 50, 99, 100, 101, 250, 300])
def test_everything_once(size: int, counts: bool) -> None:
    service = Service(size, counts=counts)
    assert walk(service) == [f"r{number}" for number in range(size)]
    assert len(service.asked) <= size // 100 + 2


@pytest.mark.parametrize("cap", [100, 50, 20, 37])
@pytest.mark.parametrize("size", [0, 99, 100, 101, 200, 257])
def test_a_total_that_counts_the_items_of_the_page_ends_no_list(size: int, cap: int) -> None:
    """100 of 100 may be such a total, so one more request shows that the list is over. The same holds for any largest page."""
    shifts: list[str] = []
    walked = walk(lambda limit, offset: page_of(size, min(limit, cap), offset), on_doubt=shifts.append)
    assert (walked, shifts) == ([f"r{number}" for number in range(size)], [])
    service = Service(100)
    assert (len(walk(service)), len(service.asked)) == (100, 2)


def page_of(size: int, limit: int, offset: int) -> Page[Record]:
    """Return a page whose total is its length."""
    items = records(offset, max(0, min(limit, size - offset)))
    return Page(items, len(items), limit, offset)


def test_files_have_no_ids_and_come_once_each() -> None:
    files = [StoredFile.parse({"bucket": "docs", "path": f"{number}.txt"}) for number in range(450)]
    pages = iterate(lambda limit, offset: Page(files[offset : offset + limit], None, limit, offset))
    assert [file for page in pages for file in page.items] == files


def test_no_request_more_than_needed_when_the_service_counts() -> None:
    for size, pages in ((0, 1), (1, 1), (99, 1), (101, 2), (300, 3)):
        service = Service(size)
        walk(service)
        assert len(service.asked) == pages


def test_a_limit_ends_the_walk_and_sizes_the_last_page() -> None:
    service = Service(1000)
    assert len(walk(service, limit=250)) == 250
    assert service.asked == [(100, 0), (100, 100), (50, 200)]


def test_an_offset_is_where_it_begins() -> None:
    service = Service(130)
    assert walk(service, offset=110, limit=500) == [f"r{number}" for number in range(110, 130)]


@pytest.mark.parametrize("options", [{"counts": True}, {"counts": False, "says_cap": True}, {"counts": False}])
def test_a_service_with_smaller_pages_loses_nothing(options: dict[str, Any]) -> None:
    for cap in (10, 25, 40, 50):
        assert len(walk(Service(175, cap=cap, **options))) == 175


def test_a_total_that_promises_too_much_ends_at_the_empty_page() -> None:
    assert len(walk(Service(30, overcount=5))) == 30


def test_the_first_page_is_given_even_when_empty() -> None:
    assert [(page.items, page.total) for page in iterate(Service(0))] == [([], 0)]


def test_a_service_that_ignores_limit_gives_more_and_is_cut() -> None:
    def everything(limit: int, offset: int) -> Page[Record]:
        return Page(records(offset, 170 - offset), None, limit, offset)

    assert len(walk(everything, limit=120)) == 120
    assert len(walk(everything)) == 170


@pytest.mark.parametrize("total", [None, 10_000])
@pytest.mark.parametrize(
    "page", [lambda offset: records(0, 100), lambda offset: records(offset % 200, 100)], ids=["same page", "two pages in turn"]
)
def test_a_service_that_does_not_move_on_is_an_error_not_a_loop(page: Callable[[int], list[Record]], total: int | None) -> None:
    with pytest.raises(ServiceError) as caught:
        walk(lambda limit, offset: Page(page(offset), total, limit, offset))
    assert caught.value.code == "no_progress"


@pytest.mark.parametrize("size", [1, 10, 15, 40])
def test_a_short_list_that_comes_again_is_the_whole_list(size: int) -> None:
    """The service sends no total and ignores `offset`. After 20 or 50 records, its own page size could be the reason."""
    assert walk(lambda limit, offset: Page(records(0, size), None, limit, offset)) == [f"r{number}" for number in range(size)]


class Shifting:
    """A list of 300 records that other clients change before the numbered answers: new records in front, or old ones deleted there."""

    def __init__(self, changes: dict[int, int], *, counts: bool) -> None:
        self.rows, self.changes, self.counts, self.asked = records(0, 300), changes, counts, 0

    def __call__(self, limit: int, offset: int) -> Page[Record]:
        change = self.changes.get(self.asked, 0)
        self.asked += 1
        self.rows = [*records(1000 * self.asked, change), *self.rows] if change > 0 else self.rows[-change:]
        return Page(self.rows[offset : offset + limit], len(self.rows) if self.counts else None, limit, offset)


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("change", [1, 30, 99, 100, 101, 200])
def test_records_inserted_in_front_repeat_and_stop_nothing(change: int, counts: bool) -> None:
    shifts: list[str] = []
    found = walk(Shifting({1: change}, counts=counts), on_doubt=shifts.append)
    assert {f"r{number}" for number in range(300)} <= set(found)
    assert change > 100 or found == [f"r{number}" for number in range(300)]
    assert shifts


def test_deletions_while_reading_are_reported_if_the_service_sends_totals() -> None:
    shifts: list[str] = []
    assert len(walk(Shifting({1: -30}, counts=True), on_doubt=shifts.append)) == 270
    assert shifts


def test_a_limit_is_filled_although_pages_repeat() -> None:
    found = walk(Shifting({1: 30}, counts=True), limit=150)
    assert found == [f"r{number}" for number in range(150)]
