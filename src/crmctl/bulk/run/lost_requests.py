"""A job whose journal went back in time: the rows that may have been sent since are in doubt, and are read back before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from crmctl.bulk.rows.batches import Batcher, Entry
from crmctl.bulk.send.context import Rows, SendContext
from crmctl.models.records import BULK_LIMIT

FIRST_WINDOW = 2 * BULK_LIMIT
"""Where nobody knows how much was sent, so many of the rows to be sent next are looked for first: if none is there, no later one is."""

WIDER = 8
ROWS_AT_ONCE = 10_000
"""Rows that are looked for together: reading back takes as long for one as for many."""

CHUNK_ROWS = 500
TICK_SECONDS = 0.2


@dataclass(frozen=True)
class LostRequests:
    """`note` hears what the user should know."""

    context: SendContext
    rows: Rows
    note: Callable[[str], None]

    def parts(self) -> Iterator[int]:
        """The last row of each part that is to be settled, one after the other, before the rest of the rows may be sent.

        Raises StorageError where the journal is not whole.
        """
        lost = self.context.journal.lost_sends()
        if lost is None:
            return
        self.context.journal.check_integrity()
        if lost.sends:
            requests = f"{lost.sends:,} request{'s' if lost.sends > 1 else ''}"
            self.note(f"the journal of the job went back in time by {requests}: the rows are read back before anything is sent")
            self.context.journal.note("lost", f"{requests}, rows up to {lost.last}")
            self._wait(lost.at + self.context.options.settle)
            self.context.journal.doubt(_large_batcher().batches(takewhile(lambda entry: entry.ordinal <= lost.last, self._free())), lost)
            yield lost.last
        window = FIRST_WINDOW
        while not lost.is_all:
            doubts = self.context.journal.doubt(_large_batcher().batches(islice(self._free(), window)), lost._replace(sends=0))
            if not doubts:
                break
            yield doubts[-1].last
            if self.context.journal.were_absent(doubts):
                break
            window *= WIDER
        self.context.journal.trust()

    def _free(self) -> Iterator[Entry]:
        """The rows that the journal would have sent."""
        rows = self.rows.since(self.context.journal.first_open())
        while chunk := list(islice(rows, CHUNK_ROWS)):
            taken = self.context.journal.taken(chunk[0].ordinal, chunk[-1].ordinal)
            yield from (entry for entry in chunk if entry.ordinal not in taken)

    def _wait(self, until: float) -> None:
        while not self.context.interrupt.requested and (left := until - self.context.clock.now()) > 0:
            self.context.clock.sleep(min(TICK_SECONDS, left))


def _large_batcher() -> Batcher:
    return Batcher(ROWS_AT_ONCE, 1 << 62)
