"""The steps of `bulk update` besides its rows: each is compared with its record, what it overwrites is kept, and then somebody is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.read.known_records import KnownRecords, read_known
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.context import ImportRun
from crmctl.bulk.run.job_hooks import JobHooks
from crmctl.bulk.run.record_changes import ChangeForecast, Changing, ValueChange
from crmctl.bulk.run.row_actions import RowAction
from crmctl.bulk.run.rows_to_send import chunks
from crmctl.errors import CrmctlError, RejectedError

Approve = Callable[[ChangeForecast], None]
"""Sees what is about to be changed, and raises CrmctlError to leave it as it is."""


def agree(_: object) -> None:
    """Nobody is asked."""


@dataclass(frozen=True)
class UpdateHooks(JobHooks):
    """`known`: the records as they were just read; without them they are read anew, as when a job goes on."""

    approve_changes: Approve = agree
    known: KnownRecords | None = None

    def approve(self, run: ImportRun, entries: Iterable[Entry]) -> CrmctlError | None:
        journal = self.job.journal
        forecast = ChangeForecast(journal.header.object, self.job.input.attributes)
        reader = run.reader()
        if self.job.input.merged is not None:
            self.job.input.merged.restart()
        try:
            with ExitStack() as stack:
                known = self.known or stack.enter_context(read_known(reader, self._ids(), run.progress))
                for chunk in chunks(Changing.of(self.job.input).changes(self._valid(), known.get)):
                    self._write_down(run, chunk, forecast)
            if forecast.rejected and run.stop_on_error:
                journal.set_state(JobState.REJECTED)
                return None
            run.guard.check(forecast.changes, forecast.rows)
            if forecast.changes:
                self.approve_changes(forecast)
        except RejectedError as refusal:
            return self._refused(refusal)
        except CrmctlError as failure:
            return failure
        finally:
            journal.add_effort(reader.requests, 0.0)
        return None

    def _ids(self) -> Iterator[str]:
        return (row.id for row in self._valid() if row.id is not None)

    def _write_down(self, run: ImportRun, changes: Iterable[ValueChange], forecast: ChangeForecast) -> None:
        journal, merged = self.job.journal, self.job.input.merged
        images, wholes = [], []
        final: list[tuple[int, RowState, str | None, str | None]] = []
        for change in changes:
            forecast.add(change)
            if change.action is RowAction.UPDATE:
                images.append((change.ordinal, dict(change.before)))
                wholes += [(change.ordinal, dict(change.whole))] if change.whole is not None else []
            elif change.finding is not None:
                run.report(change.finding)
                final.append((change.ordinal, RowState.REJECTED, None, f"{change.finding.column}: {change.finding.message}"))
            elif change.record is not None:
                final.append((change.ordinal, RowState.UNCHANGED, change.record.id, None))
        journal.keep_before(images)
        if merged is not None and wholes:
            merged.keep(wholes, journal)
        journal.conclude(final)
