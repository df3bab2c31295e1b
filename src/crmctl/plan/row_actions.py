"""Decide the action of each row in an import by key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from crmctl.errors import RejectedError, ServiceError
from crmctl.files.mapping import Mode
from crmctl.files.spills import chunks
from crmctl.files.validation import Payload
from crmctl.frozen import frozen
from crmctl.match.keys import KeyIndex, KeyRule, Wanted, key_rule
from crmctl.models import jsontext
from crmctl.models.findings import Finding, Severity, shorten
from crmctl.models.resources import Attribute
from crmctl.plan.feed import Feed, KeptValues, Merge
from crmctl.plan.import_plan import NO_RECORD, PlannedInput, RowAction, before_image, finding_of_merge
from crmctl.read.read_back import Reader
from crmctl.read.records import fetch, reading_cost
from crmctl.read.stable_pages import SeenIds
from crmctl.values.composites import Merger
from crmctl.values.equality import is_unchanged
from crmctl.write.database import RowState
from crmctl.write.jobs import FEED_COUNTS
from crmctl.write.journal import BEFORE, TARGET, WHOLE, Journal, entries_of
from crmctl.write.send_context import AS_OF

if TYPE_CHECKING:
    from crmctl.match.key_lookups import Lookup


NAMED_IDS = 5
AMBIGUOUS = "ambiguous_key"
CONFLICT = "conflict"
"""Code of a row rejected because another client changed a value that the row would change."""

SINCE = "keys first as of"
"""Journal key: time of the first lookup of keys."""


class DuplicateKeys(StrEnum):
    """Rule for rows that share a key: reject all but the first, or use only the first or the last."""

    ERROR = "error"
    FIRST = "first"
    LAST = "last"


class Resolution(NamedTuple):
    """Decision for a row.

    `record_id`: its record, if it has one. `before`: the values an update overwrites. `whole`: complete values built from the row's parts.
    `finding`: why it is rejected; `reason`: why it is skipped. A skipped row with a warning has both.
    """

    ordinal: int
    action: RowAction
    record_id: str | None = None
    finding: Finding | None = None
    reason: str | None = None
    before: dict[str, Any] | None = None
    whole: dict[str, Any] | None = None
    merge: Merge | None = None
    """For a feed: the values left out of the row, and why."""
    key: str | None = None


@frozen
class Resolver:
    """Find the records of rows and decide their actions."""

    rule: KeyRule
    attributes: Sequence[Attribute]
    duplicates: DuplicateKeys = DuplicateKeys.ERROR
    later: Callable[[int], Collection[str]] = lambda _: ()
    """Return the attributes of a row that a later request sets. Its record cannot match the row before that."""
    merger: Merger = field(default_factory=Merger)
    creates: bool = True
    """Whether a row without a record creates one."""
    feed: Feed | None = None
    kept: KeptValues | None = None

    def outcomes(self, index: KeyIndex) -> Iterator[tuple[Wanted, Resolution]]:
        by_slug = {attribute.slug: attribute for attribute in self.attributes}
        for row in index.rows():
            outcome = self._outcome(row, index, by_slug)
            if outcome.merge is not None:
                row = _reduced(row, outcome.merge)
            yield row if outcome.whole is None else row._replace(data=row.data | outcome.whole), outcome

    def resolve(self, journal: Journal, index: KeyIndex, lookup: Lookup, report: Callable[[Finding], None]) -> bool:
        """Journal the decisions for a filled index and pass findings to `report`. Return whether any row was rejected."""
        rejected = False
        for chunk in chunks(outcome for _, outcome in self.outcomes(index)):
            rejected = self.write_down(journal, chunk, report) or rejected
        if self.kept is not None:
            journal.remember(FEED_COUNTS, self.kept.counts)
        journal.remember(AS_OF, lookup.as_of)
        if journal.recall(SINCE) is None:
            journal.remember(SINCE, lookup.as_of)
        return rejected

    def write_down(self, journal: Journal, outcomes: Sequence[Resolution], report: Callable[[Finding], None]) -> bool:
        """Store decisions in the journal and kept values in the job's folder. Return whether any row was rejected."""
        if self.feed is not None and self.kept is not None:
            rows = [(outcome.ordinal, outcome.key or "", outcome.merge) for outcome in outcomes if outcome.merge is not None]
            self.feed.write_down(journal, self.kept, rows)
        return write_down(journal, outcomes, report)

    def refresh(self, journal: Journal, index: KeyIndex, lookup: Lookup, unsettled: Iterable[Payload]) -> None:
        """Decide unsettled rows again before a job resumes. If another client created a row's record since, update that record."""
        index.want_all(payload for payload in unsettled if journal.recall(payload.ordinal, TARGET) is None)
        if not index.key_count:
            return
        lookup.as_of = journal.recall(AS_OF) or 0
        lookup.refresh(index.see)
        self.resolve(journal, index, lookup, lambda _: None)

    def _outcome(self, row: Wanted, index: KeyIndex, by_slug: dict[str, Attribute]) -> Resolution:
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
        records = index.found(row.key)
        if len(records) > 1:
            ids = ", ".join(record_id for record_id, _ in records[:NAMED_IDS]) + (", ..." if len(records) > NAMED_IDS else "")
            message = f"ambiguous: {len(records)} records have this {self.rule.label}: {ids}"
            return self._reject(row, Finding(AMBIGUOUS, message, hint="merge or delete the duplicates, or give a further --key"))
        merge = self.feed.merge(row, records[0][1] if records else None) if self.feed is not None else None
        if merge is not None and merge.failed:
            return self._conflict(row, merge)
        outcome = self._with_record(row if merge is None else _reduced(row, merge), records, by_slug)
        return outcome._replace(merge=merge, key=row.key)

    def _with_record(self, row: Wanted, records: Sequence[tuple[str, dict[str, Any]]], by_slug: dict[str, Attribute]) -> Resolution:
        if not records and not self.creates:
            message = f"no record has this {self.rule.label}"
            skipped = Finding(NO_RECORD, f"skipped: {message}", hint="--mode upsert creates it", severity=Severity.WARNING)
            return self._reject(row, skipped)._replace(action=RowAction.SKIP, reason=message)
        try:
            merged = self.merger.merge_all(row.parts, records[0][1] if records else {}) if row.parts else None
        except RejectedError as error:
            return Resolution(row.ordinal, RowAction.REJECT, finding=finding_of_merge(error).at(row.ordinal, row.line, row.last_line))
        if not records:
            missing = self._missing(row.data)
            if missing is None:
                return Resolution(row.ordinal, RowAction.CREATE, whole=merged)
            message = f"{missing} is required for a new record, and no record has this {self.rule.label}"
            return self._reject(row, Finding("required_missing", message, hint=f"fill the cell, or give --set {missing}=VALUE"), missing)
        record_id, current = records[0]
        data, later = row.data | (merged or {}), self.later(row.ordinal)
        if is_unchanged(data, current, by_slug) and not later:
            return Resolution(row.ordinal, RowAction.UNCHANGED, record_id, whole=merged)
        return Resolution(row.ordinal, RowAction.UPDATE, record_id, before=before_image(data, current, later), whole=merged)

    def _reject(self, row: Wanted, why: Finding, column: str | None = None) -> Resolution:
        finding = why.at(row.ordinal, row.line, row.last_line)
        value = ", ".join(str(row.data.get(slug) or "") for slug in self.rule.slugs)
        return Resolution(row.ordinal, RowAction.REJECT, finding=finding.on(column or self.rule.label, "" if column else value))

    def _conflict(self, row: Wanted, merge: Merge) -> Resolution:
        conflict = merge.failed[0]
        why = "both have changed since the last import" if conflict.base_known else "the value of the last import is unknown"
        message = f"conflict: the record says {shorten(_said(conflict.record))!r}, and {why}"
        hint = f"--on-conflict {conflict.unit.partition('.')[0]}=keep or take decides"
        finding = Finding(CONFLICT, message, hint=hint).at(row.ordinal, row.line, row.last_line).on(conflict.unit, _said(conflict.file))
        return Resolution(row.ordinal, RowAction.REJECT, finding=finding, merge=Merge(chosen=merge.chosen), key=row.key)

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


