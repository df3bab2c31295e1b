"""Which records refer to a few others: asked for by filter, where a service shows that it heeds one. Writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.match.key_lookups import PAGE_STEP, RecordSink
from crmctl.bulk.read.sorted_lists import SMALLEST_PAGE
from crmctl.client.record_lists import Lister
from crmctl.client.shapes import Page
from crmctl.errors import NotFoundError, RejectedError, ServiceError
from crmctl.models.filters import Condition, Operator
from crmctl.models.records import PAGE_LIMIT, Record


def reference_ids(value: Any) -> Iterator[str]:
    """The ids, in lower case, that a reference value names."""
    if isinstance(value, str):
        yield value.lower()
    elif isinstance(value, Mapping):
        yield from reference_ids(value.get("id"))
    elif isinstance(value, list):
        for one in value:
            yield from reference_ids(one)


def asks(slugs: Collection[str], ids: Collection[Any], others: int, total: int | None) -> bool:
    """Whether a question for every id and attribute, one more for each attribute, and `others` are fewer requests than reading all."""
    return total is not None and len(slugs) * (len(ids) + 1) + others < -(-total // PAGE_STEP) + 2


@dataclass(frozen=True)
class ReferenceQuestions:
    """Questions about the records of one object. `newest`: those that changed last; one of them has to be found in the same way."""

    lister: Lister
    object_id: str
    newest: Page[Record]

    def ask(self, slugs: Collection[str], ids: Collection[str], sink: RecordSink) -> bool:
        """Let the sink see all records whose reference attributes name one of `ids`. False where an answer does not show that it is all of
        them: then nobody knows more than before."""
        for slug in slugs:
            sample = _sample(self.newest, slug)
            if sample is None:
                return False
            record, there = sample
            control = self._answer(slug, there.swapcase())
            if control is None or all(one.id != record.id for one in control.items):
                return False
            for record_id in ids:
                page = self._answer(slug, record_id)
                if page is None or not (len(page.items) < SMALLEST_PAGE or page.total == len(page.items)):
                    return False
                sink.see(page.items)
        return True

    def _answer(self, slug: str, record_id: str) -> Page[Record] | None:
        """The records that name one id, the oldest first: of a service that makes pages first and heeds conditions then, the sample, which
        is young, is not among them. None where something else comes."""
        conditions = (Condition(slug, Operator.EQUALS, record_id),)
        try:
            page = self.lister.list_records(self.object_id, filters=conditions, sort="created_at", order="asc", limit=PAGE_LIMIT)
        except (RejectedError, NotFoundError, ServiceError):
            return None
        return page if all(record_id.lower() in reference_ids(record.data.get(slug)) for record in page.items) else None


def _sample(newest: Page[Record], slug: str) -> tuple[Record, str] | None:
    """A record and the id it names, one that few others name; None where there is none, and for lists of references."""
    named = [(record, value) for record in newest.items if (value := record.data.get(slug)) is not None]
    if any(isinstance(value, list) for _, value in named):
        return None
    pairs = [(record, one) for record, value in named for one in reference_ids(value) if one != one.upper()]
    often = Counter(one for _, one in pairs)
    return min(pairs, key=lambda pair: often[pair[1]], default=None)
