"""Rows of a job that are just like others, and what its journal says of them already: which records are theirs, and which are too many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import MAY_BE_THERE
from crmctl.bulk.match.record_match import Known, Twins
from crmctl.bulk.rows.batches import Entry

Alike = Callable[[Collection[str]], Mapping[str, Iterable[int]]]
"""For some keys, the ordinals of the other rows of the job that have them."""


def known(journal: Journal, entries: Sequence[Entry], alike: Alike) -> Known:
    """What was told before about the records that may be these rows, in input order."""
    rows = journal.rows(entries[0].ordinal, entries[-1].ordinal) if entries else {}
    names = {entry.ordinal: name for entry in entries if (row := rows.get(entry.ordinal)) and (name := row.record_id) is not None}
    return Known(lambda keys: {key: _twins(journal, rows) for key, rows in alike(keys).items()}, names, further_records(journal))


def further_records(journal: Journal) -> frozenset[str]:
    """Records that rows have beyond their own."""
    return frozenset(record_id for ids in journal.duplicates().values() for record_id in ids)


def _twins(journal: Journal, ordinals: Iterable[int]) -> Twins:
    entries = (journal.rows(ordinal, ordinal).get(ordinal) for ordinal in ordinals)
    there = [entry.record_id for entry in entries if entry is not None and entry.state in MAY_BE_THERE]
    return Twins(frozenset(name for name in there if name is not None), there.count(None))
