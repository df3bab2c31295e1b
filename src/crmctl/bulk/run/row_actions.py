"""What each row of an import by key does: update the one record that has its key, create one, or nothing because it says nothing new."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from crmctl.bulk.findings import Finding, Severity, shorten
from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.journal.summary import FEED_COUNTS
from crmctl.bulk.match.key_index import KeyIndex, Wanted
from crmctl.bulk.match.keys import KeyRule, is_unchanged, key_rule
from crmctl.bulk.progress import Progress
from crmctl.bulk.rows.mapping import Mode
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.before_images import before_image
from crmctl.bulk.run.feed import Feed, KeptValues
from crmctl.bulk.run.part_merges import MergedRows, finding_of_merge
from crmctl.bulk.run.plan import PlannedInput
from crmctl.bulk.run.three_way import Merge
from crmctl.client.record_lists import Lister
from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.composites import Merger

if TYPE_CHECKING:
    from crmctl.bulk.match.key_lookups import Lookup

CHUNK_ROWS = 500
NAMED_IDS = 5
AMBIGUOUS = "ambiguous_key"
CONFLICT = "conflict"
"""The code of a row that is rejected because somebody else changed what it would change."""

NO_RECORD = "no_record"
"""The code of a row that is left out since there is nothing to update."""

NO_ID = "the row has no id, so there is nothing to update"
AS_OF = "keys as of"
"""The journal's fact: up to which moment the keys of the service are known."""

SINCE = "keys first as of"
"""The same when they were looked up for the first time."""


class DuplicateKeys(StrEnum):
    """What becomes of rows that share a key: all but the first are wrong, or only the first, or the last, counts."""

    ERROR = "error"
    FIRST = "first"
    LAST = "last"


