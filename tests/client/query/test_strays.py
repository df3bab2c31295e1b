"""A service that ignores filters: crmctl says so, and changes or deletes no record that does not meet the filter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crmctl.client.query.record_query import stray_finder
from crmctl.client.transport import HttpTransport, Request, Response
from crmctl.models.resources import Attribute, Record
from crmctl.values.filters import parse_condition
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

BOSS, OTHER = "0a7d48ea-241f-416e-b490-47146c0f1697", "207d6b96-e661-406a-a2be-601eea865fdb"
OPTIONS = {"status": ["new", "won"], "label": ["lost", "won"]}
TYPES = {
    "empty": "text", "tags": "text", "label": "select", "unset": "checkbox", "count": "number",
    "costs": "currency", "paid": "currency", "boss": "reference", "guide": "reference", "friend": "reference",
    "email": "email", "notes": "text", "status": "select", "score": "number", "vip": "checkbox", "born": "date", "phone": "address",
}  # fmt: skip
RECORD = {
    "tags": ["a", "b"], "label": {"id": "o1", "value": "won", "label": "Won"}, "count": "7",
    "costs": {"amount": "9.50", "currency": "EUR"}, "paid": {"amount": None, "currency": "EUR"},
    "boss": BOSS.upper(), "guide": {"objectId": OTHER, "recordId": BOSS}, "friend": "Ada",
    "email": "Ada@acme.com", "notes": " an Idea ", "status": "new", "score": 7, "vip": False, "born": "1985-12-10", "phone": "+1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "is_stray"),
    [
        ("status=new", False), ("status=NEW", False), ("status=won", True), ("status!=new", True), ("status!=won", False),
        ("email=ada@acme.com", False), ("email~ACME", False), ("email~initech", True), ("notes=an idea", False), ("notes^=an", False),
        ("score>6", False), ("score>7", True), ("score=7.0", False), ("score=8", True), ("score=many", False), ("vip isTrue", True),
        ("vip isFalse", False), ("status isEmpty", True), ("status isNotEmpty", False), ("born=2000-01-01", True), ("phone=+2", False),
        ("other=1", False), ("score isEmpty", True), ("score!=7", True), ("notes<a", False), ("notes>z", False), ("notes=an  idéa", False),
        ("empty=x", True), ("empty!=x", False), ("tags=b", False), ("tags=c", True), ("label=Won", False), ("label=lost", False),
        ("label~ost", False), ("unset isTrue", False), ("unset isFalse", False), ("count=7", False), ("count=8", False),
        ("empty isEmpty", False), ("empty isNotEmpty", True), ("phone isEmpty", True), ("vip isEmpty", False), ("costs isEmpty", True),
        ("tags isEmpty", True), ("paid isEmpty", False), ("born<1985-12-10", False), ("born<=1985-12-01", True), ("born>1985-12-20", True),
        ("born!=1985-12-10", False), ("born contains 19", False), ("costs=9.5", False), ("costs>10", True), ("paid>10", False),
        (f"boss={BOSS}", False), (f"boss={OTHER}", True), (f"boss!={BOSS}", True), (f"boss!={OTHER}", False), (f"guide={BOSS}", False),
        (f"guide={OTHER}", True), (f"friend={OTHER}", False), ("boss isEmpty", True),
    ],
)  # fmt: skip
def test_only_certain_mismatches_are_strays(condition: str, is_stray: bool) -> None:
    attributes = [
        Attribute.parse({"id": slug, "slug": slug, "name": slug, "type": kind, "config": {"options": OPTIONS.get(slug, [])}})
        for slug, kind in TYPES.items()
    ]
    find = stray_finder(attributes, [parse_condition(condition)])
    assert (find(Record.parse({"id": "1", "data": RECORD})) is not None) == is_stray


@pytest.fixture
def deaf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """A service that ignores all filters, with three people, one of them new."""
    send = HttpTransport.send

    def unfiltered(transport: HttpTransport, request: Request) -> Response:
        return send(transport, replace(request, url=re.sub(r"filter%5B[^&]*&?", "", request.url)))

    with running_service(tmp_path / "service") as running:
        for status in ("customer", "new", "contacted"):
            running.client.post(path(running), json={"data": {"email": f"{status}@acme.com", "status": status}}).raise_for_status()
        monkeypatch.setenv("CRMCTL_BASE_URL", running.base_url)
        monkeypatch.setenv("CRMCTL_API_KEY", running.key)
        monkeypatch.setattr(HttpTransport, "send", unfiltered)
        yield running


def path(crm: RunningService) -> str:
    return f"/api/v1/objects/{crm.object_id('people')}/records"


def left(crm: RunningService) -> dict[str, Any]:
    return {one["data"]["status"]: one["data"].get("score") for one in crm.client.get(path(crm)).json()["records"]}


def test_a_filter_that_is_not_heeded_changes_and_deletes_nothing_else(deaf: RunningService) -> None:
    said = "the service was asked for status equals 'new' and answered with "
    for words in (("list",), ("count",)):
        assert said in run_here("records", *words, "people", "--filter", "status=new").ok().err
    assert said not in run_here("records", "list", "people").ok().err
    newest = run_here("records", "count", "people", "--filter", "status=contacted").ok()
    assert "answered with" in newest.err, "the newest record alone is no evidence"
    updated = run_here("bulk", "update", "people", "--filter", "status=new", "--set", "score=5", "--yes").ok()
    assert (updated.json()["updated"], said in updated.err) == (1, True)
    assert left(deaf) == {"customer": None, "new": 5, "contacted": None}
    assert said in run_here("bulk", "delete", "people", "--filter", "status=new", "--yes").ok().err
    assert left(deaf) == {"customer": None, "contacted": None}


def test_a_look_up_that_is_not_heeded_selects_no_record(deaf: RunningService) -> None:
    made = deaf.client.post(f"/api/v1/objects/{deaf.object_id('companies')}/records", json={"data": {"name": "Globex"}}).json()
    for record in deaf.client.get(path(deaf)).json()["records"]:
        deaf.client.patch(f"{path(deaf)}/{record['id']}", json={"data": {"company": made["id"]}}).raise_for_status()
    assert run_here("bulk", "delete", "people", "--filter", "company.name=Acme", "--yes").ok().json()["deleted"] == 0
    assert run_here("bulk", "delete", "people", "--filter", "company=Acme", "--yes").exits(2).error()["code"] == "not_an_id"
    assert run_here("bulk", "delete", "people", "--filter", f"company={OTHER}", "--yes").ok().json()["deleted"] == 0
    assert run_here("records", "get", "people", "email=else@acme.com").exits(7).error()["code"] == "filter_not_heeded"
    assert len(left(deaf)) == 3


@pytest.mark.parametrize("named", ["email=else@acme.com", "status=won", "score=3"])
def test_the_only_record_is_not_taken_for_one_with_another_value(deaf: RunningService, named: str) -> None:
    for record in deaf.client.get(path(deaf)).json()["records"][1:]:
        deaf.client.delete(f"{path(deaf)}/{record['id']}").raise_for_status()
    refused = run_here("records", "delete", "people", named, "--yes").exits(7)
    assert refused.error()["code"] == "filter_not_heeded"
    assert len(left(deaf)) == 1
