"""The test double: applies faults, records requests and deliveries, and answers `/_test`."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from email.utils import formatdate
from http import HTTPStatus
from inspect import isawaitable
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from pydantic import create_model
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crmctl.clock import SystemClock
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import DATABASE_FILE, FILES_FOLDER, Context, new_id
from crmctl.service.faults import BadRequest, Body, Fault, NotFound
from crmctl.service.http.edge import is_page
from crmctl.service.http.json_answers import JsonAnswer, answer_for
from crmctl.service.http.schemas import integer, read_query, read_shape
from crmctl.service.store import webhooks
from crmctl.service.store.sqlite import Snapshot, SqliteEngine
from crmctl.service.store.tx import Ids, to_micros, to_wire
from crmctl.service.testdouble.fault_rules import FaultPlan, FaultRule
from crmctl.values.moments import read_moment

if TYPE_CHECKING:
    from crmctl.service.http.connections import Connections
    from crmctl.service.outbound.caller import Caller

SEEDED_START = 1_767_225_600.0
"""The time at which a seeded double begins: 2026-01-01T00:00:00Z."""


class MovableClock(SystemClock):
    """A clock that `set` moves. A seeded one stands still, except for a millisecond before each request, so that equal runs give equal
    times; any other one runs on from where it was set."""

    def __init__(self, start: float | None, *, is_seeded: bool) -> None:
        self._is_seeded = is_seeded
        self._start = SEEDED_START if is_seeded and start is None else start
        self.reset()

    def now(self) -> float:
        if self._base is None:
            return super().now()
        return self._base + (self._ticks / 1000 if self._is_seeded else self.monotonic() - self._set_at)

    def set(self, moment: float | None) -> None:
        """Go on from a moment in Unix seconds, None for the machine's time."""
        self._base, self._set_at, self._ticks = moment, self.monotonic(), 0

    def tick(self) -> None:
        self._ticks += 1

    def mark(self) -> None:
        if self._is_seeded:
            self._start = self.now()

    def reset(self) -> None:
        self.set(self._start)


class SeededIds:
    """Makes UUIDs of version 7 in the order of the clock."""

    def __init__(self, seed: int, clock: MovableClock) -> None:
        self._seed = seed
        self._clock = clock
        self._lock = threading.Lock()
        self.begin("start")

    def begin(self, part: str) -> None:
        """Begin a series. Each part of a run has its own, so that a reset repeats its ids without those of the start."""
        self._random, self._count = random.Random(f"{self._seed} {part}"), 0

    def __call__(self) -> str:
        with self._lock:
            self._count += 1
            millis, high, low = int(self._clock.now() * 1000), self._count >> 12 & 0xFFF, self._count & 0xFFF
            return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-7{high:03x}-8{low:03x}-{self._random.getrandbits(48):012x}"


PREFIX = "/_test"
SINK = "http://crmctl-test.invalid/"
"""URL of the endpoint that a double has from the start: every event is delivered there, and to no network."""

MOST_RECORDED = 10_000
WAIT = (integer("count", 0, 0, MOST_RECORDED), integer("timeout", 0, 0, 600))
"""Parameters of a wait for deliveries: how many, and the most seconds."""
SHOWN_HEADERS = ("content-type", "user-agent", "if-match", "idempotency-key", "x-request-id")

Apps = Callable[[Context], ASGIApp]
Handler = Callable[[Request], Any]
"""Returns the answer of a control, or an awaitable of it."""


@dataclass
class State:
    """A saved state: the database, the uploaded files by path, and the moment it was saved."""

    database: Snapshot
    files: Mapping[Path, bytes]
    at: float


