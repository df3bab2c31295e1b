"""Every record of an object, read completely while others write: oldest first, and the end of the list checked from the other side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import Listing, NoProgress, PassStatistics, Unsorted
from crmctl.bulk.read.stable_pages import AnchoredPass, Position
from crmctl.client.record_lists import Lister
from crmctl.errors import CrmctlError, RejectedError, ServiceError
from crmctl.models.records import PAGE_LIMIT, Record

__all__ = ["ScanStatistics", "Sweep", "scan"]


@dataclass
class ScanStatistics(PassStatistics):
    """`repeated` counts records that came more than once."""

    repeated: int = 0


@dataclass
class SweepState:
    """How far a sweep is. `closing`: where the pass from the newest record is, once it has begun; `by_time`: pages come sorted;
    `rows` counts what came."""

    position: Position
    closing: Position | None = None
    by_time: bool = True
    rows: int = 0

    def to_document(self) -> dict[str, Any]:
        closing = self.closing.to_document() if self.closing else None
        return {"position": self.position.to_document(), "closing": closing, "by_time": self.by_time, "rows": self.rows}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        closing = Position.from_document(document["closing"]) if document["closing"] else None
        return cls(Position.from_document(document["position"]), closing, document["by_time"], document["rows"])


class Sweep:
    """One complete reading. While a page of `pages` is in hand, `state` is where to go on after it."""

    def __init__(
        self,
        lister: Lister,
        wanted: Listing,
        statistics: PassStatistics,
        state: SweepState | None = None,
    ) -> None:
        self.state = state or SweepState(Position())
        self._lister = lister
        self._wanted = wanted
        self._statistics = statistics

    def pages(self) -> Iterator[list[Record]]:
        """Every page; records repeat where pages overlap. What was deleted meanwhile may be among them.

        Raises ServiceError `no_progress` when `offset` is not heeded, `offset_capped` when the service lists only so many records deep.
        """
        failure: CrmctlError | None = None
        if self.state.closing is None:
            try:
                yield from self._forwards()
            except (NoProgress, RejectedError) as error:
                if self.state.position.key is None or not self.state.by_time:
                    raise
                failure = error
        # A list that was cut at a certain depth looks like one that has ended: what is newest must join what was read.
        if self.state.by_time and (failure or self.state.closing or self.state.rows >= PAGE_LIMIT):
            yield from self._backwards(failure)

    def _forwards(self) -> Iterator[list[Record]]:
        try:
            yield from self._run(AnchoredPass(self._lister, self._listing(), self._statistics, self.state.position))
        except Unsorted:
            if not self.state.by_time:
                raise
            # One group in an order of its own is all that can be said of this list.
            self.state = SweepState(Position(), by_time=False)
            yield from self._run(AnchoredPass(self._lister, self._listing(), self._statistics, self.state.position))

    def _backwards(self, failure: CrmctlError | None) -> Iterator[list[Record]]:
        mark = self.state.position
        if mark.key is None:
            return
        self.state.closing = self.state.closing or Position(rebases=False)
        listing = replace(self._wanted, descending=True, until=mark.key + 1)
        closing = AnchoredPass(self._lister, listing, self._statistics, self.state.closing)
        try:
            yield from self._run(closing)
        except (NoProgress, RejectedError) as error:
            raise _capped(failure or error) from error
        if not closing.is_beyond and closing.position.key is not None:
            raise _capped(failure)

    def _run(self, reading: AnchoredPass) -> Iterator[list[Record]]:
        for rows in reading.pages():
            self.state.rows += len(rows)
            yield rows

    def _listing(self) -> Listing:
        return replace(self._wanted, by_time=self.state.by_time)


def scan(lister: Lister, wanted: Listing, seen: SeenIds, statistics: ScanStatistics) -> Iterator[list[Record]]:
    """Every matching record that exists from beginning to end of the scan, once, in pages; ids go to `seen`. Raises as a sweep does."""
    for rows in Sweep(lister, wanted, statistics).pages():
        new = [row for row in rows if seen.add(row.id)]
        statistics.repeated += len(rows) - len(new)
        if new:
            yield new


def _capped(failure: CrmctlError | None) -> ServiceError:
    if not isinstance(failure, RejectedError):
        return failure if isinstance(failure, NoProgress) else NoProgress()
    return ServiceError(
        f"the service does not list all of its records, from neither end: {failure.message}",
        code="offset_capped",
        hint="--filter reads a part that it does list",
    )
