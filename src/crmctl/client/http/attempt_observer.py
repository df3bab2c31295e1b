"""The seam for somebody who must know about every single attempt of a request: the journal of a bulk job."""

from __future__ import annotations

from typing import Protocol


class AttemptObserver(Protocol):
    """Told about the attempts of one request, in order."""

    def sending(self) -> None:
        """An attempt is about to leave: no byte of it is sent before this returns. What it raises ends the request."""
        ...

    def refused(self) -> None:
        """The attempt certainly changed nothing, and another one follows after a wait."""
        ...


class BatchObserver(AttemptObserver, Protocol):
    """The same for a bulk request; `idempotency_key` names it to services that know such keys."""

    @property
    def idempotency_key(self) -> str: ...
