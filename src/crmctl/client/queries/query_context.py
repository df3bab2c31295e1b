"""What questions about records need from outside: the service, its schema, the time, and somebody who hears what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from crmctl.client.crm import Crm
from crmctl.client.directory import Directory
from crmctl.errors import UsageError


class ReadingCost(NamedTuple):
    """Requests that a question takes beyond those that show its answer, and what for."""

    requests: int
    purpose: str


def _nothing(_: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class QueryContext:
    """`approve` hears of a cost before it arises, and raises to avoid it. `warn` hears of what may be a mistake, `tell` of details."""

    crm: Crm
    directory: Directory
    now: float
    approve: Callable[[ReadingCost], None] = _nothing
    warn: Callable[[str], None] = _nothing
    tell: Callable[[str], None] = _nothing
    strict: bool = False

    def doubt(self, text: str, hint: str | None = None) -> None:
        """Say that a condition can meet nothing. Raises UsageError where that is an error."""
        if self.strict:
            raise UsageError(text, hint=hint, code="impossible_value")
        self.warn(f"{text}; {hint}" if hint else text)
