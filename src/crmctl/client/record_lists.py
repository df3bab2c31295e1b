"""Lists of records as people ask for them: what is known of an object's attributes, and how many records there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.client.paging import iterate
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


def count_records(crm: Crm, object_id: str, conditions: Sequence[Condition]) -> int:
    """The service's own total, else as many as its pages hold."""
    first = crm.list_records(object_id, filters=conditions, limit=1)
    if first.total is not None:
        return first.total
    return sum(1 for _ in oldest_first(crm, object_id, conditions))


def oldest_first(crm: Crm, object_id: str, conditions: Sequence[Condition]) -> Iterator[Record]:
    """Every record that meets the conditions, in the order in which they were created."""
    pages = iterate(lambda limit, offset: crm.list_records(object_id, filters=conditions, order="asc", limit=limit, offset=offset))
    return (record for page in pages for record in page.items)
