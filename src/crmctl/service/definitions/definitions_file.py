"""The definitions file: its entries, loading and dumping them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack

from pydantic import Field

from crmctl.clock import Clock
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Body, Conflict, Fault, check_shape
from crmctl.service.jobs.worker import after_removal
from crmctl.service.outbound.guard import read_target
from crmctl.service.reports.report_definition import ReportDefinition, plan_report
from crmctl.service.store import members, objects, reports, webhooks, workflows
from crmctl.service.store.engine import Engine, rehearse
from crmctl.service.store.logs import OPERATOR
from crmctl.service.store.members import MemberRole, role_of
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.tx import Ids, Stamp, Tx
from crmctl.service.workflows.workflow_definition import WorkflowDefinition, check_workflow, next_due
from crmctl.values import yaml_text
from crmctl.values.folded_text import fold
from crmctl.values.object_spec import TARGET, AttributeSpec, ObjectSpec


class MemberDefinition(Body):
    name: str
    email: str
    role: str = "member"
    image: str | None = None


class WebhookDefinition(Body):
    """An endpoint that receives events. Its secret is in no file."""

    url: str
    description: str = ""
    event_types: list[str] | None = None
    enabled: bool = True


class Document(Body):
    """A schema file with further sections."""

    version: Literal[1] = 1
    members: list[MemberDefinition] = Field(default_factory=list)
    objects: list[ObjectSpec] = Field(default_factory=list)
    reports: list[ReportDefinition] = Field(default_factory=list)
    workflows: list[WorkflowDefinition] = Field(default_factory=list)
    webhooks: list[WebhookDefinition] = Field(default_factory=list)


class EntryNames(Body):
    """Entries to delete: members by address, reports and workflows by name, webhook endpoints by URL."""

    members: list[str] = Field(default_factory=list)
    reports: list[str] = Field(default_factory=list)
    workflows: list[str] = Field(default_factory=list)
    webhooks: list[str] = Field(default_factory=list)


def load_yaml(text: str) -> Any:
    """Parse YAML that holds only JSON values. Raises BadRequest, with the line of a syntax error."""
    try:
        return yaml_text.loads(text)
    except ValueError as error:
        raise BadRequest(f"the file is not YAML of plain values: {error}") from None


def parse_document(text: str) -> Document:
    """Parse a definitions file. Raises BadRequest with the line of a syntax error or the path of a wrong field."""
    raw = load_yaml(text)
    if raw is None:
        return Document()
    if not isinstance(raw, dict):
        raise BadRequest("the file must hold sections such as members: and objects:")
    return parse_sections({section: entries or [] for section, entries in raw.items()})


def parse_sections(sections: Json) -> Document:
    """Check the sections of a definitions file. Raises BadRequest with the path of a wrong field."""
    document = check_shape(Document, sections)
    _refuse_repeats("members", [fold(member.email) for member in document.members])
    _refuse_repeats("objects", [crm_object.slug for crm_object in document.objects])
    _refuse_repeats("reports", [report.name for report in document.reports])
    _refuse_repeats("workflows", [workflow.name for workflow in document.workflows])
    return document


def _refuse_repeats(where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise BadRequest(f"{where} names {name} twice")


T = TypeVar("T", bound=Body)


def parse_entry(model: type[T], text: str) -> T:
    raw = load_yaml(text)
    if not isinstance(raw, dict):
        raise BadRequest("the definition must hold fields such as name:")
    return check_shape(model, raw)


def store_report(tx: Tx, definition: ReportDefinition, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the report of this name. Returns `created`, `updated` or `unchanged`; raises BadRequest naming the field."""
    object_id = objects.id_of_slug(tx, definition.object, "object")
    plan_report(tx, definition, load_schema(tx, object_id))
    columns = {"description": definition.description, "object_id": object_id, "question": definition.question()}
    return reports.save_report(tx, definition.name, columns, created_by, **stamp)


