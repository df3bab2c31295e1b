"""The steps of `bulk delete` besides its rows: before the first record goes, all of them are in a file that is whole and on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crmctl.bulk.atomic_file import whole_bytes
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.read.known_records import KnownRecords, read_known
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.context import ImportRun
from crmctl.bulk.run.job_hooks import JobHooks
from crmctl.bulk.run.rows_to_send import chunks
from crmctl.bulk.send.context import ImportService
from crmctl.bulk.send.deletion import Deleting
from crmctl.client.crm import Crm
from crmctl.errors import CrmctlError, StorageError, UsageError, reason
from crmctl.models import jsontext
from crmctl.models.records import Record

BACKUP_NAME = "backup.jsonl"
PLACE = "backup to"
"""The journal's fact: where the backup goes; None for no backup."""

BACKUP = "backup"
"""The journal's fact: where the backup is, and its SHA-256."""

SEEN = "records seen"
"""The journal's fact: every record was there a moment before."""


class KeptRecords(NamedTuple):
    """A complete backup."""

    path: Path
    sha256: str

    @classmethod
    def of(cls, journal: Journal) -> KeptRecords | None:
        found = journal.recall(BACKUP)
        return cls(Path(found["path"]), found["sha256"]) if found else None

    def records(self) -> Iterator[Record]:
        """Every record in it. Raises UsageError when it is not there, or not what was written."""
        digest = hashlib.sha256()
        try:
            with self.path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() != self.sha256:
                raise UsageError(f"the backup {self.path} is not what was written", hint="put it back as it was", code="backup_changed")
            with self.path.open("rb") as file:
                yield from (Record.parse(jsontext.loads(line)) for line in file)
        except OSError as error:
            raise UsageError(f"cannot read the backup {self.path}: {reason(error)}", hint="put it back", code="backup_gone") from error


@dataclass(frozen=True)
class DeleteHooks(JobHooks):
    """`known`: the records as they were just read; without them they are read anew, as when a job goes on."""

    known: KnownRecords | None = None

    def service_of(self, service: Crm) -> ImportService:
        return Deleting(service, lambda: bool(self.job.journal.recall(SEEN)))

    def approve(self, run: ImportRun, entries: Iterable[Entry]) -> CrmctlError | None:
        journal = self.job.journal
        place = journal.recall(PLACE)
        if place is None and self.known is None:
            return None
        reader = run.reader()
        try:
            with ExitStack() as stack:
                known = self.known or stack.enter_context(read_known(reader, self._ids(), run.progress))
                if place is not None:
                    self._write(journal, Path(place), known)
                self._leave_out(journal, known)
        except CrmctlError as failure:
            return failure
        journal.remember(SEEN, True)
        return None

    def _write(self, journal: Journal, place: Path, known: KnownRecords) -> None:
        digest = hashlib.sha256()
        try:
            with whole_bytes(place, mode=0o600) as file:
                for record in known:
                    line = f"{jsontext.dumps(record.wire)}\n".encode()
                    digest.update(line)
                    file.write(line)
        except StorageError as error:
            message = f"the backup cannot be written, nothing was deleted: {error.message}"
            raise StorageError(message, code=error.code, hint=error.hint) from error
        journal.remember(BACKUP, {"path": str(place.absolute()), "sha256": digest.hexdigest()})

    def _leave_out(self, journal: Journal, known: KnownRecords) -> None:
        for chunk in chunks(self._valid()):
            absent = [row for row in chunk if known.get(row.id or "") is None]
            journal.conclude((row.ordinal, RowState.SKIPPED, row.id, "there is no such record") for row in absent)

    def _ids(self) -> Iterator[str]:
        rows: Iterator[Payload] = self._valid()
        return (row.id for row in rows if row.id is not None)
