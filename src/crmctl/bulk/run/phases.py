"""What is sent before and after the rows of a job: written down, doubted and settled like rows, in a journal of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from crmctl.bulk.journal.database import damaged
from crmctl.bulk.journal.high_water_mark import HighWaterMark
from crmctl.bulk.journal.journal import FILE_NAME, Header, Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.import_run import deliver
from crmctl.bulk.send.context import SendContext
from crmctl.errors import CrmctlError, PartialError


class Entries(Protocol):
    """What a phase sends, in order; any number of times the same."""

    def __call__(self) -> Iterable[Entry]: ...


@dataclass(frozen=True)
class _Sent:
    entries: Entries

    def since(self, ordinal: int) -> Iterator[Entry]:
        return (entry for entry in self.entries() if entry.ordinal >= ordinal)


@contextmanager
def phase_context(run: SendContext, name: str, **facts: Any) -> Iterator[SendContext]:
    """The run with the journal of a phase, made where there is none yet. `facts` are what its header has otherwise than the job's."""
    main = run.journal
    folder = main.folder / name
    journal: Journal | None = None
    if not (folder / FILE_NAME).exists():
        _clear(folder)
        plain: dict[str, Any] = {"mapping": "", "plan": {}, "marker": None, "unique": None, "keys": [], "before_images": "no"}
        header: Header = replace(main.header, job=f"{main.header.job}/{name}", created_at=run.clock.now(), **{**plain, **facts})
        journal = Journal.create(folder, header, run.clock)
    with closing(journal or Journal(folder, run.clock)) as journal:
        journal.recover()
        yield replace(run, journal=journal)


def send_phase(phase: SendContext, count: int, entries: Entries, what: str) -> CrmctlError | None:
    """Send what is left of a phase. Returns why it is not over; `what` says what its rows are."""
    journal = phase.journal
    begin_phase(journal, count)
    error, notes = deliver(phase, _Sent(entries))
    if error is not None:
        return error
    counts = journal.counts()
    left = counts[RowState.UNSENT] + counts[RowState.IN_DOUBT]
    if not left:
        return None
    why = f": {notes[0]}" if notes else ""
    return PartialError(f"{left:,} of {count:,} {what} are not settled{why}", code="phase_unsettled")


def begin_phase(journal: Journal, count: int) -> None:
    """What a phase sends is known from now on: so many rows."""
    if journal.state is JobState.CHECKING:
        journal.restart_check()
        journal.record_check(count, ())
        journal.set_state(JobState.OPEN)


def failures(journal: Journal, ordinals: Iterable[int]) -> dict[int, str]:
    """Which of these rows failed, and why."""
    found = {}
    for ordinal in ordinals:
        entry = journal.rows(ordinal, ordinal).get(ordinal)
        if entry is not None and entry.state is RowState.FAILED:
            found[ordinal] = entry.error or "refused"
    return found


def _clear(folder: Path) -> None:
    """A phase whose journal was being made when the program ended has sent nothing. Raises StorageError where one was lost."""
    if (mark := HighWaterMark(folder).read()[0]).sends:
        raise damaged(folder / FILE_NAME, f"it is gone, and rows up to {mark.last:,} were sent")
    for path in folder.glob("*") if folder.is_dir() else ():
        path.unlink()