def store_workflow(tx: Tx, definition: WorkflowDefinition, created_by: str | None = None, **stamp: Unpack[Stamp]) -> str:
    """Create or change the workflow of this name. Returns `created`, `updated` or `unchanged`; raises BadRequest naming the field."""
    columns = {
        "description": definition.description,
        "trigger_event": definition.trigger,
        "object_id": check_workflow(tx, definition, stamp["now"]),
        "plan": definition.plan(),
        "cron": definition.cron,
        "timezone": None if definition.cron is None else definition.timezone or "UTC",
        "enabled": definition.enabled,
    }
    due_at = None if definition.cron is None else next_due(definition.cron, definition.timezone, stamp["now"])
    return workflows.save_workflow(tx, definition.name, columns, due_at, created_by, **stamp)


def report_entry(wire: Json) -> Json:
    return {**_heading(wire), **wire["definition"]}


def workflow_entry(wire: Json) -> Json:
    kept = ("trigger", "cron", "timezone", "enabled", "conditions", "actions")
    return _heading(wire) | _filled({field: wire.get(field) for field in kept})


def refuse_taken_name(entries: list[Json], name: str, own_id: str | None) -> None:
    """Raise Conflict if another entry has this name."""
    if any(entry["name"] == name and entry["id"] != own_id for entry in entries):
        raise Conflict(f"there is one called {name!r} already", {"field": "name"})


def _heading(wire: Json) -> Json:
    return _filled({"name": wire["name"], "description": wire["description"], "object": (wire["object"] or {}).get("slug")})


def _filled(entry: Json) -> Json:
    return {field: value for field, value in entry.items() if value not in (None, "", [], {})}


Summary = dict[str, dict[str, int]]
SECTIONS = ("members", "objects", "attributes", "reports", "workflows", "webhooks")
REMOVAL_SECONDS = 600.0
"""How long a file may wait until the values of a deleted attribute, whose slug it reuses, are removed."""

OUTCOMES = ("created", "updated", "unchanged")


def load_document(engine: Engine, document: Document, *, clock: Clock, ids: Ids, dry_run: bool = False) -> Summary:
    """Load a document in one transaction. Returns how many entries of each section were created, updated and unchanged.

    With `dry_run` the transaction is rolled back. Raises BadRequest or Conflict naming the entry.
    """

    def load(tx: Tx) -> Summary:
        return load_sections(tx, document, ids=ids, now=clock.now())

    return rehearse(engine, load, by=OPERATOR) if dry_run else after_removal(engine, load, within=REMOVAL_SECONDS, by=OPERATOR)


def load_sections(tx: Tx, document: Document, **stamp: Unpack[Stamp]) -> Summary:
    """Do what `load_document` does in a transaction of the caller."""
    return _Loading(tx, stamp).load(document)


def delete_entries(tx: Tx, names: Mapping[str, Sequence[str]], *, now: float) -> int:
    """Delete the entries that exist; return their number. Raises Conflict for the last owner."""
    count = 0
    for section, list_entries, key, delete in (
        ("reports", reports.list_reports, "name", reports.delete_report),
        ("workflows", workflows.list_workflows, "name", workflows.delete_workflow),
        ("webhooks", webhooks.list_endpoints, "url", webhooks.delete_endpoint),
    ):
        entries = list(names.get(section, ()))
        for entry in list_entries(tx):
            if entry[key] in entries:
                entries.remove(entry[key])  # of several endpoints with one URL, the oldest
                delete(tx, entry["id"])
                count += 1
    addresses = {fold(address) for address in names.get("members", ())}
    for member in members.list_members(tx):
        if fold(member["user"]["email"]) in addresses:
            members.check_change(tx, member, MemberRole.OWNER)
            members.remove_member(tx, member["id"], now=now)
            count += 1
    return count


