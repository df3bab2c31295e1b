"""The Python API with a real service: results, refusals, and failed rows, which raise nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from crmctl import Client
from crmctl.api import ClientContext, LogListener
from crmctl.errors import ConfigError, InterruptedByUser, NotFoundError, RejectedError, UsageError
from crmctl.plan.changes import Selection
from crmctl.plan.deletions import DeleteRequest, Deletion, delete
from crmctl.plan.undo import Undo, UndoRequest, undo
from tests.support.service import RunningService, running_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    with running_service(tmp_path / "service") as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[Client]:
    with Client(base_url=service.base_url, api_key=service.key) as made:
        yield made


def people(count: int) -> Iterator[dict[str, object]]:
    return ({"email": f"p{n}@acme.com", "name": f"Person {n}", "birthday": date(1990, 1, 1)} for n in range(count))


def test_rows_from_a_generator_are_imported_once_and_resumed_from_their_copy(client: Client) -> None:
    result = client.bulk.import_records("people", people(250), capture_ids=True)
    result.raise_for_error()
    assert result.summary.counts["created"] == 250
    assert client.records("people").count() == 250
    assert len({record.id for record in client.records("people").list()}) == 250
    assert next(client.records("people").list(limit=1)).data["birthday"] == "1990-01-01"
    assert client.bulk.resume(result.job).summary.counts == result.summary.counts
    with pytest.raises(UsageError) as refused:
        client.bulk.import_records("people", people(250))
    assert refused.value.code == "already_imported"


def test_a_dry_run_writes_nothing_and_has_the_findings(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("email,score\na@acme.com,1\nb@acme.com,many\n")
    preview = client.bulk.import_records("people", file, dry_run=True)
    assert (preview.predicted.report.rows, preview.predicted.report.rejected) == (2, 1)
    assert [(finding.ordinal, finding.column) for finding in preview.findings.kept] == [(2, "score")]
    with pytest.raises(RejectedError):
        preview.raise_for_error()
    assert client.records("people").count() == 0
    assert client.bulk.jobs() == []


def test_the_result_names_why_rows_were_refused(client: Client) -> None:
    result = client.bulk.import_records("people", [{"email": "a@acme.com"}, {"email": "nobody"}], on_error="continue")
    assert result.error is not None
    assert (result.summary.counts["created"], result.summary.counts["rejected"]) == (1, 1)
    assert result.findings.count == 1


def test_options_that_are_none_and_rows_that_are_none(client: Client) -> None:
    with pytest.raises(TypeError, match="colour"):
        client.bulk.import_records("people", [], colour="red")
    with pytest.raises(RejectedError, match="row 2"):
        client.bulk.import_records("people", [{"email": "a@acme.com"}, {"email": {1, 2}}])
    assert client.bulk.jobs() == []
    with pytest.raises(UsageError, match="say which records"):
        client.bulk.delete("people")


def test_deleting_by_id_and_exporting(client: Client, tmp_path: Path) -> None:
    made = [client.records("people").create({"email": f"{name}@acme.com"}) for name in "abc"]
    assert client.bulk.delete("people", [made[0].id], dry_run=True).records == 1
    deletion = client.bulk.delete("people", [record.id for record in made[:2]])
    assert deletion.summary is not None
    assert deletion.summary.deleted == 2
    path = tmp_path / "left.jsonl"
    assert client.bulk.export("people", path).rows == 1
    with pytest.raises(UsageError, match="exists"):
        client.bulk.export("people", path)
    assert client.bulk.export("people", path, replace=True).rows == 1


def test_a_settings_guard_holds(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_READ_ONLY", "1")
    with Client(base_url=service.base_url, api_key=service.key) as client:
        assert client.records("people").count() == 0
        for write in (lambda: client.records("people").create({}), lambda: client.bulk.import_records("people", [])):
            with pytest.raises(UsageError) as refused:
                write()
            assert refused.value.code == "read_only"


def test_without_an_address_it_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRMCTL_BASE_URL", raising=False)
    with pytest.raises(ConfigError):
        Client().records("people").count()
    assert "CRMCTL_BASE_URL" not in os.environ


def test_a_record_that_is_not_there(client: Client) -> None:
    with pytest.raises(NotFoundError):
        client.records("people").get("00000000-0000-4000-8000-000000000000")


def test_a_declined_change_is_not_made(service: RunningService, client: Client) -> None:
    """The use cases show their next step before they take it."""
    context = ClientContext(dict(os.environ), (None, service.base_url, service.key), LogListener())
    job = client.bulk.import_records("people", people(3)).job
    shown: list[int] = []

    def refuse(plan: Undo | Deletion) -> None:
        shown.append(plan.work if isinstance(plan, Undo) else plan.records)
        raise InterruptedByUser("no")

    with pytest.raises(InterruptedByUser):
        undo(context, UndoRequest(str(job)), refuse)
    ids = [record.id for record in client.records("people").list()]
    with pytest.raises(InterruptedByUser):
        delete(context, DeleteRequest("people", Selection(ids=ids[:2])), refuse)
    context.close()
    assert shown == [3, 2]
    assert client.records("people").count() == 3
