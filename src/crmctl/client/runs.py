"""Runs in lists of which nobody promises an order: the newest of a report, and all that are younger than a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from crmctl.client.crm import Crm
from crmctl.client.paging import iterate
from crmctl.client.shapes import Page
from crmctl.models.base import Resource
from crmctl.models.reports import ReportRun
from crmctl.models.timestamps import seconds_of

R = TypeVar("R", bound=Resource)


def newest_report_run(crm: Crm, report_id: str) -> ReportRun | None:
    """The run that started last; None where there is none."""

    def age(run: ReportRun) -> float | None:
        return next((found for text in (run.started_at, run.created_at, run.completed_at) if (found := seconds_of(text)) is not None), None)

    pages = newest_pages(lambda limit, offset: crm.list_report_runs(report_id, limit=limit, offset=offset), age)
    runs = [run for page in pages for run in page]
    return max(runs, key=lambda run: known if (known := age(run)) is not None else float("-inf"), default=None)


def newest_pages(fetch: Callable[[int, int], Page[R]], age: Callable[[R], float | None]) -> Iterator[list[R]]:
    """The pages that may hold the newest runs: the first alone when it is in falling order, as services list runs; else all of them."""
    for number, page in enumerate(iterate(fetch)):
        yield page.items
        ages = [age(run) for run in page.items]
        known = [each for each in ages if each is not None]
        if number == 0 and len(known) == len(ages) > 1 and known == sorted(known, reverse=True) and known[0] > known[-1]:
            return
