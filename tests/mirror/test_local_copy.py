"""The mirror as a source for imports: keys as an import compares them, references, activities, and its age."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.errors import NotFoundError
from crmctl.mirror.local_copy import LocalCopy, MirroredLists, fresh_copy
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models.resources import Attribute
from tests.support.historyservice import MINUTE, OBJECT_ID, HistoryService
from tests.support.mirrorhistories import MirrorContext

TYPES = {"email": "email", "phone": "phone_number", "score": "number", "name": "text"}


@pytest.fixture
def context(tmp_path: Path) -> MirrorContext:
    service = HistoryService(3)
    service.attributes = [Attribute.parse({"id": slug, "slug": slug, "type": kind}) for slug, kind in TYPES.items()]
    service.attributes.append(
        Attribute.parse({"id": "boss", "slug": "boss", "type": "reference", "config": {"allowed_object_id": OBJECT_ID}})
    )
    service.create(4)
    held: list[dict[str, Any]] = [
        {"email": "Ada@Acme.com", "phone": {"primaryPhoneNumber": "+44 20 1"}, "score": 1.50, "name": " Ada "},
        {"email": "ada@acme.com", "phone": "+44-20-2", "score": 2, "name": ["Alan"]},
        {"email": None, "score": 12345678901234567890, "name": "Grace"},
        {"name": "Joan"},
    ]
    held[-1]["boss"] = next(iter(service.rows))
    for one, data in zip(list(service.rows), held, strict=True):
        service.overwrite(one, data)
    made = MirrorContext(service, tmp_path, service.clock)
    sync_mirror(made, SyncRequest())  # type: ignore[arg-type]
    return made


@pytest.fixture
def copy(context: MirrorContext) -> Iterator[LocalCopy]:
    found = LocalCopy.find(context)  # type: ignore[arg-type]
    assert found is not None
    with found:
        yield found


def test_references_and_single_records(context: MirrorContext, copy: LocalCopy) -> None:
    first, *_, last = context.service.rows
    [found] = copy.referring_to(OBJECT_ID, [first])
    assert (found[0], found[1].id) == (OBJECT_ID, last)
    record = copy.record(OBJECT_ID, last)
    assert record is not None
    assert record.wire == context.service.rows[last].wire()
    assert copy.record(OBJECT_ID, "none") is None


@pytest.mark.parametrize("upper", [False, True])
def test_a_record_is_found_by_its_id_in_any_case(upper: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = HistoryService(3)
    plain_id = service._new_id
    monkeypatch.setattr(service, "_new_id", lambda: plain_id().upper() if upper else plain_id())
    service.create(2)
    made = MirrorContext(service, tmp_path, service.clock)
    sync_mirror(made, SyncRequest())  # type: ignore[arg-type]
    found = LocalCopy.find(made)  # type: ignore[arg-type]
    assert found is not None
    with found:
        lists = MirroredLists(found)
        for stored in service.rows:
            assert {lists.get_record(OBJECT_ID, given).id for given in (stored, stored.lower(), stored.upper())} == {stored}
        with pytest.raises(NotFoundError):
            lists.get_record(OBJECT_ID, "none")


def test_it_is_brought_up_to_date_only_where_it_is_too_old(context: MirrorContext) -> None:
    asked = context.service.requests
    found = fresh_copy(context, [OBJECT_ID], 3600.0)  # type: ignore[arg-type]
    assert found is not None
    found.close()
    assert context.service.requests == asked
    context.service.advance(90 * MINUTE)
    found = fresh_copy(context, [OBJECT_ID], 3600.0)  # type: ignore[arg-type]
    assert found is not None
    found.close()
    assert context.service.requests > asked
    assert fresh_copy(context, ["another object"], 3600.0) is None  # type: ignore[arg-type]