class RowAction(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    SKIP = "skip"
    REJECT = "reject"


class Resolution(NamedTuple):
    """What a row does: `record_id` for those that have a record, `before` what an update overwrites there, `whole` the values of which
    the row says parts. `finding` says why a row is rejected, `reason` why it is skipped; a skipped row that somebody should hear of has
    both."""

    ordinal: int
    action: RowAction
    record_id: str | None = None
    finding: Finding | None = None
    reason: str | None = None
    before: dict[str, Any] | None = None
    whole: dict[str, Any] | None = None
    merge: Merge | None = None
    """Of a feed: what is left out of the row, and why."""
    key: str | None = None


@dataclass(frozen=True)
class Resolver:
    """How rows find their records."""

    object_id: str
    rule: KeyRule
    attributes: Sequence[Attribute]
    duplicates: DuplicateKeys = DuplicateKeys.ERROR
    later: Callable[[int], Collection[str]] = lambda _: ()
    """The attributes that a row gets only later, so that its record cannot hold all of it."""
    merger: Merger = field(default_factory=Merger)
    merged: MergedRows | None = None
    creates: bool = True
    """Whether a row without a record makes one."""
    feed: Feed | None = None
    kept: KeptValues | None = None

    def lookup(self, lister: Lister, stop: Callable[[], bool], progress: Progress | None = None) -> Lookup:
        from crmctl.bulk.match.key_lookups import Lookup

        if progress is None:
            return Lookup(lister, self.object_id, stop)
        return Lookup(lister, self.object_id, stop, progress.advance, progress.note)

    def outcomes(self, index: KeyIndex) -> Iterator[tuple[Wanted, Resolution]]:
        """Each row of a filled index, in input order, and what it does."""
        known = {attribute.slug: attribute for attribute in self.attributes}
        for row in index.rows():
            outcome = self._outcome(row, index, known)
            if outcome.merge is not None:
                row = _reduced(row, outcome.merge)
            yield row if outcome.whole is None else row._replace(data=row.data | outcome.whole), outcome

    def resolve(self, journal: Journal, index: KeyIndex, lookup: Lookup, report: Callable[[Finding], None]) -> bool:
        """Write down what the rows of a filled index do; whether any was rejected. `report` hears why."""
        rejected = False
        outcomes = (outcome for _, outcome in self.outcomes(index))
        while chunk := list(islice(outcomes, CHUNK_ROWS)):
            rejected = self.write_down(journal, chunk, report) or rejected
        if self.kept is not None:
            journal.remember(FEED_COUNTS, self.kept.counts)
        journal.remember(AS_OF, lookup.as_of)
        if journal.recall(SINCE) is None:
            journal.remember(SINCE, lookup.as_of)
        return rejected

    def write_down(self, journal: Journal, outcomes: Sequence[Resolution], report: Callable[[Finding], None]) -> bool:
        """Keep outcomes in the journal, and what belongs to them beside it; whether any was a rejection."""
        if self.feed is not None and self.kept is not None:
            rows = [(one.ordinal, one.key or "", one.merge) for one in outcomes if one.merge is not None]
            self.feed.write_down(journal, self.kept, rows)
        return write_down(journal, outcomes, report, self.merged)

    def refresh(self, journal: Journal, index: KeyIndex, lookup: Lookup, unsettled: Iterable[Payload]) -> None:
        """Before a job goes on: rows that were to create a record which somebody else has created since update it."""
        index.want_all(payload for payload in unsettled if journal.target(payload.ordinal) is None)
        if not index.key_count:
            return
        lookup.as_of = journal.recall(AS_OF) or 0
        lookup.refresh(index)
        self.resolve(journal, index, lookup, lambda _: None)

    def _outcome(self, row: Wanted, index: KeyIndex, known: dict[str, Attribute]) -> Resolution:
        if row.key is None:
            return self._reject(row, Finding("blank_key", "the key is blank", hint="fill it, or leave the row out"))
        first = index.first(row.key)
        if self.duplicates is DuplicateKeys.LAST:
            if (last := index.last(row.key)).ordinal != row.ordinal:
                return Resolution(row.ordinal, RowAction.SKIP, reason=f"line {last.line} has the same {self.rule.label}")
        elif first.ordinal != row.ordinal:
            message = f"line {first.line} has the same {self.rule.label}"
            if self.duplicates is DuplicateKeys.FIRST:
                return Resolution(row.ordinal, RowAction.SKIP, reason=message)
            return self._reject(row, Finding("duplicate_key", message, hint="keep one of the rows, or --on-duplicate-key first|last"))
        found = index.found(row.key)
        if len(found) > 1:
            ids = ", ".join(record_id for record_id, _ in found[:NAMED_IDS]) + (", ..." if len(found) > NAMED_IDS else "")
            message = f"ambiguous: {len(found)} records have this {self.rule.label}: {ids}"
            return self._reject(row, Finding(AMBIGUOUS, message, hint="merge or delete the duplicates, or give a further --key"))
        merge = self.feed.merge(row, found[0][1] if found else None) if self.feed is not None else None
        if merge is not None and merge.failed:
            return self._conflict(row, merge)
        outcome = self._with_record(row if merge is None else _reduced(row, merge), found, known)
        return outcome._replace(merge=merge, key=row.key)

    def _with_record(self, row: Wanted, found: Sequence[tuple[str, dict[str, Any]]], known: dict[str, Attribute]) -> Resolution:
        try:
            whole = self.merger.merge_all(row.parts, found[0][1] if found else {}) if row.parts else None
        except RejectedError as error:
            return Resolution(row.ordinal, RowAction.REJECT, finding=finding_of_merge(error).at(row.ordinal, row.line, row.last_line))
        if not found and not self.creates:
            return self._leave_out(row)
        if not found:
            missing = self._missing(row.data)
            if missing is None:
                return Resolution(row.ordinal, RowAction.CREATE, whole=whole)
            message = f"{missing} is required for a new record, and no record has this {self.rule.label}"
            return self._reject(row, Finding("required_missing", message, hint=f"fill the cell, or give --set {missing}=VALUE"), missing)
        record_id, current = found[0]
        data, later = row.data | (whole or {}), self.later(row.ordinal)
        if is_unchanged(data, current, known) and not later:
            return Resolution(row.ordinal, RowAction.UNCHANGED, record_id, whole=whole)
        return Resolution(row.ordinal, RowAction.UPDATE, record_id, before=before_image(data, current, later), whole=whole)

    def _reject(self, row: Wanted, why: Finding, column: str | None = None) -> Resolution:
        finding = why.at(row.ordinal, row.line, row.last_line)
        value = ", ".join(str(row.data.get(slug) or "") for slug in self.rule.slugs)
        return Resolution(row.ordinal, RowAction.REJECT, finding=finding.on(column or self.rule.label, "" if column else value))

    def _conflict(self, row: Wanted, merge: Merge) -> Resolution:
        one = merge.failed[0]
        why = "both have changed since the last import" if one.base_known else "nobody knows what was imported last"
        message = f"conflict: the record says {shorten(_said(one.record))!r}, and {why}"
        hint = f"--on-conflict {one.unit.partition('.')[0]}=keep or take decides"
        finding = Finding(CONFLICT, message, hint=hint).at(row.ordinal, row.line, row.last_line).on(one.unit, _said(one.file))
        return Resolution(row.ordinal, RowAction.REJECT, finding=finding, merge=Merge(chosen=merge.chosen), key=row.key)

    def _leave_out(self, row: Wanted) -> Resolution:
        message = f"no record has this {self.rule.label}"
        finding = Finding(NO_RECORD, f"skipped: {message}", hint="--mode upsert creates it", severity=Severity.WARNING)
        value = ", ".join(str(row.data.get(slug) or "") for slug in self.rule.slugs)
        named = finding.at(row.ordinal, row.line, row.last_line).on(self.rule.label, value)
        return Resolution(row.ordinal, RowAction.SKIP, finding=named, reason=message)

    def _missing(self, data: dict[str, Any]) -> str | None:
        required = (attribute.slug for attribute in self.attributes if attribute.is_required and attribute.is_active is not False)
        return next((slug for slug in required if data.get(slug) in (None, "", [], {})), None)


def _reduced(row: Wanted, merge: Merge) -> Wanted:
    if not merge.left_out:
        return row
    data, parts = merge.reduced(row.data, row.parts)
    return row._replace(data=data, parts=parts)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else jsontext.dumps(value)


def resolver_of(planned: PlannedInput, object_id: str, feed: Feed | None = None) -> Resolver | None:
    """How the rows of an input find their records; None for an import without keys."""
    mapping = planned.mapping
    if not mapping.keys:
        return None
    later = planned.references.later_slugs if planned.references is not None else lambda _: frozenset()
    rule, duplicates = key_rule(mapping.keys, planned.attributes), DuplicateKeys(mapping.on_duplicate_key)
    creates = mapping.mode is not Mode.UPDATE
    return Resolver(object_id, rule, planned.attributes, duplicates, later, planned.merger, planned.merged, creates, feed, planned.kept)


def write_down(
    journal: Journal, outcomes: Iterable[Resolution], report: Callable[[Finding], None], merged: MergedRows | None = None
) -> bool:
    """Keep outcomes in the journal, and whole values where parts were said; whether any was a rejection."""
    targets: list[tuple[int, str]] = []
    images: list[tuple[int, dict[str, Any]]] = []
    final: list[tuple[int, RowState, str | None, str | None]] = []
    rejected = False
    wholes: list[tuple[int, dict[str, Any] | None]] = []
    for ordinal, action, record_id, finding, reason, before, whole, *_ in outcomes:
        wholes += [(ordinal, whole if action is RowAction.UPDATE else None)] if whole is not None else []
        if action is RowAction.UPDATE and record_id is not None:
            targets.append((ordinal, record_id))
            images += [] if before is None else [(ordinal, before)]
        elif action is RowAction.UNCHANGED:
            final.append((ordinal, RowState.UNCHANGED, record_id, None))
        elif action is RowAction.SKIP:
            if finding is not None:
                report(finding)
            final.append((ordinal, RowState.SKIPPED, None, reason))
        elif finding is not None:
            report(finding)
            final.append((ordinal, RowState.REJECTED, None, f"{finding.column}: {finding.message}"))
            rejected = True
    if journal.header.before_images != "no":
        journal.keep_before(images)
    if merged is not None and wholes:
        merged.keep(wholes, journal)
    journal.set_targets(targets)
    journal.conclude(final)
    return rejected