class _Loading:
    def __init__(self, tx: Tx, stamp: Stamp) -> None:
        self.tx = tx
        self.stamp = stamp
        self.now = stamp["now"]
        self.counts: Summary = {section: dict.fromkeys(OUTCOMES, 0) for section in SECTIONS}

    def load(self, document: Document) -> Summary:
        for member in document.members:
            self._count("member", member.email, self._member, member)
        for definition in document.objects:
            self._count("object", definition.slug, self._object, definition)
        # Attributes last: a reference may name any object of the file.
        for definition in document.objects:
            object_id = objects.id_of_slug(self.tx, definition.slug, "slug")
            existing = {wire["slug"]: wire for wire in objects.list_attributes(self.tx, object_id, include_inactive=True)}
            for attribute in definition.attributes:
                name, old = f"{definition.slug}.{attribute.slug}", existing.get(attribute.slug)
                self._count("attribute", name, self._attribute, object_id, attribute, old)
        for report in document.reports:
            self._count("report", report.name, store_report, self.tx, report, **self.stamp)
        for workflow in document.workflows:
            self._count("workflow", workflow.name, store_workflow, self.tx, workflow, **self.stamp)
        endpoints = webhooks.list_endpoints(self.tx)
        for webhook in document.webhooks:
            endpoint = next((entry for entry in endpoints if entry["url"] == webhook.url), None)
            endpoints = [entry for entry in endpoints if entry is not endpoint]
            self._count("webhook", webhook.url, self._webhook, webhook, endpoint)
        return self.counts

    def _count(self, kind: str, name: str, load: Callable[..., str], *about: Any, **stamp: Any) -> None:
        """Load an entry and count its outcome. Raises its Fault with the entry's name."""
        try:
            self.counts[f"{kind}s"][load(*about, **stamp)] += 1
        except Fault as fault:
            raise type(fault)(f"{kind} {name}: {fault.message}", fault.details) from None

    def _member(self, definition: MemberDefinition) -> str:
        fields: Json = {"name": definition.name, "role": definition.role, "image": definition.image}
        member = members.find_member_by_email(self.tx, definition.email)
        if member is not None and "image" not in definition.model_fields_set:
            fields["image"] = member["user"]["image"]
        if member is None:
            members.create_member(self.tx, email=definition.email, **fields, **self.stamp)
            return "created"
        if fields == {"name": member["user"]["name"], "role": member["role"], "image": member["user"]["image"]}:
            return "unchanged"
        if definition.role != member["role"]:
            members.check_change(self.tx, member, MemberRole.OWNER, role_of(definition.role))
        members.update_member(self.tx, member["id"], **fields)
        return "updated"

    def _webhook(self, definition: WebhookDefinition, existing: Json | None) -> str:
        read_target(definition.url)
        values: Json = {"description": definition.description, "eventTypes": definition.event_types, "enabled": definition.enabled}
        endpoint = existing or webhooks.create_endpoint(
            self.tx, url=definition.url, description=definition.description, event_types=definition.event_types, **self.stamp
        )
        if values != {field: endpoint[field] for field in values}:
            webhooks.update_endpoint(self.tx, endpoint["id"], values, now=self.now)
        elif existing:
            return "unchanged"
        return "updated" if existing else "created"

    def _object(self, definition: ObjectSpec) -> str:
        crm_object = objects.find_object_by_slug(self.tx, definition.slug)
        if crm_object is None:
            plural = definition.plural_name or definition.singular_name or definition.slug
            new = objects.NewObject(plural, definition.singular_name, definition.description, definition.slug)
            objects.create_object(self.tx, new, **self.stamp)
            return "created"
        if definition.singular_name is not None and definition.singular_name != crm_object["singularName"]:
            raise Conflict(f"singularName is {crm_object['singularName']!r} and cannot be changed")
        values = {"pluralName": definition.plural_name, "description": definition.description}
        changes = {field: value for field, value in values.items() if value is not None and value != crm_object[field]}
        if not changes:
            return "unchanged"
        objects.update_object(self.tx, crm_object["id"], changes, now=self.now)
        return "updated"

    def _attribute(self, object_id: str, definition: AttributeSpec, existing: Json | None) -> str:
        name = definition.name or (definition.slug if existing is None else existing["name"])
        is_active = definition.is_active is not False
        flags, config = (definition.is_required, definition.is_unique, definition.is_list), self._config(definition)
        if existing is None:
            new = objects.NewAttribute(name, definition.type, definition.slug, *flags, config)
            attribute = objects.create_attribute(self.tx, object_id, new, **self.stamp)
            objects.update_attribute(self.tx, object_id, attribute["id"], {"isActive": is_active}, now=self.now)
            return "created"
        for field, value in {"type": definition.type, **dict(zip(_FLAGS, flags, strict=True)), "config": config}.items():
            if value != existing[field]:
                raise Conflict(f"{field} cannot be changed; delete the attribute and its values first")
        if (name, is_active) == (existing["name"], existing["isActive"]):
            return "unchanged"
        objects.update_attribute(self.tx, object_id, existing["id"], {"name": name, "isActive": is_active}, now=self.now)
        return "updated"

    def _config(self, definition: AttributeSpec) -> Json | None:
        """Return the config on the wire: the slug `allowed_object` becomes `allowed_object_id`, and an empty config None."""
        config = dict(definition.config or {})
        slug = config.pop(TARGET, None)
        if slug is not None:
            config["allowed_object_id"] = objects.id_of_slug(self.tx, slug, "config.allowed_object")
        return config or None


