"""Which pages the console and the portal have, and the front door. The portal is the webhook part alone."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import Router

from crmctl.service.console import (
    account,
    activities,
    api_reference,
    deliveries,
    endpoints,
    files,
    imports,
    keys,
    logs,
    members,
    objects,
    overview,
    record_list,
    record_page,
    report_edit,
    report_results,
    reports,
    workflow_edit,
    workflows,
)
from crmctl.service.console import sign_in as signing_in
from crmctl.service.console.links import CONSOLE, PORTAL
from crmctl.service.console.pages import Pages
from crmctl.service.context import Context


def areas(context: Context, document: Callable[[], api_reference.Document]) -> tuple[Pages, Pages]:
    """The console and the portal; `document` gives the OpenAPI document."""
    console, portal = Pages(context, CONSOLE), Pages(context, PORTAL)
    overview.add_pages(console)
    overview.add_portal_entrance(portal)
    for subject in (
        *(record_page, imports, record_list, activities, files, account, members, keys, logs, objects),
        *(report_edit, report_results, reports, workflow_edit, workflows),
    ):
        subject.add_pages(console)
    api_reference.add_pages(console, document)
    for pages in (console, portal):
        endpoints.add_pages(pages)
        deliveries.add_pages(pages)
        signing_in.add_pages(pages)
    signing_in.add_entrance(console)
    for pages in (console, portal):
        signing_in.add_nowhere(pages)
    return console, portal


def routers(context: Context, document: Callable[[], api_reference.Document]) -> list[Router]:
    """The front door with the static files, the console, the portal."""
    return [signing_in.front_door(context), *(pages.router for pages in areas(context, document))]
