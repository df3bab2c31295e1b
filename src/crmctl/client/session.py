"""One request to the service: address, key, pacing, retries and errors."""

from __future__ import annotations

import math
import random as randomness
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from crmctl.client.answers import Answer, refusal
from crmctl.client.rate_limit.limiter import NOTED_WAIT, Budget, clock_time
from crmctl.client.transport import ANONYMOUS, USER_AGENT, HttpTransport, Request, Response
from crmctl.clock import Backoff, Clock, SystemClock, retry_after
from crmctl.config.credentials import Credential
from crmctl.config.settings import origin_of
from crmctl.errors import CrmctlError, DeniedError, NetworkError, RejectedError, ServiceError, UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext

RETRIED_STATUSES = frozenset({None, 429, 502, 503, 504})
"""None: no answer. 500 and 408 are missing: a 500 is a bug that repeats, a 408 means that the request was too slow."""

MAX_ATTEMPTS = 5
"""For failures that do not say when to retry. Only `--max-wait` ends retries after a 429."""

BACKOFF = Backoff(jitter=1.0)


REPEATABLE = frozenset({"GET", "HEAD", "PATCH", "DELETE"})
"""Methods of one resource: sent twice, a request has the effect of one. The caller of a bulk delete passes `idempotent=False`, because its
second answer would count only the rest."""


def is_undone(result: Answer | NetworkError) -> bool:
    """Whether the service certainly did nothing."""
    return result.status == 429 or (isinstance(result, NetworkError) and not result.outcome_unknown)


def next_wait(
    result: Answer | NetworkError,
    asked: float | None = None,
    *,
    attempt: int,
    repeatable: bool,
    waited: float,
    max_wait: float,
    random: Callable[[], float],
) -> float | None:
    """Return the seconds to wait before attempt `attempt + 1` (attempts count from 1), or None if the result is final.

    `random` gives the jitter over an exponentially growing span. The seconds that the service `asked` for are never shortened: if they
    exceed the rest of `max_wait`, the request gives up.
    """
    is_retried = is_undone(result) or (repeatable and result.status in RETRIED_STATUSES)
    if not is_retried or (result.status != 429 and attempt >= MAX_ATTEMPTS):
        return None
    least = asked or 0.0
    wait = BACKOFF.gap(attempt, random) + least
    return wait if waited + least <= max_wait and waited + wait <= max_wait + BACKOFF.first else None


class AttemptObserver:
    """Told about the attempts of one request, in order. Services that know idempotency keys name a bulk request by its key."""

    idempotency_key: str | None = None

    def sending(self) -> None:
        """Called before a byte of an attempt is sent. An exception ends the request."""

    def refused(self) -> None:
        """Called if the attempt certainly changed nothing and another follows after a wait."""


HIDDEN = "[redacted]"
SHORTEST_KEY = 8
"""Characters of a key that is hidden also inside of words."""

_LINK_FIELD = r'("(?:signedUrl|portalUrl)"\s*:\s*"[a-z]+://[^/"?]*)[^"]*"'
_LINK_QUERY = r"""([a-z]+://[^\s"'<>?]+)\?[^\s"'<>]*"""


class Redactor:
    """Hides the key of one session in texts."""

    def __init__(self, key: str | None) -> None:
        spellings = sorted({key, quote(key, safe=""), jsontext.dumps(key)[1:-1]}, key=len, reverse=True) if key else []
        pattern = "|".join(map(re.escape, spellings)) or "(?!)"
        # A short key may be a part of words.
        self._key = re.compile(pattern if len(key or "") >= SHORTEST_KEY else rf"(?<!\w)(?:{pattern})(?!\w)")

    def text(self, text: str) -> str:
        """Return `text` without the key and the queries of links."""
        text = self.without_key(text)
        text = re.sub(_LINK_FIELD, rf'\1/{HIDDEN}"', text)
        return re.sub(_LINK_QUERY, rf"\1?{HIDDEN}", text)

    def without_key(self, text: str) -> str:
        return self._key.sub(HIDDEN, text)

    def error(self, error: CrmctlError) -> CrmctlError:
        """Remove the key from an error in which the service repeats it."""
        error.message = self.without_key(error.message)
        error.args = (error.message,)
        if error.hint:
            error.hint = self.without_key(error.hint)
        error.details = self._value(error.details)
        return error

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.without_key(value)
        if isinstance(value, dict):
            return {self._value(key): self._value(item) for key, item in value.items()}
        return [self._value(item) for item in value] if isinstance(value, list) else value


