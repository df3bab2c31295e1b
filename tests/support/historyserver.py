"""A HistoryService behind a socket, for syncs by the installed program; it can hold back a chosen request, so that a kill hits there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from crmctl.errors import NotFoundError, RejectedError
from tests.support.fakecrm import Answer, FakeCrm, FakeRequest
from tests.support.historyservice import OBJECT_ID, HistoryService

WAIT_SECONDS = 60.0


class Barrier:
    """Counts requests and holds back the one with number `at` until `go_on`."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.cuts = False
        self.count = 0
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def arm(self, at: int | None, *, cuts: bool = False) -> None:
        """Choose the request to hold back; with `cuts` its connection closes afterwards."""
        self.at, self.count, self.cuts = at, 0, cuts
        self.reached.clear()
        self.go_on.clear()

    def pass_by(self) -> bool:
        """Count a request, waiting if it is the chosen one. Return whether it waited."""
        with self._lock:
            self.count += 1
            stops = self.count == self.at
        if stops:
            self.reached.set()
            self.go_on.wait(WAIT_SECONDS)
        return stops


@contextmanager
def serve_history(service: HistoryService, barrier: Barrier) -> Iterator[FakeCrm]:
    """Serve the service on a free port."""
    turn = threading.Lock()

    def route(answer: Callable[[FakeRequest], Any]) -> Callable[[FakeRequest], Any]:
        def answered(asked: FakeRequest) -> Answer:
            if barrier.pass_by() and barrier.cuts:
                return Answer(cut=True)  # the client is dead
            with turn:
                try:
                    return Answer(json=answer(asked), date=service.now / 1_000_000)
                except (RejectedError, NotFoundError) as error:
                    return Answer(error.status or 400, {"error": "bad_request", "message": error.message})

        return answered

    def records(asked: FakeRequest) -> Any:
        query = asked.query
        limit, offset = int(query["limit"]), int(query["offset"])
        page = service.list_records(OBJECT_ID, sort=query.get("sort"), order=query.get("order"), limit=limit, offset=offset)
        pagination = {"total": page.total, "limit": limit, "offset": offset}
        return {"records": [record.wire for record in page.items], "pagination": pagination}

    def record(asked: FakeRequest) -> Any:
        return {"record": service.get_record(OBJECT_ID, asked.path.rpartition("/")[2]).wire}

    routes = {
        "GET /objects": route(lambda _: {"objects": [crm_object.wire for crm_object in service.list_objects()]}),
        "GET /members": route(lambda _: {"members": []}),
        f"GET /objects/{OBJECT_ID}/attributes": route(lambda _: {"attributes": [attribute.wire for attribute in service.attributes]}),
        f"GET /objects/{OBJECT_ID}/records": route(records),
        f"GET /objects/{OBJECT_ID}/records/*": route(record),
    }
    with FakeCrm(routes) as fake:
        yield fake
