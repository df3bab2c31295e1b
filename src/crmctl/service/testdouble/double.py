"""The test double: applies fault rules, records requests and deliveries, and answers `/_test`."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from email.utils import formatdate
from fnmatch import fnmatchcase
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crmctl.clock import SystemClock
from crmctl.errors import UsageError
from crmctl.models import jsontext
from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.service.context import DATABASE_FILE, FILES_FOLDER, Context, new_id
from crmctl.service.faults import BadRequest, Body, Fault, NotFound, check_shape
from crmctl.service.http.connections import DROP
from crmctl.service.http.json_answers import JsonAnswer, answer_for
from crmctl.service.http.schemas import integer, read_query, read_shape
from crmctl.service.store import change_log, webhooks
from crmctl.service.store.sqlite import Snapshot, SqliteEngine
from crmctl.service.store.tx import Rows, required, to_micros, to_wire
from crmctl.values.moments import read_moment, read_span

PREFIX = "/_test"
SINK = f"{PREFIX}/sink"  # every event is delivered there
MOST_RECORDED = 10_000
WAIT = (integer("count", 0, 0, MOST_RECORDED), integer("timeout", 0, 0, 600))  # for deliveries, with the most seconds
SEEDED_START = 1_767_225_600.0  # 2026-01-01T00:00:00Z

_DELIVERIES = Rows(
    "webhook_attempt AS attempt JOIN webhook_delivery AS delivery ON delivery.id = attempt.delivery_id"
    " JOIN webhook_endpoint AS endpoint ON endpoint.id = endpoint_id JOIN change_log ON change_log.event_id = delivery.event_id",
    "delivery",
    "event_type AS type, url, status, request_headers AS headers, payload AS body",
    url=lambda url: None if url.endswith(SINK) else url,
    headers=jsontext.loads,
    body=jsontext.loads,
)


class MovableClock(SystemClock):
    """A clock that `set` moves, and a source of ids.

    With a seed it stands still, except for a millisecond before each request, so that equal runs give equal times and ids. Without a seed
    it runs on from where it was set.
    """

    def __init__(self, start: float | None, seed: int | None) -> None:
        self._seed = seed
        self._start = SEEDED_START if start is None and seed is not None else start
        self._first_id = 0
        self.reset()

    def now(self) -> float:
        return self._moment + (self.monotonic() - self._set_at if self._seed is None else self._ticks / 1000)

    def set(self, moment: float | None) -> None:
        """Go on from a moment in Unix seconds, None for the machine's time."""
        self._moment = super().now() if moment is None else moment
        self._set_at, self._ticks = self.monotonic(), 0

    def tick(self) -> None:
        self._ticks += 1

    def mark(self) -> None:
        """Make the present time and ids of a seeded clock those that `reset` returns to."""
        if self._seed is not None:
            self._start, self._first_id = self.now(), next(self._ids)
            self.reset()

    def reset(self) -> None:
        self.set(self._start)
        self._ids = count(self._first_id)

    def new_id(self) -> str:
        """Return a UUID of version 7 in the order of the clock."""
        if self._seed is None:
            return new_id()
        number, millis = next(self._ids), int(self.now() * 1000)
        high, low, rest = number >> 12 & 0xFFF, number & 0xFFF, hashlib.sha256(f"{self._seed} {number}".encode()).hexdigest()[:12]
        return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-7{high:03x}-8{low:03x}-{rest}"


CONDITIONS = ("nth", "p", "times")
EXCLUSIVE = ("status", "drop", "cut", "stale", "twice")  # a rule has at most one
EFFECTS = (*EXCLUSIVE, "retry-after", "after", "delay")
FLAGS = ("after", "twice")

_RULE = re.compile(r"\s*(\S+)\s+([/*]\S*?)\s*(?:\[([^\]]*)\]\s*)?->(.*)", re.DOTALL)

Count = Annotated[int, Field(ge=1, le=10**9)]
Duration = Annotated[float, BeforeValidator(read_span)]


