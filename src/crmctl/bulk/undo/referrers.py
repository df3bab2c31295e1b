"""Records that refer to records which were deleted and created again: found by the old ids, and set to the new ones. Can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

from crmctl.bulk.match.key_lookups import PAGE_STEP
from crmctl.bulk.match.reference_questions import ReferenceQuestions, asks
from crmctl.bulk.match.reference_values import moved_references
from crmctl.bulk.read.counted_reads import CountedReads, ReadService
from crmctl.bulk.read.full_scan import ScanStatistics, scan
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import Listing
from crmctl.bulk.run.rows_to_send import chunks
from crmctl.bulk.send.context import Writer
from crmctl.bulk.undo.recreate import Recreated
from crmctl.errors import DeniedError
from crmctl.models.attributes import Attribute
from crmctl.models.records import BULK_LIMIT, PAGE_LIMIT, Record

NAMED = 5
Referring = Mapping[str, Sequence[Attribute]]
"""Reference attributes by the id of the object that has them."""


class ReferrerService(ReadService, Writer, Protocol):
    """The calls of the client that find such records and write them."""


def reading_price(service: ReadService, referring: Referring, count: int) -> int:
    """About how many requests it takes to find what refers to so many records; one for each object to find that out. Raises what the calls
    raise, but for a key that may not read an object."""
    requests = 0
    for object_id, attributes in referring.items():
        with suppress(DeniedError):
            total = service.list_records(object_id, sort="updated_at", order="desc", limit=1).total or 0
            slugs = [one.slug for one in attributes]
            requests += 1 + (len(slugs) * (count + 1) if asks(slugs, range(count), 0, total) else -(-total // PAGE_STEP) + 1)
    return requests


def link_referrers(service: ReferrerService, referring: Referring, new: Mapping[str, str], done: Recreated) -> None:
    """Set the references that name an old id. Raises what the calls raise, but for refusals of single records, which are counted, and a key
    that may not do it, which is noted."""
    reads = CountedReads(service)
    try:
        for object_id, attributes in referring.items() if new else ():
            changed = ({"id": record.id, "data": data} for record, data in _referrers(reads, object_id, attributes, new))
            for chunk in chunks(list(changed), BULK_LIMIT):  # all are found before one is written: the lists that are read do not move
                done.requests += 1
                failed = service.bulk_write(object_id, chunk, mode="upsert").failed
                done.references += len(chunk) - len(failed)
                named = done.unreferenced
                done.unreferenced += len(failed)
                for one in failed[: max(0, NAMED - named)]:
                    done.notes.append(f"record {chunk[one.index]['id']} still refers to a record that is gone: {one.error}")
    except DeniedError as error:
        if error.status != 403:
            raise
        done.notes.append(f"references of other records stay as they are: {error.message}")
    finally:
        done.requests += reads.requests


def _referrers(
    reads: CountedReads, object_id: str, attributes: Sequence[Attribute], new: Mapping[str, str]
) -> Iterator[tuple[Record, dict[str, Any]]]:
    """Each record that holds an old id, with its references as they are to be."""
    with SeenIds() as seen:
        for record in _candidates(reads, object_id, attributes, list(new)):
            data = moved_references({one.slug: record.data.get(one.slug) for one in attributes}, new)
            if data and record.id.lower() not in seen:
                seen.add(record.id.lower())
                yield record, data


def _candidates(reads: CountedReads, object_id: str, attributes: Sequence[Attribute], old: Sequence[str]) -> Iterator[Record]:
    """The records that may name an old id: asked for, where that is fewer requests and the service shows that it heeds it, else all."""
    newest = reads.list_records(object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
    slugs, named = [one.slug for one in attributes], _Named()
    if asks(slugs, old, 0, newest.total) and ReferenceQuestions(reads, object_id, newest).ask(slugs, old, named):
        yield from named.records
        return
    with SeenIds() as seen:
        yield from chain.from_iterable(scan(reads, Listing(object_id), seen, ScanStatistics()))


class _Named:
    """Records that answers have shown."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def see(self, records: Iterable[Record], /) -> None:
        self.records += records
