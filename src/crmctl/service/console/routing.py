"""The pages of the console and the portal, and the front door. The portal has the webhook pages alone."""

from __future__ import annotations

from collections.abc import Callable

from crmctl.service.console import (
    administration,
    api_reference,
    files,
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
from crmctl.service.http.endpoint import NamedRoute


def areas(context: Context, document: Callable[[], api_reference.Document]) -> tuple[Pages, Pages]:
    """Return the console and the portal; `document` returns the OpenAPI document."""
    console, portal = Pages(context, CONSOLE), Pages(context, PORTAL)
    portal.get("")(lambda _tx, _visit: Redirect("/webhooks"))
    own = (administration, record_page, record_changes, record_import, record_list, reports, workflows)
    for module in own:
        module.add_pages(console)
    for pages, nouns in ((console, NOUNS), (portal, PORTAL_NOUNS)):
        for noun in nouns:
            add_noun(pages, noun)
        webhooks.add_pages(pages)
    files.add_pages(console)
    administration.add_health(console)
    api_reference.add_pages(console, document)
    for pages in (console, portal):
        sign_in.add_pages(pages)
    return console, portal


def page_routes(context: Context, document: Callable[[], api_reference.Document]) -> list[NamedRoute]:
    """Return the front door with the static files, the console and the portal."""
    console, portal = areas(context, document)
    return [*sign_in.front_door(context), *console.served, *portal.served]
