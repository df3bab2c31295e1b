"""The seam between a session and the rate budget: asked before every request, told about every answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Budget(Protocol):
    """Paces requests. Safe for several threads."""

    def acquire(self, patience: float) -> int:
        """Wait until one request may go and return its slot; `patience` is the most seconds to wait.

        Raises RateLimitedError at once when the wait would be longer, saying until when.
        """
        ...

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        """The request of this slot was answered; header names are lower case."""
        ...

    def lost(self, slot: int, *, never_sent: bool) -> None:
        """The request of this slot got no answer."""
        ...


class Unpaced:
    """No budget at all: every request goes at once."""

    def acquire(self, patience: float) -> int:
        return 0

    def answered(self, slot: int, status: int, headers: Mapping[str, str]) -> None:
        return None

    def lost(self, slot: int, *, never_sent: bool) -> None:
        return None
