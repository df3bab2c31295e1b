"""What became of an import: its summary, its findings, and the one error that says why not every row is written once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk.journal.states import RESULT_FILES, RowState
from crmctl.bulk.journal.summary import Summary
from crmctl.bulk.usecases.finding_log import FindingLog
from crmctl.errors import CrmctlError, ExitCode, PartialError, RejectedError

DUPLICATE_KEYS = "duplicate_keys"
NAMED = 20
"""How many rows with a key of somebody else's record the message names."""

LISTED = 100
"""How many of them its details list."""

DOUBTFUL_WAYS = "looks for them once more; with --assume-lost it sends them again, with --assume-applied they count as written"
IN_WORDS = {"failed": "failed", "rejected": "invalid", "inDoubt": "in doubt", "unsent": "not sent"}


@dataclass(frozen=True)
class JobResult:
    """How a run ended. `error` ended it early (an interrupt too); `notes` are for the user; `resumable`: something is left to do.

    `duplicates`: how many rows are there more than once. `rivals`: rows whose key somebody else's record has too, each with all of them.
    `refusals`: what the service said of rows that failed, the first two different reasons in input order.
    """

    summary: Summary
    exit_code: ExitCode
    error: CrmctlError | None = None
    notes: tuple[str, ...] = ()
    resumable: bool = False
    duplicates: int = 0
    rivals: Sequence[dict[str, Any]] = ()
    refusals: Sequence[str] = ()

    @property
    def hint(self) -> str | None:
        """The command that goes on with the job."""
        return f"crmctl bulk resume {self.summary.job}" if self.resumable else None


@dataclass(frozen=True)
class ImportResult:
    """How an import, or what was left of one, ended. `input`: the file as it was named. `error`: why not every row is written once, or
    None. `rivals`: rows whose key somebody else's new record has too. `notes`: what the user should know besides."""

    input: str
    summary: Summary
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None
    rivals: CrmctlError | None = None
    notes: Sequence[str] = ()

    @property
    def job(self) -> str | None:
        return self.summary.job

    def raise_for_error(self) -> None:
        """Raises the error that goes with the outcome; nothing when every row is as wanted."""
        if self.error is not None:
            raise self.error


def result_of(result: JobResult, file: str, findings: FindingLog | None = None) -> ImportResult:
    """A job's result as a use case gives it."""
    rivals = _rivals(result.rivals) if result.rivals else None
    return ImportResult(file, result.summary, findings or FindingLog(), _error_of(result, rivals), rivals, result.notes)


def example_summary() -> dict[str, Any]:
    """A summary as a program gets it, without anything in it."""
    files = {name: Path(name) for name in RESULT_FILES}
    return Summary("", "", "", dict.fromkeys(RowState, 0), 0, 0.0, files).to_document()


def _error_of(result: JobResult, rivals: PartialError | None) -> CrmctlError | None:
    if result.error is not None:
        result.error.hint = result.hint or result.error.hint
        return result.error
    document = result.summary.to_document()
    if result.exit_code is ExitCode.REJECTED:
        return _refused(document, result.refusals) if document["failed"] else rejected_rows(document["rejected"])
    counts = {name: document[name] for name in IN_WORDS if document[name]}
    twice = f"there more than once: {result.duplicates:,} row{'' if result.duplicates == 1 else 's'}" if result.duplicates else ""
    repair = f"crmctl bulk repair {result.summary.job}"
    extra = {"duplicates": result.duplicates} if twice else {}
    if twice and not counts:
        return PartialError(twice, hint=repair, details=extra)
    if rivals is not None and not counts:
        return rivals
    if result.exit_code is ExitCode.PARTIAL:
        said = ", ".join(f"{count:,} {IN_WORDS[name]}" for name, count in counts.items())
        failed = document["files"]["failed"]
        correct = f"{failed} holds the rows and the reasons; correct it and import it" if failed else None
        hint = f"{result.hint} {DOUBTFUL_WAYS}" if result.hint and document["inDoubt"] and not document["unsent"] else result.hint
        notes = {"notes": list(result.notes)} if document["inDoubt"] and result.notes else {}
        why = _said(result.refusals) if document["failed"] else ""
        besides = f"; {twice}: {repair} names them" if twice else ""
        return PartialError(f"not every row was written: {said}{why}{besides}", hint=hint or correct, details={**counts, **extra, **notes})
    return None


def _rivals(rivals: Sequence[dict[str, Any]]) -> PartialError:
    named = "; ".join(f"row {one['row']} ({one['key']}): {', '.join(one['ids'])}" for one in rivals[:NAMED])
    more = f"; and {len(rivals) - NAMED:,} more" if len(rivals) > NAMED else ""
    rows = "row has" if len(rivals) == 1 else "rows have"
    return PartialError(
        f"{len(rivals):,} {rows} a key that somebody else's new record has too: {named}{more}",
        hint="merge the records, or delete one of each",
        code=DUPLICATE_KEYS,
        details={"duplicates": list(rivals[:LISTED])},
    )


def service_words(reasons: Iterable[str]) -> str:
    """The end of a message: what the service said, the first two different things; nothing where it said nothing."""
    said = [*dict.fromkeys(reasons)][:2]
    return f"; the service said: {'; '.join(said)}" if said else ""


def _said(reasons: Sequence[str]) -> str:
    """What the service said to every row, else to the first."""
    if not reasons:
        return ""
    return f": {reasons[0]}" if len(reasons) == 1 else f", the first with: {reasons[0]}"


def _refused(document: dict[str, Any], reasons: Sequence[str]) -> RejectedError:
    count = document["failed"]
    file = document["files"]["failed"]
    rows = "the one row" if count == 1 else f"all {count:,} rows"
    return RejectedError(
        f"the service refused {rows} it was sent{_said(reasons)}; nothing was written",
        hint=f"{file} holds the rows and the reasons; correct it and import it" if file else None,
        code="refused_rows",
        details={name: document[name] for name in ("failed", "rejected", "unsent") if document[name]},
    )


def rejected_rows(count: int) -> RejectedError:
    """The error of an import whose input has invalid rows."""
    rows = "row is" if count == 1 else "rows are"
    return RejectedError(
        f"{count:,} {rows} invalid; nothing was sent",
        hint="correct the file, or --on-error continue imports the valid rows",
        code="invalid_rows",
    )
