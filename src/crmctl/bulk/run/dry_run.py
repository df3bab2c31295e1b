"""The dry run of an import: everything is read, checked and looked up, what would be done is counted, and nothing is made or written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk.findings import Finding
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.journal.summary import FeedCounts, Summary
from crmctl.bulk.match.key_index import KeyIndex, Wanted
from crmctl.bulk.match.reference_resolution import ParentGroup
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import FEW, reading_cost
from crmctl.bulk.rows.batches import Batcher, Entry, entry_of
from crmctl.bulk.rows.mapping import Mode
from crmctl.bulk.rows.record_builder import RowBuilder
from crmctl.bulk.rows.validation import Heard, Payload, ValidationReport, validate
from crmctl.bulk.run.before_images import BeforeImages, must_be_read
from crmctl.bulk.run.decisions import Decisions
from crmctl.bulk.run.feed import Feed
from crmctl.bulk.run.feed_bases import FeedBases
from crmctl.bulk.run.job_start import ImportTarget, with_references
from crmctl.bulk.run.key_conflicts import looking_afterwards
from crmctl.bulk.run.plan import PlannedInput
from crmctl.bulk.run.request_limit import Limit
from crmctl.bulk.run.row_actions import AMBIGUOUS, Resolution, Resolver, RowAction, resolver_of
from crmctl.bulk.run.three_way import ChosenValue
from crmctl.client.shapes import Page
from crmctl.clock import Clock
from crmctl.errors import ExitCode
from crmctl.models.records import BULK_LIMIT, PAGE_LIMIT, Record

Report = Callable[[Finding], None]

LISTED = 1000
"""How many values are listed of which it had to be chosen whose counts; all are counted."""


@dataclass(frozen=True)
class DryRun:
    """What an import would do. Its summary counts rows that would be written as unsent; `requests` is exact unless the service refuses
    something. `predicted` counts rows by what they would do; without a key nothing is known of records that are there. `parents` are the
    records that would be created for rows to refer to."""

    summary: Summary
    report: ValidationReport
    seconds: float
    predicted: Mapping[str, int] = field(default_factory=dict)
    parents: Sequence[ParentGroup] = ()
    choices: Sequence[RowChoice] = ()

    @property
    def changes(self) -> int:
        return self.summary.counts[RowState.UNSENT]

    @property
    def prediction(self) -> dict[str, Any]:
        """The numbers that a plan keeps."""
        document = self.to_document()
        return {name: document[name] for name in ("rows", "predicted", "parents", "requests", "estimatedSeconds")}

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.REJECTED if self.report.rejected else ExitCode.OK

    def to_document(self) -> dict[str, Any]:
        """The keys of a summary, and `dryRun`, `estimatedSeconds`, `predicted`, `parents`, `choices`, `report`."""
        return {
            **self.summary.to_document(),
            "dryRun": True,
            "estimatedSeconds": round(self.seconds, 1),
            "predicted": dict(self.predicted),
            "parents": [{"object": one.reference.object, "key": one.reference.key, "create": one.size} for one in self.parents],
            "choices": [one.to_document() for one in self.choices],
            "report": self.report.to_document(),
        }


@dataclass(frozen=True)
class DryRunOptions:
    """`limit`: the request rate at this moment. `before_images`: whether what updates overwrite would be kept. `decisions` hears what each
    row does."""

    clock: Clock
    limit: Limit = field(default_factory=Limit)
    before_images: str = BeforeImages.AUTO
    decisions: Decisions | None = None
    state: Path | None = None
    """Where feeds remember what they wrote."""


def dry_run(target: ImportTarget, planned: PlannedInput, options: DryRunOptions, report: Report) -> DryRun:
    """Read and validate everything, count the requests, write nothing. `report` hears every finding.

    With a key the records are read, as the import will; for `decisions` those that rows name by id as well.
    """
    clock, decisions, lister = options.clock, options.decisions, target.service
    started = clock.monotonic()
    with ExitStack() as looked_up:
        planned, reads = with_references(planned, target)
        looked_up.enter_context(closing(planned))
        forecast = _Forecast(planned, decisions)
        resolver = resolver_of(planned, target.object_id, _feed(planned, target, options.state, looked_up))
        if resolver is None:
            found = _check(planned, report, forecast.write_valid)
            if decisions is not None:
                reader = Reader(lister, target.object_id)
                decisions.see_records(reader)
                reads += reader.requests
        else:
            newest = target.newest.if_new(clock) if target.newest is not None else None
            found, lookups = _look_up(_KeyedInput(planned, resolver, target, newest), forecast, report)
            reads += lookups + looking_afterwards(resolver, forecast.creates)
        if not planned.mapping.keys:
            keeps_all = must_be_read(options.before_images, planned.mapping.mode, planned.mapping.keys)
            if read := forecast.updates if keeps_all else forecast.merges:
                reads += (read > FEW) + reading_cost(lister, target.object_id, read).requests
        requests = forecast.requests + reads + _around(planned, forecast)
        counts = dict.fromkeys(RowState, 0) | forecast.counts | {RowState.REJECTED: found.rejected}
        summary = Summary(
            None, target.object, str(planned.mapping.mode), counts, requests, clock.monotonic() - started, {}, forecast.values
        )
        parents = planned.references.groups() if planned.references is not None else ()
        return DryRun(summary, found, options.limit.time_for(requests), forecast.predicted(found.rejected), parents, forecast.choices)


def _feed(planned: PlannedInput, target: ImportTarget, state: Path | None, until: ExitStack) -> Feed | None:
    """The feed as it is remembered; nothing is made where it is not."""
    plan = planned.plan.feed
    if plan is None or state is None:
        return None
    bases = until.enter_context(closing(FeedBases(state, (target.origin, target.object_id, plan.name))))
    return Feed.of(plan, bases, planned.shown_attributes)


def _around(planned: PlannedInput, forecast: _Forecast) -> int:
    """Requests for records that are made before the rows, and links that are set after them."""
    references = planned.references
    if references is None:
        return 0
    made = sum(-(-group.size // BULK_LIMIT) + 1 + -(-group.size // PAGE_LIMIT) for group in references.groups())
    links = references.link_count
    return made + (-(-links // BULK_LIMIT) + -(-forecast.creates // PAGE_LIMIT) if links else 0)


def _check(planned: PlannedInput, report: Report, each: Callable[[Payload], None]) -> ValidationReport:
    builder = RowBuilder(planned.mapping, planned.attributes, planned.values)
    return validate(planned.source, builder, Heard(report, each), planned.references.translate if planned.references is not None else iter)


@dataclass(frozen=True)
class _KeyedInput:
    planned: PlannedInput
    resolver: Resolver
    target: ImportTarget
    newest: Page[Record] | None


def _look_up(keyed: _KeyedInput, forecast: _Forecast, report: Report) -> tuple[ValidationReport, int]:
    """Find the records of all valid rows; what was found wrong, and how many requests that took."""
    resolver = keyed.resolver
    with KeyIndex(resolver.rule) as index:

        def keep(payload: Payload) -> None:
            if not payload.findings or not payload.rejected:
                index.want_all([payload])
            else:
                forecast.leave_out(payload)

        found = _check(keyed.planned, report, keep)
        lookup = resolver.lookup(keyed.target.service, lambda: False)
        lookup.newest, lookup.at_hand, lookup.tell = keyed.newest, keyed.target.at_hand, keyed.target.tell
        lookup.fill(index)
        for row, outcome in resolver.outcomes(index):
            forecast.add(row, outcome, resolver, index)
            if outcome.finding is not None:
                if outcome.action is RowAction.REJECT:
                    found.reject(outcome.finding)
                report(outcome.finding)
        return found, lookup.requests


class RowChoice(NamedTuple):
    """A value of a row of which it had to be chosen whose counts."""

    row: int
    line: int
    value: ChosenValue

    def to_document(self) -> dict[str, Any]:
        return {"row": self.row, "line": self.line, **self.value.to_document()}


class _Forecast:
    """What rows would do, and in how many requests."""

    def __init__(self, planned: PlannedInput, decisions: Decisions | None) -> None:
        self._decisions = decisions
        self._mode = planned.mapping.mode
        self._batcher = Batcher()
        self._batches = 0
        self._actions: Counter[str] = Counter()
        self._ambiguous = 0
        self.values = FeedCounts() if planned.plan.feed is not None else None
        self.choices: list[RowChoice] = []
        self.merges = 0
        """Rows that change parts of values, by id."""

    def write_valid(self, payload: Payload) -> None:
        if self._decisions is not None:
            self._decisions.add_row(payload, self._mode)
        if not payload.findings or not payload.rejected:
            action = RowAction.UPDATE if self._mode is not Mode.CREATE and payload.id else RowAction.CREATE
            if action is RowAction.CREATE and self._mode is Mode.UPDATE:
                self._actions[RowAction.SKIP] += 1
                return
            self.merges += action is RowAction.UPDATE and bool(payload.parts)
            self._write(action, entry_of(payload, with_id=self._mode is not Mode.CREATE))

    def leave_out(self, payload: Payload) -> None:
        """A row that is invalid by itself."""
        if self._decisions is not None:
            self._decisions.add_row(payload, Mode.CREATE)

    def add(self, row: Wanted, outcome: Resolution, resolver: Resolver, index: KeyIndex) -> None:
        if self._decisions is not None:
            self._decisions.add_outcome(row, outcome, resolver, index)
        if (merge := outcome.merge) is not None:
            before = self.values or FeedCounts()
            self.values = FeedCounts(before.kept + merge.kept, before.conflicts + merge.conflicts)
            self.choices += [RowChoice(row.ordinal, row.line, one) for one in merge.chosen[: LISTED - len(self.choices)]]
        if outcome.action in (RowAction.CREATE, RowAction.UPDATE):
            self._write(outcome.action, entry_of(row, with_id=True, target=outcome.record_id))
            return
        self._actions[outcome.action] += 1
        self._ambiguous += outcome.finding is not None and outcome.finding.code == AMBIGUOUS

    def _write(self, action: RowAction, entry: Entry) -> None:
        self._actions[action] += 1
        self._batches += self._batcher.feed(entry) is not None

    @property
    def creates(self) -> int:
        return self._actions[RowAction.CREATE]

    @property
    def updates(self) -> int:
        return self._actions[RowAction.UPDATE]

    @property
    def requests(self) -> int:
        self._batches += self._batcher.flush() is not None
        return self._batches

    @property
    def counts(self) -> dict[RowState, int]:
        changes = self._actions[RowAction.CREATE] + self._actions[RowAction.UPDATE]
        return {
            RowState.UNSENT: changes,
            RowState.UNCHANGED: self._actions[RowAction.UNCHANGED],
            RowState.SKIPPED: self._actions[RowAction.SKIP],
        }

    def predicted(self, rejected: int) -> dict[str, int]:
        counted = {
            str(action): self._actions[action] for action in (RowAction.CREATE, RowAction.UPDATE, RowAction.UNCHANGED, RowAction.SKIP)
        }
        return {**counted, "invalid": rejected - self._ambiguous, "ambiguous": self._ambiguous}
