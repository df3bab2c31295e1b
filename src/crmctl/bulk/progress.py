"""What bulk work tells about how far it is. Who shows it, and how, is decided elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """Somebody who may show how far the work is. `per_request`: how many one request brings, where the rate limit sets the pace."""

    def start(self, label: str, total: int | None = None, per_request: int = 0, /) -> None: ...
    def advance(self, count: int = 1, /) -> None: ...
    def tally(self, counts: Mapping[str, int], /) -> None:
        """What became of some of them, in words: `created`, `failed`."""
        ...

    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...
