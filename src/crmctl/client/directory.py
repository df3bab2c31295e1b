"""Slugs and names to objects and attributes, by a short-lived cache and as few requests as possible. Knows no records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from crmctl.client.crm import Crm
from crmctl.client.schema_cache import OBJECTS, Items, SchemaCache
from crmctl.clock import Clock
from crmctl.errors import DeniedError, NotFoundError
from crmctl.models.attributes import Attribute
from crmctl.models.ids import is_uuid
from crmctl.models.nearest import did_you_mean
from crmctl.models.objects import Object

T = TypeVar("T")


class Directory:
    """Every look-up may raise what a request raises, and NotFoundError with the valid slugs for a name that is not there."""

    def __init__(self, crm: Crm, cache_dir: Path, profile: str, origin: str, clock: Clock) -> None:
        self._crm = crm
        self._cache = SchemaCache(cache_dir, profile, origin, clock)

    def object_id(self, slug_or_id: str) -> str:
        """The id of an object; a UUID is passed through without a look-up."""
        return slug_or_id if is_uuid(slug_or_id) else self.object(slug_or_id).id

    def object(self, slug_or_id: str) -> Object:
        """An active object by slug, or any object by id."""
        found = self._find_object(slug_or_id, self._cache.get(OBJECTS) or [])
        if found is not None:
            return found
        if is_uuid(slug_or_id):
            return self._crm.get_object(slug_or_id)[0]
        objects = self.objects(refresh=True)
        found = next((each for each in objects if each.slug == slug_or_id), None)
        if found is None:
            raise _unknown("object", slug_or_id, [each.slug for each in objects if each.slug], "crmctl objects list")
        return found

    def objects(self, *, refresh: bool = False) -> list[Object]:
        """The active objects."""
        cached = None if refresh else self._cache.get(OBJECTS)
        if cached is not None:
            return [Object.parse(item) for item in cached]
        objects = self._crm.list_objects()
        self._cache.put(OBJECTS, [each.wire for each in objects])
        return objects

    def attributes(self, of: Object | str, *, refresh: bool = False) -> list[Attribute]:
        """The active attributes of an object (given as such, by slug or by id) in display order."""
        return self.with_object(of, lambda object_id: self._attributes(object_id, refresh=refresh))

    def every_attribute(self, of: Object | str) -> tuple[str, list[Attribute]]:
        """An object's id and its attributes as they are now, inactive ones too."""
        return self.with_object(of, lambda object_id: (object_id, self._fetch_attributes(object_id, include_inactive=True)))

    def attribute(self, of: Object | str, slug_or_id: str) -> Attribute:
        """One attribute of an object, inactive ones included."""
        object_id = of.id if isinstance(of, Object) else self.object_id(of)
        known = self.attributes(of)
        found = _find_attribute(slug_or_id, known)
        if found is None:
            known = self._crm.list_attributes(object_id, include_inactive=True)
            found = _find_attribute(slug_or_id, known)
            self.forget(object_id)  # it is newer than what is kept, or inactive
        if found is None:
            raise _unknown("attribute", slug_or_id, [each.slug for each in known], f"crmctl attributes list {object_id}")
        return found

    def with_object(self, of: Object | str, use: Callable[[str], T]) -> T:
        """`use(object id)`. Where the id came from the cache and the service answers 404, it is looked up anew and tried once more."""
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
        """After a change of the schema: drop the attributes of one object, or everything."""
        self._cache.forget(object_id)

    def _attributes(self, object_id: str, *, refresh: bool) -> list[Attribute]:
        cached = None if refresh else self._cache.get(object_id)
        return active_ones([Attribute.parse(item) for item in cached] if cached is not None else self._fetch_attributes(object_id))

    def _fetch_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        try:
            attributes = self._crm.list_attributes(object_id, include_inactive=include_inactive)
        except DeniedError:
            # A key without attributes:read may still see them inside the object itself.
            inside = self._crm.get_object(object_id)[1]
            if inside is None:
                raise
            attributes = inside
        self._cache.put(object_id, [each.wire for each in active_ones(attributes)])
        return attributes

    @staticmethod
    def _find_object(slug_or_id: str, items: Items) -> Object | None:
        return next((Object.parse(item) for item in items if slug_or_id in (item.get("slug"), item.get("id"))), None)


def active_ones(attributes: Sequence[Attribute]) -> list[Attribute]:
    """The active attributes in display order."""
    active = [each for each in attributes if each.is_active is not False]
    return sorted(active, key=lambda each: each.display_order if each.display_order is not None else len(active))


def _find_attribute(slug_or_id: str, attributes: list[Attribute]) -> Attribute | None:
    return next((each for each in attributes if slug_or_id in (each.slug, each.id)), None)


def _unknown(noun: str, given: str, slugs: list[str], command: str) -> NotFoundError:
    hint = did_you_mean(given, sorted(slugs))
    if not hint and slugs:
        shown = ", ".join(sorted(slugs)[:20])
        hint = f"valid slugs: {shown}{', …' if len(slugs) > 20 else ''}"
    elif not hint:
        hint = f"`{command}` shows what there is"
    return NotFoundError(f"there is no {noun} {given!r}", hint=hint, details={"valid": sorted(slugs)})
