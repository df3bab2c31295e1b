"""The steps of a job besides its rows: keeping what updates overwrite, and refusing what its plan does not say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from crmctl.bulk.imports.applying import Expectation
from crmctl.bulk.imports.before import must_be_read, read_before
from crmctl.bulk.imports.resolving import Resolver
from crmctl.bulk.imports.starting import Job
from crmctl.bulk.interrupts import Interrupt
from crmctl.bulk.journal.states import JobState
from crmctl.bulk.keys.index import KeyIndex
from crmctl.bulk.payloads.batches import Entry
from crmctl.bulk.progress import Progress
from crmctl.bulk.records.reading import Getter, Reader
from crmctl.errors import CrmctlError


@dataclass(frozen=True)
class JobStages:
    """The `Stages` of a job in a folder."""

    service: Getter
    job: Job
    progress: Progress
    changes_rows: bool = False

    def approve(self, entries: Iterable[Entry], interrupt: Interrupt) -> CrmctlError | None:
        journal = self.job.journal
        header = journal.header
        reader = Reader(self.service, header.object_id, lambda: interrupt.requested)
        try:
            refusal = Expectation.of(journal).refuse_rows(self.job.input, reader)
            if refusal is None and must_be_read(header.before_images, header.mode, header.keys):
                read_before(journal, reader, entries, self.progress)
        except CrmctlError as failure:
            return failure
        finally:
            journal.add_effort(reader.requests, 0.0)
        return self._refused(refusal)

    def approve_keys(self, resolver: Resolver, index: KeyIndex) -> CrmctlError | None:
        return self._refused(Expectation.of(self.job.journal).refuse_by_key(resolver, index))

    def before_rows(self, interrupt: Interrupt) -> CrmctlError | None:
        return None

    def after_rows(self, interrupt: Interrupt) -> CrmctlError | None:
        return None

    def _refused(self, refusal: CrmctlError | None) -> CrmctlError | None:
        if refusal is not None:
            self.job.journal.set_state(JobState.REJECTED)
        return refusal
