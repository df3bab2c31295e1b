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


def in_halves(
    parts: list[Part], send: Callable[[Part], Verdict], halves: Callable[[Part], Sequence[Part]]
) -> Iterator[tuple[Part, Verdict]]:
    """Send parts, and the halves of those that are refused as a whole, down to where `send` says so no more. Yields what became of each,
    in order, a refused part before its halves."""
    left = parts[::-1]
    while left:
        part = left.pop()
        verdict = send(part)
        if verdict.state is BatchState.BISECT:
            left += reversed(halves(part))
        yield part, verdict


def repeated(attempt: Callable[[], Verdict], most: int, clock: Clock, is_over: Callable[[], bool] = lambda: False) -> tuple[Verdict, int]:
    """The verdict on a request that is sent up to `most` times while twice is as good as once, and how often it was; `is_over`: no more."""
    for number in range(1, most + 1):
        verdict = attempt()
        if not verdict.repeatable or number == most or is_over():
            break
        clock.sleep(PATIENCE.gap(number))
    return verdict, number


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
        with watch_interrupts() as interrupt:
            for part in parts:
                if interrupt.requested and self.outcome.error is None:
                    self.outcome.error = InterruptedByUser("interrupted")
                for one, verdict in in_halves([part], self._send, self.request.halves):
                    self._count(one, verdict)
        self.progress.finish()

    def _send(self, part: Some) -> Verdict:
        if self.outcome.error is not None:
            return Verdict(BatchState.PLANNED)

        def attempt() -> Verdict:
            self.outcome.requests += 1
            return self.request.send(part)

        verdict, attempts = repeated(attempt, self.request.attempts, self.clock)
        if verdict.state is BatchState.CONFIRMED:
            self.request.settle(part, verdict, doubted=attempts > 1)
        return verdict

    def _count(self, part: Some, verdict: Verdict) -> None:
        self.outcome.error = self.outcome.error or verdict.fatal
        if verdict.state is BatchState.CONFIRMED:
            self.progress.advance(len(part))
        elif verdict.state is BatchState.IN_DOUBT:
            self.outcome.in_doubt += len(part)
        elif verdict.state is BatchState.PLANNED:
            self.outcome.unsent += len(part)
