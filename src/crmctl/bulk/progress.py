"""What bulk work tells about how far it is. Who shows it, and how, is decided elsewhere."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who may show how far the work is."""

    def start(self, label: str, total: int | None = None) -> None: ...
    def advance(self, count: int = 1, /) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...
