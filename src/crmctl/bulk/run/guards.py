"""How much an import may change: what the user expects is compared with what it is about to do, before the first write."""

from __future__ import annotations

import re
from dataclasses import dataclass

from crmctl.errors import RejectedError, UsageError


@dataclass(frozen=True)
class Guard:
    """`expect`: exactly so many rows are to be written. `most`: no more than so many, or, with `percent`, than this share of the rows."""

    expect: int | None = None
    most: float | None = None
    percent: bool = False

    @classmethod
    def parse(cls, expect: int | None, max_changes: str | None) -> Guard:
        """From `--expect N` and `--max-changes N|P%`. Raises UsageError."""
        if max_changes is None:
            return cls(expect)
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", max_changes.strip())
        if found is None or (not found[2] and "." in found[1]):
            raise UsageError(f"--max-changes: neither a number of rows nor a percentage: {max_changes}")
        return cls(expect, float(found[1]), found[2] == "%")

    def check(self, changes: int, rows: int) -> None:
        """Raises RejectedError when `changes` of `rows` rows would be written and that is not wanted."""
        if self.expect is not None and changes != self.expect:
            raise self._refusal(f"{changes:,} of {rows:,} rows would be written, --expect says {self.expect:,}", changes)
        most = None if self.most is None else self.most * rows / 100 if self.percent else self.most
        if most is not None and changes > most:
            said = f"{self.most:g}%" if self.percent else f"{self.most:,.0f}"
            raise self._refusal(f"{changes:,} of {rows:,} rows would be written, --max-changes allows {said}", changes)

    def refusal(self, changes: int, rows: int) -> RejectedError | None:
        """The same, for those who show the error."""
        try:
            self.check(changes, rows)
        except RejectedError as refused:
            return refused
        return None

    def _refusal(self, message: str, changes: int) -> RejectedError:
        return RejectedError(f"{message}; nothing was sent", hint="--dry-run shows what would be done", code="unexpected_changes",
                             details={"changes": changes})  # fmt: skip
