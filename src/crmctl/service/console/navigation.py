"""What the navigation of a visit holds: the objects, and the sections that the visitor's role may open."""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.service.console.links import CONSOLE
from crmctl.service.console.visits import Visit
from crmctl.service.roles import Role

MOST_OBJECTS = 12
"""Named in the navigation; the list of objects has them all."""


@dataclass(frozen=True)
class NavigationGroup:
    """`links` are (section, path, text)."""

    title: str
    links: list[tuple[str, str, str]]


_SECTIONS: list[tuple[str, list[tuple[str, str, str, Role]]]] = [
    (
        "Automation",
        [
            ("reports", "/reports", "Reports", Role.VIEWER),
            ("workflows", "/workflows", "Workflows", Role.VIEWER),
            ("webhooks", "/webhooks", "Webhooks", Role.ADMIN),
        ],
    ),
    (
        "Administration",
        [
            ("objects", "/objects", "Objects", Role.VIEWER),
            ("members", "/members", "Members", Role.VIEWER),
            ("keys", "/keys", "API keys", Role.ADMIN),
        ],
    ),
]


def sections_for(visit: Visit) -> list[NavigationGroup]:
    """In the order they are shown."""
    if visit.area != CONSOLE:
        return [NavigationGroup("", [("webhooks", "/webhooks", "Endpoints")])]
    groups = [NavigationGroup("", [("overview", "", "Overview")])]
    for title, links in _SECTIONS:
        allowed = [(section, path, text) for section, path, text, needs in links if visit.may(needs)]
        if allowed:
            groups.append(NavigationGroup(title, allowed))
    return groups
