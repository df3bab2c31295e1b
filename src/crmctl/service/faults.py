"""What the service's domain code raises: an error code, a sentence, details. HTTP numbers belong to the edge, never here."""

from __future__ import annotations

from typing import Any, ClassVar


def shown(text: str, limit: int = 100) -> str:
    """Text of a caller as a message may repeat it: not longer than needed, and always possible to encode."""
    cut = text if len(text) <= limit else f"{text[:limit]}..."
    return cut.encode(errors="backslashreplace").decode()


class Fault(Exception):
    """An error a caller of the service can act on; becomes `{error, message, details?}` on the wire."""

    default_error: ClassVar[str] = "internal_error"

    def __init__(self, message: str, details: dict[str, Any] | None = None, *, error: str | None = None) -> None:
        self.message = shown(message, 2000)
        super().__init__(self.message)
        self.error = error or self.default_error
        self.details = details


class BadRequest(Fault):
    """The input must change; the message names the field."""

    default_error = "bad_request"


class NotFound(Fault):
    """The addressed thing does not exist."""

    default_error = "not_found"


class Conflict(Fault):
    """The input is well-formed but collides with what is stored: a unique value, a slug, something still in use."""

    default_error = "conflict"


class PreconditionFailed(Fault):
    """Somebody else changed it since the caller looked."""

    default_error = "precondition_failed"


class Forbidden(Fault):
    """Refused whatever the input, such as changing a standard object."""

    default_error = "forbidden"


class OverQuota(Fault):
    """There is no room for it until something goes, or the quota grows."""

    default_error = "quota_exceeded"


class Unavailable(Fault):
    """The storage did not answer in time; nothing was written and the same request may be sent again."""

    default_error = "unavailable"


class Busy(Unavailable):
    """Too much was asked at once, or for too long: there was no turn, no lock, or not enough time. The storage itself is well."""


class Held(Busy):
    """Somebody has a lock that the transaction needs, such as whoever reads a table that is to get another column."""