class TestDouble:
    """Wraps a service's application. `seed` makes ids, times and faults repeat after each reset."""

    def __init__(self, *, seed: int | None = None, start: float | None = None, rules: Sequence[str] = ()) -> None:
        """`start` is where the clock begins, in Unix seconds. Raises BadRequest for a malformed rule."""
        self.clock = MovableClock(start, is_seeded=seed is not None)
        self._seeded = None if seed is None else SeededIds(seed, self.clock)
        self.ids: Ids = self._seeded or new_id
        self.faults = FaultPlan(rules, seed)
        self.connections: Connections | None = None
        self._is_ready = False
        self._states: dict[str, State] = {}
        self._history: list[State] = []
        self._requests: deque[Json] = deque(maxlen=MOST_RECORDED)
        self._deliveries: deque[Json] = deque(maxlen=MOST_RECORDED)
        self._delivered = threading.Condition()
        self._active = 0
        self._released = asyncio.Event()
        self._control_turn = asyncio.Lock()
        self._is_open = asyncio.Event()
        self._is_open.set()

    def around(self, context: Context, app: ASGIApp, apps: Apps) -> ASGIApp:
        """Return the application with faults and controls. `apps` makes one on other data."""
        assert isinstance(context.engine, SqliteEngine)
        self._context, self._engine, self._app, self._apps = context, context.engine, app, apps
        self._engine.forget_safety()
        self._engine.write(lambda tx: webhooks.create_endpoint(tx, url=SINK, ids=self.ids, now=self.clock.now()))
        return self

    def begin(self) -> None:
        """Make the present state the one that resets return to, and apply faults from now on."""
        if self._seeded is not None:
            self._seeded.begin("tests")
        self.clock.mark()
        self._states[""] = self._save()
        self._requests.clear()
        self._is_ready = True

    # -- requests -----------------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            body = await request.body()
        except ClientDisconnect:
            return
        if scope["path"].startswith(f"{PREFIX}/"):
            answer = await self._control(request)
            await answer(scope, receive, send)
            return
        if is_page(scope["path"]):
            await self._app(scope, _replay(body, receive), send)
            return
        await self._is_open.wait()
        self.clock.tick()
        fault = self.faults.take(scope["method"], scope["path"]) if self._is_ready else None
        self._active += 1
        try:
            await self._answer(scope, body, receive, send, fault)
        finally:
            self._active -= 1

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send, fault: FaultRule | None) -> None:
        entry = _recorded(scope, body, self.clock.now(), fault)
        self._requests.append(entry)
        fault = fault or FaultRule()
        answer = _Answer(send, entry, self.clock)
        if fault.delay:
            await self._delay(receive, fault.delay)
        app = await self._app_for(scope["method"], fault)
        if fault.is_applied:
            for _ in range(1 + fault.twice):
                answer.messages.clear()
                await app(dict(scope), _replay(body, receive), answer.hold)
        if fault.drop or fault.cut is not None:
            entry["status"] = None
            if fault.cut is not None:
                await answer.forward_cut(fault.cut)
            assert self.connections is not None
            self.connections.drop(scope.get("client"), flush=fault.cut is not None)
        else:
            if fault.status is not None:
                answer.messages.clear()
                await _refusal(fault, fault.status)(scope, receive, answer.hold)
            await answer.forward()

    async def _delay(self, receive: Receive, seconds: float) -> None:
        """Wait. A client that disconnects or the removal of the rules ends the wait, and the request is carried out at once."""
        ends = [asyncio.ensure_future(receive()), asyncio.ensure_future(self._released.wait())]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _app_for(self, method: str, fault: FaultRule) -> ASGIApp:
        """Return the application on data as stale as the fault says. While rules need it, each write first saves the state it changes."""
        now = self.clock.monotonic()
        if fault.stale is not None:
            older = next((state for state in self._history if state.at > now - (fault.stale or 0)), None)
            return self._app if older is None else await asyncio.to_thread(self._open, older)
        if method not in ("GET", "HEAD") and self._is_ready and self.faults.has_stale:
            self._history.append(await asyncio.to_thread(self._save))
        return self._app

    def _open(self, state: State) -> ASGIApp:
        engine = SqliteEngine(Path(mkdtemp(prefix="stale-", dir=self._context.settings.data_dir)) / DATABASE_FILE)
        engine.restore(state.database)
        return self._apps(replace(self._context, engine=engine))

    # -- states -------------------------------------------------------------------------------------------------------------------

    def _save(self) -> State:
        return State(self._engine.snapshot(), {path: path.read_bytes() for path in self._files()}, self.clock.monotonic())

    def _files(self) -> list[Path]:
        return [path for path in (self._context.settings.data_dir / FILES_FOLDER).rglob("*") if path.is_file()]

    def _restore(self, state: State) -> None:
        with self._delivered:
            self._engine.restore(state.database)
            if self._files() or state.files:
                shutil.rmtree(self._context.settings.data_dir / FILES_FOLDER, ignore_errors=True)
                for path, content in state.files.items():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            self._deliveries.clear()
            self._history.clear()

    @asynccontextmanager
    async def _settled(self) -> AsyncIterator[None]:
        """Hold new requests, and wait for those under way."""
        async with self._control_turn:
            self._is_open.clear()
            try:
                while self._active:
                    await asyncio.sleep(0.001)
                yield
            finally:
                self._is_open.set()

    # -- deliveries ---------------------------------------------------------------------------------------------------------------

    def caller(self) -> Caller:
        from crmctl.service.background import target_guard
        from crmctl.service.outbound.caller import Caller, Reply

        record = self._record_delivery

        class RecordedCaller(Caller):
            """Records each call. Those of the sink succeed without a network."""

            def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
                reply = None
                try:
                    reply = Reply(200, {}, "") if url == SINK else super().post(url, headers, body)
                finally:
                    record(url, headers, body, reply.status if reply else None)
                return reply

        return RecordedCaller(target_guard(self._context))

    def _record_delivery(self, url: str, headers: Mapping[str, str], body: bytes, status: int | None) -> None:
        """Record an attempt, unless a reset has removed its event."""
        event_id = headers.get("webhook-id", "")
        with self._delivered:
            if self._engine.read(lambda tx: tx.one("SELECT 1 FROM change_log WHERE event_id = ?", (event_id,))) is None:
                return
            document = jsontext.loads(body)
            kind, shown = headers.get("webhook-event-type"), None if url == SINK else url
            self._deliveries.append({"type": kind, "url": shown, "status": status, "headers": dict(headers), "body": document})
            self._delivered.notify_all()

    def _await_deliveries(self, count: int, seconds: float) -> list[Json]:
        with self._delivered:
            self._delivered.wait_for(lambda: len(self._deliveries) >= count, seconds)
            return list(self._deliveries)

    # -- controls -----------------------------------------------------------------------------------------------------------------

    async def _control(self, request: Request) -> JsonAnswer:
        method, path = request.method, request.scope["path"].removeprefix(PREFIX)
        try:
            name = path.removeprefix("/snapshots/")
            handler = self._snapshot(name) if name != path else self._controls().get(path)
            if handler is None:
                raise NotFound(f"there is no control {PREFIX}{path}; the controls are: {', '.join(self._controls())}, /snapshots/NAME")
            if method not in handler:
                message = f"{PREFIX}{path} takes {', '.join(handler)}, not {method}"
                allowed = {"Allow": ", ".join(handler)}
                raise Fault(message, error="method_not_allowed", status=HTTPStatus.METHOD_NOT_ALLOWED, headers=allowed)
            document = handler[method](request)
            return JsonAnswer(await document if isawaitable(document) else document)
        except Exception as error:
            return answer_for(BadRequest(error.message) if isinstance(error, UsageError) else error)

    def _controls(self) -> dict[str, dict[str, Handler]]:
        return {
            "/reset": {"POST": self._reset},
            "/faults": {"GET": lambda _: self.faults.wire(), "POST": self._add_fault, "DELETE": self._clear_faults},
            "/clock": {"GET": self._show_clock, "PUT": self._set_clock},
            "/requests": {"GET": lambda _: list(self._requests)},
            "/deliveries": {"GET": self._show_deliveries, "POST": self._add_endpoint},
        }

    def _snapshot(self, name: str) -> dict[str, Handler]:
        async def save(_: Request) -> Json:
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
                raise BadRequest("the name of a snapshot consists of letters, digits, dots, dashes and underscores")
            async with self._settled():
                self._states[name] = await asyncio.to_thread(self._save)
            return {"saved": name}

        async def restore(_: Request) -> Json:
            state = self._states.get(name)
            if state is None or not name:
                names = ", ".join(sorted(filter(None, self._states))) or "none"
                raise NotFound(f"there is no snapshot {name!r}; saved: {names}")
            async with self._settled():
                await asyncio.to_thread(self._restore, state)
            return {"restored": name}

        return {"PUT": save, "POST": restore}

    async def _reset(self, _: Request) -> Json:
        self.faults.reset()
        self._release()
        async with self._settled():
            await asyncio.to_thread(self._restore, self._states[""])
            if self._seeded is not None:
                self._seeded.begin("tests")
            self.clock.reset()
            self._requests.clear()
        return {"reset": True}

    async def _add_fault(self, request: Request) -> list[dict[str, str | int]]:
        self.faults.add(await _text(request, "rule"))
        return self.faults.wire()

    def _clear_faults(self, _: Request) -> list[dict[str, str | int]]:
        self._release()
        return self.faults.clear()

    def _show_clock(self, _: Request) -> Json:
        return {"now": to_wire(to_micros(self.clock.now()))}

    async def _set_clock(self, request: Request) -> Json:
        self.clock.set(read_moment(await _text(request, "now"), self.clock.now()).at.timestamp())
        return self._show_clock(request)

    async def _show_deliveries(self, request: Request) -> list[Json]:
        query = read_query(request.scope["query_string"], WAIT)
        return await asyncio.to_thread(self._await_deliveries, query["count"], query["timeout"])

    async def _add_endpoint(self, request: Request) -> Json:
        url = await _text(request, "url")
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url, re.ASCII):
            raise BadRequest(f"url must be an address such as http://127.0.0.1:3000/hooks, not {url!r}", {"field": "url"})

        def create(tx: Any) -> Json:
            endpoint = webhooks.create_endpoint(tx, url=url, ids=self.ids, now=self.clock.now())
            return {"id": endpoint["id"], "url": url, "secret": webhooks.reveal_secret(tx, endpoint["id"])}

        return await asyncio.to_thread(lambda: self._engine.write(create))


