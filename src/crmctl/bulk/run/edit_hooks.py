"""The steps of `records edit` besides its one row: what it overwrites is kept, and it is written over what was shown only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.before_images import before_image
from crmctl.bulk.run.context import ImportRun
from crmctl.bulk.run.job_hooks import JobHooks
from crmctl.bulk.send.context import ImportService
from crmctl.bulk.send.edited_record import Editing
from crmctl.bulk.send.update_replay_check import MERGED
from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError


@dataclass(frozen=True)
class EditHooks(JobHooks):
    """`editing` writes the row."""

    editing: Editing

    def service_of(self, service: Crm) -> ImportService:
        return self.editing

    def approve(self, run: ImportRun, entries: Iterable[Entry]) -> CrmctlError | None:
        journal = self.job.journal
        journal.remember(MERGED, True)  # never repeated without a look
        if self.job.input.merged is not None:
            return super().approve(run, entries)
        journal.keep_before((entry.ordinal, before_image(entry.data, self.editing.shown.data)) for entry in entries)
        return None
