"""What questions about records need from outside: the service, its schema, the time, and somebody who hears what is said about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.client.record_lists import Getter
from crmctl.client.shapes import Page
from crmctl.errors import UsageError
from crmctl.models.filters import Condition
from crmctl.models.records import Record


class ReadingCost(NamedTuple):
    """Requests that a question takes beyond those that show its answer, and what for; `of`: the object whose records they read."""

    requests: int
    purpose: str
    of: str = ""


class RecordLists(Getter, Protocol):
    """Who is asked for records: the service, or the mirror."""

    def search_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]: ...


def _nothing(*_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class QueryContext:
    """`approve` hears of a cost before it arises, and raises to avoid it. `at_hand` gives the mirror to read an object from
    instead, where it may be read and has it; `named_at_hand` the same for names that nobody asked for. `warn` hears of what may be a
    mistake, `tell` of details."""

    crm: Crm
    directory: Directory
    now: float
    approve: Callable[[ReadingCost], None] = _nothing
    at_hand: Callable[[ReadingCost], RecordLists | None] = _nothing
    named_at_hand: Callable[[ReadingCost], RecordLists | None] = _nothing
    warn: Callable[[str], None] = _nothing
    tell: Callable[[str], None] = _nothing
    strict: bool = False

    def agree(self, cost: ReadingCost) -> RecordLists | None:
        """The mirror where it has the records at hand, else None once the cost is agreed to. Raises what `approve` raises."""
        mirror = self.at_hand(cost)
        if mirror is None:
            self.approve(cost)
        return mirror

    def doubt(self, text: str, hint: str | None = None) -> None:
        """Say that a condition can meet nothing. Raises UsageError where that is an error."""
        if self.strict:
            raise UsageError(text, hint=hint, code="impossible_value")
        self.warn(f"{text}; {hint}" if hint else text)
