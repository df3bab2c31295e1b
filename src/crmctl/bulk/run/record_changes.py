"""What rows would change in records that are known: their values made whole, what they overwrite, whether anything is another. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crmctl.bulk.findings import Finding
from crmctl.bulk.match.keys import is_unchanged
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.before_images import before_image
from crmctl.bulk.run.part_merges import finding_of_merge
from crmctl.bulk.run.plan import PlannedInput
from crmctl.bulk.run.row_actions import RowAction
from crmctl.errors import RejectedError
from crmctl.models.attributes import Attribute
from crmctl.models.composites import Merger
from crmctl.models.records import BULK_LIMIT, Record

SAMPLES = 5
"""How many changed records a question shows."""

Find = Callable[[str], Record | None]
"""The record of an id, None where there is none."""


class ValueChange(NamedTuple):
    """What one row does: `sent` are its values as they are sent, `before` what they overwrite, `whole` those it said parts of. `finding`:
    why it is not sent."""

    ordinal: int
    action: RowAction
    record: Record | None = None
    sent: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    whole: Mapping[str, Any] | None = None
    finding: Finding | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON form of a change that is to be made."""
        after = {slug: value for slug, value in self.sent.items() if slug in self.before}
        return {"id": self.record.id if self.record is not None else None, "before": dict(self.before), "after": after}


@dataclass(frozen=True)
class Changing:
    """How rows are compared with the records they name by id."""

    attributes: Mapping[str, Attribute]
    merger: Merger

    @classmethod
    def of(cls, planned: PlannedInput) -> Changing:
        return cls({attribute.slug: attribute for attribute in planned.attributes}, planned.merger)

    def changes(self, rows: Iterable[Payload], find: Find) -> Iterator[ValueChange]:
        """What each valid row does."""
        return (self._change(row, find(row.id or "")) for row in rows)

    def _change(self, row: Payload, record: Record | None) -> ValueChange:
        if record is None:
            return _refused(row, Finding("no_record", "there is no such record").on("id", row.id))
        try:
            whole = self.merger.merge_all(row.parts, record.data) if row.parts else None
        except RejectedError as error:
            return _refused(row, finding_of_merge(error))
        sent = row.data | (whole or {})
        if is_unchanged(sent, record.data, self.attributes):
            return ValueChange(row.ordinal, RowAction.UNCHANGED, record)
        return ValueChange(row.ordinal, RowAction.UPDATE, record, sent, before_image(sent, record.data), whole)


@dataclass
class ChangeForecast:
    """What a change of many records would do: `rows` are looked at, `changes` of them get another value, `unchanged` hold it already,
    `rejected` cannot be written. `samples` are the first changes, `attributes` say how their values are shown."""

    object: str
    attributes: Sequence[Attribute] = ()
    rows: int = 0
    changes: int = 0
    unchanged: int = 0
    rejected: int = 0
    samples: list[ValueChange] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """How many requests write it, at least."""
        return -(-self.changes // BULK_LIMIT)

    def add(self, change: ValueChange) -> None:
        self.rows += 1
        self.changes += change.action is RowAction.UPDATE
        self.unchanged += change.action is RowAction.UNCHANGED
        self.rejected += change.action is RowAction.REJECT
        if change.action is RowAction.UPDATE and len(self.samples) < SAMPLES:
            self.samples.append(change)


def _refused(row: Payload, why: Finding) -> ValueChange:
    return ValueChange(row.ordinal, RowAction.REJECT, finding=why.at(row.ordinal, row.first_line, row.last_line))