API = "/api/v1"
Query = Iterable[tuple[str, str]]
Say = Callable[[str], None]

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_REDIRECTS = 5
_LOGGED_BODY = 4000


@frozen
class _Call:
    """A request. `reads`: it changes nothing, whatever its method. `repeatable`: sending it twice does no harm."""

    request: Request
    reads: bool
    repeatable: bool


class _CurrentKey:
    """The key of a session and its copies; one that expires is renewed. Thread-safe."""

    def __init__(self, credential: Credential, clock: Clock) -> None:
        self._credential = credential
        self._clock = clock
        self._lock = threading.Lock()
        self.redactor = Redactor(credential.key)
        self.source = credential.source

    def headers(self, refused: str = "") -> tuple[tuple[str, str], ...]:
        """Return the headers of every request, with another key than the refused one if it can be renewed. A key that cannot be renewed in
        time is used until the service refuses it."""
        with self._lock:
            kept = self._credential
            if kept.renew is not None and (kept.key == refused or self._clock.now() >= kept.renew_at):
                try:
                    self._credential = kept.renew()
                except CrmctlError as error:
                    if refused and isinstance(error, (NetworkError, ServiceError)):  # of the renewal: the refused request changed nothing
                        problem = f"the API key has expired, and no new one came: {error.message}"
                        raise NetworkError(problem, hint=error.hint, code="key_not_renewed", retryable=True) from error
                    if refused:
                        raise
                    self._credential = replace(kept, renew_at=math.inf)
                self.redactor = Redactor(self._credential.key)
            key = self._credential.key
        return (("Authorization", f"Bearer {key}"), ("User-Agent", USER_AGENT), ("Accept", "application/json"))

    def renewed(self, request: Request) -> Request | None:
        """Return a refused request with a renewed key, None if there is none."""
        sent = dict(request.headers)
        renewed = sent | dict(self.headers(sent["Authorization"].removeprefix("Bearer "))[:1])
        return None if renewed == sent else replace(request, headers=tuple(renewed.items()))


MAYBE_DONE = "the service may have done it all the same: look before you repeat it"


