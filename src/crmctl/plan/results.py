"""The outcome of an import: findings, errors and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crmctl.errors import CrmctlError, ExitCode, PartialError, RejectedError
from crmctl.models.findings import Finding
from crmctl.write.database import RESULT_FILES, RowState
from crmctl.write.jobs import Summary

KEPT = 100
"""Maximum number of findings kept in memory; the file of failed rows holds all of them."""

ALIKE = 5
"""Findings of one column with the same message that are shown one by one; more of them share a line."""

UNKNOWN_OPTION = "unknown_option"


class FindingLog:
    """Collect the findings of one check and pass each to `report`.

    `count`: number of findings; `kept`: the first 100; `groups`: the first findings of one column that say the same, with their number.
    """

    def __init__(self, report: Callable[[Finding], None] = lambda _: None) -> None:
        self._report = report
        self.count = 0
        self.kept: list[Finding] = []
        self._options: dict[tuple[str | None, str | None], tuple[Finding, int]] = {}
        self._groups: dict[tuple[str, str | None, str], tuple[list[Finding], int]] = {}

    def __call__(self, finding: Finding) -> None:
        self.count += 1
        if finding.code == UNKNOWN_OPTION:
            option = (finding.column, finding.value)
            first, rows = self._options.get(option, (finding, 0))
            if rows or len(self._options) < KEPT:
                self._options[option] = (first, rows + 1)
        else:
            alike = (finding.code, finding.column, finding.message)
            examples, rows = self._groups.get(alike, ([], 0))
            if rows or len(self._groups) < KEPT:
                self._groups[alike] = (examples + [finding][: ALIKE - len(examples)], rows + 1)
        if len(self.kept) < KEPT:
            self.kept.append(finding)
        self._report(finding)

    @property
    def groups(self) -> list[tuple[list[Finding], int]]:
        return list(self._groups.values())

    @property
    def unknown_options(self) -> list[dict[str, Any]]:
        """Return unknown options, the most frequent first: column, value, number of rows, first line and a suggestion."""
        found = sorted(self._options.values(), key=lambda pair: -pair[1])
        return [
            {"column": first.column, "value": first.value, "rows": rows, "line": first.first_line, "hint": first.hint}
            for first, rows in found
        ]

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form: `findings`, and `unknownOptions` if there are any."""
        found: dict[str, Any] = {"findings": [finding.to_document() for finding in self.kept]}
        if self.unknown_options:
            found["unknownOptions"] = self.unknown_options
        return found


DUPLICATE_KEYS = "duplicate_keys"
NAMED = 20
"""Maximum number of rows in the message about keys that another client used too."""

LISTED = 100
"""Maximum number of such rows in the details of the error."""

IN_WORDS = {"failed": "failed", "rejected": "invalid", "inDoubt": "in doubt", "unsent": "not sent"}


@dataclass(frozen=True)
class JobResult:
    """Outcome of a run. `error`: the error or interrupt that ended it early; `notes` are for the user; `resumable`: work remains.

    `rivals`: rows whose key another client's record has too, with the records.
    `refusals`: the first two different messages of the service about failed rows, in input order.
    """

    summary: Summary
    exit_code: ExitCode
    error: CrmctlError | None = None
    notes: tuple[str, ...] = ()
    resumable: bool = False
    rivals: Sequence[dict[str, Any]] = ()
    refusals: Sequence[str] = ()
    failed_copy: Path | None = None

    @property
    def failed_file(self) -> Path | str | None:
        """The file of failed rows, if there is one: the copy that the user asked for, else that of the job."""
        file: str | None = self.summary.to_document()["files"]["failed"]
        return self.failed_copy if file and self.failed_copy is not None else file

    @property
    def hint(self) -> str | None:
        return f"crmctl bulk resume {self.summary.job}" if self.resumable else None


@dataclass(frozen=True)
class ImportResult:
    """Outcome of an import, new or resumed.

    `input`: the file as the user named it. `error`: why some rows were not written exactly once, or None. `rivals`: the error about rows
    whose key another client's new record has too. `notes`: more information for the user. `failed_file`: holds the failed rows.
    """

    input: str
    summary: Summary
    findings: FindingLog = field(default_factory=FindingLog)
    error: CrmctlError | None = None
    rivals: CrmctlError | None = None
    notes: Sequence[str] = ()
    failed_file: Path | str | None = None

    @property
    def job(self) -> str | None:
        return self.summary.job

    def raise_for_error(self) -> None:
        if self.error is not None:
            raise self.error


