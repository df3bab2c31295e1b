"""The reads of a merge before its first write, and its notes about them."""

from __future__ import annotations

from crmctl.plan.merge_run import Survey
from crmctl.plan.merge_steps import MergeSchema
from crmctl.read.records import CountedReads
from tests.support.historyservice import HistoryService, Manners


def notes_of(count: int) -> tuple[list[str], int]:
    """Read everything that may refer to the losers of 30 pairs; return the notes and the number of requests."""
    history = HistoryService(7, Manners())
    history.create(count)
    service = CountedReads(history)
    ids, notes = list(history.rows), []
    schema = MergeSchema(history.object_id, history.attributes, {history.object_id: history.attributes})
    with Survey(service, schema, notes.append) as survey:
        for survivor, loser in zip(ids[:60:2], ids[1:60:2], strict=True):
            survey.want(survivor, [loser])
        survey.fill()
        return notes, service.requests


def test_a_read_above_20_requests_is_announced() -> None:
    notes, requests = notes_of(2_500)
    assert requests > 20
    assert notes == ["reading all records to find those that refer to the merged ones, among 2,500 records: 31 requests"]


def test_a_short_read_is_not_announced() -> None:
    notes, requests = notes_of(300)
    assert (notes, requests < 20) == ([], True)
