"""The error tree and the exit codes. Imports nothing of crmctl.

Whether a failure may be repeated, and whether the service may have acted all the same, is part of the exception's type and data:
nobody decides from a message's text.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """Exit codes as published in the command-line contract."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    RATE_LIMITED = 5
    NETWORK = 6
    SERVICE = 7
    PENDING = 8
    REJECTED = 9
    PARTIAL = 10
    DIFFERENT = 11
    INTERRUPTED = 130


EXIT_CODE_MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "success",
    ExitCode.UNEXPECTED: "unexpected error (a bug)",
    ExitCode.USAGE: "usage: flags, arguments, unreadable input file, bad configuration, nothing configured",
    ExitCode.NOT_FOUND: "not found",
    ExitCode.DENIED: "not authenticated or not permitted",
    ExitCode.RATE_LIMITED: "rate limit did not clear within --max-wait",
    ExitCode.NETWORK: "network: refused, DNS, TLS, timeout",
    ExitCode.SERVICE: "the service failed, gave an answer that cannot be read, or a run that was waited for failed",
    ExitCode.PENDING: "still pending when --wait ran out",
    ExitCode.REJECTED: "rejected: by the service (400, 409, 422) or by local validation",
    ExitCode.PARTIAL: "partial: some records of a bulk job were written, some were not",
    ExitCode.DIFFERENT: "differences found (schema diff --exit-code)",
    ExitCode.INTERRUPTED: "interrupted, or a prompt was declined",
}


class CrmctlError(Exception):
    """An error a user can act on.

    `code` is for machines, `message` is one line, `hint` names the command or flag that helps. `status` is the HTTP status where there was
    one. `outcome_unknown` is true when a write was sent and the service may or may not have applied it.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.UNEXPECTED
    default_code: ClassVar[str] = "unexpected"

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        code: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        required_scope: str | None = None,
        details: Any = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.required_scope = required_scope
        self.details = details
        self.outcome_unknown = outcome_unknown

    def to_document(self) -> dict[str, Any]:
        """The JSON error document of the contract (section 5), every key always present."""
        return {
            "error": {
                "code": self.code,
                "message": self.message,
                "status": self.status,
                "retryable": self.retryable,
                "retryAfter": self.retry_after,
                "hint": self.hint,
                "requiredScope": self.required_scope,
                "details": self.details,
                "exitCode": int(self.exit_code),
            }
        }


class UsageError(CrmctlError):
    """Flags, arguments, an unreadable input file: the user can repair the command line."""

    exit_code = ExitCode.USAGE
    default_code = "usage"


class ConfigError(CrmctlError):
    """Bad configuration, or nothing configured."""

    exit_code = ExitCode.USAGE
    default_code = "configuration"


class NotFoundError(CrmctlError):
    """404, or a name that resolves to nothing."""

    exit_code = ExitCode.NOT_FOUND
    default_code = "not_found"


class DeniedError(CrmctlError):
    """401, 403, or no key at all."""

    exit_code = ExitCode.DENIED
    default_code = "unauthorized"


class RateLimitedError(CrmctlError):
    """The rate limit did not clear within --max-wait. The service did nothing."""

    exit_code = ExitCode.RATE_LIMITED
    default_code = "rate_limited"


class NetworkError(CrmctlError):
    """Refused, DNS, TLS, timeout, connection lost."""

    exit_code = ExitCode.NETWORK
    default_code = "network"


class ServiceError(CrmctlError):
    """5xx, an answer that cannot be read, or a run that ended as failed."""

    exit_code = ExitCode.SERVICE
    default_code = "service_error"


class PendingError(CrmctlError):
    """Still pending when --wait ran out."""

    exit_code = ExitCode.PENDING
    default_code = "pending"


class RejectedError(CrmctlError):
    """400, 409, 413, 422, or local validation: the input must change."""

    exit_code = ExitCode.REJECTED
    default_code = "rejected"


class PartialError(CrmctlError):
    """Some records of a bulk job were written, some were not."""

    exit_code = ExitCode.PARTIAL
    default_code = "partial"


class InterruptedByUser(CrmctlError):
    """Ctrl-C, or a prompt that was declined."""

    exit_code = ExitCode.INTERRUPTED
    default_code = "interrupted"


def reason(error: OSError) -> str:
    """Why the system refused something, as part of a sentence: `permission denied`."""
    text = error.strerror or str(error)
    return f"{text[:1].lower()}{text[1:]}"
