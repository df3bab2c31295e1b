"""Lists of records as people ask for them: what is known of an object's attributes, and how many records there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from crmctl.client.directory import Directory
from crmctl.client.shapes import Page
from crmctl.errors import DeniedError
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record

if TYPE_CHECKING:
    from crmctl.models.filters import Condition

SORTS = {"created_at": "created_at", "updated_at": "updated_at", "createdAt": "created_at", "updatedAt": "updated_at"}
"""What the service sorts records by, as people may call it."""

SHIFTED = "the list changed while its pages were read: something may be missing"


class Lister(Protocol):
    """Who lists records: the service, the mirror, or who counts what is asked."""

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]: ...


class Getter(Lister, Protocol):
    """Who lists records, and has each of them."""

    def get_record(self, object_id: str, record_id: str) -> Record: ...


def known_attributes(directory: Directory, object_name: str, tell: Callable[[str], None]) -> list[Attribute] | None:
    """The object's attributes, or None when the key may not read them, of which `tell` hears."""
    try:
        return list(directory.attributes(object_name))
    except DeniedError as error:
        if error.status != 403:
            raise
        tell(f"the attributes of {object_name} are not known: {error.message}")
        return None