class FaultRule(Body, strict=False, alias_generator=lambda name: name.replace("_", "-")):
    """A fault and its conditions: the `nth` matching request only, each with the probability `p`, at most `times`. Durations in seconds;
    `cut` in bytes of the body. `matched` and `fired` count the requests so far."""

    text: str = ""
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "*"] = "*"
    path: str = "*"
    nth: Count | None = None
    p: Annotated[float, Field(gt=0, le=1)] = 1.0
    times: Count | None = None
    status: Annotated[int, Field(ge=400, le=599)] | None = None
    retry_after: Annotated[int, Field(ge=0, le=86400)] | None = None
    after: bool = False
    drop: Literal["before", "after"] | None = None
    delay: Duration = 0.0
    cut: Annotated[int, Field(ge=0, le=10**9)] | None = None
    stale: Duration | None = None
    twice: bool = False
    matched: int = 0
    fired: int = 0

    def fires(self, chance: Callable[[], float]) -> bool:
        """Whether the conditions hold for the request that was just counted."""
        return self.nth in (None, self.matched) and (self.times is None or self.fired < self.times) and (self.p >= 1 or chance() < self.p)


def parse_rule(text: str) -> FaultRule:
    """Parse `METHOD PATH [CONDITION ...] -> EFFECT ...`. Raises BadRequest naming the wrong word."""
    try:
        match = _RULE.fullmatch(text)
        if match is None:
            raise ValueError("must be METHOD PATH [nth=3] -> status=503 after, with a path such as /api/v1/* or */bulk")
        conditions, effects = _words(match[3] or "", CONDITIONS, "condition"), _words(match[4], EFFECTS, "effect")
        if "status" not in effects and effects.keys() & {"retry-after", "after"}:
            raise ValueError("retry-after and after need status=CODE")
        chosen = effects.keys() & {*EXCLUSIVE}
        if len(chosen) > 1 or not (chosen or "delay" in effects):
            raise ValueError(f"needs one effect of: {', '.join(EXCLUSIVE)}, delay")
        return check_shape(FaultRule, {"text": text.strip(), "method": match[1].upper(), "path": match[2], **conditions, **effects})
    except (ValueError, BadRequest) as error:
        raise BadRequest(f"fault rule {text.strip()!r}: {error}", {"field": "rule"}) from None


