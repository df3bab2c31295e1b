"""One record that somebody edited: written over the version that was compared with what they were shown, and over no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.send.stand_in import StandIn
from crmctl.client.crm import Crm
from crmctl.client.http.attempt_observer import AttemptObserver, BatchObserver
from crmctl.errors import CrmctlError, RejectedError, ServiceError
from crmctl.models.records import BulkResult, Record

CHANGED = 412
"""The status of a write whose version is no longer there."""


@dataclass
class Editing(StandIn):
    """Of a job whose one row was edited: what would be sent as a batch is one PATCH, where the record still is as it was `shown`.
    `written` is the record as it was answered, `error` why it was not written."""

    service: Crm
    object: str
    shown: Record
    written: Record | None = None
    error: CrmctlError | None = None

    def write_rows(self, object_id: str, rows: Sequence[Mapping[str, Any]], watch: BatchObserver | None) -> BulkResult:
        """Write the one record. Raises RejectedError where somebody has changed it."""
        if self.error is not None and (self.error.retryable or self.error.status is None):
            raise CrmctlError(self.error.message) from self.error  # it was not carried out, and was repeated often enough
        if watch is not None:
            watch.sending()  # from here on the journal takes the outcome, a refusal without a write too
        try:
            self.written = self.write(object_id, rows[0]["data"], watch)
        except CrmctlError as error:
            self.error = error
            if isinstance(error, ServiceError) and not error.outcome_unknown:
                raise CrmctlError(error.message) from error  # of the comparison: nothing was written, and nothing is in doubt
            raise
        return BulkResult(updated=1)

    def write(self, object_id: str, data: Mapping[str, Any], watch: AttemptObserver | None = None) -> Record:
        """Compare and write; the record as it is then."""
        now, version = self.service.get_version(object_id, self.shown.id)
        self._refuse_changed(now, "nothing was sent")
        try:
            return self.service.update_record(object_id, self.shown.id, data, version=version, watch=watch)
        except RejectedError as error:
            if error.status != CHANGED or version is None:
                raise
            now, _ = self.service.get_version(object_id, self.shown.id)
            if all(now.data.get(slug) == value for slug, value in data.items()):
                return now  # written by a try whose answer was lost
            self._refuse_changed(now, "the record does not hold all that you wrote")
            raise

    def _refuse_changed(self, now: Record, outcome: str) -> None:
        """Raises RejectedError when somebody changed the record while it was edited."""
        shown = self.shown
        changed = [slug for slug in {**shown.data, **now.data} if shown.data.get(slug) != now.data.get(slug)]
        if changed or shown.updated_at != now.updated_at:
            what = f": {', '.join(changed)}" if changed else ""
            raise RejectedError(
                f"the record was changed by somebody while you edited it{what}; {outcome}",
                hint=f"crmctl records edit {self.object} {shown.id} shows it as it is now",
                code="changed_meanwhile",
            )
