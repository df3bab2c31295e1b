"""The schema document, and how it is read from a service."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, ValidationError, field_validator

from crmctl.errors import NotFoundError, RejectedError, ServiceError, UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, Object
from crmctl.values import yaml_text
from crmctl.values.object_spec import TARGET, AttributeSpec, ObjectSpec, SpecPart, problems_of, unique_slugs

if TYPE_CHECKING:
    from crmctl.client.crm import Crm

VERSION = 1
OTHER_SECTIONS = ("members", "reports", "workflows", "webhooks")
"""Sections of a definitions file that are not about the schema."""

_HINT = "crmctl schema pull -o yaml shows the form"


class SchemaDocument(SpecPart):
    version: int = VERSION
    objects: Annotated[list[ObjectSpec], AfterValidator(unique_slugs)]

    @field_validator("version")
    @classmethod
    def _known(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"this crmctl reads version {VERSION}")
        return version

    def wire(self) -> Json:
        """Return the JSON form without empty keys."""
        return self.model_dump(by_alias=True, exclude_none=True)


def read_schema(content: bytes, name: str) -> SchemaDocument:
    """Parse a file's bytes, JSON or YAML. Raises UsageError if it is neither, RejectedError if it is not a schema."""
    try:
        text = content.decode("utf-8-sig")
        value = jsontext.loads(text) if text.lstrip().startswith("{") else yaml_text.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is neither JSON nor YAML: {reason(error)}", hint=_HINT) from error
    if not isinstance(value, Mapping):
        raise RejectedError(f"{name} holds no schema: it must be an object with `objects`", hint=_HINT)
    try:
        return SchemaDocument.model_validate({name: part for name, part in value.items() if name not in OTHER_SECTIONS})
    except ValidationError as error:
        problems = problems_of(error, value)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        message = f"{name}: {problems[0]['place']}: {problems[0]['problem']}{more}"
        raise RejectedError(message, hint=_HINT, code="invalid_schema", details=problems) from error


@frozen
class Present:
    """The objects of a service by slug, and the attributes by slug of those that were read."""

    objects: Mapping[str, Object]
    attributes: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)

    @property
    def slugs(self) -> dict[str, str]:
        return {crm_object.id.lower(): slug for slug, crm_object in self.objects.items()}


def read_service(service: Crm, slugs: Collection[str] | None = None) -> Present:
    """Read the service's objects, and the attributes of those in `slugs` or of all: one request for the list and one per object."""
    objects = {crm_object.slug or crm_object.id: crm_object for crm_object in service.list_objects()}
    chosen = [slug for slug in objects if slugs is None or slug in slugs]
    return Present(
        objects, {slug: {attribute.slug: attribute for attribute in service.list_attributes(objects[slug].id)} for slug in chosen}
    )


def to_document(present: Present, ids: Sequence[str] = ()) -> SchemaDocument:
    """Return the schema of the objects in `ids` (slugs or ids), or of all.

    Raises NotFoundError for an unknown object, ServiceError for an attribute without its config.
    """
    chosen = [text if text in present.objects else present.slugs.get(text.lower(), "") for text in ids]
    if "" in chosen:
        listing = f"objects: {', '.join(sorted(present.objects))}"
        raise NotFoundError(f"there is no object {ids[chosen.index('')]!r}", hint=listing)
    return SchemaDocument(objects=[_object(present, slug) for slug in dict.fromkeys(chosen or present.objects)])


def _object(present: Present, slug: str) -> ObjectSpec:
    crm_object = present.objects[slug]
    return ObjectSpec(
        slug=slug,
        type=crm_object.type,
        singular_name=crm_object.singular_name,
        plural_name=crm_object.plural_name,
        description=crm_object.description or None,
        attributes=[_attribute(slug, attribute, present.slugs) for attribute in present.attributes[slug].values()],
    )


def _attribute(owner: str, attribute: Attribute, slugs: Mapping[str, str]) -> AttributeSpec:
    try:
        return AttributeSpec(
            slug=attribute.slug,
            name=attribute.name,
            type=attribute.type or "text",
            is_required=bool(attribute.is_required),
            is_unique=bool(attribute.is_unique),
            is_list=bool(attribute.is_list),
            config=portable_config(attribute, slugs),
        )
    except ValidationError as error:
        problem = problems_of(error, {})[0]["problem"]
        message = f"the service describes the attribute {owner}.{attribute.slug} incompletely: {problem}"
        raise ServiceError(message, code="unreadable_answer", hint="crmctl schema pull OBJECT... pulls other objects") from error


def portable_config(attribute: Attribute, slugs: Mapping[str, str]) -> Json | None:
    """Return an attribute's `config` with the slug of its target instead of the id; an unlisted object keeps its id."""
    config = dict(attribute.config or {})
    if target := config.pop("allowed_object_id", None):
        config[TARGET] = slugs.get(str(target).lower(), str(target))
    if "options" in config:
        config["options"] = attribute.options
    return config or None