_FLAGS = ("isRequired", "isUnique", "isList")


def dump_sections(tx: Tx) -> Json:
    """Return a document without defaults. Its webhook endpoints have no secrets.

    Reports and workflows of deleted objects are left out: they could not be loaded again.
    """
    active = objects.list_objects(tx)
    slugs = {crm_object["id"]: crm_object["slug"] for crm_object in active}
    report_entries = [report_entry(reports.get_report(tx, report["id"])) for report in reports.list_reports(tx)]
    workflow_ids = [workflow["id"] for workflow in workflows.list_workflows(tx)]
    loadable = [identity for identity in workflow_ids if workflows.load_workflow(tx, identity).object_id in (None, *slugs)]
    return {
        "version": 1,
        "members": [_member(member) for member in members.list_members(tx)],
        "objects": [
            _object(crm_object, objects.list_attributes(tx, crm_object["id"], include_inactive=True), slugs) for crm_object in active
        ],
        "reports": [entry for entry in report_entries if entry.get("object") in slugs.values()],
        "workflows": [workflow_entry(workflows.get_workflow(tx, identity)) for identity in loadable],
        "webhooks": [_webhook(endpoint) for endpoint in webhooks.list_endpoints(tx)],
    }


def _webhook(endpoint: Json) -> Json:
    return {field: endpoint[field] for field in ("url", "description", "eventTypes", "enabled") if endpoint[field] not in (None, "", True)}


def _member(member: Json) -> Json:
    user = member["user"]
    return _filled({"name": user["name"], "email": user["email"], "role": member["role"], "image": user["image"]})


def _object(wire: Json, fields: list[Json], slugs: dict[str, str]) -> Json:
    described = _filled({field: wire[field] for field in ("slug", "singularName", "pluralName", "description")})
    return described | {"attributes": [_attribute(field, slugs) for field in fields]}


def _attribute(wire: Json, slugs: dict[str, str]) -> Json:
    target = slugs.get((wire["config"] or {}).get("allowed_object_id", ""))
    entry = {field: wire[field] for field in ("name", "slug", "type")} | {"config": {TARGET: target} if target else wire["config"]}
    flags = {flag: True for flag in _FLAGS if wire[flag]} | ({} if wire["isActive"] else {"isActive": False})
    return _filled(entry) | flags
