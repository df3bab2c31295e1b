"""Writes a service's own data down as the sections of a definitions file, which loads back unchanged."""

from __future__ import annotations

from typing import Any

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
        "reports": [_report(each, slugs) for each in _all_reports(tx) if each["object"] and each["object"]["id"] in slugs],
        "workflows": [_workflow(each, slugs) for each in _all_workflows(tx, slugs)],
    }


def _all_reports(tx: Tx) -> list[dict[str, Any]]:
    return [reports.get_report(tx, each["id"]) for each in reports.list_reports(tx)]


def _all_workflows(tx: Tx, slugs: dict[str, str]) -> list[dict[str, Any]]:
    known = [each["id"] for each in workflows.list_workflows(tx)]
    return [workflows.get_workflow(tx, each) for each in known if workflows.load_workflow(tx, each).object_id in (None, *slugs)]


def _report(wire: dict[str, Any], slugs: dict[str, str]) -> dict[str, Any]:
    return {**_heading(wire, slugs), **wire["definition"]}


def _workflow(wire: dict[str, Any], slugs: dict[str, str]) -> dict[str, Any]:
    kept = ("trigger", "cron", "timezone", "enabled", "conditions", "actions")
    return _heading(wire, slugs) | {field: wire[field] for field in kept if wire.get(field) not in (None, [])}


def _heading(wire: dict[str, Any], slugs: dict[str, str]) -> dict[str, Any]:
    entry = {"name": wire["name"]} | ({"description": wire["description"]} if wire["description"] else {})
    return entry | ({"object": slugs[wire["object"]["id"]]} if wire["object"] else {})


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
