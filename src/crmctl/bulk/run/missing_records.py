"""Updates by id that the service refused because there is no such record: where only updates are wanted such rows are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from crmctl.bulk.findings import Finding, Severity
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.row_actions import NO_RECORD

CHUNK_ROWS = 500
NOT_THERE = "no record has this id"

MOST_READS = 1_000
"""So many refused rows are looked at; of more the service's own words stay."""


def skip_missing(journal: Journal, reader: Reader, payloads: Iterable[Payload], report: Callable[[Finding], None]) -> None:
    """Look at the records of refused rows, and skip the rows whose record is not there. Raises what reading raises."""
    if not 0 < journal.counts()[RowState.FAILED] <= MOST_READS:
        return
    refused: list[Payload] = []
    rows = iter(payloads)
    while chunk := list(islice(rows, CHUNK_ROWS)):
        known = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
        refused += [row for row in chunk if (entry := known.get(row.ordinal)) is not None and entry.state is RowState.FAILED and row.id]
    there: set[str] = set()
    with SeenIds() as wanted:
        for row in refused:
            wanted.add(str(row.id).lower())
        for page in fetch(reader, wanted):
            there.update(record.id.lower() for record in page)
    missing = [row for row in refused if str(row.id).lower() not in there]
    for row in missing:
        finding = Finding(NO_RECORD, f"skipped: {NOT_THERE}", hint="it was deleted, or belongs elsewhere", severity=Severity.WARNING)
        report(finding.at(row.ordinal, row.first_line, row.last_line).on("id", row.id))
    journal.release(row.ordinal for row in missing)
    journal.conclude((row.ordinal, RowState.SKIPPED, None, NOT_THERE) for row in missing)
