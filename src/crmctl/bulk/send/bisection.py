"""The loop of all bulk writing: send, repeat where twice is as good as once, and send what is refused as a whole in halves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from crmctl.backoff import Backoff
from crmctl.bulk.interrupts import watch_interrupts
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.journal.verdicts import Verdict
from crmctl.bulk.progress import Progress
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, InterruptedByUser

PATIENCE = Backoff(first=1.0)

Part = TypeVar("Part")
Some = TypeVar("Some", bound=Sized)


class InHalves(Generic[Part]):
    """Parts to be sent, in order; one that is refused as a whole is followed by its halves."""

    def __init__(self, parts: Sequence[Part], halves: Callable[[Part], Sequence[Part]]) -> None:
        self._left = list(parts[::-1])
        self._halves = halves

    def __iter__(self) -> Iterator[Part]:
        while self._left:
            yield self._left.pop()

    def judged(self, part: Part, verdict: Verdict) -> Verdict:
        """What became of the part that was given last: where it is to go in halves, they come next."""
        if verdict.state is BatchState.BISECT:
            self._left += reversed(self._halves(part))
        return verdict


def attempts(most: int, clock: Clock) -> Iterator[int]:
    """1, 2, 3 up to `most`, each but the first after a wait: for what is sent again while twice is as good as once."""
    yield 1
    for number in range(2, most + 1):
        clock.sleep(PATIENCE.gap(number - 1))
        yield number


class Outcome(Protocol):
    """What became of what was to be sent: `in_doubt` was sent, and nobody knows; `unsent` was not tried. `error` ended it early."""

    in_doubt: int
    unsent: int
    requests: int
    error: CrmctlError | None


class RepeatableRequest(Protocol[Some]):
    """A request that may be sent twice: twice is as good as once."""

    @property
    def attempts(self) -> int:
        """How often it is sent while its outcome is unknown."""
        ...

    def send(self, part: Some, /) -> Verdict:
        """One request. A verdict that ends everything has its error."""
        ...

    def settle(self, part: Some, verdict: Verdict, /, *, doubted: bool) -> None:
        """What the service said; `doubted`: an earlier attempt may have done it."""
        ...

    def halves(self, part: Some, /) -> Sequence[Some]: ...


@dataclass(frozen=True)
class RepeatableSender(Generic[Some]):
    """Sends one request after the other, without a journal. Never raises for what the service answers: that is in the outcome."""

    request: RepeatableRequest[Some]
    outcome: Outcome
    clock: Clock
    progress: Progress

    def send_all(self, parts: Iterable[Some]) -> None:
        """Send all parts, or as many as there is reason to."""
        with watch_interrupts(self.progress.note) as interrupt:
            for part in parts:
                if interrupt.requested and self.outcome.error is None:
                    self.outcome.error = InterruptedByUser("interrupted")
                pieces = InHalves([part], self.request.halves)
                for piece in pieces:
                    self._count(piece, pieces.judged(piece, self._send(piece)))
        self.progress.finish()

    def _send(self, part: Some) -> Verdict:
        if self.outcome.error is not None:
            return Verdict(BatchState.PLANNED)
        for number in attempts(self.request.attempts, self.clock):
            self.outcome.requests += 1
            verdict, doubted = self.request.send(part), number > 1
            if not verdict.repeatable:
                break
        if verdict.state is BatchState.CONFIRMED:
            self.request.settle(part, verdict, doubted=doubted)
        return verdict

    def _count(self, part: Some, verdict: Verdict) -> None:
        self.outcome.error = self.outcome.error or verdict.fatal
        if verdict.state is BatchState.CONFIRMED:
            self.progress.advance(len(part))
        elif verdict.state is BatchState.IN_DOUBT:
            self.outcome.in_doubt += len(part)
        elif verdict.state is BatchState.PLANNED:
            self.outcome.unsent += len(part)
