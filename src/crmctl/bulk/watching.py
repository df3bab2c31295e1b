"""What only a whole column can tell: decimal marks that contradict each other, and dates whose day and month can be swapped."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.findings import Finding, Severity

_GROUPED = re.compile(r"\s*[+-]?[0-9]{1,3}\.[0-9]{3}\s*")
_SLASHED = re.compile(r"\s*([0-9]{1,2})[./-]([0-9]{1,2})[./-][0-9]{2,4}\s*")


@dataclass
class NumberWatch:
    """A column of numbers without a declared decimal mark: `1.234` beside `1,5` may be a thousand and more."""

    grouped: str | None = None
    comma: str | None = None
    told: bool = False

    def see(self, text: str, code: str | None) -> Finding | None:
        """Take note of a cell (`code` of its finding, None for a good one); a fatal finding when both kinds have been seen."""
        if code == "decimal_comma":
            self.comma = self.comma or text
        elif code is None and self.grouped is None and len(text) > 4 and _GROUPED.fullmatch(text):
            self.grouped = text
        if self.told or self.comma is None or self.grouped is None:
            return None
        self.told = True
        return Finding(
            "ambiguous_decimal",
            f"the column has {self.comma!r} and {self.grouped!r}: the point may group thousands",
            hint="--decimal-comma if the comma is the decimal mark; otherwise correct the cells with a comma",
            severity=Severity.FATAL,
        )


@dataclass
class DateWatch:
    """A column of dates: how many could be read with day and month swapped, and what the undeclared ones can only be."""

    declared: bool = False
    swappable: int = 0
    day_first: int = 0
    month_first: int = 0

    def see(self, text: str, value: Any) -> None:
        """Take note of a cell and its ISO date (None for one that was refused)."""
        if self.declared and isinstance(value, str):
            month, day = int(value[5:7]), int(value[8:10])
            self.swappable += day <= 12 and day != month
        elif value is None and (match := _SLASHED.fullmatch(text)):
            first, second = int(match[1]), int(match[2])
            self.day_first += first > 12 >= second
            self.month_first += second > 12 >= first
            self.swappable += first <= 12 and second <= 12 and first != second

    def to_document(self) -> dict[str, Any]:
        return {"swappable": self.swappable, "onlyDayFirst": self.day_first, "onlyMonthFirst": self.month_first}

    @property
    def tells(self) -> bool:
        """Whether there is anything a person should look at."""
        return bool(self.swappable or self.day_first or self.month_first)
