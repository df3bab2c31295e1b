"""The steps of `records edit` besides its one row: what it overwrites is kept, it is written over what was shown only, and the text it
came from is there until it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.before_images import before_image
from crmctl.bulk.run.context import ImportRun
from crmctl.bulk.run.job_hooks import JobHooks
from crmctl.bulk.run.plan import file_digest
from crmctl.bulk.send.context import ImportService
from crmctl.bulk.send.edited_record import Editing
from crmctl.bulk.send.update_replay_check import MERGED
from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, UsageError

TEXT = "edited text"
"""The journal's fact: where the text is that was edited, and what it was when it was sent."""


def keep_text(journal: Journal, path: Path) -> None:
    """Until the record is written, the job knows where the text is."""
    journal.remember(TEXT, [str(path.absolute()), file_digest(path, str(path))[0]])


def kept_text(journal: Journal) -> str | None:
    """Where the text of an edit still is."""
    path, _ = journal.recall(TEXT) or ("", "")
    return f"your text is in {path}" if path and Path(path).is_file() else None


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

    def after_rows(self, run: ImportRun) -> CrmctlError | None:
        path, sha256 = self.job.journal.recall(TEXT) or ("", "")
        if path and self.job.journal.counts()[RowState.UPDATED]:
            try:
                if file_digest(Path(path), path)[0] == sha256:  # nobody has gone on with it
                    Path(path).unlink(missing_ok=True)
            except (UsageError, OSError):
                pass
        return super().after_rows(run)
