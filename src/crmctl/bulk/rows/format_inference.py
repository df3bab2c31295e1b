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

    def is_news(self, text: str) -> bool:
        """Whether `see_good` would take note of a number."""
        return self.grouped is None and len(text) > 4 and _GROUPED.fullmatch(text) is not None

    def see_good(self, text: str, _value: Any) -> Finding | None:
        """Take note of a number that was read; a fatal finding when both kinds have been seen."""
        if self.is_news(text):
            self.grouped = text
            return self._contradiction()
        return None

    def see_bad(self, text: str, code: str) -> Finding | None:
        """Take note of a cell that was refused, as `see_good`."""
        if self.comma is None and code == "decimal_comma":
            self.comma = text
            return self._contradiction()
        return None

    def _contradiction(self) -> Finding | None:
        if self.comma is None or self.grouped is None:
            return None
        return Finding(
            "ambiguous_decimal",
            f"the column has {self.comma!r} and {self.grouped!r}: the point may group thousands",
            hint="--decimal-comma if the comma is the decimal mark; otherwise correct the cells with a comma",
            severity=Severity.FATAL,
        )


@dataclass
class DateWatch:
    """A column of dates: how many could be read with day and month swapped, and what the undeclared ones can only be."""

    swappable: int = 0
    day_first: int = 0
    month_first: int = 0

    def see_good(self, _text: str, value: Any) -> None:
        """Take note of a date read in a declared format, given as ISO."""
        month, day = int(value[5:7]), int(value[8:10])
        self.swappable += day <= 12 and day != month

    def see_bad(self, text: str, _code: str) -> None:
        """Take note of a date that was refused because no format is declared."""
        if match := _SLASHED.fullmatch(text):
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
