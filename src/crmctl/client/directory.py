"""Resolve slugs and names of objects, attributes, reports and workflows, with a short-lived cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, Unpack

from crmctl.client.answers import ListQuery, Page
from crmctl.client.crm import Crm
from crmctl.client.schema_cache import OBJECTS, SchemaCache
from crmctl.clock import Clock
from crmctl.errors import DeniedError, ForbiddenError, NotFoundError, UsageError
from crmctl.models.ids import did_you_mean, is_uuid, nearest
from crmctl.models.resources import Attribute, Object, Record

if TYPE_CHECKING:
    from crmctl.models.resources import Activity, Item

T = TypeVar("T")


class Directory:
    """Look up schema by slug or id. Methods raise what requests raise, and NotFoundError with the valid slugs for an unknown name."""

    def __init__(self, crm: Crm, cache_dir: Path, profile: str, origin: str, clock: Clock) -> None:
        self._crm = crm
        self._cache = SchemaCache(cache_dir, profile, origin, clock)

    def object_id(self, slug_or_id: str) -> str:
        """Return the id of an object; a UUID needs no look-up."""
        return slug_or_id if is_uuid(slug_or_id) else self.object(slug_or_id).id

    def object(self, slug_or_id: str) -> Object:
        """Return an active object by slug, or any object by id."""
        cached = self._cache.get(OBJECTS) or []
        crm_object = next((Object.parse(item) for item in cached if slug_or_id in (item.get("slug"), item.get("id"))), None)
        if crm_object is not None:
            return crm_object
        if is_uuid(slug_or_id):
            return self._crm.get_object(slug_or_id)[0]
        return find_object(slug_or_id, self.objects(refresh=True))

    def objects(self, *, refresh: bool = False) -> list[Object]:
        cached = None if refresh else self._cache.get(OBJECTS)
        if cached is not None:
            return [Object.parse(item) for item in cached]
        objects = self._crm.list_objects()
        self._cache.put(OBJECTS, [crm_object.wire for crm_object in objects])
        return objects

    def attributes(self, of: Object | str, *, refresh: bool = False) -> list[Attribute]:
        """Return the active attributes of an object in display order."""
        return self.with_object(of, lambda object_id: self._attributes(object_id, refresh=refresh))

    def every_attribute(self, of: Object | str) -> tuple[str, list[Attribute]]:
        """Return an object's id and its present attributes, with inactive ones."""
        return self.with_object(of, lambda object_id: (object_id, self._fetch_attributes(object_id, include_inactive=True)))

    def attribute(self, of: Object | str, slug_or_id: str) -> Attribute:
        """Return one attribute of an object, active or not."""
        object_id = of.id if isinstance(of, Object) else self.object_id(of)
        attributes = self.attributes(of)
        attribute = _find_attribute(slug_or_id, attributes)
        if attribute is None:
            attributes = self._crm.list_attributes(object_id, include_inactive=True)
            attribute = _find_attribute(slug_or_id, attributes)
            self.forget(object_id)  # it is newer than the cache, or inactive
        if attribute is None:
            raise _unknown("attribute", slug_or_id, [attribute.slug for attribute in attributes], f"crmctl attributes list {object_id}")
        return attribute

    def with_object(self, of: Object | str, use: Callable[[str], T]) -> T:
        """Return `use(object id)`. If a cached id gets a 404, look it up again and retry once."""
        object_id = of.id if isinstance(of, Object) else self.object_id(of)
        try:
            return use(object_id)
        except NotFoundError:
            slug = of.slug if isinstance(of, Object) else of
            self.forget()
            if not slug or is_uuid(slug):
                raise
            current = self.object(slug).id
            if current == object_id:
                raise
            return use(current)

    def forget(self, object_id: str | None = None) -> None:
        """Drop the cached attributes of one object, or the whole cache, after a schema change."""
        self._cache.forget(object_id)

    def _attributes(self, object_id: str, *, refresh: bool) -> list[Attribute]:
        cached = None if refresh else self._cache.get(object_id)
        return active_ones([Attribute.parse(item) for item in cached] if cached is not None else self._fetch_attributes(object_id))

    def _fetch_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        try:
            attributes = self._crm.list_attributes(object_id, include_inactive=include_inactive)
        except DeniedError:
            # a key without attributes:read may still see them inside the object
            inside = self._crm.get_object(object_id)[1]
            if inside is None:
                raise
            attributes = inside
        self._cache.put(object_id, [attribute.wire for attribute in active_ones(attributes)])
        return attributes


