"""Which pages the console and the portal have. The portal is the webhook part alone."""

from __future__ import annotations

from fastapi import APIRouter

from crmctl.service.console import deliveries, endpoints, keys, objects, overview, reports, workflows
from crmctl.service.console import sign_in as signing_in
from crmctl.service.console.links import CONSOLE, PORTAL
from crmctl.service.console.pages import Pages
from crmctl.service.context import Context


def routers(context: Context) -> list[APIRouter]:
    """Static files, the console, the portal."""
    console, portal = Pages(context, CONSOLE), Pages(context, PORTAL)
    overview.add_pages(console)
    overview.add_portal_entrance(portal)
    for subject in (keys, objects, reports, workflows):
        subject.add_pages(console)
    for pages in (console, portal):
        endpoints.add_pages(pages)
        deliveries.add_pages(pages)
        signing_in.add_pages(pages)
    signing_in.add_console_pages(console)
    for pages in (console, portal):
        signing_in.add_nowhere(pages)
    return [signing_in.static_router(), console.router, portal.router]