class Session:
    """Requests to one service with one key; safe for several threads.

    `log` receives the lines of `--debug`, with bodies if `logs_bodies`; `note` a message for a long wait. `random` returns jitter in [0,
    1).
    """

    def __init__(
        self,
        base_url: str,
        credential: Credential,
        transport: HttpTransport,
        *,
        clock: Clock | None = None,
        random: Callable[[], float] = randomness.random,
        budget: Budget | None = None,
        max_wait: float = 300.0,
        timeout: float = 30.0,
        log: Say | None = None,
        note: Say | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/").removesuffix(API).rstrip("/")
        self.origin = origin_of(self.base_url)
        if credential.origin != self.origin:
            raise DeniedError(
                f"the API key belongs to {credential.origin} and is not sent to {self.origin}",
                code="foreign_origin",
                hint="crmctl auth login --base-url URL stores a key for another service",
            )
        self.transport = transport
        self.clock = clock or SystemClock()
        self._keys = _CurrentKey(credential, self.clock)
        self._random = random
        self._budget = budget or Budget()
        self.max_wait = max_wait
        self._timeout = timeout
        self.logs_bodies = True
        self._is_reached = False
        self._sent: list[None] = []
        """One item for each request: appending is atomic, and copies of the session share the list."""
        self._log = log
        self._note = note or (lambda _: None)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        idempotent: bool | None = None,
        reads: bool = False,
        headers: Mapping[str, str] | None = None,
        watch: AttemptObserver | None = None,
        any_status: bool = False,
    ) -> Answer:
        """Send one request, with retries where they are safe, and return its 2xx answer, or the last one of `any_status`.

        `path` is relative to the API (`/objects`, `objects` and `/api/v1/objects` are the same), with percent-encoded segments. `body` is a
        JSON value, or bytes of JSON. `idempotent` overrides the method's default; `reads` marks a POST that changes nothing; `watch` hears
        of every attempt before it is sent. Raises DeniedError, NotFoundError, RejectedError, RateLimitedError, ServiceError, NetworkError.
        """
        content = body if body is None or isinstance(body, bytes) else encode_json(body)
        kind = (("Content-Type", "application/json"),) if content is not None else ()
        every = (*self._keys.headers(), *kind, *(headers or {}).items())
        reads = reads or method in ("GET", "HEAD")
        repeatable = reads or (method in REPEATABLE if idempotent is None else idempotent)
        call = _Call(Request(method, self.url(path, query), every, content, self._timeout), reads, repeatable)
        answer, doubted = self._answer(call, watch)
        if answer.ok or any_status:
            return answer
        if method == "DELETE" and answer.status == 404 and doubted:
            # an earlier attempt without a clear answer deleted the resource
            return Answer(204, answer.headers, b"", wrote=True)
        raise self._refusal(answer, call)

    def upload(self, url: str, content: Iterable[bytes], length: int, content_type: str, timeout: float = 60.0) -> Answer:
        """PUT a file to a signed URL, once, without the key and outside the rate limit; return the answer whatever its status. Raises
        NetworkError, ServiceError."""
        started = self.clock.monotonic()
        # everything behind the host of a signed address may be secret
        self._debug(f"> PUT {urljoin(url, '/')}{HIDDEN} ({length} bytes)")
        self._sent.append(None)
        headers = (*ANONYMOUS, ("Content-Type", content_type), ("Content-Length", str(length)))
        response = self.transport.send(Request("PUT", url, headers, timeout=timeout), iter(content))
        self._debug(f"< {response.status} in {self.clock.monotonic() - started:.3f} s, {len(response.body)} bytes")
        return Answer(response.status, response.headers, response.body, wrote=True)

    def hurried(self, seconds: float) -> Session:
        """Return a copy that waits at most `seconds` for a request, for a look during a longer wait."""
        hurried = copy(self)
        hurried.max_wait = min(self.max_wait, seconds)
        hurried._timeout = min(self._timeout, max(seconds, 1.0))
        return hurried

    def time_for(self, requests: int) -> float:
        """Return the least seconds that so many requests take under the rate limit; 0 without one."""
        return self._budget.time_for(requests)

    def take_requests(self) -> int:
        """Return the number of requests, repeated ones included, since the last call."""
        count = len(self._sent)
        del self._sent[:count]
        return count

    def close(self) -> None:
        self.transport.close()
        self._budget.close()

    def url(self, path: str, query: Query = ()) -> str:
        """Return the complete address of an API path. Raises UsageError for an address outside the service."""
        if _ABSOLUTE.match(path):
            if origin_of(path) != self.origin:
                raise UsageError(f"{urlsplit(path).netloc} is not the service of this profile; its key is not sent there")
            path = path[len(urljoin(path, "/")) - 1 :].removeprefix(urlsplit(self.base_url).path)
        path = f"/{path.lstrip('/')}"
        if path != API and not path.startswith((f"{API}/", f"{API}?")):
            path = API + path
        encoded = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
        return self.base_url + path + (("&" if "?" in path else "?") + encoded if encoded else "")

    def _answer(self, call: _Call, watch: AttemptObserver | None) -> tuple[Answer, bool]:
        """Return the last answer, and whether an earlier attempt had an unknown outcome. Raises the last failure without an answer."""
        started, attempt, doubted, is_renewed = self.clock.monotonic(), 0, False, False
        while True:
            attempt += 1
            slot = self._budget.acquire(max(0.0, self.max_wait - (self.clock.monotonic() - started)))
            result: Answer | NetworkError
            try:
                result = self._try(call, slot, watch)
            except (NetworkError, ServiceError) as error:
                # A service that this process never reached is more likely down or misspelt than about to answer.
                is_unreached = error.code == "connection_failed" and not self._is_reached
                if not isinstance(error, NetworkError) or not error.retryable or is_unreached:
                    self._final(error, call)
                    raise
                result = error
            if result.status == 401 and not is_renewed:
                is_renewed = True
                if (again := self._keys.renewed(call.request)) is not None:
                    call = replace(call, request=again)
                    if watch is not None:
                        watch.refused()
                    continue
            asked = retry_after(result.headers, self.clock.now()) if isinstance(result, Answer) else None
            limits = {"waited": self.clock.monotonic() - started, "max_wait": self.max_wait}
            wait = next_wait(result, asked, attempt=attempt, repeatable=call.repeatable, random=self._random, **limits)
            if wait is None:
                if isinstance(result, NetworkError):
                    raise self._final(result, call)
                return result, doubted
            if not is_undone(result):
                doubted = True
            elif watch is not None:
                watch.refused()
            self._pause(wait, result.status)

    def _try(self, call: _Call, slot: int, watch: AttemptObserver | None) -> Answer:
        """Make one attempt, tell the budget how it ended, and return the answer. Raises NetworkError and ServiceError."""
        started, request = self.clock.monotonic(), call.request
        self._log_message(">", f"{request.method} {request.url[len(urljoin(request.url, '/')) - 1 :]}", request.headers, request.body)
        try:
            if watch is not None:
                watch.sending()
            response = self._follow(call, self._send(request))
        except (NetworkError, ServiceError) as error:
            self._budget.lost(slot, never_sent=not error.outcome_unknown)
            error.outcome_unknown = error.outcome_unknown and not call.reads
            self._debug(f"< no answer after {self.clock.monotonic() - started:.3f} s: {error.message}")
            raise
        except BaseException as error:
            self._budget.lost(slot, never_sent=False)
            if isinstance(error, KeyboardInterrupt) and not call.reads:
                raise KeyboardInterrupt(MAYBE_DONE) from error
            raise
        self._is_reached = True
        self._budget.answered(slot, response.status, response.headers)
        seconds = self.clock.monotonic() - started
        said = f"{response.status} in {seconds:.3f} s, {len(response.body)} bytes"
        self._log_message("<", said, response.headers.items(), response.body)
        return Answer(response.status, response.headers, response.body, wrote=not call.reads)

    def _follow(self, call: _Call, response: Response) -> Response:
        """Follow redirects of a GET within the origin; no others, so that the key stays with the service."""
        request, hops = call.request, 0
        while request.method == "GET" and response.status in (301, 302, 303, 307, 308) and hops < _MAX_REDIRECTS:
            target = self._own_target(request.url, response.headers)
            if target in (None, request.url):
                break
            hops += 1
            self._debug(f"< {response.status}, on to {urlsplit(target).path}")
            request = Request("GET", target, request.headers, None, request.timeout)
            response = self._send(request)
        return response

    def _own_target(self, url: str, headers: Mapping[str, str]) -> str | None:
        """Return the address that a redirect names, None outside the origin."""
        try:
            target = urljoin(url, headers.get("location", "")).partition("#")[0]
            return target if _ABSOLUTE.match(target) and origin_of(target) == self.origin else None
        except ValueError:
            return None

    def _send(self, request: Request) -> Response:
        self._sent.append(None)
        return self.transport.send(request)

    def _refusal(self, answer: Answer, call: _Call) -> CrmctlError:
        wait = retry_after(answer.headers, self.clock.now())
        until = clock_time(self.clock.now(), wait) if wait is not None else None
        not_followed = "the API key is not sent there"
        if self._own_target(call.request.url, answer.headers) is not None:
            is_get = call.request.method == "GET"
            limit = f"at most {_MAX_REDIRECTS} redirects" if is_get else f"no redirect of a {call.request.method}"
            not_followed = f"crmctl follows {limit}"
        error = refusal(answer, retry_after=wait, until=until, key_source=self._keys.source, not_followed=not_followed)
        return self._final(error, call)

    def _final(self, error: CrmctlError, call: _Call) -> CrmctlError:
        """Complete an error for the caller: an unrepeatable request with an unknown outcome must not be retried blindly."""
        if error.outcome_unknown and not call.repeatable:
            error.retryable = False
            error.hint = "; ".join(filter(None, (MAYBE_DONE, error.hint)))
        return self._keys.redactor.error(error)

    def _pause(self, wait: float, status: int | None) -> None:
        reason = "rate limit" if status == 429 else f"the service answered {status}" if status else "the connection failed"
        text = f"{reason}: waiting {wait:.0f} s until {clock_time(self.clock.now(), wait)}"
        (self._note if wait >= NOTED_WAIT else self._debug)(text)
        self.clock.sleep(wait)

    def _log_message(self, arrow: str, start: str, headers: Iterable[tuple[str, str]], body: bytes | None) -> None:
        if self._log is None:
            return
        self._debug(f"{arrow} {start}")
        for name, value in headers:
            self._debug(f"{arrow} {name}: {f'Bearer {HIDDEN}' if name == 'Authorization' else value}")
        if body and self.logs_bodies:
            # redact before cutting: half a key must not remain at the end of an excerpt
            text = self._keys.redactor.text(body.decode("utf-8", "replace"))
            self._debug(f"{arrow} {text if len(text) <= _LOGGED_BODY else text[:_LOGGED_BODY] + '…'}")

    def _debug(self, line: str) -> None:
        if self._log is not None:
            self._log(self._keys.redactor.text(line))


def encode_json(value: Any) -> bytes:
    """Return a value as JSON bytes. Raises RejectedError for what JSON cannot hold."""
    try:
        return jsontext.dumps(value).encode()
    except ValueError as error:
        raise RejectedError(f"a value cannot be sent as JSON: {reason(error)}", code="invalid_value") from error
