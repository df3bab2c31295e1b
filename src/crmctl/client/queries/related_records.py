"""Records that references name, each read once: one by one, or the whole object where that takes fewer requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crmctl.client.paging import iterate
from crmctl.client.queries.query_context import QueryContext, ReadingCost, RecordLists
from crmctl.errors import NotFoundError
from crmctl.models.records import PAGE_LIMIT, Record

FEW = 2
"""So few are asked for without looking how many there are."""


class RelatedRecords:
    """The records of one object. `expected`: how many references there will be in all, where that is known.

    `most`: so many requests may be made at most; more are not made, and what is not known by then stays unknown. Where the mirror
    is read instead, what it does not hold is asked for.
    """

    def __init__(self, context: QueryContext, target: str, slug: str, *, expected: int = 0, most: int | None = None) -> None:
        self._context = context
        self._target = target
        self._slug = slug
        self._expected = expected
        self._most = most
        self._found: dict[str, Record | None] = {}
        self._total: int | None = None
        self._has_looked = False
        self._mirror: RecordLists | None = None
        self.left_out = 0
        """How many requests were not made because of `most`."""

    def expect(self, count: int) -> None:
        """So many references there will be in all."""
        self._expected = count

    def __getitem__(self, record_id: str) -> Record | None:
        return self._found.get(record_id)

    def read(self, ids: Collection[str]) -> None:
        """Get to know these records, as far as they are there. Raises what a request raises."""
        self._take_copies(ids)
        missing = self._missing(ids)
        if len(missing) > FEW and not self._has_looked:
            self._look()
            missing = self._missing(ids)
        if not missing:
            return
        cost, as_a_whole = self._cost(missing)
        if self._is_at_hand(cost):
            self._take_copies(missing)
            missing = self._missing(ids)
            cost, as_a_whole = len(missing), False
        if self._most is not None and cost > self._most:
            self.left_out += cost
            return
        if cost > FEW:
            self._context.approve(ReadingCost(cost, f"looking up {self._slug}"))
        if self._most is not None:
            self._most -= cost
        if as_a_whole:
            self._read_all()
        for one in self._missing(ids):
            self._found[one] = self._get(self._context.crm, one)

    def _cost(self, missing: Sequence[str]) -> tuple[int, bool]:
        """The requests it takes, and whether they read the whole object."""
        pages = -(-((self._total or 0) - PAGE_LIMIT) // PAGE_LIMIT) if self._total is not None else None
        as_a_whole = pages is not None and pages <= max(len(missing), min(self._expected, self._total or 0) - PAGE_LIMIT)
        return pages if as_a_whole and pages is not None else len(missing), as_a_whole

    def _is_at_hand(self, cost: int) -> bool:
        """Whether the mirror has them at hand, for the first time, instead of so many requests."""
        if self._mirror is None and cost > (FEW if self._most is None else self._most):
            asks = self._context.at_hand if self._most is None else self._context.named_at_hand
            self._mirror = asks(ReadingCost(cost, self._slug, self._target))
            return self._mirror is not None
        return False

    def _take_copies(self, ids: Collection[str]) -> None:
        if self._mirror is not None:
            found = {one: self._get(self._mirror, one) for one in self._missing(ids)}
            self._found |= {one: record for one, record in found.items() if record is not None}

    def _missing(self, ids: Collection[str]) -> list[str]:
        return [one for one in dict.fromkeys(ids) if one not in self._found]

    def _look(self) -> None:
        """The newest ones, and how many there are."""
        page = self._context.crm.list_records(self._target, limit=PAGE_LIMIT)
        self._has_looked, self._total = True, page.total
        self._found |= {record.id.lower(): record for record in page.items}

    def _read_all(self) -> None:
        for page in iterate(
            lambda limit, offset: self._context.crm.list_records(self._target, limit=limit, offset=offset), offset=PAGE_LIMIT
        ):
            self._found |= {record.id.lower(): record for record in page.items}

    def _get(self, lists: RecordLists, record_id: str) -> Record | None:
        try:
            return lists.get_record(self._target, record_id)
        except NotFoundError:
            return None