def _words(text: str, names: Sequence[str], kind: str) -> dict[str, str | bool]:
    """Return the values of words such as `nth=3`, True for flags. Raises ValueError."""
    words: dict[str, str | bool] = {}
    for name, sign, value in (word.partition("=") for word in text.split()):
        if name not in names:
            raise ValueError(f"unknown {kind} {name!r}; {suggestion(name, names, f'{kind}s: ' + ', '.join(names))}")
        if name in words:
            raise ValueError(f"{name} is given twice")
        if bool(sign) is (name in FLAGS):
            raise ValueError(f"{name} {'takes no' if sign else 'needs a'} value")
        words[name] = value if sign else True
    return words


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
        self.clock = MovableClock(start, seed)
        self._first_rules, self._seed = rules, seed
        self._begin_faults()
        self._begun: State | None = None
        self._states: dict[str, State] = {}
        self._history: list[State] = []
        self._requests: deque[Json] = deque(maxlen=MOST_RECORDED)
        self._active = 0
        self._gate = asyncio.Lock()
        self._released = asyncio.Event()
        routes = [
            Route(f"{PREFIX}/reset", self._reset, methods=["POST"]),
            Route(f"{PREFIX}/faults", self._control_faults, methods=["GET", "POST", "DELETE"]),
            Route(f"{PREFIX}/clock", self._set_clock, methods=["PUT"]),
            Route(f"{PREFIX}/requests", lambda _: JsonAnswer(list(self._requests)), methods=["GET"]),
            Route(SINK, lambda _: Response(), methods=["POST"]),
            Route(f"{PREFIX}/deliveries", self._show_deliveries, methods=["GET"]),
            Route(f"{PREFIX}/snapshots/{{name}}", self._control_snapshot, methods=["PUT", "POST"]),
        ]
        handlers: Any = dict.fromkeys((Fault, HTTPException), lambda _, error: answer_for(error))
        handlers[UsageError] = lambda _, error: answer_for(BadRequest(error.message))
        self._controls = Starlette(routes=routes, exception_handlers=handlers)

    def around(self, context: Context, app: ASGIApp, apps: Callable[[Context], ASGIApp]) -> ASGIApp:
        """Return the application with faults and controls. `apps` makes one on other data."""
        assert isinstance(context.engine, SqliteEngine)
        self._context, self._engine, self._app, self._apps = context, context.engine, app, apps
        self._files = context.settings.data_dir / FILES_FOLDER
        self._engine.forget_safety()
        return self

    def begin(self) -> None:
        """Make the present state the one that resets return to. Deliver events and apply faults from now on."""
        url = f"{self._context.settings.address}{SINK}"
        self._engine.write(lambda tx: webhooks.create_endpoint(tx, url=url, ids=self.clock.new_id, now=self.clock.now()))
        self.clock.mark()
        self._requests.clear()
        self._begun = self._save()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(f"{PREFIX}/"):
            await self._controls(scope, receive, send)
            return
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return
        async with self._gate:
            self._active += 1
        try:
            self.clock.tick()
            fault = self._take_fault(scope["method"], scope["path"])
            await self._answer(scope, body, receive, send, fault)
        finally:
            self._active -= 1

    def end_delays(self) -> None:
        """Carry out the requests that wait, and no later ones."""
        self._released.set()
        self._released = asyncio.Event()

    def _begin_faults(self) -> None:
        """Return to the rules and the chances of the start. Equal seeds give equal faults."""
        self._rules = [parse_rule(text) for text in self._first_rules]
        self._random = random.Random(self._seed)

    def _take_fault(self, method: str, path: str) -> FaultRule:
        """Count a request and return the first rule whose conditions hold, else one without effects."""
        matching = [rule for rule in self._rules if self._begun and rule.method in ("*", method) and fnmatchcase(path, rule.path)]
        for rule in matching:
            rule.matched += 1
        taken = next((rule for rule in matching if rule.fires(self._random.random)), FaultRule())
        taken.fired += 1
        return taken

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send, fault: FaultRule) -> None:
        """Hold the messages of the answer until the request is carried out, and send those that the fault lets pass."""
        entry = _recorded(scope, body, self.clock.now(), fault)
        self._requests.append(entry)
        messages: list[Message] = []

        async def hold(message: Message) -> None:
            messages.append(message)

        if fault.delay:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._released.wait(), fault.delay)
        is_refused = fault.drop == "before" or (fault.status is not None and not fault.after)
        with ExitStack() as stack:
            app = await self._app_for(scope["method"], fault, stack)
            for _ in range(0 if is_refused else 1 + fault.twice):
                messages.clear()
                await app(dict(scope), _replay(body, receive), hold)
        if fault.status is not None:
            messages.clear()
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            refusal = Fault(f"fault rule: {fault.text}", error="injected_fault", status=fault.status, headers=headers)
            await answer_for(refusal)(scope, receive, hold)
        passed = _passed(messages, fault, self.clock.now())
        if passed and fault.cut is None:
            entry["status"] = passed[0]["status"]
        for message in passed:
            await send(message)
        if fault.drop or fault.cut is not None:
            scope[DROP]()

    async def _app_for(self, method: str, fault: FaultRule, stack: ExitStack) -> ASGIApp:
        """Return the application on data as stale as the fault says. While rules need it, each write first saves the state it changes."""
        now, longest = self.clock.monotonic(), max((rule.stale or 0.0 for rule in self._rules), default=0.0)
        if fault.stale is not None:
            older = next((state for state in self._history if state.at > now - fault.stale), None)
            return self._app if older is None else await asyncio.to_thread(self._open, older, stack)
        if longest and method not in ("GET", "HEAD") and self._begun:
            self._history = [state for state in self._history if state.at > now - longest]
            self._history.append(await asyncio.to_thread(self._save))
        return self._app

    def _open(self, state: State, stack: ExitStack) -> ASGIApp:
        folder = stack.enter_context(TemporaryDirectory(prefix="stale-", dir=self._context.settings.data_dir))
        engine = stack.enter_context(closing(SqliteEngine(Path(folder) / DATABASE_FILE)))
        engine.restore(state.database)
        return self._apps(replace(self._context, engine=engine))

    def _save(self) -> State:
        with self._engine.snapshot() as database:
            # A restored state delivers nothing again.
            database.execute("DELETE FROM webhook_delivery")
        files = {path: path.read_bytes() for path in self._files.rglob("*") if path.is_file()}
        return State(database, files, self.clock.monotonic())

    def _restore(self, state: State) -> None:
        self._engine.restore(state.database)
        shutil.rmtree(self._files, ignore_errors=True)
        for path, content in state.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._history.clear()

    @asynccontextmanager
    async def _settled(self, *, with_events: bool = False) -> AsyncIterator[None]:
        """Hold new requests, carry out those under way without delay, and wait until endpoints and workflows have their events."""
        async with self._gate:
            self.end_delays()
            while self._active or (with_events and self._engine.read(change_log.is_waiting)):
                await asyncio.sleep(0.001)
            yield

    async def _reset(self, _: Request) -> Response:
        assert self._begun is not None
        async with self._settled():
            await asyncio.to_thread(self._restore, self._begun)
            self._begin_faults()
            self.clock.reset()
            self._requests.clear()
        return JsonAnswer({"reset": True})

    async def _control_snapshot(self, request: Request) -> Response:
        name, saves = request.path_params["name"], request.method == "PUT"
        if not saves and name not in self._states:
            raise NotFound(f"there is no snapshot {name!r}; saved: {', '.join(sorted(self._states)) or 'none'}")
        async with self._settled(with_events=saves):
            if saves:
                self._states[name] = await asyncio.to_thread(self._save)
            else:
                await asyncio.to_thread(self._restore, self._states[name])
        return JsonAnswer({"saved" if saves else "restored": name})

    async def _control_faults(self, request: Request) -> Response:
        if request.method == "POST":
            self._rules.append(parse_rule(await _text(request, "rule")))
        elif request.method == "DELETE":
            self._rules.clear()
            self.end_delays()
        return JsonAnswer([{"rule": rule.text, "matched": rule.matched, "fired": rule.fired} for rule in self._rules])

    async def _set_clock(self, request: Request) -> Response:
        self.clock.set(read_moment(await _text(request, "now"), self.clock.now()).at.timestamp())
        return JsonAnswer({"now": to_wire(to_micros(self.clock.now()))})

    async def _show_deliveries(self, request: Request) -> Response:
        query = read_query(request.scope["query_string"], WAIT)
        count = partial(self._engine.read, lambda tx: required(tx.one(f"SELECT count(*) FROM {_DELIVERIES.table}"))[0])
        end = self.clock.monotonic() + query["timeout"]
        while await asyncio.to_thread(count) < query["count"] and self.clock.monotonic() < end:
            await asyncio.sleep(0.01)
        read = partial(self._engine.read, lambda tx: _DELIVERIES.all(tx, "ORDER BY attempt.at, delivery.number"))
        return JsonAnswer(await asyncio.to_thread(read))


