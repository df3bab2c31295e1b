"""Bulk jobs for tests: prepared payloads, a journal in a folder, and one call that runs an import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk_context import Progress
from crmctl.clock import Clock
from crmctl.models.findings import Finding
from crmctl.plan.import_run import RunResult, run_import
from crmctl.plan.job_start import ImportRun
from crmctl.write.journal import Header, Journal
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkserver import OBJECT_ID
from tests.support.clock import FakeClock


@dataclass(frozen=True)
class Prepared:
    """A validated row."""

    ordinal: int
    data: dict[str, Any]
    id: str | None = None
    findings: Sequence[Finding] = ()


@dataclass
class Silent:
    """Progress that is not shown; `notes` and `done` keep it."""

    notes: list[str] = field(default_factory=list)
    done: int = 0

    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None:
        self.done = 0

    def tally(self, counts: Mapping[str, int]) -> None:
        """Not shown."""

    def advance(self, n: int = 1) -> None:
        self.done += n

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self) -> None:
        pass


class NoHooks:
    """Hooks of a job that only sends its rows."""

    changes_rows = False

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: False


NO_HOOKS: Any = NoHooks()


def prepared(count: int, *, bad: Sequence[int] = ()) -> list[Prepared]:
    """Return rows 1..count with a distinct `n`; those in `bad` are locally invalid."""
    finding = Finding("bad_value", "not a number", column="n")
    return [Prepared(n, {"n": n}, findings=(finding,) if n in bad else ()) for n in range(1, count + 1)]


def header(*, mode: str = "create", job: str = "job-1", origin: str = "http://127.0.0.1") -> Header:
    return Header(
        job=job, object="people", object_id=OBJECT_ID, origin=origin, mode=mode, input="people.csv", path="people.csv",
        sha256="00", size=0, mapping="m", schema="s", created_at=0.0, version="1",
    )  # fmt: skip


def new_journal(folder: Path, *, mode: str = "create", clock: Clock | None = None) -> Journal:
    return Journal.create(folder, header(mode=mode), clock or FakeClock())


def run(
    service: Any,
    journal: Journal,
    rows: Sequence[Prepared],
    options: DeliveryOptions | None = None,
    *,
    clock: Clock | None = None,
    stop_on_error: bool = True,
    progress: Progress | None = None,
) -> RunResult:
    """Run an import job over prepared rows."""
    shown = progress or Silent()
    context = ImportRun(
        service, journal, options or DeliveryOptions(), clock or FakeClock(), shown, rows=lambda: rows, hooks=NO_HOOKS,
        stop_on_error=stop_on_error,
    )  # fmt: skip
    return run_import(context)
