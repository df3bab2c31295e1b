"""The records that changed last, read once for all who begin with a look at them: the forms of values, keys, what was there before."""

from __future__ import annotations

from dataclasses import dataclass

from crmctl.client.record_lists import Lister
from crmctl.client.shapes import Page
from crmctl.clock import Clock
from crmctl.models.records import PAGE_LIMIT, Record

STILL_NEW = 10.0
"""Seconds for which it says how things are."""


@dataclass(frozen=True)
class NewestPage:
    """A page, and when it was read."""

    page: Page[Record]
    read_at: float

    @classmethod
    def read(cls, lister: Lister, object_id: str, clock: Clock) -> NewestPage:
        """Raises what the call raises."""
        read_at = clock.monotonic()
        return cls(lister.list_records(object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT), read_at)

    def if_new(self, clock: Clock) -> Page[Record] | None:
        return self.page if clock.monotonic() - self.read_at <= STILL_NEW else None
