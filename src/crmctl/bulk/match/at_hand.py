"""Records that are at hand, as a mirror has them: where they may be looked for before the service is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from crmctl.models.records import Record


class RecordStock(NamedTuple):
    """All records of an object without asking for them: `requests` it took to know that, `as_of`: up to which moment they are known."""

    pages: Iterable[Sequence[Record]]
    requests: int
    as_of: int


class AtHand(Protocol):
    """Where records may be at hand; `slugs` are the attributes that are looked at, None: all."""

    def __call__(self, object_id: str, slugs: Collection[str] | None, /) -> RecordStock | None: ...


def nothing_at_hand(_: str, __: Collection[str] | None) -> RecordStock | None:
    return None
