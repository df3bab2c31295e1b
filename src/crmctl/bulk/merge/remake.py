"""Losers are made again: each once, whatever becomes of answers. They get new ids; what they referred to, they refer to again."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crmctl.backoff import Backoff
from crmctl.bulk.dedupe.merge_plan import held
from crmctl.bulk.match.key_lookups import MARGIN
from crmctl.bulk.match.reference_values import as_sent, moved_references, replace_ids
from crmctl.bulk.merge.merge_journal import LostRecord
from crmctl.bulk.merge.step_sender import StepSender
from crmctl.bulk.merge.steps import MergeSchema
from crmctl.bulk.undo.update_status import alike
from crmctl.errors import CrmctlError, NotFoundError, RejectedError, ServiceError
from crmctl.models.attributes import AttributeType
from crmctl.models.records import PAGE_LIMIT, Record
from crmctl.models.timestamps import micros_of

SINCE = "undo since"
"""The fact of a job: when the newest record was created before an undo made its first one (microseconds of the service)."""

LOOKS = 5
"""How often a record that may have been made is looked for before it counts as not made, and the seconds between."""

GAPS = Backoff(first=1.0, longest=16.0, jitter=0.0)


@dataclass
class Remaker:
    """For one job. `without`: attributes that a loser could not get back, by its old id."""

    sender: StepSender
    schema: MergeSchema
    away: dict[str, str]
    without: dict[str, list[str]] = field(default_factory=dict)
    new: dict[str, str] = field(init=False)
    """The ids of losers that are there again, by the old ones in lower case."""

    def __post_init__(self) -> None:
        self.new = self.sender.journal.new_ids()

    def remake(self, lost: LostRecord, taken: frozenset[str] = frozenset()) -> str:
        """Make a loser again; its new id. Unique attributes of `taken`, which somebody else holds now, and references to what is deleted
        since are left out when the service refuses them. Raises RejectedError with the service's words, and what ends everything."""
        journal = self.sender.journal
        if lost.new_id is not None:
            return lost.new_id
        data = self.data(lost)
        self._remember_since()
        if lost.sent_at is not None and (found := self._find(data)) is not None:
            return self._made(lost, found)
        journal.asks_again(lost.id)
        try:
            return self._made(lost, self._create(data))
        except RejectedError:
            left = self._still_there({slug: value for slug, value in data.items() if slug not in taken})
            if left == data:
                raise
            again = self._find(left) if lost.sent_at is not None else None
            made = self._made(lost, again or self._create(left))
            self.without[lost.id] = sorted(slug for slug, value in data.items() if left.get(slug) != value)
            return made

    def _still_there(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The same without references to what is deleted."""
        found = dict(data)
        for slug, value in data.items():
            attribute = self.schema.attribute(slug)
            if attribute is None or attribute.type != AttributeType.REFERENCE or attribute.target_object_id is None:
                continue
            ids = value if isinstance(value, list) else [value]
            left = [one for one in ids if self._is_there(attribute.target_object_id, str(one))]
            if not left:
                del found[slug]
            elif len(left) < len(ids):
                found[slug] = left
        return found

    def _is_there(self, object_id: str, record_id: str) -> bool:
        self.sender.requests += 1
        try:
            self.sender.writer.get_record(object_id, record_id)
        except NotFoundError:
            return False
        return True

    def data(self, lost: LostRecord) -> dict[str, Any]:
        """What a loser held, as it is sent; who is not there yet stands in for itself: its survivor, until `relinked`."""
        return self._as_sent(lost.data, ChainMap(self.new, self.away))

    def relinked(self, lost: LostRecord) -> dict[str, Any]:
        """The references of a loser to other losers, which are there again now; empty where it has none."""
        own = self.schema.referring.get(self.schema.object_id, ())
        return moved_references({slug: lost.data[slug] for slug in own if slug in lost.data}, self.new)

    def _as_sent(self, data: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
        own = self.schema.referring.get(self.schema.object_id, ())
        sent = {slug: as_sent(self.schema.attribute(slug), value) for slug, value in held(data).items()}
        return {slug: replace_ids(value, ids) if slug in own else value for slug, value in sent.items()}

    def _made(self, lost: LostRecord, new_id: str) -> str:
        self.sender.journal.made_again(lost.id, new_id)
        self.new[lost.id] = new_id
        return new_id

    def _create(self, data: Mapping[str, Any]) -> str:
        """Raises RejectedError, and what ends everything."""
        self.sender.requests += 1
        try:
            made = self.sender.writer.create_record(self.schema.object_id, data)
            if made.id:
                return made.id
        except NotFoundError as error:
            raise RejectedError(error.message) from error
        except CrmctlError as error:
            if not error.outcome_unknown and not isinstance(error, ServiceError):
                raise
            failure: CrmctlError | None = error
        else:
            failure = None
        for look in range(1, LOOKS + 1):
            if (found := self._find(data)) is not None:
                return found
            self.sender.journal.clock.sleep(GAPS.gap(look))
        raise failure or ServiceError("the service does not show the record that it has made", code="not_shown")

    def _remember_since(self) -> None:
        journal = self.sender.journal
        if journal.recall(SINCE) is None:
            newest = self._page(0)
            journal.remember(SINCE, max((micros_of(record.created_at) or 0 for record in newest), default=0))

    def _find(self, data: Mapping[str, Any]) -> str | None:
        """A record that was created since, holds the same, and is nobody else's."""
        since = (self.sender.journal.recall(SINCE) or 0) - MARGIN
        known = {one.lower() for one in (*self.new.values(), *self.away, *self.away.values())}
        offset = 0
        while page := self._page(offset):
            for record in page:
                if record.id.lower() not in known and self._holds(record, data):
                    return record.id
            if (micros_of(page[-1].created_at) or 0) < since or len(page) < PAGE_LIMIT:
                return None
            offset += len(page) - 1
        return None

    def _holds(self, record: Record, data: Mapping[str, Any]) -> bool:
        there = self._as_sent(record.data, {})
        return set(there) == set(data) and all(alike(self.schema.attribute(slug), value, there[slug]) for slug, value in data.items())

    def _page(self, offset: int) -> list[Record]:
        self.sender.requests += 1
        page = self.sender.writer.list_records(self.schema.object_id, sort="created_at", order="desc", limit=PAGE_LIMIT, offset=offset)
        return page.items
