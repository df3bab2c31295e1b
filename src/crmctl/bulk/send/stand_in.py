"""Who stands in for the service of a job where its batches are not sent as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from crmctl.bulk.send.context import ImportService
from crmctl.client.http.attempt_observer import BatchObserver
from crmctl.models import jsontext
from crmctl.models.records import BulkResult


class StandIn(ABC):
    """Every other call is the service's."""

    service: ImportService

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)

    def bulk_write(
        self, object_id: str, records: Sequence[Mapping[str, Any] | bytes], *, mode: str = "", watch: BatchObserver | None = None
    ) -> BulkResult:
        """Do for these rows what the job does instead."""
        rows = [jsontext.loads(record) if isinstance(record, bytes) else record for record in records]
        return self.write_rows(object_id, rows, watch)

    @abstractmethod
    def write_rows(self, object_id: str, rows: Sequence[Mapping[str, Any]], watch: BatchObserver | None) -> BulkResult:
        """The same for rows that are read. Raises what its requests raise."""
