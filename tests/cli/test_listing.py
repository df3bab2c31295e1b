"""Notes about lists that change or lack records while crmctl reads their pages."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cli import expect_exit, spawn
from tests.support.fakecrm import FakeCrm, FakeRequest
from tests.support.inprocess import run_here

OBJECT = "0b7ecf00-0000-4000-8000-000000000001"


def listing(pages: list[tuple[int, range]]) -> FakeCrm:
    """A service with these pages, each with the total it states; `records search` sends a POST."""
    left = list(pages)

    def page(asked: FakeRequest) -> Any:
        total, numbers = left.pop(0)
        rows = [{"id": f"r{number}", "data": {}} for number in numbers]
        return {"records": rows, "pagination": {"total": total, "limit": 100, "offset": 0}}

    return FakeCrm({f"GET /objects/{OBJECT}/records": page, f"POST /objects/{OBJECT}/records/search": page})


CHANGED = "the list changed while its pages were read: something may be missing"


@pytest.mark.parametrize(
    ("options", "pages", "shown", "said"),
    [
        (["--limit", "150"], [(300, range(100)), (260, range(140, 190))], 150, [CHANGED, "showing 150 of 260; use --limit or --all"]),
        (["--limit", "150"], [(150, range(100)), (120, range(130, 150))], 120, [CHANGED]),
        (["--limit", "150"], [(150, range(100)), (180, range(70, 120)), (180, range(120, 150))], 150,
         [CHANGED, "showing 150 of 180; use --limit or --all"]),
        (["--all"], [(12345, range(100)), (12345, range(0))], 100,
         ["the list ends after 100 of 12,345: the service gives no more of them"]),
        (["--all"], [(200, range(100)), (300, range(100)), (300, range(100, 200))], 200, [CHANGED]),
        (["--all"], [(200, range(100)), (200, range(100, 200))], 200, []),
        (["--limit", "100"], [(100, range(100))], 100, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["list", "search"])
def test_notes_state_only_facts(verb: str, options: list[str], pages: list[tuple[int, range]], shown: int, said: list[str]) -> None:
    with listing(pages) as fake:
        run = run_here("records", verb, OBJECT, "-o", "ids", *options, env=fake.env).ok()
    found = run.out.split()
    assert (len(found), len(set(found))) == (shown, shown)
    assert run.err.splitlines() == said


def test_a_count_by_group_warns_of_a_list_that_ends_early() -> None:
    status = {"id": "a1", "slug": "status", "type": "text"}
    with listing([(300, range(100)), (300, range(100, 130)), (300, range(0))]) as fake:
        fake.routes[f"GET /objects/{OBJECT}/attributes"] = lambda _: {"attributes": [status]}
        run = run_here("records", "count", OBJECT, "--by", "status", env=fake.env).ok()
    assert run.json() == [{"status": None, "count": 130}]
    assert "the list ends after 130 of 300: the service gives no more of them" in run.err


@pytest.mark.parametrize(("count", "is_drawn"), [(200, False), (500, True)])
def test_a_long_table_shows_progress_until_it_is_complete(count: int, is_drawn: bool) -> None:
    pages = [(count, range(start, start + 100)) for start in range(0, count, 100)]
    attributes = {f"GET /objects/{OBJECT}/attributes": lambda _: {"attributes": []}}
    with listing(pages) as fake:
        fake.routes.update(attributes)
        terminal = spawn("records", "list", OBJECT, "--limit", str(count), env={**fake.env, "CRMCTL_OUTPUT": None})
        code, shown = expect_exit(terminal)
    assert (code, "reading" in shown, f"r{count - 1}" in shown) == (0, is_drawn, True)
    assert not is_drawn or shown.rindex("reading") < shown.index("r0")


def test_a_sum_warns_of_values_without_a_number() -> None:
    rows = [{"id": f"r{number}", "data": {"price": price}} for number, price in enumerate((5, "12.50 EUR", None, {}, {"currency": "EUR"}))]
    answers = {
        f"GET /objects/{OBJECT}/records": lambda _: {"records": rows, "pagination": {"total": len(rows)}},
        f"GET /objects/{OBJECT}/attributes": lambda _: {"attributes": [{"id": "a1", "slug": "price", "type": "currency"}]},
    }
    with FakeCrm(answers) as fake:
        run = run_here("records", "count", OBJECT, "--sum", "price", env=fake.env).ok()
    assert run.json() == {"count": 5, "sum_price": 5}
    assert "price holds no number in 2 values, which no measure counts" in run.err
