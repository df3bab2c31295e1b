"""What updates overwrite, kept in the journal so that an undo can put it back. By key it is known anyway; by id it is read first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import AwaitedRecords
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.send.context import SendContext

Later = Callable[[int], Collection[str]]
"""The attributes that a row gets only after it was written."""


def nothing_later(_: int) -> Collection[str]:
    return ()


class BeforeImages(StrEnum):
    """Whether what updates overwrite is kept. `auto`: where it costs no request, which is by key."""

    AUTO = "auto"
    YES = "yes"
    NO = "no"


def before_image(sent: Mapping[str, Any], current: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
    """What a record holds in the attributes that `sent` would change, and in those written `later`; None where it holds nothing."""
    changed = {slug: current.get(slug) for slug, value in sent.items() if current.get(slug) != value}
    return changed | {slug: current.get(slug) for slug in later if slug not in sent}


def must_be_read(wish: str, mode: str, keys: Sequence[str]) -> bool:
    """Whether the records have to be read for it before anything is sent."""
    return wish == BeforeImages.YES and mode != "create" and not keys


def read_before(run: SendContext, reader: Reader, entries: Iterable[Entry], later: Later = nothing_later) -> None:
    """Read what the rows with an id will overwrite, also by what is written `later`. Can be repeated; raises what reading raises.

    Of a record that is not there nothing is kept: its row will be refused.
    """
    with AwaitedRecords() as awaited:
        for entry in entries:
            if entry.id is not None:
                awaited.add(entry.id, (entry.ordinal, entry.data))
        run.progress.start("reading", len(awaited))
        try:
            for page in awaited.pages(reader):
                run.journal.keep_before((ordinal, before_image(data, record.data, later(ordinal))) for (ordinal, data), record in page)
                run.progress.advance(len(page))
        finally:
            run.progress.finish()
