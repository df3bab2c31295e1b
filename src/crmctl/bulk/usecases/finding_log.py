"""The findings of a check: all are counted and passed on, the first ones kept, and values that are no options told once each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crmctl.bulk.findings import Finding

KEPT = 100
"""How many findings are kept; all of them are in the file of failed rows."""

UNKNOWN_OPTION = "unknown_option"


class FindingLog:
    """Hears the findings of one check, and passes each on to `report`. `count`: all of them; `kept`: the first 100."""

    def __init__(self, report: Callable[[Finding], None] = lambda _: None) -> None:
        self._report = report
        self.count = 0
        self.kept: list[Finding] = []
        self._options: dict[tuple[str | None, str | None], tuple[Finding, int]] = {}

    def __call__(self, finding: Finding) -> None:
        self.count += 1
        if finding.code == UNKNOWN_OPTION:
            option = (finding.column, finding.value)
            first, rows = self._options.get(option, (finding, 0))
            if rows or len(self._options) < KEPT:
                self._options[option] = (first, rows + 1)
        if len(self.kept) < KEPT:
            self.kept.append(finding)
        self._report(finding)

    @property
    def unknown_options(self) -> list[dict[str, Any]]:
        """Values that are no options, the most frequent first: column, value, rows, the first line, and what may be meant."""
        found = sorted(self._options.values(), key=lambda pair: -pair[1])
        return [
            {"column": first.column, "value": first.value, "rows": rows, "line": first.first_line, "hint": first.hint}
            for first, rows in found
        ]

    def to_document(self) -> dict[str, Any]:
        """The JSON form: `findings`, and `unknownOptions` where there are some."""
        found: dict[str, Any] = {"findings": [finding.to_document() for finding in self.kept]}
        if self.unknown_options:
            found["unknownOptions"] = self.unknown_options
        return found
