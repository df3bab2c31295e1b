"""Updates that were sent long ago: what is there now says whether sending them again would overwrite somebody's newer edit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from crmctl.bulk.payloads.batches import Entry
from crmctl.bulk.records.reading import Reader
from crmctl.bulk.records.recognising import by_content
from crmctl.errors import NotFoundError

CLOCK_MARGIN = 60.0
"""So many seconds the service's clock may be off from ours."""


def compare(reader: Reader, entries: Sequence[Entry], sent_at: float) -> tuple[set[int], set[int]]:
    """Rows whose record holds what was sent, and rows that can be sent again since nobody touched the record. The rest was changed since.

    One request a row. `sent_at` in Unix seconds; raises what reading raises.
    """
    applied: set[int] = set()
    repeatable: set[int] = set()
    for entry in entries:
        try:
            record = reader.record(str(entry.id))
        except NotFoundError:
            repeatable.add(entry.ordinal)
            continue
        content = by_content([entry])
        if content.key(entry.data) == content.key(record.data):
            applied.add(entry.ordinal)
        elif (changed_at := _moment(record.updated_at)) is not None and changed_at < sent_at - CLOCK_MARGIN:
            repeatable.add(entry.ordinal)
    return applied, repeatable


def _moment(text: str | None) -> float | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
