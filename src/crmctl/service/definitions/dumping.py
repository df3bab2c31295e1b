"""Writes a service's own data down as the sections of a definitions file, which loads back unchanged."""

from __future__ import annotations

from typing import Any

from crmctl.service.store import attributes, members, objects, reports
from crmctl.service.store.tx import Tx

_FLAGS = ("isRequired", "isUnique", "isList")


def dump_sections(tx: Tx) -> dict[str, Any]:
    """`{"members": [...], "objects": [...], "reports": [...]}`; what is at its default is left out.

    A definition whose object has been deleted could not be loaded again and is left out too.
    """
    known = objects.list_objects(tx)
    slugs = {each["id"]: each["slug"] for each in known}
    return {
        "members": [_member(member) for member in members.list_members(tx)],
        "objects": [_object(each, attributes.list_attributes(tx, each["id"]), slugs) for each in known],
        "reports": [_definition(each, each["definition"]) for each in _of_active_objects(tx, slugs)],
    }


def _of_active_objects(tx: Tx, slugs: dict[str, str]) -> list[dict[str, Any]]:
    found = [reports.get_report(tx, each["id"]) for each in reports.list_reports(tx)]
    return [each for each in found if each["object"] and each["object"]["id"] in slugs]


def _definition(wire: dict[str, Any], definition: dict[str, Any]) -> dict[str, Any]:
    entry = {"name": wire["name"]} | ({"description": wire["description"]} if wire["description"] else {})
    return entry | {"object": wire["object"]["slug"]} | definition


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