def result_of(result: JobResult, file: str, findings: FindingLog | None = None) -> ImportResult:
    rivals = _rivals(result.rivals) if result.rivals else None
    outcome = ImportResult(
        file, result.summary, findings or FindingLog(), rivals=rivals, notes=result.notes, failed_file=result.failed_file
    )
    try:
        _check(result, rivals)
    except CrmctlError as error:
        return replace(outcome, error=error)
    return outcome


def example_summary() -> dict[str, Any]:
    files = {name: Path(name) for name in RESULT_FILES}
    return Summary("", "", "", dict.fromkeys(RowState, 0), 0, 0.0, files).to_document()


def _check(result: JobResult, rivals: PartialError | None) -> None:
    if result.error is not None:
        result.error.hint = result.hint or result.error.hint
        raise result.error
    document = result.summary.to_document()
    if result.exit_code is ExitCode.REJECTED:
        if document["failed"]:
            raise _refused(document, result)
        raise _orphans(document["rejected"], result.refusals) if result.refusals else rejected_rows(document["rejected"])
    counts = {name: document[name] for name in IN_WORDS if document[name]}
    duplicates = result.summary.duplicates
    twice = f"there more than once: {duplicates:,} row{'' if duplicates == 1 else 's'}" if duplicates else ""
    repair = f"crmctl bulk repair {result.summary.job}"
    extra = {"duplicates": duplicates} if twice else {}
    if twice and not counts:
        raise PartialError(twice, hint=repair, details=extra)
    if rivals is not None and not counts:
        raise rivals
    if result.exit_code is ExitCode.PARTIAL:
        said = ", ".join(f"{count:,} {IN_WORDS[name]}" for name, count in counts.items())
        failed = result.failed_file
        correct = f"{failed} holds the rows and the reasons; correct it and import it" if failed else None
        hint = result.hint
        if hint and document["inDoubt"] and not document["unsent"]:
            hint += " looks for them once more"
            if named := document["files"]["inDoubt"]:
                hint += f"; {named} names them: import those that are not in the service"
        notes = {"notes": list(result.notes)} if document["inDoubt"] and result.notes else {}
        why = _said(result.refusals)
        besides = f"; {twice}: {repair} names them" if twice else ""
        raise PartialError(f"not every row was written: {said}{why}{besides}", hint=hint or correct, details={**counts, **extra, **notes})


def _rivals(rivals: Sequence[dict[str, Any]]) -> PartialError:
    named = "; ".join(f"row {one['row']} ({one['key']}): {', '.join(one['ids'])}" for one in rivals[:NAMED])
    more = f"; and {len(rivals) - NAMED:,} more" if len(rivals) > NAMED else ""
    rows = "row has" if len(rivals) == 1 else "rows have"
    return PartialError(
        f"{len(rivals):,} {rows} a key that another client's new record has too: {named}{more}",
        hint="merge the records, or delete one of each",
        code=DUPLICATE_KEYS,
        details={"duplicates": list(rivals[:LISTED])},
    )


def service_words(reasons: Iterable[str]) -> str:
    """Return the end of a message with the first two different reasons of the service; empty without reasons."""
    said = [*dict.fromkeys(reasons)][:2]
    return f"; the service said: {'; '.join(said)}" if said else ""


def _said(reasons: Sequence[str]) -> str:
    """Return the service's reason if all rows share it, else the reason for the first row."""
    if not reasons:
        return ""
    return f": {reasons[0]}" if len(reasons) == 1 else f", the first with: {reasons[0]}"


def _refused(document: dict[str, Any], result: JobResult) -> RejectedError:
    count, reasons, file = document["failed"], result.refusals, result.failed_file
    rows = "the one row" if count == 1 else f"all {count:,} rows"
    return RejectedError(
        f"the service refused {rows} it was sent{_said(reasons)}; nothing was written",
        hint=f"{file} holds the rows and the reasons; correct it and import it" if file else None,
        code="refused_rows",
        details={name: document[name] for name in ("failed", "rejected", "unsent") if document[name]},
    )


def _orphans(count: int, reasons: Sequence[str]) -> RejectedError:
    rows = "row was" if count == 1 else "rows were"
    hint = "import the rows again in a minute: the lists of the service may be late; otherwise correct the records they refer to"
    return RejectedError(f"{count:,} {rows} not sent; {'; '.join(reasons)}", hint=hint, code="invalid_rows")


def rejected_rows(count: int) -> RejectedError:
    """Return the error for an import with invalid rows."""
    rows = "row is" if count == 1 else "rows are"
    return RejectedError(
        f"{count:,} {rows} invalid; nothing was sent",
        hint="correct the file, or --on-error continue imports the valid rows",
        code="invalid_rows",
    )
