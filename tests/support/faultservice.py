"""A records service that fails on request, together with its ground truth.

In process it is a transport on an injected clock (`FaultService`), so that minutes of waiting take milliseconds; `FaultServer` serves it
over a socket, byte by byte. Faults are data: the effect of the n-th write, and how reading behaves throughout.
"""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from crmctl.client.transport import Request, Response
from crmctl.clock import Clock
from crmctl.errors import NetworkError
from tests.support.bulkserver import FILTER, OBJECT_ID, OPERATORS

LATE_SECONDS = 20.0


@dataclass(frozen=True)
class Fault:
    """The effect of one write. `applies`: no, all, half, late, twice. `reply`: the good answer, or what replaces it."""

    name: str
    applies: str = "no"
    reply: str = "good"

    @property
    def comes_first(self) -> bool:
        """Whether this answer, as the first one, precedes the handler by the specification, so that the request changed nothing."""
        return self.reply in ("401", "403", "404") and self.applies != "no"


@dataclass(frozen=True)
class Habits:
    """How reading behaves.

    `lag`: seconds until a record shows. `ahead`: seconds by which the service's clock is ahead. `ties`: order of records of one moment;
    `still`: all records have the same moment. `alters`: text comes back changed. `deaf`: filters are ignored. `broken`: number of reads
    that fail. `strangers`: another client creates a record before each of our writes. `nodes`: clock errors in seconds of several machines
    that take turns. `step`: the write at which the clock jumps, and the seconds. `stopped`: lists stay as they were before this write.
    `total`: lists contain the number of records. `times`: format of creation times: zone, bare, none. `page`: maximum number of records on
    a page.
    """

    name: str = "plain"
    lag: float = 0.0
    ahead: float = 0.0
    ties: str = "id"
    still: bool = False
    alters: bool = False
    deaf: bool = False
    broken: int = 0
    strangers: bool = False
    nodes: tuple[float, ...] = (0.0,)
    step: tuple[int, float] | None = None
    stopped: int | None = None
    total: bool = True
    times: str = "zone"
    page: int = 100


STATUSES = {"500": 500, "502 html": 502, "503": 503, "408": 408}
UNCLEAR = (*STATUSES, "drop", "hang", "half an answer", "wrong counts", "index out of range", "no json")

FAULTS: tuple[Fault, ...] = (
    *(Fault(f"{reply}, applied {applies}", applies, reply) for reply in UNCLEAR for applies in ("no", "all")),
    *(Fault(f"{reply}, applied {applies}", applies, reply) for reply in ("500", "drop", "hang") for applies in ("half", "late")),
    Fault("500, applied twice", "twice", "500"),
    Fault("drop, applied twice", "twice", "drop"),
    *(Fault(reply, "no", reply) for reply in ("429 seconds", "429 date", "429 bare", "refused", "400", "413", "401", "403", "404")),
    *(Fault(f"{reply}, applied all", "all", reply) for reply in ("400", "403", "404", "413", "417", "422")),
    Fault("422, applied half", "half", "422"),
)

READING: tuple[Habits, ...] = (
    Habits(),
    Habits("lag 5 s", lag=5),
    Habits("lag 40 s", lag=40),
    Habits("clock an hour ahead", ahead=3600),
    Habits("clock a day behind", ahead=-86400),
    Habits("time stands still", still=True),
    Habits("ties at random", still=True, ties="random"),
    Habits("text altered", alters=True),
    Habits("filters ignored", deaf=True),
    Habits("reads fail at first", broken=3),
    Habits("others write too", strangers=True),
    Habits("a node 6 s behind", nodes=(0.0, -6.0)),
    Habits("a node 5 min behind", nodes=(0.0, -300.0)),
    Habits("a node 2 min ahead", nodes=(0.0, 120.0, 0.0)),
    Habits("the clock steps back 60 s", step=(1, -60.0)),
    Habits("lists stopped from the first write", stopped=0),
    Habits("lists stopped at the third write", stopped=2),
    Habits("no totals", total=False),
    Habits("no times", times="none"),
    Habits("times without a zone", times="bare"),
    Habits("no totals, a node 6 s behind, others write too", total=False, nodes=(0.0, -6.0), strangers=True),
    Habits("a node 6 s behind, others write too", nodes=(-6.0, 0.0), strangers=True),
)


