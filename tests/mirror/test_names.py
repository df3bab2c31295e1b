"""Slugs that the mirror's own tables use, and words in another form of Unicode."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from crmctl.mirror.file import MirrorFile
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sql import search
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models.resources import Object
from tests.support.historypair import COMPANIES_ID, PairService
from tests.support.historyservice import MINUTE, OBJECT_ID
from tests.support.mirrorhistories import MirrorContext, difference

SLUGS = [
    ("present", "seen"), ("deleted", "referred"), ("listed", "wanted"), ("people", "people_created"), ("people_updated", "people"),
    ("select", "table"), ("Orders", "orders"), ("activities", "members"), ("main", "temp"), ('a"b', "a;--"),
]  # fmt: skip


@pytest.mark.parametrize("slugs", SLUGS, ids="-".join)
def test_any_slugs_have_tables(slugs: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = PairService(3)
    for part in service.parts:
        part.create(30)
    objects = [
        Object.parse({"id": one, "slug": slug, "isActive": True}) for one, slug in zip((OBJECT_ID, COMPANIES_ID), slugs, strict=True)
    ]
    monkeypatch.setattr(service, "list_objects", lambda: objects)
    context = MirrorContext(service, tmp_path, service.clock)
    for _ in range(2):
        service.advance(60 * MINUTE)
        service.begin()
        report = sync_mirror(context, SyncRequest(activities=True))  # type: ignore[arg-type]
        assert report.is_proven
        assert [difference(context, part.truths[-1], part.object_id) for part in service.parts] == [None] * 3
        for part in service.parts[:2]:
            part.update(list(part.rows)[:3])
            part.delete(list(part.rows)[5:7])
            part.create(3)


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["Résumé", "resume", "résu", "q\u0303uay"])
def test_accents_are_found_however_they_are_written(stored: str, asked: str, tmp_path: Path) -> None:
    service = PairService(3)
    service.attributes.append(service._attribute("rowid"))
    service.create(3)
    one = next(iter(service.rows))
    service.overwrite(one, {"n": unicodedata.normalize(stored, "Résumé of q\u0303uay"), "rowid": "7"})  # type: ignore[arg-type]
    context = MirrorContext(service, tmp_path, service.clock)
    sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    file = MirrorFile.read(mirror_path(context.state, context.origin, context.key))
    assert file is not None
    with file:
        for form in ("NFC", "NFD"):
            assert [hit["id"] for hit in search(file, unicodedata.normalize(form, asked))] == [one]  # type: ignore[arg-type]
