"""Pages of the API keys: list, create, revoke. The value is in the answer to the form that created it, and nowhere else ever."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from crmctl.models.scopes import SCOPES
from crmctl.service.console.choices import BoxChoice
from crmctl.service.console.pages import ConsolePage, Pages, Redirect, Visit
from crmctl.service.expiry import parse_expiry
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.roles import MemberRole
from crmctl.service.store import keys
from crmctl.service.store.keys import ApiKey
from crmctl.service.store.tx import Tx
from crmctl.service.values.choices import canonical_uuid

ACCESS = BoxChoice("access", "full", "scopes", "scope", "scope", "full access")


def add_pages(pages: Pages) -> None:
    """All pages of the keys."""
    _add_making(pages)
    _add_revoking(pages)


def _add_making(pages: Pages) -> None:
    @pages.get("/keys", needs=MemberRole.ADMIN)
    def list_keys(tx: Tx, visit: Visit) -> ConsolePage:
        found = [_shown(key, visit.now()) for key in reversed(keys.list_keys(tx))]
        return ConsolePage("keys.html", {"section": "keys", "keys": found, "scope_count": len(SCOPES)})

    @pages.get("/keys/new", needs=MemberRole.ADMIN)
    def new_key(_tx: Tx, visit: Visit) -> ConsolePage:
        return _form(visit)

    @pages.post("/keys")
    def create_key(tx: Tx, visit: Visit) -> ConsolePage | Redirect:
        # The form brings the id of the key it makes: sent twice (reloaded, pressed twice) it makes one.
        key_id = canonical_uuid(visit.text("id")) or visit.context.ids()
        if any(key.id == key_id for key in keys.list_keys(tx)):
            return Redirect("/keys", "created-before")
        try:
            scopes, expires, now = ACCESS.read(visit), visit.text("expires"), visit.now()
            key, value = keys.create_key(
                tx,
                name=visit.text("name"),
                scopes=None if scopes is None else frozenset(scopes),
                expires_at=parse_expiry(expires, now) if expires else None,
                created_by=visit.session.member_id,
                ids=lambda: key_id,
                now=now,
            )
        except BadRequest as error:
            return _form(visit, error.message)
        values = {"section": "keys", "key": _shown(key, now), "value": value, "address": visit.context.settings.address}
        return ConsolePage("key_created.html", values, HTTPStatus.CREATED)


def _add_revoking(pages: Pages) -> None:
    @pages.get("/keys/{keyId:uuid}/revoke", needs=MemberRole.ADMIN)
    def confirm_revoke(tx: Tx, visit: Visit) -> ConsolePage:
        known = _known(tx, visit.id("keyId"))
        values = {
            "section": "keys",
            "title": f"Revoke {known.name}",
            "text": "The next request with this key is refused. A revoked key never comes back; portal sessions opened with it end.",
            "action": f"/keys/{known.id}/revoke",
            "button": "Revoke the key",
            "back": "/keys",
        }
        return ConsolePage("confirm.html", values)

    @pages.post("/keys/{keyId:uuid}/revoke")
    def revoke_key(tx: Tx, visit: Visit) -> Redirect:
        keys.revoke_key(tx, visit.id("keyId"), now=visit.now())
        return Redirect("/keys", "revoked")


def _form(visit: Visit, error: str | None = None) -> ConsolePage:
    groups: dict[str, list[tuple[str, str]]] = {}
    for scope, meaning in SCOPES.items():
        groups.setdefault(scope.partition(":")[0], []).append((scope, meaning))
    values = {
        "section": "keys",
        "error": error,
        "groups": groups,
        "form_id": canonical_uuid(visit.text("id")) or visit.context.ids(),
        "name": visit.text("name"),
        "access": ACCESS.shown(visit),
        "chosen": visit.chosen("scope"),
        "expires": visit.text("expires"),
    }
    return ConsolePage("key_new.html", values, HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK)


def _known(tx: Tx, key_id: str) -> ApiKey:
    known = next((key for key in keys.list_keys(tx) if key.id == key_id), None)
    if known is None:
        raise NotFound(f"there is no key with the id {key_id}")
    return known


def _shown(key: ApiKey, now: float) -> dict[str, Any]:
    state = "revoked" if key.revoked_at is not None else "expired" if key.is_expired(now) else "active"
    return key.wire() | {"state": state}
