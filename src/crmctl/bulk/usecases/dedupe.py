"""Finding duplicates: records are read completely, compared by rules, and proposed as a plan that a person reads. Writes nothing."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import check_place
from crmctl.bulk.context import BulkContext
from crmctl.bulk.dedupe.candidates import MatchCandidates
from crmctl.bulk.dedupe.groups import GroupCounts, MatchGroup, find_groups
from crmctl.bulk.dedupe.match_rules import MatchRule, parse_rules
from crmctl.bulk.dedupe.merge_plan import MatchReason, MergePlanHeader, PlannedMerge, write_merge_plan
from crmctl.bulk.dedupe.survivorship import MOST_ACTIVITIES, KeepRules, MergeRecord, choose_survivor, merge_values, parse_keep
from crmctl.bulk.read.full_scan import ScanStatistics, scan
from crmctl.bulk.read.linked_activities import count_links
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.read.sorted_lists import Listing
from crmctl.bulk.usecases.targets import resolve_target
from crmctl.errors import UsageError
from crmctl.mirror.local_copy import MAX_AGE, fresh_copy
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record
from crmctl.models.timestamps import MICROS, to_timestamp
from crmctl.version import __version__

REVIEWED = 50
"""So many groups a review shows: the least certain ones."""

MOST_MEMBERS = 10
"""Most records of a group where nothing else is said."""


@dataclass(frozen=True)
class DedupeRequest:
    """Duplicates among the records of `object`: `match` are alternatives, `keep` says who stays. With `review` the least certain groups are
    in the result. A mirror older than `max_age` seconds is brought up to date first."""

    object: str
    match: Sequence[str]
    keep: Sequence[str] = ()
    plan: Path | None = None
    most: int = MOST_MEMBERS
    review: bool = False
    max_age: float = MAX_AGE


@dataclass
class DedupeResult:
    """What was found: `groups` of records that are one, `duplicates` that would go. `crowded`: values that too many records share to mean
    anything; `windowed`: places of records in blocks too large to compare each with each; `too_large`: groups with more members than
    allowed; `cut`: likenesses that were not followed."""

    object: str
    rules: Sequence[str]
    keep: Sequence[str]
    plan: Path | None
    records: int = 0
    groups: int = 0
    duplicates: int = 0
    compared: int = 0
    crowded: int = 0
    windowed: int = 0
    counts: GroupCounts = field(default_factory=GroupCounts)
    requests: int = 0
    elapsed: float = 0.0
    as_of: str | None = None
    mirrored: bool = False
    by_rule: dict[str, int] = field(default_factory=dict)
    least_certain: list[PlannedMerge] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """The JSON form, every key always present."""
        return {
            "object": self.object,
            "records": self.records,
            "groups": self.groups,
            "duplicates": self.duplicates,
            "match": list(self.rules),
            "keep": list(self.keep),
            "byRule": self.by_rule,
            "compared": self.compared,
            "crowded": self.crowded,
            "windowed": self.windowed,
            "tooLarge": self.counts.too_large,
            "cut": self.counts.cut,
            "asOf": self.as_of,
            "source": "mirror" if self.mirrored else "service",
            "requests": self.requests,
            "elapsedSeconds": round(self.elapsed, 3),
            "plan": str(self.plan) if self.plan else None,
            "review": [merge.to_document() for merge in self.least_certain],
        }


def dedupe(context: BulkContext, request: DedupeRequest) -> DedupeResult:
    """Read, compare, and write the plan. Raises UsageError for rules that mean nothing and places where no plan can be written."""
    if request.most < 2:
        raise UsageError("--max-group: a group has two records or more", hint="--max-group 10", code="malformed_rule")
    if request.plan is not None:
        check_place(request.plan, None)
        if request.plan.exists():
            context.listener.confirm(f"Replace {request.plan}")
    begun = context.clock.monotonic()
    target = resolve_target(context, request.object)
    rules = parse_rules(request.match, target.attributes, request.object)
    keep = parse_keep(request.keep, target.attributes)
    result = DedupeResult(request.object, [rule.said for rule in rules], keep.said, request.plan, as_of=_now(context))
    with MatchCandidates(rules, request.most) as candidates:
        _read(context, request, target.object_id, candidates, result)
        result.records = candidates.count
        context.listener.progress.start("comparing pairs")
        try:
            candidates.compare(context.listener.progress.advance)
        finally:
            context.listener.progress.finish()
        result.compared, result.crowded, result.windowed = candidates.compared, candidates.crowded, candidates.windowed
        links: Mapping[str, int] = {}
        if keep.survivor == MOST_ACTIVITIES:
            links = count_links(context.service)
        proposer = _Proposer(candidates, keep, target.attributes, links)
        merges = result_of(result, proposer.merges(result.counts, request.most), review=request.review)
        if request.plan is not None:
            header = MergePlanHeader(
                request.object, target.object_id, context.origin, __version__, _now(context), result.rules, keep.said,
                result.as_of,
            )  # fmt: skip
            write_merge_plan(request.plan, header, merges)
        else:
            deque(merges, maxlen=0)
    result.elapsed = context.clock.monotonic() - begun
    return result


def result_of(result: DedupeResult, merges: Iterator[PlannedMerge], *, review: bool) -> Iterator[PlannedMerge]:
    """The groups as they pass, counted; those of which it is least certain that they are one are kept for a review."""
    worst: list[tuple[float, int, PlannedMerge]] = []
    for number, merge in enumerate(merges):
        result.groups += 1
        result.duplicates += len(merge.losers)
        for rule in {reason.rule for reason in merge.why}:
            result.by_rule[rule] = result.by_rule.get(rule, 0) + 1
        if review:
            push = heapq.heappush if len(worst) < REVIEWED else heapq.heappushpop
            push(worst, (-merge.score, -number, merge))
        yield merge
    result.least_certain = [merge for _, _, merge in sorted(worst, reverse=True)]


@dataclass(frozen=True)
class _Proposer:
    candidates: MatchCandidates
    keep: KeepRules
    attributes: Sequence[Attribute]
    links: Mapping[str, int]

    def merges(self, counts: GroupCounts, most: int) -> Iterator[PlannedMerge]:
        numbers = count(1)
        for group in find_groups(self.candidates, counts, most):
            yield self._merge(next(numbers), group)

    def _merge(self, number: int, group: MatchGroup) -> PlannedMerge:
        records = {member: self._record(member) for member in group.members}
        rules: Sequence[MatchRule] = self.candidates.rules
        why = tuple(
            MatchReason((records[pair.a].id, records[pair.b].id), rules[pair.rule].text.strip(), pair.score) for pair in group.pairs
        )
        listed = tuple(records.values())
        survivor = choose_survivor(listed, self.keep.survivor).id
        losers = tuple(record.id for record in listed if record.id != survivor)
        values = merge_values(listed, survivor, self.keep, self.attributes)
        return PlannedMerge(number, group.score, why, survivor, losers, values, listed)

    def _record(self, member: int) -> MergeRecord:
        record_id, (data, created_at, updated_at) = self.candidates.record(member)
        linked = self.links.get(record_id.lower(), 0) if self.keep.survivor == MOST_ACTIVITIES else None
        return MergeRecord(record_id, data, created_at, updated_at, linked)


def _read(context: BulkContext, request: DedupeRequest, object_id: str, candidates: MatchCandidates, result: DedupeResult) -> None:
    """Every record of the object: from the mirror where it has all of it, else from the service."""
    found = fresh_copy(context, [object_id], request.max_age)
    if found is not None:
        copy, report = found
        with copy:
            state = copy.state(object_id)
            if state is not None and state.proven and not state.excluded:
                result.requests = report.requests if report is not None else 0
                result.mirrored, result.as_of = True, to_timestamp(state.as_of)
                _take(copy.pages(object_id), candidates)
                return
        context.listener.note("the mirror leaves out attributes, or is not proven: everything is read from the service")
    statistics = ScanStatistics()
    context.listener.progress.start("reading")
    try:
        with SeenIds() as seen:
            _take(scan(context.service, Listing(object_id), seen, statistics), candidates, context.listener.progress.advance)
    finally:
        context.listener.progress.finish()
    result.requests += statistics.requests


def _take(pages: Iterable[Sequence[Record]], candidates: MatchCandidates, advance: Callable[[int], None] = lambda _: None) -> None:
    for page in pages:
        for record in page:
            candidates.add(record.id, record.data, [record.data, record.created_at, record.updated_at])
        advance(len(page))


def _now(context: BulkContext) -> str:
    return to_timestamp(int(context.clock.now()) * MICROS)
