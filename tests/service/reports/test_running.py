"""A report reads one snapshot and does not block writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from crmctl.service.context import Context, ServiceSettings, new_id, open_data
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.service.reports.report_definition import run_report
from crmctl.service.store import objects, records, reports
from crmctl.service.store import records as scanning
from tests.support.clock import FakeClock


class Busy:
    """An engine on which another client writes a record around every statement of a read."""

    def __init__(self, engine: Any, write_one: Callable[[], None]) -> None:
        self.write = engine.write
        self._engine = engine
        self._write_one = write_one

    def read(self, fn: Callable[[Any], Any], *, within: float | None = None) -> Any:
        return self._engine.read(lambda tx: fn(BusyTx(tx, self._write_one)), within=within)


class BusyTx:
    def __init__(self, tx: Any, write_one: Callable[[], None]) -> None:
        self.dialect = tx.dialect
        self._tx = tx
        self._write_one = write_one

    def remembered(self, _: str, read: Callable[[], Any]) -> Any:
        return read()

    def one(self, *arguments: Any) -> Any:
        found = self._tx.one(*arguments)
        self._write_one()
        return found

    def all(self, *arguments: Any) -> Any:
        found = self._tx.all(*arguments)
        self._write_one()
        return found


def test_writes_during_a_report_succeed_and_are_not_in_it(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(scanning, "CHUNK", 3)
    clock = FakeClock()
    engine = open_data(ServiceSettings(data_dir=tmp_path), clock)
    found = engine.read(lambda tx: objects.find_object_by_slug(tx, "deals"))
    assert found is not None
    deals = found["id"]
    written = 0

    def write_one() -> None:
        nonlocal written
        written += 1
        engine.write(lambda tx: records.create_record(tx, deals, {"name": "later", "amount": 1}, ids=new_id, now=clock.now()))

    for _ in range(10):
        write_one()
    definitions = """
reports:
  - {name: Total, object: deals, measures: [{function: count}, {function: sum, attribute: amount}]}
  - {name: All, object: deals, columns: [name]}
"""
    load_document(engine, parse_document(definitions), clock=clock, ids=new_id)
    total, listed = [report["id"] for report in engine.read(reports.list_reports)]
    context = Context(ServiceSettings(), Busy(engine, write_one), clock, new_id)
    run = run_report(context, total)
    assert written > 15
    stored = engine.read(lambda tx: reports.get_run(tx, total, run["id"]))
    assert stored["results"] == [{"currency": None, "count": 10, "sum_amount": 10}]
    before = written
    assert run_report(context, listed)["resultCount"] == before
    engine.close()


def test_results_that_are_too_large_fail_the_run(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = open_data(ServiceSettings(data_dir=tmp_path), clock)
    found = engine.read(lambda tx: objects.find_object_by_slug(tx, "people"))
    assert found is not None
    people = [{"data": {"notes": "x" * 100_000}} for _ in range(100)]
    for _ in range(4):
        engine.write(lambda tx: records.bulk_write(tx, found["id"], "create", people, ids=new_id, now=clock.now()))
    load_document(engine, parse_document("reports: [{name: Notes, object: people, columns: [notes]}]"), clock=clock, ids=new_id)
    [report] = engine.read(reports.list_reports)
    context = Context(ServiceSettings(), engine, clock, new_id)
    run = run_report(context, report["id"])
    assert (run["status"], run["resultCount"]) == ("failed", 0)
    assert "larger than 32 MB" in run["error"]
    assert engine.read(lambda tx: reports.get_run(tx, report["id"], run["id"]))["results"] == []
    engine.close()
