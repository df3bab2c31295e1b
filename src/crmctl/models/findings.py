"""Problems of one row or file, with their place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from crmctl.models import jsontext
from crmctl.models.jsontext import Json

SHOWN_VALUE_LENGTH = 80


class Severity(StrEnum):
    """`error` rejects the row, `fatal` refuses the whole file, `warning` rejects nothing."""

    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `ordinal` counts data records from 1, lines are physical lines from 1; both are None for a finding about the whole
    file."""

    code: str
    message: str
    hint: str | None = None
    severity: Severity = Severity.ERROR
    ordinal: int | None = None
    first_line: int | None = None
    last_line: int | None = None
    column: str | None = None
    value: str | None = None

    @property
    def rejects(self) -> bool:
        return self.severity is not Severity.WARNING

    def at(self, ordinal: int, first_line: int, last_line: int) -> Finding:
        """Return the finding with its place in the file."""
        return replace(self, ordinal=ordinal, first_line=first_line, last_line=last_line)

    def on(self, column: str, value: Any) -> Finding:
        """Return the finding with its column and the shortened value."""
        return replace(self, column=column, value=shorten(value))

    def to_document(self) -> Json:
        """Return the JSON form, with every key."""
        return {
            "code": self.code,
            "severity": str(self.severity),
            "row": self.ordinal,
            "line": self.first_line,
            "lastLine": self.last_line,
            "column": self.column,
            "value": self.value,
            "message": self.message,
            "hint": self.hint,
        }

    def to_text(self) -> str:
        """Return one line for people: place, column, value, reason."""
        lines = "" if self.first_line is None else f"line {self.first_line}"
        if self.first_line is not None and self.last_line not in (None, self.first_line):
            lines = f"lines {self.first_line}-{self.last_line}"
        where = ", ".join(part for part in (lines, f"column {self.column}" if self.column is not None else "") if part)
        value = f" (value {self.value!r})" if self.value is not None else ""
        return f"{where}: {self.message}{value}" if where else f"{self.message}{value}"


def shorten(value: Any) -> str:
    """Return a text, or any other value as JSON, in at most 80 characters for a report."""
    text = value if isinstance(value, str) else jsontext.dumps(value)
    return text if len(text) <= SHOWN_VALUE_LENGTH else text[: SHOWN_VALUE_LENGTH - 1] + "…"
