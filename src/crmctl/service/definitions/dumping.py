"""Writes a service's members, objects and attributes down as the sections of a definitions file, which loads back unchanged."""

from __future__ import annotations

from typing import Any

from crmctl.service.store import attributes, members, objects
from crmctl.service.store.tx import Tx

_FLAGS = ("isRequired", "isUnique", "isList")


def dump_sections(tx: Tx) -> dict[str, Any]:
    """`{"members": [...], "objects": [...]}`; what is at its default is left out."""
    known = objects.list_objects(tx)
    slugs = {each["id"]: each["slug"] for each in known}
    return {
        "members": [_member(member) for member in members.list_members(tx)],
        "objects": [_object(each, attributes.list_attributes(tx, each["id"]), slugs) for each in known],
    }


def _member(member: dict[str, Any]) -> dict[str, Any]:
    user = member["user"]
    entry = {"name": user["name"], "email": user["email"], "role": member["role"]}
    return entry | ({"image": user["image"]} if user["image"] else {})


def _object(wire: dict[str, Any], fields: list[dict[str, Any]], slugs: dict[str, str]) -> dict[str, Any]:
    entry = {"slug": wire["slug"], "singularName": wire["singularName"], "pluralName": wire["pluralName"]}
    described = {"description": wire["description"]} if wire["description"] else {}
    return entry | described | {"attributes": [_attribute(field, slugs) for field in fields]}


def _attribute(wire: dict[str, Any], slugs: dict[str, str]) -> dict[str, Any]:
    entry = {field: wire[field] for field in ("name", "slug", "type")}
    config = dict(wire["config"] or {})
    target = slugs.get(config.get("allowed_object_id", ""))
    if target is not None:
        config = {"allowed_object": target}
    return entry | ({"config": config} if config else {}) | {flag: True for flag in _FLAGS if wire[flag]}
