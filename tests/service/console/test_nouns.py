"""One declaration of a noun gives it all its pages in the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from crmctl.models.jsontext import Json
from crmctl.service.console import nouns, routing
from crmctl.service.console.cells import ListCell
from crmctl.service.console.noun_pages import ConsoleNoun, NounAction, NounColumn, NounField, NounForm
from crmctl.service.console.visits import Redirect, Visit
from crmctl.service.faults import BadRequest
from crmctl.service.store.members import MemberRole
from crmctl.service.store.tx import Tx
from tests.service.console.conftest import Newcomer
from tests.support.clock import FakeClock
from tests.support.service import running_service


def test_a_declared_noun_has_a_list_a_form_and_a_confirmation(tmp_path: Path, newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch) -> None:
    invoices: dict[str, Json] = {}

    def create(_tx: Tx, visit: Visit) -> Redirect:
        if not visit.text("name"):
            raise BadRequest("give it a name")
        invoice_id = visit.form_id()
        invoices[invoice_id] = {"id": invoice_id, "name": visit.text("name")}
        return Redirect("/invoices")

    def delete(_tx: Tx, _visit: Visit, invoice: Json) -> None:
        del invoices[invoice["id"]]

    noun = ConsoleNoun(
        path="/invoices",
        plural="Invoices",
        singular="invoice",
        group="Work",
        columns=(NounColumn("Name", lambda invoice: ListCell(invoice["name"], note="open")),),
        list=lambda _tx, _visit, _asked: list(invoices.values()),
        empty="No invoices yet.",
        get=lambda _tx, visit: invoices[visit.id("id")],
        form=NounForm(
            (NounField("name", "Name", is_required=True),), stored=dict, create=create, new_title="New invoice", needs=MemberRole.MEMBER
        ),
        actions=(
            NounAction(
                "delete",
                label=lambda _invoice: "Delete",
                title=lambda invoice: f"Delete {invoice['name']}",
                text=lambda _tx, _invoice: "It is gone for good.",
                act=delete,
                goes_to_list=True,
            ),
        ),
        has_row_actions=True,
    )
    monkeypatch.setattr(routing, "NOUNS", (*nouns.NOUNS, noun))
    with running_service(tmp_path / "data", clock=FakeClock(), background=False) as service:
        visitor = newcomer(service)
        visitor.enter()
        page = visitor.get("/console/invoices").text
        assert "No invoices yet." in page
        assert 'aria-current="page">Invoices</a>' in page
        assert "Give it a name." in visitor.send("/console/invoices", name=" ").text
        page = visitor.follow(visitor.send("/console/invoices", name="<b>42")).text
        assert "&lt;b&gt;42<small" in page
        [invoice_id] = invoices
        asked = visitor.get(f"/console/invoices/{invoice_id}/delete").text
        assert "Delete &lt;b&gt;42?" in asked
        assert "It is gone for good." in asked
        viewer = newcomer(service)
        viewer.enter_as("viewer")
        assert viewer.send(f"/console/invoices/{invoice_id}/delete").status_code == 403
        visitor.follow(visitor.send(f"/console/invoices/{invoice_id}/delete"))
        assert invoices == {}
