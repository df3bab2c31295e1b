"""What separates a service from a schema document: pure, no request. Attributes change by name only; everything else about them stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.objects import Object
from crmctl.schema.document import AttributeSpec, ObjectSpec, SchemaDocument
from crmctl.schema.pull import Present, portable_config


class ChangeAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    EXTRA = "extra"
    """Only in the service; deleted when pruning is asked for."""
    CONFLICT = "conflict"
    """The interface offers no way there."""


@dataclass(frozen=True)
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

    def wire(self) -> dict[str, Any]:
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
    return "nothing" if value is None else value if isinstance(value, str) else jsontext.dumps(value)


def compare(wanted: SchemaDocument, present: Present, *, prune: bool = False) -> list[SchemaChange]:
    """The differences in the order of the file; what only the service has comes last, as DELETE with `prune` and EXTRA without.

    Without `prune` objects that the file does not mention are no difference: a file may be about some objects only.
    """
    known = {spec.slug for spec in wanted.objects} | set(present.objects) | set(present.slugs)
    changes = [change for spec in wanted.objects for change in _object(spec, present, known)]
    leaving = ChangeAction.DELETE if prune else ChangeAction.EXTRA
    for spec in wanted.objects:
        given = {attribute.slug for attribute in spec.attributes}
        changes += [SchemaChange(leaving, spec.slug, slug) for slug in present.attributes.get(spec.slug, {}) if slug not in given]
    if prune:
        given = {spec.slug for spec in wanted.objects}
        changes += [SchemaChange(leaving, slug) for slug, found in present.objects.items() if slug not in given and not found.is_standard]
    return changes


def _object(spec: ObjectSpec, present: Present, known: set[str]) -> Iterator[SchemaChange]:
    found = present.objects.get(spec.slug)
    if found is None:
        yield SchemaChange(ChangeAction.CREATE, spec.slug)
    elif not found.is_standard and (details := _differences(_names(spec), _names(found))):
        unchangeable = "singularName" in details
        reason = "an object's singular name cannot be changed" if unchangeable else None
        yield SchemaChange(ChangeAction.CONFLICT if unchangeable else ChangeAction.UPDATE, spec.slug, details=details, reason=reason)
    there = present.attributes.get(spec.slug, {})
    for attribute in spec.attributes:
        if attribute.target is not None and attribute.target.lower() not in known and attribute.target not in known:
            yield SchemaChange(
                ChangeAction.CONFLICT, spec.slug, attribute.slug, reason=f"it points to {attribute.target}, which is nowhere"
            )
        elif attribute.slug not in there:
            yield SchemaChange(ChangeAction.CREATE, spec.slug, attribute.slug)
        else:
            yield from _attribute(spec.slug, attribute, there[attribute.slug], present)


def _names(of: ObjectSpec | Object) -> dict[str, Any]:
    return {"singularName": of.singular_name, "pluralName": of.plural_name, "description": of.description}


def _attribute(owner: str, spec: AttributeSpec, found: Attribute, present: Present) -> Iterator[SchemaChange]:
    config = portable_config(found, present.slugs) or {}
    fixed = _differences(
        {"type": spec.type, "isRequired": spec.is_required, "isUnique": spec.is_unique, "isList": spec.is_list}
        | {f"config.{key}": value for key, value in (spec.config or {}).items()},
        {
            "type": found.type,
            "isRequired": bool(found.is_required),
            "isUnique": bool(found.is_unique),
            "isList": bool(found.is_list),
        }
        | {f"config.{key}": value for key, value in config.items()},
    )
    if fixed:
        reason = "only the name of an attribute can be changed: delete it and apply again, or write down what the service has"
        yield SchemaChange(ChangeAction.CONFLICT, owner, spec.slug, fixed, reason)
    elif named := _differences({"name": spec.name}, {"name": found.name}):
        yield SchemaChange(ChangeAction.UPDATE, owner, spec.slug, named)


def _differences(wanted: dict[str, Any], present: dict[str, Any]) -> dict[str, list[Any]]:
    """What the file says and the service has otherwise; what the file leaves out is as the service has it."""
    return {key: [present.get(key), value] for key, value in wanted.items() if value is not None and value != present.get(key)}
