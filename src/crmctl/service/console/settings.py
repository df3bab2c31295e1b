"""The page of the organization's settings."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from crmctl.models.jsontext import Json
from crmctl.service.console.noun_pages import NounField
from crmctl.service.console.pages import NavigationLink, Pages
from crmctl.service.console.visits import ConsolePage, Redirect, Visit
from crmctl.service.faults import BadRequest
from crmctl.service.store import settings
from crmctl.service.store.members import MemberRole
from crmctl.service.store.tx import Tx

FIELDS = (
    NounField("name", "Name", is_required=True),
    NounField(
        "timeZone",
        "Time zone",
        is_required=True,
        longest=60,
        placeholder="Europe/Berlin",
        hint="A name such as Europe/Berlin. Browsers show their own time zone; without scripts pages show this one.",
    ),
    NounField("currency", "Default currency", longest=3, placeholder="EUR", hint="Forms preselect it for new amounts."),
)


def add_pages(pages: Pages) -> None:
    pages.navigation.append(NavigationLink("Administration", "settings", "/settings", "Settings", MemberRole.ADMIN))

    @pages.get("/settings", needs=MemberRole.ADMIN)
    def show_settings(tx: Tx, _visit: Visit) -> ConsolePage:
        return _page(settings.get_settings(tx))

    @pages.post("/settings", needs=MemberRole.ADMIN)
    def change_settings(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        typed = {field.name: visit.text(field.name) for field in FIELDS}
        try:
            settings.change_settings(tx, typed, now=visit.now())
        except BadRequest as error:
            return _page(typed, error.message)
        return Redirect("/settings", "saved")


def _page(texts: Mapping[str, str], error: str | None = None) -> ConsolePage:
    values: Json = {"section": "settings", "fields": [(field, {}, texts[field.name]) for field in FIELDS], "error": error}
    return ConsolePage("settings.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)
