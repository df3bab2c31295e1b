"""Imports by key into a small service: one call per import, with its requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.client.crm import Crm
from crmctl.clock import Clock
from crmctl.files.mapping import MappingOptions, Mode
from crmctl.files.sources import GivenInput
from crmctl.models.findings import Finding
from crmctl.models.resources import Attribute
from crmctl.plan.feed import FeedPlan
from crmctl.plan.import_plan import ImportPlan
from crmctl.plan.import_run import rows_of
from crmctl.plan.job_run import JobHooks, run_job
from crmctl.plan.job_start import ImportJob, ImportTarget, JobOptions, start_import
from crmctl.plan.results import ImportResult
from crmctl.plan.resume import choose_job, reopen
from crmctl.plan.undo import Undo, WrittenRecords, carry_out, plan_undo
from crmctl.plan.undo_updates import Updates
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.write.jobs import JobStore
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkcontext import QuietContext
from tests.support.bulkfiles import attribute
from tests.support.bulkjobs import Silent
from tests.support.bulkserver import OBJECT_ID, BulkServer
from tests.support.clock import FakeClock

ATTRIBUTES = [
    attribute("email", "email"),
    attribute("code"),
    attribute("phone", "phone_number"),
    attribute("n", "number"),
    attribute("note"),
]


@dataclass
class KeyDesk:
    server: BulkServer
    folder: Path
    clock: FakeClock = field(default_factory=FakeClock)
    findings: list[Finding] = field(default_factory=list)
    attributes: list[Attribute] = field(default_factory=lambda: list(ATTRIBUTES))
    options: DeliveryOptions = field(default_factory=lambda: DeliveryOptions(concurrency=1))

    @property
    def store(self) -> JobStore:
        return JobStore(self.folder / "state", self.clock)

    @property
    def codes(self) -> list[str]:
        return [finding.code for finding in self.findings]

    def load(
        self,
        text: str,
        *keys: str,
        stop: bool = True,
        duplicates: str = "error",
        feed: str | None = None,
        mode: Mode = Mode.UPSERT,
        **mapping: Any,
    ) -> ImportResult:
        """Import a CSV text by these keys; with `feed` as a feed, whose value decides conflicts."""
        self.clock.advance(1)
        self.findings.clear()
        path = self.folder / f"{len(self.store.list())}.csv"
        path.write_text(text, encoding="utf-8")
        options = MappingOptions(mode, keys=keys, on_duplicate_key=duplicates, **mapping)
        crm = self.server.crm(self.clock)
        target = ImportTarget("people", OBJECT_ID, self.server.origin, self.attributes, crm)
        plan = ImportPlan(mapping=options, stop_on_error=stop, feed=FeedPlan("erp", feed) if feed is not None else None)
        return self._run(start_import(self.store, target, GivenInput.at(path), JobOptions(plan)))

    def resume(self) -> ImportResult:
        info = choose_job(self.store, None, last=True)
        job = reopen(self.store, info, self.server.origin, self.attributes)
        return self._run(job)

    def _run(self, job: ImportJob) -> ImportResult:
        context = QuietContext(self.server.crm(self.clock), self.clock)
        result = run_job(context, JobHooks(job), self.options)
        self.findings += result.findings.kept
        return result


def undo(folder: Path, origin: str, service: Crm, clock: Clock, attributes: Sequence[Attribute] = tuple(ATTRIBUTES)) -> Undo:
    """Undo the newest job in a desk's folder."""
    store = JobStore(folder / "state", clock)
    job = reopen(store, store.list()[0], origin)
    with closing(job.input), closing(job.journal) as journal, journal.hold(), SeenIds() as ids, Updates(attributes) as updates:
        written = WrittenRecords(journal, rows_of(journal, job.input.payloads), ids, updates)
        plan = plan_undo(written, Reader(service, journal.header.object_id))
        carry_out(written, plan, service, Silent())
        return plan


def counts(result: ImportResult) -> dict[str, int]:
    """Return the row counts that are not zero."""
    return {str(state): count for state, count in result.summary.counts.items() if count}
