"""A service that acknowledges updates without effect: no job calls them written, and a repetition repairs one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from crmctl import Client
from crmctl.client.crm import Crm
from crmctl.clock import Backoff
from crmctl.errors import CrmctlError, PartialError, ServiceError
from crmctl.models import jsontext
from crmctl.models.resources import BulkResult, Record
from crmctl.plan.edit import EditRequest, edit
from crmctl.plan.undo_deletions import Recreation
from crmctl.write import effect, reconcile, send_context
from crmctl.write.database import RowState
from tests.plan.test_merges import Case
from tests.plan.test_update import COUNT, SET, expected, held, people
from tests.support.cli import run_crmctl
from tests.support.outcomes import error_of
from tests.support.plainservice import PlainService
from tests.support.service import RunningService, running_service

ALWAYS = 10_000


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("lies") / "service") as running:
        yield running


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of updates without effect, as the only item."""
    left = [0]
    write, update = Crm.bulk_write, Crm.update_record

    def bulk_write(crm: Crm, object_id: str, records: Sequence[Any], **options: Any) -> BulkResult:
        rows = [jsontext.loads(record) if isinstance(record, bytes) else record for record in records]
        if not left[0] or not all(row.get("id") for row in rows):
            return write(crm, object_id, records, **options)
        left[0] -= 1
        if options.get("watch") is not None:
            options["watch"].sending()
        return BulkResult(updated=len(rows))

    def update_record(crm: Crm, object_id: str, record_id: str, data: dict[str, Any], **options: Any) -> Record:
        if not left[0]:
            return update(crm, object_id, record_id, data, **options)
        left[0] -= 1
        if options.get("watch") is not None:
            options["watch"].sending()
        record = crm.get_record(object_id, record_id)
        return Record.parse({**record.wire, "data": {**record.data, **data}})

    monkeypatch.setattr(Crm, "bulk_write", bulk_write)
    monkeypatch.setattr(Crm, "update_record", update_record)
    at_once = Backoff(first=0.0, jitter=0.0)
    monkeypatch.setattr(effect, "LOOKS", at_once)
    for module in (send_context, reconcile):
        monkeypatch.setattr(module, "PATIENCE", at_once)
    yield left
    left[0] = 0


def test_an_update(client: Client, lies: list[int]) -> None:
    before = people(client)
    lies[0] = 1
    result = client.bulk.update("people", SET, filter="score>=0", concurrency=1)
    assert (result.error, result.summary.counts[RowState.UPDATED], held(client)) == (None, 135, expected(before))
    lies[0] = 1
    undone = client.bulk.undo(str(result.job))
    assert (error_of(undone), held(client)) == (None, before)


def test_an_update_that_never_has_an_effect(client: Client, lies: list[int]) -> None:
    before = people(client)
    lies[0] = ALWAYS
    result = client.bulk.update("people", SET, filter="score>=0", concurrency=1)
    assert isinstance(result.error, PartialError)
    counts = result.summary.counts
    assert (counts[RowState.UPDATED], counts[RowState.UNCHANGED], counts[RowState.IN_DOUBT]) == (0, COUNT - 135, 135)
    assert held(client) == before
    lies[0] = 0
    assert client.bulk.resume(result.job).error is None
    assert held(client) == expected(before)


def test_an_undo_that_never_has_an_effect(client: Client, lies: list[int]) -> None:
    before = people(client)
    result = client.bulk.update("people", SET, filter="score>=0")
    lies[0] = ALWAYS
    with pytest.raises(ServiceError, match="still holds its old values"):
        client.bulk.undo(str(result.job))
    assert held(client) == expected(before)
    lies[0] = 0
    assert (error_of(client.bulk.undo(str(result.job))), held(client)) == (None, before)


@pytest.mark.parametrize("count", [1, ALWAYS], ids=["once", "always"])
def test_an_edit(client: Client, lies: list[int], count: int) -> None:
    client.bulk.import_records("people", [{"score": 1, "status": "new"}], again=True).raise_for_error()
    context, [shown] = client._context, client.records("people").list()
    attributes = context.directory.attributes(context.directory.object_id("people"))
    lies[0] = count
    request = EditRequest("people", shown, {"status": "contacted"}, attributes)
    if count == 1:
        assert edit(context, request).record.data["status"] == "contacted"
        assert [data["status"] for data in held(client).values()] == ["contacted"]
        return
    with pytest.raises(CrmctlError) as caught:
        edit(context, request)
    assert caught.value.outcome_unknown
    assert [data["status"] for data in held(client).values()] == ["new"]


def test_a_merge_and_its_undo(service: RunningService, lies: list[int], tmp_path: Path) -> None:
    """The first update of every kind in a merge (values, references, unique values) has no effect."""
    with Case(service, tmp_path, seed=28) as case:
        lies[0] = 2
        assert error_of(case.apply()) is None
        case.world.check_merged(case.merges)
        assert lies[0] == 0
        lies[0] = 2
        case.undone()
        assert lies[0] == 0


def test_a_merge_that_has_no_effect_deletes_no_record(service: RunningService, lies: list[int], tmp_path: Path) -> None:
    with Case(service, tmp_path, seed=28) as case:
        lies[0] = ALWAYS
        assert isinstance(error_of(case.apply()), CrmctlError)
        assert case.world.snapshot() == case.before


def test_references_to_records_that_an_undo_creates_again(client: Client, lies: list[int]) -> None:
    people(client, 3)
    first = next(iter(client.records("people").list())).id
    deal = client.records("deals").create({"name": "A deal", "contact": first})
    deleted = client.bulk.delete("people", [first])
    assert deleted.summary is not None
    lies[0] = 1
    undone = client.bulk.undo(str(deleted.summary.job))
    assert isinstance(undone, Recreation)
    assert (error_of(undone), undone.references, lies[0]) == (None, 1, 0)
    contact = jsontext.dumps(client.records("deals").get(deal.id).data["contact"])
    assert (first in contact, any(record.id in contact for record in client.records("people").list())) == (False, True)
    client.records("deals").delete(deal.id)


class AcceptingService(PlainService):
    """A service that accepts every row and stores none."""

    def _bulk(self, object_id: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"created": len(body["records"]), "updated": 0, "failed": []}


def test_an_import_of_which_nothing_is_stored(tmp_path: Path) -> None:
    file = tmp_path / "companies.csv"
    file.write_text("name\nAcme\nGlobex\n")
    with AcceptingService() as service:
        done = run_crmctl("bulk", "import", "companies", str(file), "--settle", "0", "--max-wait", "1", env=service.env).exits(10)
    summary = done.json()
    assert (summary["created"], summary["inDoubt"], summary["files"]["ok"]) == (0, 2, None)
    assert Path(summary["files"]["inDoubt"]).read_text().count("the service accepted the row, and does not list it") == 2
    assert "the service accepted 2 rows, and has only 0 more records than before" in done.err
