"""One request to the service: address, key, pacing, retries, and errors in the words of the contract. Knows no endpoint."""

from __future__ import annotations

import random as randomness
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from crmctl.client.http.answers import Answer, refusal
from crmctl.client.http.attempt_observer import AttemptObserver
from crmctl.client.http.retry import RETRIED_STATUSES, Failure, is_repeatable, next_wait, retry_after
from crmctl.client.http.transport import Request, Response, Transport, UploadBody
from crmctl.client.rate_limit.limiter import NOTED_WAIT, Budget, Unpaced, clock_time
from crmctl.client.redaction import HIDDEN, Redactor
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential
from crmctl.config.keys import origin_of
from crmctl.errors import CrmctlError, DeniedError, NetworkError, RejectedError, ServiceError, UsageError, reason
from crmctl.models import jsontext
from crmctl.version import __version__

API = "/api/v1"
USER_AGENT = f"crmctl/{__version__}"
Query = Iterable[tuple[str, str]]
Say = Callable[[str], None]

_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_REDIRECTS = 5
_LOGGED_BODY = 4000


@dataclass(frozen=True)
class _Call:
    """One request as asked for. `reads`: it changes nothing, whatever its method. `repeatable`: sending it twice does no harm."""

    request: Request
    reads: bool
    repeatable: bool


@dataclass(frozen=True)
class _Outcome:
    """What one try brought: an answer or an error, and the failure when it may be worth another try."""

    result: Answer | CrmctlError
    failure: Failure | None = None


