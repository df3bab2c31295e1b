"""A job whose journal went back in time: the rows that may have been sent since are in doubt, and are read back before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Protocol

from crmctl.bulk.interrupts import Interrupt
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.rows.batches import Batch, Batcher, Entry
from crmctl.clock import Clock
from crmctl.models.records import BULK_LIMIT

FIRST_WINDOW = 2 * BULK_LIMIT
"""Where nobody knows how much was sent, so many of the rows to be sent next are looked for first: if none is there, no later one is."""

WIDER = 8
ROWS_AT_ONCE = 10_000
"""Rows that are looked for together: reading back takes as long for one as for many."""

CHUNK_ROWS = 500
TICK_SECONDS = 0.2


class ReadableRows(Protocol):
    """The valid rows of a job, in input order, from one of them on."""

    def since(self, ordinal: int) -> Iterator[Entry]: ...


@dataclass(frozen=True)
class LostRequests:
    """`settle`: seconds after which a request that is under way is carried out or never."""

    journal: Journal
    rows: ReadableRows
    settle: float
    clock: Clock
    interrupt: Interrupt
    note: Callable[[str], None]

    def parts(self) -> Iterator[int]:
        """The last row of each part that is to be settled, one after the other, before the rest of the rows may be sent.

        Raises StorageError where the journal is not whole.
        """
        lost = self.journal.lost_sends()
        if lost is None:
            return
        self.journal.check_integrity()
        if lost.sends:
            requests = f"{lost.sends:,} request{'s' if lost.sends > 1 else ''}"
            self.note(f"the journal of the job went back in time by {requests}: the rows are read back before anything is sent")
            self.journal.note("lost", f"{requests}, rows up to {lost.last}")
            self._wait(lost.at + self.settle)
            self.journal.doubt(_large_batches(takewhile(lambda entry: entry.ordinal <= lost.last, self._free())), lost)
            yield lost.last
        window = FIRST_WINDOW
        while not lost.is_all:
            doubts = self.journal.doubt(_large_batches(islice(self._free(), window)), lost._replace(sends=0))
            if not doubts:
                break
            yield doubts[-1].last
            if self.journal.were_absent(doubts):
                break
            window *= WIDER
        self.journal.trust()

    def _free(self) -> Iterator[Entry]:
        """The rows that the journal would have sent."""
        rows = self.rows.since(self.journal.first_open())
        while chunk := list(islice(rows, CHUNK_ROWS)):
            taken = self.journal.taken(chunk[0].ordinal, chunk[-1].ordinal)
            yield from (entry for entry in chunk if entry.ordinal not in taken)

    def _wait(self, until: float) -> None:
        while not self.interrupt.requested and (left := until - self.clock.now()) > 0:
            self.clock.sleep(min(TICK_SECONDS, left))


def _large_batches(rows: Iterable[Entry]) -> Iterator[Batch]:
    batcher = Batcher(ROWS_AT_ONCE, 1 << 62)
    yield from (batch for row in rows if (batch := batcher.feed(row)) is not None)
    if (last := batcher.flush()) is not None:
        yield last
