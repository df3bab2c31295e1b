"""Records read by their ids."""

from __future__ import annotations

import pytest

from crmctl.models.resources import Record
from crmctl.read import records
from crmctl.read.read_back import Reader
from tests.support.bulkserver import OBJECT_ID, BulkServer


def test_a_record_that_the_service_returns_for_another_id_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may answer with the survivor of a merged record."""
    server = BulkServer()
    first, survivor = server.seed([{"n": 1}, {"n": 2}])
    reader = Reader(server.crm(), OBJECT_ID)
    read_one = records.read_one
    merged = "00000000-0000-4000-8000-00000000dead"

    def answer(asked: Reader, record_id: str) -> Record | None:
        return read_one(asked, survivor if record_id == merged else record_id)

    monkeypatch.setattr(records, "read_one", answer)
    assert [record.id for record in records.find(reader, [first, merged])] == [first]
