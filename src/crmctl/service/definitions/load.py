"""Load a definitions file into a service, or dump one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from crmctl.clock import Clock
from crmctl.models.jsontext import Json
from crmctl.service.context import Ids
from crmctl.service.definitions.definitions_file import (
    AttributeDefinition,
    Document,
    MemberDefinition,
    ObjectDefinition,
    report_entry,
    store_report,
    store_workflow,
    workflow_entry,
)
from crmctl.service.faults import BadRequest, Conflict, Fault
from crmctl.service.jobs.removal_jobs import after_removal
from crmctl.service.store import attributes, members, objects, reports, workflows
from crmctl.service.store.engine import Engine, rehearse
from crmctl.service.store.logs import OPERATOR
from crmctl.service.store.tx import Stamp, Tx

Summary = dict[str, dict[str, int]]
SECTIONS = ("members", "objects", "attributes", "reports", "workflows")
REMOVAL_SECONDS = 600.0
"""How long a file may wait until the values of a deleted attribute, whose slug it reuses, are removed."""

OUTCOMES = ("created", "updated", "unchanged")


def load_document(engine: Engine, document: Document, *, clock: Clock, ids: Ids, dry_run: bool = False) -> Summary:
    """Load a document in one transaction. Returns how many entries of each section were created, updated and unchanged.

    With `dry_run` the transaction is rolled back. Raises BadRequest or Conflict naming the entry.
    """

    def load(tx: Tx) -> Summary:
        return _Loading(tx, ids, clock.now()).load(document)

    return rehearse(engine, load, by=OPERATOR) if dry_run else after_removal(engine, load, within=REMOVAL_SECONDS, by=OPERATOR)


class _Loading:
    def __init__(self, tx: Tx, ids: Ids, now: float) -> None:
        self.tx = tx
        self.stamp: Stamp = {"ids": ids, "now": now}
        self.now = now

    def load(self, document: Document) -> Summary:
        counts: dict[str, Counter[str]] = {section: Counter() for section in SECTIONS}
        for member in document.members:
            with _named(f"member {member.email}"):
                counts["members"][self._member(member)] += 1
        for definition in document.objects:
            with _named(f"object {definition.slug}"):
                counts["objects"][self._object(definition)] += 1
        # Attributes last: a reference may name any object of the file.
        for definition in document.objects:
            crm_object = objects.find_object_by_slug(self.tx, definition.slug)
            assert crm_object is not None
            existing = {wire["slug"]: wire for wire in attributes.list_attributes(self.tx, crm_object["id"], include_inactive=True)}
            for attribute in definition.attributes:
                with _named(f"attribute {definition.slug}.{attribute.slug}"):
                    counts["attributes"][self._attribute(crm_object["id"], attribute, existing.get(attribute.slug))] += 1
        for report in document.reports:
            with _named(f"report {report.name}"):
                counts["reports"][store_report(self.tx, report, **self.stamp)] += 1
        for workflow in document.workflows:
            with _named(f"workflow {workflow.name}"):
                counts["workflows"][store_workflow(self.tx, workflow, **self.stamp)] += 1
        return {section: {outcome: counted[outcome] for outcome in OUTCOMES} for section, counted in counts.items()}

    def _member(self, definition: MemberDefinition) -> str:
        fields: Json = {"name": definition.name, "role": definition.role, "image": definition.image}
        member = members.find_member_by_email(self.tx, definition.email)
        if member is None:
            members.create_member(self.tx, email=definition.email, **fields, **self.stamp)
            return "created"
        if fields == {"name": member["user"]["name"], "role": member["role"], "image": member["user"]["image"]}:
            return "unchanged"
        members.update_member(self.tx, member["id"], **fields)
        return "updated"

    def _object(self, definition: ObjectDefinition) -> str:
        crm_object = objects.find_object_by_slug(self.tx, definition.slug)
        if crm_object is None:
            names: Json = {
                "plural_name": definition.plural_name,
                "singular_name": definition.singular_name,
                "description": definition.description,
            }
            objects.create_object(self.tx, objects.NewObject(slug=definition.slug, **names), **self.stamp)
            return "created"
        if definition.singular_name is not None and definition.singular_name != crm_object["singularName"]:
            raise Conflict(f"singularName is {crm_object['singularName']!r} and cannot be changed")
        said = {"pluralName": definition.plural_name, "description": definition.description}
        changes = {field: value for field, value in said.items() if value is not None and value != crm_object[field]}
        if not changes:
            return "unchanged"
        objects.update_object(self.tx, crm_object["id"], changes, now=self.now)
        return "updated"

    def _attribute(self, object_id: str, definition: AttributeDefinition, existing: Json | None) -> str:
        fixed: Json = {
            "type": definition.type,
            "is_required": definition.is_required,
            "is_unique": definition.is_unique,
            "is_list": definition.is_list,
        }
        fixed["config"] = self._config(definition)
        if existing is None:
            new = attributes.NewAttribute(name=definition.name, slug=definition.slug, **fixed)
            made = attributes.create_attribute(self.tx, object_id, new, **self.stamp)
            if not definition.is_active:
                attributes.set_active(self.tx, object_id, made["id"], False, now=self.now)
            return "created"
        for field, value in fixed.items():
            wire = {"is_required": "isRequired", "is_unique": "isUnique", "is_list": "isList"}.get(field, field)
            if value != existing[wire]:
                raise Conflict(f"{wire} cannot be changed; delete the attribute and its values first")
        if (definition.name, definition.is_active) == (existing["name"], existing["isActive"]):
            return "unchanged"
        attributes.update_attribute(self.tx, object_id, existing["id"], name=definition.name, now=self.now)
        attributes.set_active(self.tx, object_id, existing["id"], definition.is_active, now=self.now)
        return "updated"

    def _config(self, definition: AttributeDefinition) -> Json | None:
        """Return the config on the wire: the slug `allowed_object` becomes `allowed_object_id`, and an empty config None."""
        config = dict(definition.config or {})
        slug = config.pop("allowed_object", None)
        if slug is not None:
            target = objects.find_object_by_slug(self.tx, slug) if isinstance(slug, str) else None
            if target is None:
                raise BadRequest(f"config.allowed_object must be the slug of an object, not {slug!r}")
            config["allowed_object_id"] = target["id"]
        return config or None


@contextlib.contextmanager
def _named(entry: str) -> Iterator[None]:
    """Name the entry in the message of a fault."""
    try:
        yield
    except Fault as fault:
        raise type(fault)(f"{entry}: {fault.message}", fault.details) from None


_FLAGS = ("isRequired", "isUnique", "isList")


def dump_sections(tx: Tx) -> Json:
    """Return `{"members": [...], "objects": [...], "reports": [...], "workflows": [...]}` without defaults.

    Reports and workflows of deleted objects are left out: they could not be loaded again.
    """
    active = objects.list_objects(tx)
    slugs = {crm_object["id"]: crm_object["slug"] for crm_object in active}
    return {
        "members": [_member(member) for member in members.list_members(tx)],
        "objects": [
            _object(crm_object, attributes.list_attributes(tx, crm_object["id"], include_inactive=True), slugs) for crm_object in active
        ],
        "reports": _reports(tx, slugs),
        "workflows": _workflows(tx, slugs),
    }


def _reports(tx: Tx, slugs: dict[str, str]) -> list[Json]:
    entries = [report_entry(reports.get_report(tx, report["id"])) for report in reports.list_reports(tx)]
    return [entry for entry in entries if entry.get("object") in slugs.values()]


def _workflows(tx: Tx, slugs: dict[str, str]) -> list[Json]:
    workflow_ids = [workflow_id["id"] for workflow_id in workflows.list_workflows(tx)]
    return [
        workflow_entry(workflows.get_workflow(tx, workflow_id))
        for workflow_id in workflow_ids
        if workflows.load_workflow(tx, workflow_id).object_id in (None, *slugs)
    ]


def _member(member: Json) -> Json:
    user = member["user"]
    entry = {"name": user["name"], "email": user["email"], "role": member["role"]}
    return entry | ({"image": user["image"]} if user["image"] else {})


def _object(wire: Json, fields: list[Json], slugs: dict[str, str]) -> Json:
    entry = {"slug": wire["slug"], "singularName": wire["singularName"], "pluralName": wire["pluralName"]}
    described = {"description": wire["description"]} if wire["description"] else {}
    return entry | described | {"attributes": [_attribute(field, slugs) for field in fields]}


def _attribute(wire: Json, slugs: dict[str, str]) -> Json:
    entry = {field: wire[field] for field in ("name", "slug", "type")}
    config = dict(wire["config"] or {})
    target = slugs.get(config.get("allowed_object_id", ""))
    if target is not None:
        config = {"allowed_object": target}
    flags = {flag: True for flag in _FLAGS if wire[flag]} | ({} if wire["isActive"] else {"isActive": False})
    return entry | ({"config": config} if config else {}) | flags
