"""What the rows of a job wrote in the end: their own data, and the links between rows that a second pass set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from crmctl.bulk.journal.journal import FILE_NAME, Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run import links
from crmctl.bulk.run.import_run import rows_of
from crmctl.bulk.run.job_start import ImportJob
from crmctl.client.http.session import encode_json
from crmctl.clock import Clock


def written_rows(job: ImportJob, clock: Clock) -> Callable[[], Iterator[Entry]]:
    """Reads all valid rows anew, each with everything that was written of it."""
    again, references = rows_of(job.journal, job.input.to_send), job.input.references
    folder = job.journal.folder / links.FOLDER
    if references is None or not (folder / FILE_NAME).exists():
        return again

    def linked() -> Iterator[Entry]:
        with closing(Journal(folder, clock)) as phase:
            pending = links.second_writes(references, job.journal)
            link = next(pending, None)
            for entry in again():
                while link is not None and link.ordinal < entry.ordinal:
                    link = next(pending, None)
                yield _merged(entry, link, phase) if link is not None and link.ordinal == entry.ordinal else entry

    return linked


def _merged(entry: Entry, link: Entry, phase: Journal) -> Entry:
    row = phase.rows(link.ordinal, link.ordinal).get(link.ordinal)
    if row is None or row.state is not RowState.UPDATED:
        return entry
    data = {**entry.data, **link.data}
    return entry._replace(encoded=encode_json({"data": data, "id": entry.id} if entry.id else {"data": data}))
