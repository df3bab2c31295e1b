"""The pages of the console and the portal, and the front door. The portal has the webhook pages alone."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Router

from crmctl.service.console import (
    administration,
    api_reference,
    device_login,
    files,
    health,
    record_changes,
    record_import,
    record_list,
    record_page,
    reports,
    sign_in,
    webhooks,
    workflows,
)
from crmctl.service.console.noun_pages import add_noun
from crmctl.service.console.nouns import NOUNS, PORTAL_NOUNS
from crmctl.service.console.pages import Pages
from crmctl.service.console.visits import CONSOLE, PORTAL, Redirect
from crmctl.service.context import Context


def areas(context: Context, document: Callable[[], api_reference.Document]) -> tuple[Pages, Pages]:
    """Return the console and the portal; `document` returns the OpenAPI document."""
    console, portal = Pages(context, CONSOLE), Pages(context, PORTAL)
    administration.add_overview(console)
    portal.get("")(lambda _tx, _visit: Redirect("/webhooks"))
    for add_pages in (
        record_page.add_pages,
        record_changes.add_pages,
        record_import.add_pages,
        record_list.add_pages,
        sign_in.add_account_pages,
        device_login.add_pages,
        reports.add_pages,
        workflows.add_pages,
    ):
        add_pages(console)
    for pages, nouns in ((console, NOUNS), (portal, PORTAL_NOUNS)):
        for noun in nouns:
            add_noun(pages, noun)
        webhooks.add_pages(pages)
        sign_in.add_pages(pages)
        if pages is console:
            files.add_file_pages(console)
            health.add_pages(console)
    api_reference.add_pages(console, document)
    sign_in.add_entrance(console)
    for pages in (console, portal):
        sign_in.add_nowhere(pages)
    return console, portal


def routers(context: Context, document: Callable[[], api_reference.Document]) -> list[Router]:
    """Return the front door with the static files, the console and the portal."""
    return [sign_in.front_door(context), *(pages.router for pages in areas(context, document))]
