"""Writes a service's own data down as the sections of a definitions file, which loads back unchanged."""

from __future__ import annotations

from typing import Any

from crmctl.service.definitions.entries import report_entry, workflow_entry
from crmctl.service.store import attributes, members, objects, reports, workflows
from crmctl.service.store.tx import Tx

_FLAGS = ("isRequired", "isUnique", "isList")


def dump_sections(tx: Tx) -> dict[str, Any]:
    """`{"members": [...], "objects": [...], "reports": [...], "workflows": [...]}`; what is at its default is left out.

    A definition whose object has been deleted could not be loaded again and is left out too.
    """
    known = objects.list_objects(tx)
    slugs = {each["id"]: each["slug"] for each in known}
    return {
        "members": [_member(member) for member in members.list_members(tx)],
        "objects": [_object(each, attributes.list_attributes(tx, each["id"], include_inactive=True), slugs) for each in known],
        "reports": _reports(tx, slugs),
        "workflows": _workflows(tx, slugs),
    }


def _reports(tx: Tx, slugs: dict[str, str]) -> list[dict[str, Any]]:
    entries = [report_entry(tx, each["id"]) for each in reports.list_reports(tx)]
    return [entry for entry in entries if entry.get("object") in slugs.values()]


def _workflows(tx: Tx, slugs: dict[str, str]) -> list[dict[str, Any]]:
    known = [each["id"] for each in workflows.list_workflows(tx)]
    return [workflow_entry(tx, each) for each in known if workflows.load_workflow(tx, each).object_id in (None, *slugs)]


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
    flags = {flag: True for flag in _FLAGS if wire[flag]} | ({} if wire["isActive"] else {"isActive": False})
    return entry | ({"config": config} if config else {}) | flags