def resolver_of(planned: PlannedInput, feed: Feed | None = None) -> Resolver | None:
    mapping = planned.mapping.options
    if not mapping.keys:
        return None
    later = planned.references.later_slugs if planned.references is not None else lambda _: frozenset()
    rule, duplicates = key_rule(mapping.keys, planned.attributes), DuplicateKeys(mapping.on_duplicate_key)
    creates = mapping.mode is not Mode.UPDATE
    return Resolver(rule, planned.shown_attributes, duplicates, later, planned.merger, creates, feed, planned.kept)


def write_down(journal: Journal, outcomes: Iterable[Resolution], report: Callable[[Finding], None]) -> bool:
    """Store decisions in the journal. Return whether any row was rejected."""
    targets: list[tuple[int, str]] = []
    images: list[tuple[int, dict[str, Any]]] = []
    final: list[tuple[int, RowState, str | None, str | None]] = []
    rejected = False
    wholes: list[tuple[int, dict[str, Any] | None]] = []
    for ordinal, action, record_id, finding, reason, before, merged, _, key in outcomes:
        wholes += [(ordinal, merged if action is RowAction.UPDATE else None)] if merged is not None else []
        if action is RowAction.UPDATE and record_id is not None:
            targets += [(ordinal, record_id)] if key is not None else []
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
    journal.keep(BEFORE, images)
    journal.keep(WHOLE, wholes)
    journal.keep(TARGET, targets)
    journal.conclude(final)
    return rejected


