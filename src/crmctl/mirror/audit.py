"""One page of the oldest-first list compared with the mirror at every sync, another one each time: what changes without a sign shows."""

from __future__ import annotations

from crmctl.bulk.export.passes import UNEVEN
from crmctl.bulk.read.counted_reads import CountedReads
from crmctl.bulk.read.sorted_lists import Listing, PassStatistics, Slice, SliceReader, Unsorted
from crmctl.errors import RejectedError
from crmctl.mirror.changes import CannotProve, ChangesRead
from crmctl.mirror.columns import wire_text
from crmctl.mirror.object_table import ObjectTable
from crmctl.models.timestamps import micros_of


def compare_page(lister: CountedReads, object_id: str, table: ObjectTable, offset: int, read: ChangesRead) -> int:
    """Compare the page at `offset`; where the next one begins. Raises CannotProve where a record is another than the mirror has, though
    its time of change is the same, or is unknown though it is old; what requests raise."""
    if read.is_whole or not table.count():
        return 0
    try:
        page = SliceReader(lister, Listing(object_id), PassStatistics()).fetch(offset if offset < table.count() else 0)
    except (Unsorted, RejectedError):
        return 0
    return compare(page, table, read)


def compare(page: Slice, table: ObjectTable, read: ChangesRead) -> int:
    """The same for a page that was read just after these changes."""
    for record in page.rows:
        known, changed = table.known(record.id), micros_of(record.updated_at) or 0
        if known is None:
            if changed < read.mark.since:
                raise CannotProve("a record is there whose creation was never seen")
        elif known.wire != wire_text(record.wire):
            if changed <= known.updated:
                raise CannotProve("a record has changed without its time of change")
            if changed < read.mark.as_of - UNEVEN:
                raise CannotProve("a record has changed and was not listed among the changes")
    return 0 if page.is_last else page.end