class Lost(Exception):
    """No answer, or only its first `kept` bytes."""

    def __init__(self, kept: bytes = b"") -> None:
        super().__init__("connection lost")
        self.kept = kept


class FaultService:
    """`faults` are by number of the write, from 0. Implements `Transport`."""

    def __init__(self, clock: Clock, faults: dict[int, Fault] | None = None, habits: Habits | None = None, seed: int = 0) -> None:
        self.clock = clock
        self.faults = dict(faults or {})
        self.habits = habits or Habits()
        self.records: list[dict[str, Any]] = []
        self.writes = self.reads = 0
        self.lock = threading.RLock()
        self._late: list[tuple[float, list[dict[str, Any]]]] = []
        self._heard = ""
        self._stepped = 0.0
        self._random = random.Random(seed)

    # -- the transport ---------------------------------------------------------------------------------------------------------------

    def send(self, request: Request) -> Response:
        self._heard = dict(request.headers)["Authorization"]
        try:
            return self.answer(request.method, request.url, request.body or b"", request.timeout)
        except Lost:
            raise NetworkError("the connection was lost", outcome_unknown=True, retryable=True) from None

    def upload(self, *upload: object) -> Response:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""

    # -- the service -----------------------------------------------------------------------------------------------------------------

    def answer(self, method: str, url: str, body: bytes, timeout: float = 30.0) -> Response:
        with self.lock:
            self._catch_up()
            if method == "POST":
                return self._write(json.loads(body), timeout)
            if method == "DELETE":
                return self._delete(set(json.loads(body)["ids"]))
            if not urlsplit(url).path.endswith("/records"):
                return self._record(urlsplit(url).path.rpartition("/")[2])
            return self._page(parse_qs(urlsplit(url).query))

    def settle(self) -> None:
        """Apply writes that are still late."""
        with self.lock:
            self._catch_up(everything=True)

    def _catch_up(self, *, everything: bool = False) -> None:
        for due in [late for late in self._late if everything or late[0] <= self.clock.now()]:
            self._late.remove(due)
            self._apply(due[1])

    def _write(self, body: dict[str, Any], timeout: float) -> Response:
        fault = self.faults.pop(self.writes, Fault("none", "all"))
        self.writes += 1
        rows = body["records"]
        if self.habits.strangers:
            self.create({"n": -self.writes, "note": "a stranger", "email": f"stranger{self.writes}@else.org"})
        if fault.reply == "refused":
            raise NetworkError("connection refused", outcome_unknown=False, retryable=True)
        if self.habits.step is not None and self.writes > self.habits.step[0]:
            self._stepped = self.habits.step[1]
        applied = {
            "no": [],
            "late": [],
            "all": rows,
            "half": rows[: len(rows) // 2],
            "last": rows[len(rows) // 2 :],
            "twice": [*rows, *rows],
        }[fault.applies]
        self._apply(applied)
        if fault.applies == "late":
            self._late.append((self.clock.now() + LATE_SECONDS, rows))
        return self._reply(fault.reply, len(rows), timeout)

    def _reply(self, reply: str, count: int, timeout: float) -> Response:
        good = {"created": count, "updated": 0, "failed": []}
        if reply == "good":
            return json_response(200, good)
        if reply == "hang":
            self.clock.sleep(timeout)
            raise Lost
        if reply == "drop":
            raise Lost
        if reply == "half an answer":
            raise Lost(json.dumps(good).encode()[:10])
        if reply == "no json":
            return Response(200, {"content-type": "application/json"}, b"{cut")
        if reply == "wrong counts":
            return json_response(200, good | {"created": count + 1})
        if reply == "index out of range":
            return json_response(200, {"created": count - 1, "updated": 0, "failed": [{"index": count, "error": "x"}]})
        if reply.startswith("429"):
            until = {"seconds": "2", "date": formatdate(self.clock.now() + 3, usegmt=True)}.get(reply[4:])
            return json_response(429, {"error": "rate_limited", "message": "slow down"}, {"retry-after": until} if until else {})
        if reply == "502 html":
            return Response(502, {"content-type": "text/html"}, b"<html>bad gateway</html>")
        status = int(reply)
        # Some services echo the request; crmctl must not show it anywhere.
        return json_response(status, {"error": "fault", "message": f"as requested, {self._heard}"})

    def _delete(self, ids: set[str]) -> Response:
        kept = [record for record in self.records if record["wire"]["id"] not in ids]
        deleted, self.records = len(self.records) - len(kept), kept
        return json_response(200, {"deleted": deleted})

    def _record(self, record_id: str) -> Response:
        found = next((record["wire"] for record in self.records if record["wire"]["id"] == record_id), None)
        return json_response(200, self._seen(found)) if found else json_response(404, {"error": "not_found", "message": "no such record"})

    def create(self, data: dict[str, Any]) -> None:
        """Create a record as another client."""
        with self.lock:
            self._apply([{"data": data}])

    def _apply(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            moment = self.clock.now()
            text = self._time(moment)
            record_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
            record = {"id": record_id, "objectId": OBJECT_ID, "data": row["data"], "createdAt": text, "updatedAt": text}
            self.records.append({"moment": moment, "write": self.writes - 1, "wire": record})

    def _time(self, moment: float) -> str | None:
        """Return the creation time that a record shows."""
        nodes = self.habits.nodes
        shown_time = moment + self.habits.ahead + nodes[self.writes % len(nodes)] + self._stepped
        text = datetime.fromtimestamp(0 if self.habits.still else shown_time, UTC).isoformat()
        return None if self.habits.times == "none" else text.replace("+00:00", "" if self.habits.times == "bare" else "Z")

    def _page(self, query: dict[str, list[str]]) -> Response:
        self.reads += 1
        if self.reads > 1 and self.habits.broken >= self.reads - 1:
            return json_response(500, {"error": "fault", "message": "cannot read"})
        shown = [record["wire"] for record in self.records if record["moment"] + self.habits.lag <= self.clock.now()]
        if self.habits.stopped is not None:
            shown = [record["wire"] for record in self.records if record["write"] < self.habits.stopped]
        if not self.habits.deaf:
            conditions = [(found, values[0]) for name, values in query.items() if (found := FILTER.fullmatch(name))]
            shown = [record for record in shown if _meets(record, conditions)] if conditions else shown
        if self.habits.ties == "random":
            self._random.shuffle(shown)
        elif self.habits.ties == "id":
            shown.sort(key=lambda record: str(record["id"]))
        shown.sort(key=lambda record: str(record["createdAt"]), reverse=query.get("order", ["desc"])[0] == "desc")
        limit, offset = int(query.get("limit", ["50"])[0]), int(query.get("offset", ["0"])[0])
        page = [self._seen(record) for record in shown[offset : offset + min(limit, self.habits.page)]]
        pagination = {"limit": limit, "offset": offset} | ({"total": len(shown)} if self.habits.total else {})
        return json_response(200, {"records": page, "pagination": pagination})

    def _seen(self, record: dict[str, Any]) -> dict[str, Any]:
        if not self.habits.alters:
            return record
        data = {name: f"+{value}" if name == "note" else value for name, value in record["data"].items()}
        return record | {"data": data}


def _meets(record: dict[str, Any], conditions: list[tuple[re.Match[str], str]]) -> bool:
    return all(OPERATORS[found["operator"]](str(record["data"].get(found["slug"]) or ""), value) for found, value in conditions)


def json_response(status: int, document: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(status, {"content-type": "application/json", **(headers or {})}, json.dumps(document).encode())


@dataclass
class FaultServer:
    """The service on a real socket: an answer may be cut at any byte, and the connection closed or reset.

    `cut` is the number of bytes to send of the answer to the next write (None: all); `reset` ends with RST instead of FIN.
    """

    service: FaultService
    cut: int | None = None
    reset: bool = False
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while line := stream.readline():
                    self._exchange(connection, line, stream.readline, stream.read)
            except (OSError, Lost):
                return

    def _exchange(self, connection: socket.socket, line: bytes, readline: Callable[[], bytes], read: Callable[[int], bytes]) -> None:
        method, target, _ = line.decode().split(" ", 2)
        length = 0
        while header := readline().strip():
            name, _, value = header.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        answer = self.service.answer(method, target, read(length))
        head = {**answer.headers, "content-length": str(len(answer.body))}
        content = f"HTTP/1.1 {answer.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in head.items()) + "\r\n"
        whole = content.encode() + answer.body
        if method != "POST" or self.cut is None:
            connection.sendall(whole)
            return
        connection.sendall(whole[: self.cut])
        self.cut = None
        if self.reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Lost
