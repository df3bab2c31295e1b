"""Running exactly what a saved plan says: everything it rests on is compared with what is there now, before the first write."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crmctl.bulk.journal.jobs import JobStore
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.rows.mapping import schema_digest
from crmctl.bulk.run.decisions import Decisions, Differences, compare
from crmctl.bulk.run.guards import Guard
from crmctl.bulk.run.job_start import ImportJob, ImportTarget, JobOptions, start_import
from crmctl.bulk.run.plan import ImportPlan, PlannedInput, file_digest, open_input
from crmctl.bulk.run.plan_file import PlanHeader, SavedPlan, read_plan
from crmctl.bulk.run.row_actions import Resolver
from crmctl.bulk.sources.given_input import GivenInput
from crmctl.errors import CrmctlError, RejectedError, UsageError
from crmctl.models.attributes import Attribute
from crmctl.version import __version__

SHOWN = 5
"""How many differences the message names."""


@dataclass(frozen=True)
class Applicable:
    """A plan that still fits, with its input opened."""

    saved: SavedPlan
    given: GivenInput
    input: PlannedInput

    @property
    def plan(self) -> ImportPlan:
        return self.input.plan

    def start(self, store: JobStore, target: ImportTarget, *, again: bool = False, guard: Guard | None = None) -> ImportJob:
        """Make the job. Sends nothing. Raises what `start_import` raises."""
        header = self.saved.header
        options = JobOptions(self.plan, again, header.marker, header.before_images, self.saved.path, guard=guard or Guard())
        return start_import(store, target, replace(self.given, name=str(self.given.path)), options)


@dataclass(frozen=True)
class Prediction:
    """What a dry run foretold, and when (Unix time)."""

    summary: Mapping[str, Any]
    made_at: float


def describe(target: ImportTarget, planned: PlannedInput, options: JobOptions, predicted: Prediction) -> PlanHeader:
    """The header of a plan for an import that was predicted; its input was opened with a frozen plan."""
    plan, source = planned.plan, planned.source
    path = source.path.absolute()
    sha256, size = file_digest(path, source.name)
    return PlanHeader(
        object=target.object,
        object_id=target.object_id,
        origin=target.origin,
        mode=str(plan.mapping.mode),
        input=source.name,
        path=str(path),
        sha256=sha256,
        size=size,
        mapping=planned.mapping.digest,
        schema=schema_digest(target.attributes),
        version=__version__,
        created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(predicted.made_at)),
        options=plan.to_document(),
        summary=predicted.summary,
        keys=plan.mapping.keys,
        marker=options.marker,
        before_images=options.before_images,
    )


def check_service(saved: SavedPlan, origin: str) -> None:
    """Raises UsageError for a plan of another service."""
    if origin != saved.header.origin:
        raise UsageError(
            f"the plan {saved.path} was made for {saved.header.origin}, and this profile belongs to {origin}",
            hint="crmctl auth switch PROFILE, or --profile",
            code="plan_outdated",
            details={"changed": ["service"]},
        )


def open_plan(saved: SavedPlan, attributes: Sequence[Attribute], source: GivenInput | None = None) -> Applicable:
    """Compare input, schema and mapping with what the plan rests on; `source` is where its input is now, when it was moved.

    Raises UsageError that says everything that is different.
    """
    header = saved.header
    given = source or GivenInput.at(Path(header.path))
    path = given.path
    moved: dict[str, str] = {}
    if schema_digest(attributes) != header.schema:
        moved["schema"] = f"the attributes of {header.object} have changed"
    try:
        if file_digest(path, str(path)) != (header.sha256, header.size):
            moved["input"] = f"the file {path} has changed"
    except UsageError as error:
        moved["input"] = error.message
    plan = _options(saved)
    planned = None
    if not {"input", "schema"} & moved.keys():
        try:
            planned = open_input(plan, path, header.input, attributes)
            if planned.mapping.digest != header.mapping:
                moved["mapping"] = "its columns map to other attributes than before"
        except CrmctlError as error:
            moved["mapping"] = f"its mapping does not fit any more: {error.message}"
    if moved or planned is None:
        hint = "--input FILE, when it has been moved" if list(moved) == ["input"] else None
        raise UsageError(
            f"the plan {saved.path} cannot be applied: {'; '.join(moved.values())}",
            hint=hint or "make it anew: crmctl bulk import OBJECT FILE --dry-run --plan PLAN",
            code="plan_outdated",
            details={"changed": list(moved)},
        )
    return Applicable(saved, given, planned)


class Expectation:
    """What the plan of a job says."""

    def __init__(self, plan: Path) -> None:
        self._saved = read_plan(plan)

    def refuse_rows(self, planned: PlannedInput, reader: Reader) -> RejectedError | None:
        """Compare rows that need no key. Raises what reading the records of their ids raises."""
        with Decisions() as now:
            for payload in planned.payloads():
                now.add_row(payload, planned.mapping.mode)
            now.see_records(reader)
            return refusal(compare(self._saved.decisions(), now))

    def refuse_by_key(self, resolver: Resolver, index: KeyIndex) -> RejectedError | None:
        """Compare rows whose records were looked up."""
        with Decisions() as now:
            now.add_outcomes(resolver, index)
            return refusal(compare(self._saved.decisions(), now))


def refusal(found: Differences) -> RejectedError | None:
    """Why a plan is not carried out; None when nothing is different."""
    if not found.count:
        return None
    named = [f"line {one['line']}{' (record ' + one['id'] + ')' if one['id'] else ''}: {one['message']}" for one in found.listed[:SHOWN]]
    more = f"; and {found.count - SHOWN:,} more" if found.count > SHOWN else ""
    rows = "one row does" if found.count == 1 else f"{found.count:,} rows do"
    return RejectedError(
        f"{rows} something else than the plan says, so nothing was sent: {'; '.join(named)}{more}",
        hint="make it anew: crmctl bulk import OBJECT FILE --dry-run --plan PLAN",
        code="plan_outdated",
        details={"changed": ["records"], "differences": found.listed, "count": found.count},
    )


def _options(saved: SavedPlan) -> ImportPlan:
    try:
        return ImportPlan.from_document(saved.header.options)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{saved.path} was written by another version of crmctl", code="not_a_plan") from error