async def _text(request: Request, field: str) -> str:
    """Return the only field of the JSON body. Raises BadRequest."""
    fields: dict[str, Any] = {field: str}
    return str(read_shape(create_model(field, __base__=Body, **fields), await request.body())[field])


class _Answer:
    """Holds the messages of an answer until the fault is known to let them pass."""

    def __init__(self, send: Send, entry: Json, clock: MovableClock) -> None:
        self.messages: list[Message] = []
        self._send = send
        self._entry = entry
        self._clock = clock

    async def hold(self, message: Message) -> None:
        self.messages.append(message)

    async def forward(self) -> None:
        for message in self.messages:
            if message["type"] == "http.response.start":
                self._entry["status"] = message["status"]
                date = formatdate(self._clock.now(), usegmt=True).encode()
                message = {**message, "headers": [*message["headers"], (b"date", date)]}
            await self._send(message)

    async def forward_cut(self, size: int) -> None:
        """Send the head, which declares the whole body, and the first bytes of the body."""
        head, *rest = self.messages
        body = b"".join(message.get("body", b"") for message in rest)
        await self._send(head)
        await self._send({"type": "http.response.body", "body": body[: min(size, max(0, len(body) - 1))], "more_body": True})


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, and then waits for the client to disconnect."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _recorded(scope: Scope, body: bytes, now: float, fault: FaultRule | None) -> Json:
    """Return a request as `/_test/requests` shows it: without its key, the body as JSON or text."""
    headers = Headers(scope=scope)
    try:
        shown: Any = jsontext.loads(body) if body else None
    except ValueError:
        shown = body.decode(errors="backslashreplace")
    return {
        "at": to_wire(to_micros(now)),
        "method": scope["method"],
        "path": scope["path"],
        "query": scope["query_string"].decode("latin-1"),
        "headers": {name: headers[name] for name in SHOWN_HEADERS if name in headers},
        "body": shown,
        "status": None,
        "fault": fault.text if fault else None,
    }


def _refusal(fault: FaultRule, status: int) -> Response:
    headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
    if status in (204, 304):
        return Response(status_code=status, headers=headers)
    return JsonAnswer({"error": "injected_fault", "message": f"fault rule: {fault.text}"}, status, headers)
