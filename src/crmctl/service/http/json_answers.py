"""JSON answers, and every refusal of the service as one."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import size_text
from crmctl.service.faults import BadRequest, Fault

PIECE = 256 * 1024


def present(document: Json, *optional: str) -> Json:
    """Return the document without those optional fields that are None: the specification has no null for them."""
    return {field: value for field, value in document.items() if value is not None or field not in optional}


class JsonAnswer(Response):
    """A document as UTF-8 JSON that keeps every digit of decimals and large integers. A bytearray is sent as it is."""

    media_type = "application/json"
    sending: Callable[[int], AbstractContextManager[object]] = nullcontext
    """Counts the bytes of the answer until its client has taken them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        with self.sending(len(self.body)):
            # In pieces: the connection would keep a second copy of what a slow client has not taken.
            for start in range(0, len(self.body) or 1, PIECE):
                piece, is_last = self.body[start : start + PIECE], start + PIECE >= len(self.body)
                await send({"type": "http.response.body", "body": piece, "more_body": not is_last})

    def render(self, content: Any) -> bytes | memoryview:
        # UTF-8 cannot encode half of a surrogate pair, quoted from a request; backslashreplace writes it as JSON does.
        return memoryview(content) if isinstance(content, bytearray) else jsontext.dumps(content).encode(errors="backslashreplace")


def bad_request(message: str, field: str | None = None) -> BadRequest:
    return BadRequest(message, {"field": field} if field else None)


def unauthorized(message: str) -> Fault:
    return Fault(message, error="unauthorized", status=HTTPStatus.UNAUTHORIZED, headers={"WWW-Authenticate": "Bearer"})


def body_too_large(limit: int) -> Fault:
    message = f"the request body is over the limit of {size_text(limit)}"
    return Fault(message, {"limit": limit}, error="payload_too_large", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def too_slow(part: str) -> Fault:
    return Fault(f"{part} did not arrive in time", error="request_timeout", status=HTTPStatus.REQUEST_TIMEOUT, headers=CLOSE)


def head_too_large(limit: int) -> Fault:
    message = f"the address and the headers of the request are over the limit of {size_text(limit)}"
    status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return Fault(message, {"limit": limit}, error="request_head_too_large", status=status, headers=CLOSE)


def rate_limited(retry_after: float, problem: str = "the rate limit of this API key is used up") -> Fault:
    seconds = max(1, math.ceil(retry_after))
    message, headers, details = f"{problem}; try again in {seconds} s", {"Retry-After": str(seconds)}, {"retryAfter": seconds}
    return Fault(message, details, error="rate_limited", status=HTTPStatus.TOO_MANY_REQUESTS, headers=headers)


CLOSE = {"Connection": "close"}

_ROUTING_MESSAGES = {
    404: "there is nothing at this path",
    405: "this path does not take this method",
}


def answer_for(error: Exception) -> JsonAnswer:
    """Return the answer for an error. An unexpected one is a 500 without details."""
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        message, code = _ROUTING_MESSAGES.get(error.status_code, phrase), phrase.lower().replace(" ", "_")
        error = Fault(message, error=code, status=error.status_code, headers=error.headers or {})
    if not isinstance(error, Fault):
        error = Fault("the service failed to answer this request")
    document: Json = {"error": error.error, "message": error.message}
    return JsonAnswer(document if error.details is None else document | {"details": error.details}, error.status, error.headers)
