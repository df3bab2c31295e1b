"""Updates that were sent long ago: what is there now says whether sending them again would overwrite somebody's newer edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from crmctl.bulk.match.record_match import by_content
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.rows.batches import Entry
from crmctl.errors import NotFoundError
from crmctl.models.records import Record
from crmctl.models.timestamps import seconds_of

NOTHING_KEPT: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
CLOCK_MARGIN = 60.0
"""So many seconds the service's clock may be off from ours."""


MERGED = "parts were merged"
"""The journal's fact: rows hold what their records held, besides what they say themselves. They are never repeated without a look."""


def compare(
    reader: Reader, entries: Sequence[Entry], sent_at: float, before: Mapping[int, Mapping[str, Any]] = NOTHING_KEPT
) -> tuple[set[int], set[int]]:
    """Rows whose record holds what was sent, and rows that can be sent again since nobody touched the record: it is older than the request,
    or still holds what it held `before`. The rest was changed since.

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
        elif _is_as_before(entry, before.get(entry.ordinal), record.data) or _is_older(record, sent_at):
            repeatable.add(entry.ordinal)
    return applied, repeatable


def _is_as_before(entry: Entry, image: Mapping[str, Any] | None, current: Mapping[str, Any]) -> bool:
    """Whether what a row overwrites is there as it was read before the row was sent."""
    return image is not None and all(current.get(slug) == image.get(slug, value) for slug, value in entry.data.items())


def _is_older(record: Record, sent_at: float) -> bool:
    changed_at = seconds_of(record.updated_at)
    return changed_at is not None and changed_at < sent_at - CLOCK_MARGIN