async def _text(request: Request, field: str) -> str:
    """Return the only field of the JSON body. Raises BadRequest."""
    fields: dict[str, Any] = {field: str}
    return str(read_shape(create_model(field, __base__=Body, **fields), await request.body())[field])


def _passed(messages: Sequence[Message], fault: FaultRule, now: float) -> list[Message]:
    """Return the part of an answer that a fault lets pass, with the service's time. The head of a cut one declares the whole body."""
    if fault.drop or not messages:
        return []
    head, *rest = messages
    if fault.cut is not None:
        body = b"".join(message.get("body", b"") for message in rest)
        rest = [{"type": "http.response.body", "body": body[:-1][: fault.cut], "more_body": True}]
    return [{**head, "headers": [*head["headers"], (b"date", formatdate(now, usegmt=True).encode())]}, *rest]


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, and then waits for the client to disconnect."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _recorded(scope: Scope, body: bytes, now: float, fault: FaultRule) -> Json:
    """Return a request as `/_test/requests` shows it: without headers, which hold its key, the body as JSON or text."""
    try:
        shown: Any = jsontext.loads(body) if body else None
    except ValueError:
        shown = body.decode(errors="backslashreplace")
    sent = {"method": scope["method"], "path": scope["path"], "query": scope["query_string"].decode("latin-1"), "body": shown}
    return {"at": to_wire(to_micros(now)), **sent, "status": None, "fault": fault.text or None}
