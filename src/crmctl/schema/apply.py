"""Differences between a service and a schema document, and applying them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from crmctl.errors import RejectedError
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, Object
from crmctl.schema.schema_document import Present, SchemaDocument, portable_config, read_service
from crmctl.values.object_spec import TARGET, AttributeSpec, ObjectSpec

if TYPE_CHECKING:
    from crmctl.client.crm import Crm


class ChangeAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    EXTRA = "extra"
    """Only in the service; deleted when pruning is asked for."""
    CONFLICT = "conflict"
    """The interface offers no way there."""


@frozen
class SchemaChange:
    """One difference. `details` maps each field to what the service has and what the file has, `[before, after]`."""

    action: ChangeAction
    object: str
    attribute: str | None = None
    details: dict[str, list[Any]] = field(default_factory=dict)
    reason: str | None = None

    @property
    def place(self) -> str:
        return self.object if self.attribute is None else f"{self.object}.{self.attribute}"

    @property
    def summary(self) -> str:
        """The change in one line, without its place."""
        if self.details:
            return ", ".join(f"{name}: {_shown(before)} -> {_shown(after)}" for name, (before, after) in self.details.items())
        return self.reason or _SUMMARIES[self.action, self.attribute is None]

    def wire(self) -> Json:
        names = ("object", "attribute", "details", "reason", "summary")
        return {"action": str(self.action)} | {name: getattr(self, name) for name in names}


_SUMMARIES = {
    (ChangeAction.CREATE, True): "a new object",
    (ChangeAction.CREATE, False): "a new attribute",
    (ChangeAction.DELETE, True): "with all its records",
    (ChangeAction.DELETE, False): "with its values in all records",
    (ChangeAction.EXTRA, False): "only in the service; --prune deletes it",
}


def _shown(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(element, str) for element in value):
        return ", ".join(value) or "none"
    return "nothing" if value is None else value if isinstance(value, str) else jsontext.dumps(value)


def compare(document: SchemaDocument, present: Present, *, prune: bool = False) -> list[SchemaChange]:
    """The differences in the order of the file; what only the service has comes last, as DELETE with `prune` and EXTRA without.

    Without `prune` objects that the file does not mention are no difference: a file may be about some objects only.
    """
    slugs = {spec.slug for spec in document.objects} | set(present.objects) | set(present.slugs)
    changes = [change for spec in document.objects for change in _object(spec, present, slugs)]
    leaving = ChangeAction.DELETE if prune else ChangeAction.EXTRA
    for spec in document.objects:
        slugs_given = {attribute.slug for attribute in spec.attributes}
        changes += [SchemaChange(leaving, spec.slug, slug) for slug in present.attributes.get(spec.slug, {}) if slug not in slugs_given]
    if prune:
        slugs_given = {spec.slug for spec in document.objects}
        changes += [
            SchemaChange(leaving, slug)
            for slug, crm_object in present.objects.items()
            if slug not in slugs_given and not crm_object.is_standard
        ]
    return changes


def _object(spec: ObjectSpec, present: Present, slugs: set[str]) -> Iterator[SchemaChange]:
    crm_object = present.objects.get(spec.slug)
    if crm_object is None:
        yield SchemaChange(ChangeAction.CREATE, spec.slug)
    elif not crm_object.is_standard and (details := _differences(_names(spec), _names(crm_object))):
        unchangeable = "singularName" in details
        reason = "an object's singular name cannot be changed" if unchangeable else None
        yield SchemaChange(ChangeAction.CONFLICT if unchangeable else ChangeAction.UPDATE, spec.slug, details=details, reason=reason)
    present_attributes = present.attributes.get(spec.slug, {})
    for attribute in spec.attributes:
        if attribute.is_active is False:
            continue
        if attribute.target is not None and attribute.target.lower() not in slugs and attribute.target not in slugs:
            yield SchemaChange(
                ChangeAction.CONFLICT, spec.slug, attribute.slug, reason=f"it points to {attribute.target}, which is nowhere"
            )
        elif attribute.slug not in present_attributes:
            yield SchemaChange(ChangeAction.CREATE, spec.slug, attribute.slug)
        else:
            yield from _attribute(spec.slug, attribute, present_attributes[attribute.slug], present)


def _names(of: ObjectSpec | Object) -> Json:
    return {"singularName": of.singular_name, "pluralName": of.plural_name, "description": of.description}


def _attribute(owner: str, spec: AttributeSpec, attribute: Attribute, present: Present) -> Iterator[SchemaChange]:
    config = portable_config(attribute, present.slugs) or {}
    fixed = _differences(
        {"type": spec.type, "isRequired": spec.is_required, "isUnique": spec.is_unique, "isList": spec.is_list}
        | {f"config.{key}": value for key, value in (spec.config or {}).items()},
        {
            "type": attribute.type,
            "isRequired": bool(attribute.is_required),
            "isUnique": bool(attribute.is_unique),
            "isList": bool(attribute.is_list),
        }
        | {f"config.{key}": value for key, value in config.items()},
    )
    if fixed:
        reason = "only the name of an attribute can be changed: delete it and apply again, or write down what the service has"
        yield SchemaChange(ChangeAction.CONFLICT, owner, spec.slug, fixed, reason)
    elif named := _differences({"name": spec.name}, {"name": attribute.name}):
        yield SchemaChange(ChangeAction.UPDATE, owner, spec.slug, named)


def _differences(expected: Json, present: Json) -> dict[str, list[Any]]:
    """Return the fields that the file gives with another value than the service, as `[before, after]`."""
    return {key: [present.get(key), value] for key, value in expected.items() if value is not None and value != present.get(key)}


@frozen
class SchemaStep:
    """One request of a change. An id that does not exist yet is written `{slug}`."""

    change: SchemaChange
    method: str
    path: str
    body: Json | None = None

    def wire(self) -> Json:
        return {"method": self.method, "path": self.path, "body": self.body}


def steps(document: SchemaDocument, present: Present, changes: list[SchemaChange]) -> list[SchemaStep]:
    """Return the requests for the changes, in an order in which each can succeed. Conflicts and extras need none."""
    specs = {spec.slug: spec for spec in document.objects}
    listed = [_step(change, specs.get(change.object), present) for change in changes if change.action in _ORDER]
    return sorted(
        listed, key=lambda step: _ORDER[step.change.action] + (step.change.attribute is not None) * _ATTRIBUTE[step.change.action]
    )


_ORDER = {ChangeAction.CREATE: 0, ChangeAction.UPDATE: 2, ChangeAction.DELETE: 6}
_ATTRIBUTE = {ChangeAction.CREATE: 1, ChangeAction.UPDATE: 1, ChangeAction.DELETE: -1}
"""Attributes follow the objects they are created in and precede those they are deleted from."""


def apply(
    service: Crm, document: SchemaDocument, changes: list[SchemaChange], present: Present, done: Callable[[SchemaChange], None]
) -> None:
    """Make the changes and tell `done` after each. Read the schema again after creating objects: the service may give them attributes of
    its own.

    Raises RejectedError for a conflict, before any request, and for an object created with another slug; raises what the client raises.
    Applying the file again continues with the rest.
    """
    refuse_conflicts(changes)
    new = [change for change in changes if change.action is ChangeAction.CREATE and change.attribute is None]
    for step in steps(document, present, new):
        _same_slug(step.change.object, service.create_object(step.body or {}).slug)
        done(step.change)
    if new:
        pruned = any(change.action is ChangeAction.DELETE for change in changes)
        present = read_service(service, [spec.slug for spec in document.objects])
        changes = compare(document, present, prune=pruned)
        refuse_conflicts(changes)
    for step in steps(document, present, changes):
        _send(service, step, present)
        done(step.change)


def refuse_conflicts(changes: list[SchemaChange]) -> None:
    """Raise RejectedError that names every change the interface does not offer."""
    conflicts = [change for change in changes if change.action is ChangeAction.CONFLICT]
    if not conflicts:
        return
    more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
    raise RejectedError(
        f"{conflicts[0].place} cannot become what the file says: {conflicts[0].reason}{more}",
        hint="crmctl schema diff shows every difference",
        code="schema_conflict",
        details=[change.wire() for change in conflicts],
    )


def _step(change: SchemaChange, spec: ObjectSpec | None, present: Present) -> SchemaStep:
    """Return the request of a change. `spec`: the object in the document, if it is there."""
    crm_object = present.objects.get(change.object)
    parent, path = "/objects", f"/objects/{crm_object.id if crm_object else '{' + change.object + '}'}"
    if change.attribute is not None:
        attribute = present.attributes.get(change.object, {}).get(change.attribute)
        parent, path = f"{path}/attributes", f"{path}/attributes/{attribute.id if attribute else ''}"
    if change.action is ChangeAction.CREATE and spec is not None:
        specs = {attribute.slug: attribute for attribute in spec.attributes}
        name = spec.singular_name or spec.slug.replace("_", " ").replace("-", " ").capitalize()
        names = {"singularName": name, "pluralName": spec.plural_name or name, "description": spec.description or ""}
        body = {"slug": spec.slug} | names if change.attribute is None else _attribute_body(specs[change.attribute], present)
        return SchemaStep(change, "POST", parent, body)
    if change.action is ChangeAction.UPDATE:
        return SchemaStep(change, "PATCH", path, {name: after for name, (_, after) in change.details.items()})
    return SchemaStep(change, "DELETE", path)


def _send(service: Crm, step: SchemaStep, present: Present) -> None:
    change, body = step.change, step.body or {}
    object_id = present.objects[change.object].id
    if change.attribute is None:
        if change.action is ChangeAction.UPDATE:
            service.update_object(object_id, body)
        else:
            service.delete_object(object_id)
        return
    attribute = present.attributes.get(change.object, {}).get(change.attribute)
    if attribute is None:
        _create_attribute(service, object_id, change, body)
    elif change.action is ChangeAction.UPDATE:
        service.update_attribute(object_id, attribute.id, body)
    else:
        service.delete_attribute(object_id, attribute.id)


def _create_attribute(service: Crm, object_id: str, change: SchemaChange, body: Json) -> None:
    """Create an attribute. The service derives the slug from the name, so a name with another slug is set afterwards."""
    slug, name = str(change.attribute), body["name"]
    # Services treat letters beyond ASCII differently.
    gives_slug = name.isascii() and re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") == slug
    attribute = service.create_attribute(object_id, body if gives_slug else body | {"name": slug})
    _same_slug(change.place, f"{change.object}.{attribute.slug}")
    if attribute.name != name:
        service.update_attribute(object_id, attribute.id, {"name": name})


def _same_slug(slug: str, made: str | None) -> None:
    if made != slug:
        raise RejectedError(
            f"the service made {made} where the file says {slug}: slugs are the service's to choose, and stay",
            hint=f"write {str(made).rpartition('.')[2]!r} into the file, or delete what was made",
            code="schema_conflict",
        )


def _attribute_body(spec: AttributeSpec, present: Present) -> Json:
    body: Json = {"name": spec.name or spec.slug, "type": spec.type, "isRequired": spec.is_required, "isUnique": spec.is_unique}
    if spec.is_list:
        body["isList"] = True
    if spec.config:
        body["config"] = {key: value for key, value in spec.config.items() if key != TARGET}
    if target := spec.target:
        target_object = present.objects.get(target)
        target_id = target.lower() if target.lower() in present.slugs else "{" + target + "}"
        body["config"]["allowed_object_id"] = target_object.id if target_object else target_id
    return body
