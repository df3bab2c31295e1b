"""Laying a schema document on a service: objects first, then attributes, then names, deletions last. Each step may be repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from crmctl.errors import RejectedError
from crmctl.models.attributes import Attribute
from crmctl.models.objects import Object
from crmctl.schema.diff import ChangeAction, SchemaChange, compare
from crmctl.schema.document import TARGET, AttributeSpec, ObjectSpec, SchemaDocument
from crmctl.schema.pull import Present, SchemaService, read_service


class WritableService(SchemaService, Protocol):
    """The calls of the client that applying needs."""

    def create_object(self, fields: dict[str, Any]) -> Object: ...
    def update_object(self, object_id: str, fields: dict[str, Any]) -> Object: ...
    def delete_object(self, object_id: str) -> None: ...
    def create_attribute(self, object_id: str, fields: dict[str, Any]) -> Attribute: ...
    def update_attribute(self, object_id: str, attribute_id: str, fields: dict[str, Any]) -> Attribute: ...
    def delete_attribute(self, object_id: str, attribute_id: str) -> None: ...


@dataclass(frozen=True)
class Step:
    """One request: what it changes, and how. An id that does not exist yet is written `{slug}`."""

    change: SchemaChange
    method: str
    path: str
    body: dict[str, Any] | None = None

    def wire(self) -> dict[str, Any]:
        return {"method": self.method, "path": self.path, "body": self.body}


def steps(wanted: SchemaDocument, present: Present, changes: list[SchemaChange]) -> list[Step]:
    """The requests that the changes need, in an order in which each can succeed. Conflicts and extras need none."""
    specs = {spec.slug: spec for spec in wanted.objects}
    made = [step for change in changes if change.action in _ORDER for step in _steps(change, specs.get(change.object), present)]
    return sorted(made, key=lambda step: _ORDER[step.change.action] + (step.change.attribute is not None) * _ATTRIBUTE[step.change.action])


_ORDER = {ChangeAction.CREATE: 0, ChangeAction.UPDATE: 2, ChangeAction.DELETE: 6}
_ATTRIBUTE = {ChangeAction.CREATE: 1, ChangeAction.UPDATE: 1, ChangeAction.DELETE: -1}
"""Attributes come after the objects they are made in, and go before them."""


def apply(
    service: WritableService, wanted: SchemaDocument, changes: list[SchemaChange], present: Present, done: Callable[[SchemaChange], None]
) -> None:
    """Make the changes, telling `done` after each. A service may give a new object attributes of its own: so it is read again.

    Raises RejectedError before any request when a change is a conflict, and after a creation that came out with another slug; else what
    the client raises: then applying the same file again goes on with what is left.
    """
    refuse_conflicts(changes)
    new = [change for change in changes if change.action is ChangeAction.CREATE and change.attribute is None]
    for step in steps(wanted, present, new):
        _same_slug(step.change.object, service.create_object(step.body or {}).slug)
        done(step.change)
    if new:
        pruned = any(change.action is ChangeAction.DELETE for change in changes)
        present = read_service(service, [spec.slug for spec in wanted.objects])
        changes = compare(wanted, present, prune=pruned)
        refuse_conflicts(changes)
    for step in steps(wanted, present, changes):
        _send(service, step, present)
        done(step.change)


def refuse_conflicts(changes: list[SchemaChange]) -> None:
    """Raises RejectedError that names every change for which the interface offers no way."""
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


def _steps(change: SchemaChange, spec: ObjectSpec | None, present: Present) -> Iterator[Step]:
    found = present.objects.get(change.object)
    home = f"/objects/{found.id if found else '{' + change.object + '}'}"
    if change.attribute is None:
        if change.action is ChangeAction.CREATE and spec is not None:
            yield Step(change, "POST", "/objects", _object_body(spec))
        elif change.action is ChangeAction.UPDATE:
            yield Step(change, "PATCH", home, {name: after for name, (_, after) in change.details.items()})
        else:
            yield Step(change, "DELETE", home)
        return
    there = present.attributes.get(change.object, {}).get(change.attribute)
    one = f"{home}/attributes/{there.id if there else '{' + change.attribute + '}'}"
    if change.action is ChangeAction.CREATE and spec is not None:
        attribute = next(attribute for attribute in spec.attributes if attribute.slug == change.attribute)
        yield Step(change, "POST", f"{home}/attributes", _attribute_body(attribute, present))
    elif change.action is ChangeAction.UPDATE:
        yield Step(change, "PATCH", one, {name: after for name, (_, after) in change.details.items()})
    else:
        yield Step(change, "DELETE", one)


def _send(service: WritableService, step: Step, present: Present) -> None:
    change, body = step.change, step.body or {}
    object_id = present.objects[change.object].id
    if change.attribute is None:
        if change.action is ChangeAction.UPDATE:
            service.update_object(object_id, body)
        else:
            service.delete_object(object_id)
        return
    there = present.attributes.get(change.object, {}).get(change.attribute)
    if there is None:
        _create_attribute(service, object_id, change, body)
    elif change.action is ChangeAction.UPDATE:
        service.update_attribute(object_id, there.id, body)
    else:
        service.delete_attribute(object_id, there.id)


def _create_attribute(service: WritableService, object_id: str, change: SchemaChange, body: dict[str, Any]) -> None:
    """The service makes the slug from the name. A name that would make another one is given afterwards."""
    slug, name = str(change.attribute), body["name"]
    made = service.create_attribute(object_id, body if _gives_slug(name, slug) else body | {"name": slug})
    _same_slug(change.place, f"{change.object}.{made.slug}")
    if made.name != name:
        service.update_attribute(object_id, made.id, {"name": name})


def _gives_slug(name: str, slug: str) -> bool:
    """Whether a service will surely make this slug of the name: how it treats letters beyond ASCII is its own affair."""
    return name.isascii() and re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") == slug


def _same_slug(wanted: str, made: str | None) -> None:
    if made != wanted:
        raise RejectedError(
            f"the service made {made} where the file says {wanted}: slugs are the service's to choose, and stay",
            hint=f"write {str(made).rpartition('.')[2]!r} into the file, or delete what was made",
            code="schema_conflict",
        )


def _object_body(spec: ObjectSpec) -> dict[str, Any]:
    name = spec.singular_name or spec.slug.replace("_", " ").replace("-", " ").capitalize()
    return {"slug": spec.slug, "singularName": name, "pluralName": spec.plural_name or name, "description": spec.description or ""}


def _attribute_body(spec: AttributeSpec, present: Present) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": spec.name or spec.slug,
        "type": spec.type,
        "isRequired": spec.is_required,
        "isUnique": spec.is_unique,
    }
    if spec.is_list:
        body["isList"] = True
    if spec.config:
        body["config"] = _wire_config(spec.config, present.objects)
    return body


def _wire_config(config: Mapping[str, Any], objects: Mapping[str, Object]) -> dict[str, Any]:
    wired = {key: value for key, value in config.items() if key != TARGET}
    if target := config.get(TARGET):
        found = objects.get(target)
        known = target.lower() if target.lower() in {one.id.lower() for one in objects.values()} else "{" + target + "}"
        wired["allowed_object_id"] = found.id if found else known
    return wired
