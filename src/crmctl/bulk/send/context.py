"""What every part of one sending needs: whom to ask, what remembers it, how it is done, and when to stop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from crmctl.bulk.interrupts import Interrupt
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.rows.batches import DEFAULT_BYTES, Entry
from crmctl.client.http.attempt_observer import BatchObserver
from crmctl.client.record_lists import Getter
from crmctl.clock import Clock
from crmctl.models.records import BULK_LIMIT, BulkResult

if TYPE_CHECKING:
    from crmctl.bulk.read.newest_page import NewestPage

SETTLE_SECONDS = 120.0
"""How long after its sending a row that is not found may still appear."""


class Writer(Protocol):
    """The bulk call of the client."""

    def bulk_write(
        self,
        object_id: str,
        records: Sequence[Mapping[str, Any] | bytes],
        *,
        mode: str = "create",
        watch: BatchObserver | None = None,
    ) -> BulkResult: ...


class ImportService(Writer, Getter, Protocol):
    """The calls of the client that an import makes."""


class Rows(Protocol):
    """The valid rows of a job as they are sent, in input order, from one of them on; any number of times."""

    def since(self, ordinal: int) -> Iterator[Entry]: ...


@dataclass(frozen=True)
class DeliveryOptions:
    """`max_failures`: stop after so many refused rows. `doubt`: statuses below 500 after which a batch may still have been applied.

    `settle`: seconds for which rows in doubt are watched; `assume`: what they are when nobody can tell, `applied`, `lost`, or None: that is
    for the user to say. `capture_ids`: learn the ids of created records.
    """

    concurrency: int = 2
    max_rows: int = BULK_LIMIT
    max_bytes: int = DEFAULT_BYTES
    max_failures: int | None = None
    doubt: frozenset[int] = frozenset()
    settle: float = SETTLE_SECONDS
    assume: str | None = None
    capture_ids: bool = False


@dataclass(frozen=True)
class SendContext:
    """One run of sending what is in one journal."""

    service: ImportService
    journal: Journal
    options: DeliveryOptions
    clock: Clock
    progress: Progress
    interrupt: Interrupt = field(default_factory=Interrupt, kw_only=True)
    newest: NewestPage | None = field(default=None, kw_only=True)
    """The records that changed last, where they were read already."""

    def reader(self) -> Reader:
        """Reads the job's object, and stops waiting after an interrupt; counts its requests."""
        return Reader(self.service, self.journal.header.object_id, lambda: self.interrupt.requested)
