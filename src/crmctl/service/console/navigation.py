"""What the navigation of a visit holds: the objects, and the sections that the visitor's role may open."""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.service.console.links import CONSOLE
from crmctl.service.console.visits import Visit
from crmctl.service.roles import MemberRole

MOST_OBJECTS = 12
"""Named in the navigation; the list of objects has them all."""


@dataclass(frozen=True)
class NavigationGroup:
    """`links` are (section, path, text)."""

    title: str
    links: list[tuple[str, str, str]]


_SECTIONS: list[tuple[str, list[tuple[str, str, str, MemberRole]]]] = [
    ("Work", [("activities", "/activities", "Activities", MemberRole.VIEWER), ("files", "/files", "Files", MemberRole.VIEWER)]),
    (
        "Automation",
        [
            ("reports", "/reports", "Reports", MemberRole.VIEWER),
            ("workflows", "/workflows", "Workflows", MemberRole.VIEWER),
            ("webhooks", "/webhooks", "Webhooks", MemberRole.ADMIN),
        ],
    ),
    (
        "Administration",
        [
            ("objects", "/objects", "Objects", MemberRole.VIEWER),
            ("members", "/members", "Members", MemberRole.VIEWER),
            ("keys", "/keys", "API keys", MemberRole.ADMIN),
            ("api", "/api", "API", MemberRole.VIEWER),
            ("requests", "/requests", "Request log", MemberRole.ADMIN),
            ("audit", "/audit", "Audit log", MemberRole.ADMIN),
        ],
    ),
]


def sections_for(visit: Visit) -> list[NavigationGroup]:
    """In the order they are shown."""
    if visit.area != CONSOLE:
        return [NavigationGroup("", [("webhooks", "/webhooks", "Endpoints")])]
    named = [(f"records-{known['slug']}", f"/records/{known['slug']}", known["pluralName"]) for known in visit.objects[:MOST_OBJECTS]]
    if len(visit.objects) > MOST_OBJECTS:
        named.append(("objects-all", "/objects", f"All {len(visit.objects)} objects"))
    groups = [NavigationGroup("", [("overview", "", "Overview")]), NavigationGroup("Records", named)]
    for title, links in _SECTIONS:
        allowed = [(section, path, text) for section, path, text, needs in links if visit.may(needs)]
        if allowed:
            groups.append(NavigationGroup(title, allowed))
    return groups