class Session:
    """Requests to one service with one key; safe for several threads.

    `log` receives the lines of `--debug`, `note` a sentence when a wait is long enough to wonder about. `random` yields jitter in [0, 1).
    `logs_bodies`: what is sent and answered is part of the log.
    """

    def __init__(
        self,
        base_url: str,
        credential: Credential,
        transport: Transport,
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
        self._headers = (("Authorization", f"Bearer {credential.key}"), ("User-Agent", USER_AGENT), ("Accept", "application/json"))
        self._redactor = Redactor(credential.key)
        self._random = random
        self._budget = budget or Unpaced()
        self._max_wait = max_wait
        self._timeout = timeout
        self.logs_bodies = True
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
        timeout: float | None = None,
        watch: AttemptObserver | None = None,
    ) -> Answer:
        """Send one request, with retries where they are safe, and return its 2xx answer.

        `path` is relative to the API (`/objects`, `objects` and `/api/v1/objects` are one), its segments percent-encoded. `body` is a JSON
        value, or bytes that are JSON already. `idempotent` overrides what the method says; `reads` marks a POST that changes nothing;
        `watch` hears of every attempt before it leaves.

        Raises DeniedError, NotFoundError, RejectedError, RateLimitedError, ServiceError, NetworkError.
        """
        call = self._call(method, path, query, body, headers, idempotent=idempotent, reads=reads, timeout=timeout)
        answer, doubted = self._answer(call, watch)
        if answer.ok:
            return answer
        if method == "DELETE" and answer.status == 404 and doubted:
            # An earlier try of this very request got no clear answer, and the resource is gone now: that try deleted it.
            return Answer(204, answer.headers, b"", wrote=True)
        raise self._refusal(answer, call)

    def exchange(self, method: str, path: str, *, query: Query = (), body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Like `request`, but the last answer is returned whatever its status."""
        return self._answer(self._call(method, path, query, body, headers))[0]

    def upload(self, upload: UploadBody) -> Answer:
        """PUT a file to a signed URL: without the key, once, outside the rate budget; the storage's answer whatever its status.

        Raises NetworkError, ServiceError.
        """
        started = self.clock.monotonic()
        # All of a signed address behind its host may be the secret.
        self._debug(f"> PUT {urljoin(upload.url, '/')}{HIDDEN} ({upload.length} bytes)")
        response = self.transport.upload(upload)
        self._debug(f"< {response.status} in {self.clock.monotonic() - started:.3f} s, {len(response.body)} bytes")
        return Answer(response.status, response.headers, response.body, wrote=True)

    def hurried(self, seconds: float) -> Session:
        """The same session with at most so many seconds for a request: to look at something while a longer wait is running."""
        hurried = copy(self)
        hurried._max_wait = min(self._max_wait, seconds)
        hurried._timeout = min(self._timeout, max(seconds, 1.0))
        return hurried

    @property
    def rate_window(self) -> float:
        """Seconds in which the rate limit counts, learned from answers; 60 until then."""
        return self._budget.window()

    def time_for(self, requests: int) -> float:
        """Seconds that so many requests take at least under the rate limit as it is known; 0 without one."""
        return self._budget.time_for(requests)

    def close(self) -> None:
        self.transport.close()
        self._budget.close()

    def url(self, path: str, query: Query = ()) -> str:
        """The complete address of an API path. Raises UsageError for an address outside the service."""
        if _ABSOLUTE.match(path):
            if origin_of(path) != self.origin:
                raise UsageError(f"{urlsplit(path).netloc} is not the service of this profile; its key is not sent there")
            path = path[len(urljoin(path, "/")) - 1 :].removeprefix(urlsplit(self.base_url).path)
        path = f"/{path.lstrip('/')}"
        if path != API and not path.startswith((f"{API}/", f"{API}?")):
            path = API + path
        encoded = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
        return self.base_url + path + (("&" if "?" in path else "?") + encoded if encoded else "")

    def _call(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any,
        headers: Mapping[str, str] | None,
        *,
        idempotent: bool | None = None,
        reads: bool = False,
        timeout: float | None = None,
    ) -> _Call:
        content = _encoded(body)
        kind = (("Content-Type", "application/json"),) if content is not None else ()
        every = (*self._headers, *kind, *(headers or {}).items())
        request = Request(method, self.url(path, query), every, content, timeout or self._timeout)
        reads = reads or method in ("GET", "HEAD")
        return _Call(request, reads, reads or (is_repeatable(method) if idempotent is None else idempotent))

    def _answer(self, call: _Call, watch: AttemptObserver | None = None) -> tuple[Answer, bool]:
        """The last answer, and whether an earlier try had an unknown outcome. Raises the last failure when no answer came."""
        started, attempt, doubted = self.clock.monotonic(), 0, False
        while True:
            attempt += 1
            slot = self._budget.acquire(max(0.0, self._max_wait - (self.clock.monotonic() - started)))
            outcome = self._try(call, slot, watch)
            failure = outcome.failure
            wait = None
            if failure is not None:
                limits = {"waited": self.clock.monotonic() - started, "max_wait": self._max_wait, "random": self._random()}
                wait = next_wait(failure, attempt=attempt, repeatable=call.repeatable, **limits)
            if failure is None or wait is None:
                if isinstance(outcome.result, CrmctlError):
                    raise self._final(outcome.result, call)
                return outcome.result, doubted
            refused = failure.never_sent or failure.status == 429
            doubted = doubted or not refused
            if watch is not None and refused:
                watch.refused()
            self._pause(wait, failure)

    def _try(self, call: _Call, slot: int, watch: AttemptObserver | None) -> _Outcome:
        """One try. The budget hears how it ended, whatever happens."""
        started = self.clock.monotonic()
        self._log_request(call.request)
        try:
            if watch is not None:
                watch.sending()
            response = self._follow(call, self.transport.send(call.request))
        except (NetworkError, ServiceError) as error:
            never_sent = not error.outcome_unknown
            self._budget.lost(slot, never_sent=never_sent)
            error.outcome_unknown = error.outcome_unknown and not call.reads
            self._debug(f"< no answer after {self.clock.monotonic() - started:.3f} s: {error.message}")
            failure = Failure(never_sent=never_sent, transient=error.retryable) if isinstance(error, NetworkError) else None
            return _Outcome(error, failure)
        except BaseException:
            self._budget.lost(slot, never_sent=False)
            raise
        self._budget.answered(slot, response.status, response.headers)
        self._log_response(response, self.clock.monotonic() - started)
        answer = Answer(response.status, response.headers, response.body, wrote=not call.reads)
        if response.status not in RETRIED_STATUSES:
            return _Outcome(answer)
        return _Outcome(answer, Failure(status=response.status, retry_after=retry_after(response.headers, self.clock.now())))

    def _follow(self, call: _Call, response: Response) -> Response:
        """A GET may be pointed to another path of the same origin; nothing else is followed, so the key stays where it belongs."""
        request, hops = call.request, 0
        while request.method == "GET" and response.status in (301, 302, 303, 307, 308) and hops < _MAX_REDIRECTS:
            target = urljoin(request.url, response.headers.get("location", "")).partition("#")[0]
            if target == request.url or not _ABSOLUTE.match(target) or _origin_or_none(target) != self.origin:
                break
            hops += 1
            self._debug(f"< {response.status}, on to {urlsplit(target).path}")
            request = Request("GET", target, request.headers, None, request.timeout)
            response = self.transport.send(request)
        return response

    def _refusal(self, answer: Answer, call: _Call) -> CrmctlError:
        wait = retry_after(answer.headers, self.clock.now())
        until = clock_time(self.clock.now() + wait) if wait is not None else None
        return self._final(refusal(answer, retry_after=wait, until=until), call)

    def _final(self, error: CrmctlError, call: _Call) -> CrmctlError:
        """The error as the caller gets it: what may have been done already is not to be repeated blindly, by nobody."""
        if error.outcome_unknown and not call.repeatable:
            error.retryable = False
            error.hint = "; ".join(filter(None, ("the service may have done it all the same: look before you repeat it", error.hint)))
        return self._redactor.error(error)

    def _pause(self, wait: float, failure: Failure) -> None:
        if failure.status == 429:
            reason = "rate limit"
        else:
            reason = f"the service answered {failure.status}" if failure.status else "the connection failed"
        text = f"{reason}: waiting {wait:.0f} s until {clock_time(self.clock.now() + wait)}"
        (self._note if wait >= NOTED_WAIT else self._debug)(text)
        self.clock.sleep(wait)

    def _log_request(self, request: Request) -> None:
        if self._log is None:
            return
        self._debug(f"> {request.method} {request.url[len(urljoin(request.url, '/')) - 1 :]}")
        for name, value in request.headers:
            self._debug(f"> {name}: {f'Bearer {HIDDEN}' if name == 'Authorization' else value}")
        self._log_body(">", request.body or b"")

    def _log_response(self, response: Response, seconds: float) -> None:
        if self._log is None:
            return
        self._debug(f"< {response.status} in {seconds:.3f} s, {len(response.body)} bytes")
        for name, value in response.headers.items():
            self._debug(f"< {name}: {value}")
        self._log_body("<", response.body)

    def _log_body(self, arrow: str, body: bytes) -> None:
        if body and self.logs_bodies:
            # Redacted before it is cut: half a key must not survive at the end of an excerpt.
            text = self._redactor.text(body.decode("utf-8", "replace"))
            self._debug(f"{arrow} {text if len(text) <= _LOGGED_BODY else text[:_LOGGED_BODY] + '…'}")

    def _debug(self, line: str) -> None:
        if self._log is not None:
            self._log(self._redactor.text(line))


def _encoded(body: Any) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else encode_json(body)


def encode_json(value: Any) -> bytes:
    """A value as the bytes of a body; raises RejectedError for what JSON cannot hold."""
    try:
        return jsontext.dumps(value).encode()
    except ValueError as error:
        raise RejectedError(f"a value cannot be sent as JSON: {reason(error)}", code="invalid_value") from error


def _origin_or_none(url: str) -> str | None:
    try:
        return origin_of(url)
    except ValueError:
        return None
