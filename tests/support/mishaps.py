"""A client that loses requests and whose process dies on request: bulk writes of the use cases against a real service.

`Mishaps(client).lost[2] = "after"` loses the answer to the third bulk request; `killed_at("after begin", 1)` ends the process there.
Nothing waits: the clock is injected.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from crmctl import Client
from crmctl.client.transport import Request, Response
from crmctl.errors import NetworkError
from crmctl.write import database as lease
from crmctl.write.journal import Journal
from tests.support.clock import FakeClock

STEPS = ("before begin", "after begin", "before settle", "after settle")


class Killed(BaseException):
    """The process is dead: nothing may be written after this."""


class Mishaps:
    """The transport of a client's bulk lane. `lost` is by number of the bulk request, from 0: `before` or `after` it is carried out, or a
    status that replaces the answer.
    """

    def __init__(self, client: Client, lost: dict[int, str | int] | None = None) -> None:
        context = client._context
        context.clock = FakeClock(1_900_000_000.0)
        self.lost = dict(lost or {})
        self.bulk: list[tuple[str, bytes]] = []
        self.reads = 0
        session = context.service.session
        self._inner, session.transport = session.transport, self  # type: ignore[assignment]

    def send(self, request: Request) -> Response:
        if not request.url.split("?")[0].endswith("/bulk"):
            self.reads += 1
            return self._inner.send(request)
        fault = self.lost.pop(len(self.bulk), None)
        self.bulk.append((request.method, request.body or b""))
        answer = None if fault == "before" else self._inner.send(request)
        if fault in ("before", "after"):
            raise NetworkError("the connection was lost", outcome_unknown=True, retryable=True)
        assert answer is not None
        return (
            answer if fault is None else Response(int(fault), {"content-type": "application/json"}, b'{"error": "told", "message": "no"}')
        )

    def close(self) -> None:
        self._inner.close()


@contextmanager
def killed_at(step: str, count: int) -> Iterator[None]:
    """Kill the process at the `count`-th time of a step (`before begin`, `after settle`), and expect it to die there."""
    word, name = step.split(" ")
    left, dead = count, False
    ghost = lease.Holder.this_process()._replace(started="long ago")  # a process that is not running afterwards
    real, transaction = getattr(Journal, name), Journal._transaction

    def reached() -> None:
        nonlocal left, dead
        left -= 1
        if left == 0:
            dead = True
            raise Killed

    def stepping(journal: Journal, *given: Any, **more: Any) -> Any:
        if word == "before":
            reached()
        result = real(journal, *given, **more)
        if word == "after":
            reached()
        return result

    @contextmanager
    def mortal(journal: Journal, *, durable: bool = True) -> Iterator[None]:
        if dead:
            raise Killed
        with transaction(journal, durable=durable):
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, name, stepping)
        patch.setattr(Journal, "_transaction", mortal)
        patch.setattr(lease.Holder, "this_process", staticmethod(lambda: ghost))
        with pytest.raises(Killed):
            yield
