"""Who acts: an API key, a member, a workflow, the operator of the machine. Written as one text, shown with its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crmctl.service.store.tx import Tx, all_in

KEY, MEMBER, WORKFLOW = "key", "member", "workflow"
OPERATOR = "operator"
"""Whoever works with the data of the service itself: crmctl service, or a console that was opened by its link."""

SERVICE = "service"
"""The service itself, where it does something that somebody should know of."""

_NAMES = {KEY: "SELECT id, name FROM api_key WHERE id IN {}", MEMBER: "SELECT id, name FROM member WHERE id IN {}"}
_NAMES[WORKFLOW] = "SELECT id, name FROM workflow WHERE id IN {}"


def key(key_id: str) -> str:
    return f"{KEY}:{key_id}"


def member(member_id: str) -> str:
    return f"{MEMBER}:{member_id}"


def workflow(workflow_id: str) -> str:
    return f"{WORKFLOW}:{workflow_id}"


def described(tx: Tx, actors: Iterable[str | None]) -> dict[str | None, dict[str, Any] | None]:
    """Each as `{type, id, name}`, the last two where there is one; None for the service itself."""
    known: dict[str | None, dict[str, Any] | None] = {None: None}
    by_type: dict[str, set[str]] = {}
    for actor in actors:
        if actor is not None:
            kind, _, known_id = actor.partition(":")
            known[actor] = {"type": kind} | ({"id": known_id} if known_id else {})
            by_type.setdefault(kind, set()).add(known_id)
    for kind, found in by_type.items():
        for known_id, name in all_in(tx, _NAMES[kind], found) if kind in _NAMES else ():
            known[f"{kind}:{known_id}"] = {"type": kind, "id": known_id, "name": name}
    return known
