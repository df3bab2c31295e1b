"""Gathers payloads into batches by count and bytes. No I/O, no numbers, no states: feed and flush."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from crmctl.bulk.findings import Finding
from crmctl.bulk.rows.markers import Marker
from crmctl.client.http.session import encode_json
from crmctl.models import jsontext
from crmctl.models.records import BULK_LIMIT

DEFAULT_BYTES = 1_000_000
"""Most bytes of encoded records in one request; a single larger record goes alone."""


class SendableRow(Protocol):
    """A validated row, ready to be sent: its place in the input, the record's data, and the record's id where one is given."""

    @property
    def ordinal(self) -> int: ...
    @property
    def data(self) -> dict[str, Any]: ...
    @property
    def id(self) -> str | None: ...


class Entry(NamedTuple):
    """One row of a batch: its ordinal, the record as the bulk call takes it, as JSON, and the record's id where it is sent.

    It is a validated row without findings, too, of which nobody needs more.
    """

    ordinal: int
    encoded: bytes
    id: str | None = None

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = jsontext.loads(self.encoded)["data"]
        return data

    @property
    def findings(self) -> Sequence[Finding]:
        return ()


@dataclass(frozen=True)
class Batch:
    """At most 100 records in input order, to be sent in one request."""

    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def ordinals(self) -> list[int]:
        return [entry.ordinal for entry in self.entries]

    @cached_property
    def records(self) -> list[bytes]:
        return [entry.encoded for entry in self.entries]

    @cached_property
    def size(self) -> int:
        """Bytes of the encoded records."""
        return sum(len(entry.encoded) for entry in self.entries)

    @cached_property
    def digest(self) -> bytes:
        """Fingerprint of what is sent, without saying it."""
        return hashlib.blake2b(b"\n".join(self.records), digest_size=16).digest()

    def halves(self) -> tuple[Batch, Batch]:
        middle = len(self.entries) // 2
        return Batch(self.entries[:middle]), Batch(self.entries[middle:])


def entry_of(row: SendableRow, *, with_id: bool, marker: Marker | None = None, target: str | None = None) -> Entry:
    """The record of a row as the bulk call takes it; `with_id` is for upserts, a create sends no id. A new record gets its marker.
    `target` is the id of a row that has none of its own."""
    entry = row if isinstance(row, Entry) else Entry(row.ordinal, b'{"data":%s}' % encode_json(row.data))
    encoded = entry.encoded
    if with_id and (record_id := row.id or target):
        return Entry(row.ordinal, b'%s,"id":%s}' % (encoded[:-1], encode_json(record_id)), record_id)
    if marker is not None:
        mark = encode_json({marker.slug: marker.text(row.ordinal)})
        comma = b"" if encoded.endswith(b"{}}") else b","
        return Entry(row.ordinal, b"%s%s%s}" % (encoded[:-2], comma, mark[1:]))
    return entry


class Batcher:
    """Feed entries in order; a full batch comes out as soon as the next entry does not fit."""

    def __init__(self, max_rows: int = BULK_LIMIT, max_bytes: int = DEFAULT_BYTES) -> None:
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self._entries: list[Entry] = []
        self._size = 0

    def feed(self, entry: Entry) -> Batch | None:
        """Take one entry; returns the batch before it when that is complete."""
        entries, size = self._entries, len(entry[1])
        if entries and (len(entries) >= self.max_rows or self._size + size > self.max_bytes):
            full = self.flush()
            self._entries, self._size = [entry], size
            return full
        entries.append(entry)
        self._size += size
        return None

    def batches(self, entries: Iterable[Entry]) -> Iterator[Batch]:
        """All of them, and what is left at the end."""
        yield from (batch for entry in entries if (batch := self.feed(entry)) is not None)
        if (last := self.flush()) is not None:
            yield last

    def flush(self) -> Batch | None:
        """What is left, or None."""
        batch = Batch(tuple(self._entries)) if self._entries else None
        self._entries, self._size = [], 0
        return batch
