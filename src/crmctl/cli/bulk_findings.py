"""Findings on the screen: the first ones for a person, in the details of the error for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crmctl.bulk.usecases.finding_log import FindingLog
    from crmctl.cli.runtime import Runtime
    from crmctl.errors import CrmctlError

SHOWN = 20
"""How many findings a person is shown; all of them are in the file of failed rows."""


def tell_findings(runtime: Runtime, findings: FindingLog, error: CrmctlError | None) -> None:
    """Show them; a program whose run ends with an error finds them in its details instead, next to what is there."""
    if error is None or not runtime.messages.machine or not (error.details is None or isinstance(error.details, dict)):
        _show(runtime, findings)
    elif findings.kept:
        error.details = {**(error.details or {}), **findings.to_document()}


def _show(runtime: Runtime, findings: FindingLog) -> None:
    """Say the first ones, each with its place, its reason and what helps."""
    said = runtime.messages
    single = [finding for finding in findings.kept if finding.code != "unknown_option"][:SHOWN]
    for finding in single:
        said.warn(finding.to_text() + (f"; {finding.hint}" if finding.hint else ""))
    several = findings.unknown_options[:SHOWN]
    for option in several:
        rows = f"{option['rows']:,} rows, the first" if option["rows"] > 1 else "one row,"
        said.warn(f"column {option['column']}: {option['value']!r} is not an option ({rows} on line {option['line']}); {option['hint']}")
    left = findings.count - len(single) - sum(option["rows"] for option in several)
    if left:
        said.warn(f"and {left:,} more findings")
