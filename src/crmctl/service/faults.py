"""Errors of the service's domain code, checks of documents, and reports of failures to the operator."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from crmctl.models.jsontext import Json


def shown(text: str, limit: int = 100) -> str:
    """Return a caller's text as a message may repeat it: cut, and always encodable."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return cut.encode(errors="backslashreplace").decode()


class Fault(Exception):
    """An error that callers can act on. On the wire it is `{error, message, details?}` with a status and perhaps headers."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    error = "internal_error"
    headers: Mapping[str, str] = {}

    def __init__(
        self, message: str, details: Json | None = None, *, error: str = "", status: int = 0, headers: Mapping[str, str] | None = None
    ) -> None:
        self.message = shown(message, 2000)
        super().__init__(self.message)
        self.details = details
        self.error, self.status = error or self.error, status or self.status
        self.headers = headers or self.headers


class BadRequest(Fault):
    """The input must change; the message names the field."""

    status, error = HTTPStatus.BAD_REQUEST, "bad_request"


class NotFound(Fault):
    status, error = HTTPStatus.NOT_FOUND, "not_found"


class Conflict(Fault):
    """The input is well-formed but collides with what is stored: a unique value, a slug, something still in use."""

    status, error = HTTPStatus.CONFLICT, "conflict"


class PreconditionFailed(Fault):
    """Another client changed it since the caller read it."""

    status, error = HTTPStatus.PRECONDITION_FAILED, "precondition_failed"


class Forbidden(Fault):
    """Refused for any input, such as changing a standard object."""

    status, error = HTTPStatus.FORBIDDEN, "forbidden"


class OverQuota(Fault):
    """There is no room until something is deleted or the quota grows."""

    status, error = HTTPStatus.INSUFFICIENT_STORAGE, "quota_exceeded"


class Unavailable(Fault):
    """The storage did not answer in time. Nothing was written; the caller may send the request again."""

    status, error = HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"
    headers: Mapping[str, str] = {"Retry-After": "1"}


class Busy(Unavailable):
    """The service is overloaded: no turn, no lock or not enough time. The storage itself works."""


class OutcomeUnknown(Fault):
    """The storage failed while it committed: the change may have happened. A 503 would say that nothing was done."""

    error = "outcome_unknown"


class Held(Busy):
    """Other work must end first: a reader of a table that gets a new column, or the removal of an attribute whose slug is used again."""


QUIET_SECONDS = 60.0


class Failures:
    """Reports failures on stderr, each kind and place at most once a minute."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def tell(self, error: BaseException, *, briefly: bool = False, about: str = "") -> None:
        """Write what the error is `about` and its traceback; one line if `briefly`, or for Unavailable. Errors of stderr are ignored."""
        kind = (type(error).__name__, str(traceback.extract_tb(error.__traceback__, limit=-1)))
        now = self._monotonic()
        with self._lock:
            since, skipped = self._told.get(kind, (-math.inf, 0))
            is_due = now - since >= QUIET_SECONDS
            self._told[kind] = (now, 0) if is_due else (since, skipped + 1)
        if not is_due:
            return
        is_brief = briefly or isinstance(error, Unavailable)
        text = f"{type(error).__name__}: {error}\n" if is_brief else "".join(traceback.format_exception(error))
        more = f"(the same {skipped} times more since it was last told)\n" if skipped else ""
        text = f"{about}: {text}" if about else text
        # sys.stderr is None without a console.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text + more)
            sys.stderr.flush()


FAILURES = Failures()
"""The reporter of this process."""

_SAYINGS = {
    "missing": "is required",
    "extra_forbidden": "is not a field that is known here",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "float_parsing": "must be a number",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "literal_error": "must be {expected}",
    "too_long": "must have at most {max_length} items",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_unicode": "must not contain half of a surrogate pair",
}


class Body(BaseModel):
    """Base of request bodies. Unknown fields are refused, so that a misspelt one is never dropped; camelCase on the wire."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, defer_build=True)


T = TypeVar("T", bound=Body)


def check_shape(model: type[T], document: Any) -> T:
    """Return the document as `model`. Raises BadRequest naming the first wrong field."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        field = _path(problem["loc"]) or "the name of a field"
        message, template = problem["msg"].removeprefix("Value error, "), _SAYINGS.get(problem["type"])
        saying = template.format(**problem.get("ctx", {})) if template else message[:1].lower() + message[1:]
        raise BadRequest(f"{field} {saying}", {"field": field}) from None


_TYPES = ("str", "bool", "int", "float")
"""Names of types that pydantic adds to the location of a value with several types."""


def _path(location: tuple[int | str, ...]) -> str:
    """Return `("records", 3, "data")` as `records[3].data`."""
    text = ""
    for part in location:
        if part in _TYPES:
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