MOST_READ_REQUESTS = 200
"""Maximum number of requests to read the records of refused updates."""


def free_refused(resolver: Resolver, journal: Journal, reader: Reader, rows: Iterable[Payload]) -> int:
    """Release refused rows whose key another client used for a new record, or whose record another client deleted.

    Each of them now updates the existing record or creates one. Return their number. Raises read errors.
    """
    if not journal.counts()[RowState.FAILED]:
        return 0
    from crmctl.match.key_lookups import Lookup

    with KeyIndex(resolver.rule) as index, SeenIds() as updated, SeenIds() as existing:
        for row, entry in entries_of(journal, rows):
            if entry is not None and entry.state is RowState.FAILED:
                index.want(row.ordinal, row.data, row.parts)
                if (target := journal.recall(row.ordinal, TARGET)) is not None:
                    updated.add(target.lower())
        if not index.key_count:
            return 0
        lookup = Lookup(reader, reader.object_id, as_of=journal.recall(SINCE) or 0)
        if not lookup.refresh(index.see):
            raise ServiceError("the service does not list what is new: it does not sort by time", code="unsorted")
        journal.remember(AS_OF, lookup.as_of)
        if len(updated) <= MOST_READ_REQUESTS or reading_cost(reader, reader.object_id, len(updated)).requests <= MOST_READ_REQUESTS:
            for record in chain.from_iterable(fetch(reader, updated)):
                existing.add(record.id.lower())
        else:
            existing = updated
        freed = 0
        outcomes = (outcome for _, outcome in resolver.outcomes(index))
        for chosen in chunks(outcome for outcome in outcomes if _has_changed(journal, outcome, existing, creates=resolver.creates)):
            journal.conclude((outcome.ordinal, RowState.UNSENT, None, None) for outcome in chosen)
            resolver.write_down(journal, chosen, lambda _: None)
            freed += len(chosen)
        return freed


def _has_changed(journal: Journal, outcome: Resolution, existing: SeenIds, *, creates: bool) -> bool:
    target = journal.recall(outcome.ordinal, TARGET)
    if target is None:
        # A refused row may still have a record that could not be linked.
        if (row := journal.row(outcome.ordinal)) is not None and row.record_id is not None:
            return False
        return outcome.action in (RowAction.UPDATE, RowAction.UNCHANGED)
    follows = {RowAction.CREATE, RowAction.UPDATE, RowAction.UNCHANGED} | (set() if creates else {RowAction.SKIP})
    return target.lower() not in existing and outcome.action in follows
