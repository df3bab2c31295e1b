"""One sorted list of an object's records, read a page at a time: what is asked for, the keys of its order, where a page lies in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crmctl.client.record_lists import Lister
from crmctl.errors import ServiceError
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import micros_of, micros_of_date

SMALLEST_PAGE = 20
"""A page of fewer records is the end of a list of unknown length: no service cuts pages shorter than its smallest default."""


class NoProgress(ServiceError):
    """Pages bring nothing new although the list goes on. `is_deaf`: it was shown that every offset gives the same page."""

    def __init__(self, *, is_deaf: bool = False) -> None:
        super().__init__(
            "the service sends the same records again and again: it does not heed `offset`"
            if is_deaf
            else "the records cannot be read completely: the list changes while it is read",
            code="no_progress",
            hint=None if is_deaf else "others may be writing; try again when they are done",
            retryable=not is_deaf,
        )


class Unsorted(Exception):
    """A page does not come in the order that was asked for."""


@dataclass
class PassStatistics:
    """What reading took. `walks`: readings of groups that do not fit a page; `unstable`: groups never known to be complete; `date`: when
    the service answered last, by its own clock, in microseconds."""

    requests: int = 0
    walks: int = 0
    unstable: int = 0
    date: int | None = None


@dataclass(frozen=True)
class Listing:
    """What is listed, by `created_at` or `updated_at`. Reading may end at a record older than `until` (microseconds); without `by_time`
    records count as one group, in whatever order they come."""

    object_id: str
    conditions: Sequence[Condition] = ()
    field: str = "created_at"
    descending: bool = False
    until: int | None = None
    by_time: bool = True

    def key(self, record: Record) -> int | None:
        """Ascending along the list; None for a record without a readable time."""
        if not self.by_time:
            return 0
        micros = micros_of(record.created_at if self.field == "created_at" else record.updated_at)
        return -micros if micros is not None and self.descending else micros

    def is_beyond(self, key: int) -> bool:
        return self.until is not None and key > -self.until


@dataclass(frozen=True)
class Slice:
    """One page: records with their keys, where it begins, whether the list ends with it, and how long the list is said to be."""

    rows: list[Record]
    keys: list[int]
    offset: int
    is_last: bool
    total: int | None

    @property
    def end(self) -> int:
        return self.offset + len(self.rows)


class SliceReader:
    """Fetches slices of one listing."""

    def __init__(self, lister: Lister, listing: Listing, statistics: PassStatistics) -> None:
        self._lister = lister
        self._listing = listing
        self._statistics = statistics
        self._size = SMALLEST_PAGE

    def fetch(self, offset: int, base: str | None = None) -> Slice:
        """The page at `offset`, counted from the first record created at `base` or later. Raises Unsorted."""
        listing = self._listing
        since = [Condition("created_at", Operator.GREATER_THAN_OR_EQUAL, base)] if base is not None else []
        self._statistics.requests += 1
        page = self._lister.list_records(
            listing.object_id,
            filters=[*listing.conditions, *since],
            sort=listing.field,
            order="desc" if listing.descending else "asc",
            limit=PAGE_LIMIT,
            offset=offset,
        )
        self._statistics.date = micros_of_date(page.date)
        rows = page.items
        keys = [key for row in rows if (key := listing.key(row)) is not None]
        if len(keys) < len(rows) or keys != sorted(keys):
            raise Unsorted
        is_last = len(rows) < self._size if page.total is None else offset + len(rows) >= page.total
        self._size = max(self._size, len(rows))
        return Slice(rows, keys, offset, is_last, page.total)

    def is_deaf(self, page: Slice, base: str | None = None) -> bool:
        """Whether the service does not heed the offset: the beginning of the list is this page, and this page has not moved meanwhile.

        A list that others write to brings a page again as well, but not at two places at once.
        """
        if not page.offset or not page.rows:
            return False
        ids = [row.id for row in page.rows]
        return all([row.id for row in self.fetch(offset, base).rows] == ids for offset in (0, page.offset))
