"""JSON answers, and every refusal of the service as one."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import size_text
from crmctl.service.faults import BadRequest, Conflict, Fault, Forbidden, NotFound, OverQuota, PreconditionFailed, Unavailable


def present(document: Json, *optional: str) -> Json:
    """Return the document without those optional fields that are None: the specification has no null for them."""
    return {field: value for field, value in document.items() if value is not None or field not in optional}


class JsonAnswer(Response):
    """A document as UTF-8 JSON that keeps every digit of decimals and large integers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        # UTF-8 cannot encode half of a surrogate pair, quoted from a request; backslashreplace writes it as JSON does.
        return jsontext.dumps(content).encode(errors="backslashreplace")


class Refusal(Exception):
    """A request that the HTTP layer refuses, with its whole answer."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.headers = dict(headers or {})


def bad_request(message: str, field: str | None = None) -> BadRequest:
    return BadRequest(message, {"field": field} if field else None)


def unauthorized(message: str) -> Refusal:
    return Refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", message, headers={"WWW-Authenticate": "Bearer"})


def insufficient_scope(scope: str) -> Refusal:
    return Refusal(HTTPStatus.FORBIDDEN, "insufficient_scope", f"this API key lacks the scope {scope}", details={"requiredScope": scope})


def body_too_large(limit: int) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "payload_too_large",
        f"the request body is over the limit of {size_text(limit)}",
        details={"limit": limit},
    )


def body_encoded() -> Refusal:
    message = "the request body must not be compressed; send it without Content-Encoding"
    return Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message, headers={"Accept-Encoding": "identity"})


def body_too_slow() -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_TIMEOUT, "request_timeout", "the request body did not arrive in time", headers={"Connection": "close"}
    )


def not_http() -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, "bad_request", "the request is not valid HTTP")


def two_lengths() -> Refusal:
    """Refuse a request that a proxy could read as a different one."""
    message = "a request must not have Transfer-Encoding beside Content-Length, nor before HTTP/1.1"
    return Refusal(HTTPStatus.BAD_REQUEST, "bad_request", message, headers={"Connection": "close"})


def head_too_slow() -> Refusal:
    return Refusal(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", "the request did not arrive in time")


def head_too_large(limit: int) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        "request_head_too_large",
        f"the address and the headers of the request are over the limit of {size_text(limit)}",
        details={"limit": limit},
        headers={"Connection": "close"},
    )


def too_many_connections() -> Refusal:
    message = "the service has too many connections; try again"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message, headers={"Retry-After": "1"})


def rate_limited(retry_after: int) -> Refusal:
    return Refusal(
        HTTPStatus.TOO_MANY_REQUESTS,
        "rate_limited",
        f"the rate limit of this API key is used up; try again in {retry_after} s",
        details={"retryAfter": retry_after},
        headers={"Retry-After": str(retry_after)},
    )


def answer_for(error: Exception) -> JsonAnswer:
    """Return the answer for an error. An unexpected one is a 500 without details."""
    if isinstance(error, Refusal):
        return _answer(error.status, error.code, error.message, error.details, error.headers)
    status = next((_FAULTS[kind] for kind in type(error).__mro__ if kind in _FAULTS), None)
    if isinstance(error, Fault) and status is not None:
        headers = {"Retry-After": "1"} if isinstance(error, Unavailable) else None
        return _answer(status, error.error, error.message, error.details, headers)
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase
        return _answer(
            error.status_code, phrase.lower().replace(" ", "_"), _ROUTING_MESSAGES.get(error.status_code, phrase), headers=error.headers
        )
    return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", "the service failed to answer this request")


_FAULTS: dict[type, HTTPStatus] = {
    BadRequest: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Conflict: HTTPStatus.CONFLICT,
    Forbidden: HTTPStatus.FORBIDDEN,
    PreconditionFailed: HTTPStatus.PRECONDITION_FAILED,
    OverQuota: HTTPStatus.INSUFFICIENT_STORAGE,
    Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}

_ROUTING_MESSAGES = {
    404: "there is nothing at this path",
    405: "this path does not take this method",
}


def _answer(
    status: int, code: str, message: str, details: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> JsonAnswer:
    document: Json = {"error": code, "message": message}
    if details is not None:
        document["details"] = dict(details)
    return JsonAnswer(document, status, headers)
