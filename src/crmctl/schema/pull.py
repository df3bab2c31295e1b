"""What a service has now: its active objects with their attributes, and the same as a document without ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crmctl.errors import NotFoundError
from crmctl.models.attributes import Attribute
from crmctl.models.objects import Object
from crmctl.schema.document import TARGET, AttributeSpec, ObjectSpec, SchemaDocument


class SchemaService(Protocol):
    """The calls of the client that reading needs."""

    def list_objects(self) -> list[Object]: ...
    def list_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]: ...


@dataclass(frozen=True)
class Present:
    """The objects of a service by slug, and the attributes, by slug, of those that were asked about."""

    objects: Mapping[str, Object]
    attributes: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)

    @property
    def slugs(self) -> dict[str, str]:
        """Object ids to slugs."""
        return {found.id.lower(): slug for slug, found in self.objects.items()}


def read_service(service: SchemaService, wanted: Collection[str] | None = None) -> Present:
    """The service's objects; attributes of those in `wanted` that exist, of all without it. One request an object, and one for the list."""
    objects = {found.slug or found.id: found for found in service.list_objects()}
    asked = [slug for slug in objects if wanted is None or slug in wanted]
    return Present(objects, {slug: {one.slug: one for one in service.list_attributes(objects[slug].id)} for slug in asked})


def to_document(present: Present, wanted: Sequence[str] = ()) -> SchemaDocument:
    """The schema of the objects in `wanted` (slugs or ids), of all of them without. Raises NotFoundError for one that is not there."""
    chosen = [_slug_of(present, text) for text in wanted] or list(present.objects)
    return SchemaDocument(objects=[_object(present, slug) for slug in dict.fromkeys(chosen)])


def _slug_of(present: Present, text: str) -> str:
    slug = text if text in present.objects else present.slugs.get(text.lower())
    if slug is None:
        raise NotFoundError(f"there is no object {text!r}", hint=f"objects: {', '.join(sorted(present.objects))}")
    return slug


def _object(present: Present, slug: str) -> ObjectSpec:
    found = present.objects[slug]
    return ObjectSpec(
        slug=slug,
        type=found.type,
        singular_name=found.singular_name,
        plural_name=found.plural_name,
        description=found.description,
        attributes=[_attribute(attribute, present.slugs) for attribute in present.attributes[slug].values()],
    )


def _attribute(attribute: Attribute, slugs: Mapping[str, str]) -> AttributeSpec:
    return AttributeSpec(
        slug=attribute.slug,
        name=attribute.name,
        type=attribute.type or "text",
        is_required=bool(attribute.is_required),
        is_unique=bool(attribute.is_unique),
        is_list=bool(attribute.is_list),
        config=portable_config(attribute, slugs),
    )


def portable_config(attribute: Attribute, slugs: Mapping[str, str]) -> dict[str, Any] | None:
    """An attribute's `config` with the slug of its target instead of the id; an object nobody lists stays an id."""
    config = dict(attribute.config or {})
    if target := config.pop("allowed_object_id", None):
        config[TARGET] = slugs.get(str(target).lower(), str(target))
    if "options" in config:
        config["options"] = attribute.options
    return config or None