def active_ones(attributes: Sequence[Attribute]) -> list[Attribute]:
    """Return the active attributes in display order."""
    active = [attribute for attribute in attributes if attribute.is_active is not False]
    return sorted(active, key=lambda attribute: attribute.display_order if attribute.display_order is not None else len(active))


def find_object(slug_or_id: str, objects: Iterable[Object]) -> Object:
    """Return one of these objects. Raises NotFoundError with the valid slugs."""
    objects = list(objects)
    crm_object = next((crm_object for crm_object in objects if slug_or_id in (crm_object.slug, crm_object.id)), None)
    if crm_object is None:
        raise _unknown("object", slug_or_id, [crm_object.slug for crm_object in objects if crm_object.slug], "crmctl objects list")
    return crm_object


def _find_attribute(slug_or_id: str, attributes: list[Attribute]) -> Attribute | None:
    return next((attribute for attribute in attributes if slug_or_id in (attribute.slug, attribute.id)), None)


def _unknown(noun: str, name: str, slugs: list[str], command: str) -> NotFoundError:
    hint = did_you_mean(name, sorted(slugs))
    if not hint and slugs:
        shown = ", ".join(sorted(slugs)[:20])
        inactive = "; an inactive object is named by its id" if noun == "object" else ""
        hint = f"valid slugs: {shown}{', …' if len(slugs) > 20 else ''}{inactive}"
    elif not hint:
        hint = f"`{command}` shows what there is"
    return NotFoundError(f"there is no {noun} {name!r}", hint=hint, details={"valid": sorted(slugs)})


N = TypeVar("N", bound="Item")


def find_by_name(items: Sequence[N], kind: str, name: str) -> N:
    """Return the item of exactly this id or name. Raises UsageError that lists the ids of several, NotFoundError with similar names."""
    matches = [item for item in items if item.id == name] or [item for item in items if item.name == name]
    if len(matches) == 1:
        return matches[0]
    noun = kind.removesuffix("s")
    if matches:
        ids = [item.id for item in matches]
        raise UsageError(
            f"{len(ids)} {kind} have the name {name!r}: {', '.join(ids)}",
            hint=f"name the {noun} by its id",
            code="ambiguous_name",
            details={"ids": ids},
        )
    names = sorted({item.name for item in items if item.name})
    near = nearest(name, names) or next((candidate for candidate in names if name and name.casefold() in candidate.casefold()), None)
    hint = f"did you mean {near!r}?" if near is not None else f"crmctl {kind} list shows what there is"
    raise NotFoundError(f"there is no {noun} {name!r}", hint=hint, details={"valid": names})


SORTS = {"created_at": "created_at", "updated_at": "updated_at", "createdAt": "created_at", "updatedAt": "updated_at"}
"""Sort fields of the service, by the names people use."""


class SchemaLookup(Protocol):
    """Looks up objects by slug or id: a Directory, or the mirror."""

    def attributes(self, of: str) -> list[Attribute]: ...

    def with_object(self, of: str, use: Callable[[str], T]) -> T: ...


class Lister(Protocol):
    """Lists records: the service, the mirror, or a wrapper of either."""

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]: ...


class Getter(Lister, Protocol):
    """Lists records and reads each of them."""

    def get_record(self, object_id: str, record_id: str) -> Record: ...


class ReadService(Getter, Protocol):
    """The calls of `Crm` that read records and activities."""

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]: ...


def known_attributes(directory: SchemaLookup, object_name: str, tell: Callable[[str], None]) -> list[Attribute] | None:
    """Return the object's attributes; None, after telling `tell`, if the key may not read them."""
    try:
        return list(directory.attributes(object_name))
    except ForbiddenError as error:
        tell(f"the attributes of {object_name} are not known: {error.message}")
        return None
