"""Brings a service's members, objects, attributes, reports and workflows to what a definitions file says: creates, renames, never deletes.

Loading the same file again changes nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

from crmctl.clock import Clock
from crmctl.service.context import Ids
from crmctl.service.definitions.document import AttributeDefinition, Document, MemberDefinition, ObjectDefinition
from crmctl.service.definitions.entries import store_report, store_workflow
from crmctl.service.faults import BadRequest, Conflict, Fault
from crmctl.service.jobs.removals import after_removal
from crmctl.service.store import attributes, members, objects
from crmctl.service.store.actors import OPERATOR
from crmctl.service.store.engine import Engine, rehearse
from crmctl.service.store.stamp import Stamp
from crmctl.service.store.tx import Tx

Summary = dict[str, dict[str, int]]
SECTIONS = ("members", "objects", "attributes", "reports", "workflows")
REMOVAL_SECONDS = 600.0
"""How long a file may wait for the values of a deleted attribute whose slug it names."""

OUTCOMES = ("created", "updated", "unchanged")


def load_document(engine: Engine, document: Document, *, clock: Clock, ids: Ids, dry_run: bool = False) -> Summary:
    """All of it in one transaction, or nothing. Returns how many were created, updated and unchanged, per section.

    With `dry_run` everything is done and then undone. Raises BadRequest or Conflict naming the entry at fault.
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
        for wanted in document.objects:
            with _named(f"object {wanted.slug}"):
                counts["objects"][self._object(wanted)] += 1
        # Attributes last: a reference may name any object of the file.
        for wanted in document.objects:
            found = objects.find_object_by_slug(self.tx, wanted.slug)
            assert found is not None
            known = {one["slug"]: one for one in attributes.list_attributes(self.tx, found["id"], include_inactive=True)}
            for attribute in wanted.attributes:
                with _named(f"attribute {wanted.slug}.{attribute.slug}"):
                    counts["attributes"][self._attribute(found["id"], attribute, known.get(attribute.slug))] += 1
        for report in document.reports:
            with _named(f"report {report.name}"):
                counts["reports"][store_report(self.tx, report, **self.stamp)] += 1
        for workflow in document.workflows:
            with _named(f"workflow {workflow.name}"):
                counts["workflows"][store_workflow(self.tx, workflow, **self.stamp)] += 1
        return {section: {outcome: counted[outcome] for outcome in OUTCOMES} for section, counted in counts.items()}

    def _member(self, wanted: MemberDefinition) -> str:
        fields: dict[str, Any] = {"name": wanted.name, "role": wanted.role, "image": wanted.image}
        found = members.find_member_by_email(self.tx, wanted.email)
        if found is None:
            members.create_member(self.tx, email=wanted.email, **fields, **self.stamp)
            return "created"
        if fields == {"name": found["user"]["name"], "role": found["role"], "image": found["user"]["image"]}:
            return "unchanged"
        members.update_member(self.tx, found["id"], **fields)
        return "updated"

    def _object(self, wanted: ObjectDefinition) -> str:
        found = objects.find_object_by_slug(self.tx, wanted.slug)
        if found is None:
            names: dict[str, Any] = {
                "plural_name": wanted.plural_name,
                "singular_name": wanted.singular_name,
                "description": wanted.description,
            }
            objects.create_object(self.tx, objects.NewObject(slug=wanted.slug, **names), **self.stamp)
            return "created"
        if wanted.singular_name is not None and wanted.singular_name != found["singularName"]:
            raise Conflict(f"singularName is {found['singularName']!r} and cannot be changed")
        said = {"pluralName": wanted.plural_name, "description": wanted.description}
        changes = {field: value for field, value in said.items() if value is not None and value != found[field]}
        if not changes:
            return "unchanged"
        objects.update_object(self.tx, found["id"], changes, now=self.now)
        return "updated"

    def _attribute(self, object_id: str, wanted: AttributeDefinition, found: dict[str, Any] | None) -> str:
        fixed: dict[str, Any] = {
            "type": wanted.type,
            "is_required": wanted.is_required,
            "is_unique": wanted.is_unique,
            "is_list": wanted.is_list,
        }
        fixed["config"] = self._config(wanted)
        if found is None:
            new = attributes.NewAttribute(name=wanted.name, slug=wanted.slug, **fixed)
            made = attributes.create_attribute(self.tx, object_id, new, **self.stamp)
            if not wanted.is_active:
                attributes.set_active(self.tx, object_id, made["id"], False, now=self.now)
            return "created"
        for field, value in fixed.items():
            wire = {"is_required": "isRequired", "is_unique": "isUnique", "is_list": "isList"}.get(field, field)
            if value != found[wire]:
                raise Conflict(f"{wire} cannot be changed; delete the attribute and its values first")
        if (wanted.name, wanted.is_active) == (found["name"], found["isActive"]):
            return "unchanged"
        attributes.update_attribute(self.tx, object_id, found["id"], name=wanted.name, now=self.now)
        attributes.set_active(self.tx, object_id, found["id"], wanted.is_active, now=self.now)
        return "updated"

    def _config(self, wanted: AttributeDefinition) -> dict[str, Any] | None:
        """The config on the wire: `allowed_object`, a slug, becomes `allowed_object_id`; an empty one is none."""
        config = dict(wanted.config or {})
        slug = config.pop("allowed_object", None)
        if slug is not None:
            target = objects.find_object_by_slug(self.tx, slug) if isinstance(slug, str) else None
            if target is None:
                raise BadRequest(f"config.allowed_object must be the slug of an object, not {slug!r}")
            config["allowed_object_id"] = target["id"]
        return config or None


@contextlib.contextmanager
def _named(entry: str) -> Iterator[None]:
    """Says in which entry a fault is."""
    try:
        yield
    except Fault as fault:
        raise type(fault)(f"{entry}: {fault.message}", fault.details) from None
