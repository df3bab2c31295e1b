"""The error tree and the exit codes. Imports nothing of crmctl.

The type and data of an exception tell whether to retry and whether the service may have acted. No code parses a message.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pathlib import Path


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
    ExitCode.DIFFERENT: "differences found (check, schema diff, org diff, org verify, mirror verify, mirror sql --expect-empty)",
    ExitCode.INTERRUPTED: "interrupted, or a prompt was declined",
}


class CrmctlError(Exception):
    """An error a user can act on.

    `code` is for machines, `message` is one line, `hint` names the command or flag that helps, `status` is the HTTP status if any.
    `outcome_unknown`: crmctl sent a write, and the service may or may not have applied it.
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
    """Flags, arguments, an unreadable input file: the user can correct the command line."""

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


class ForbiddenError(DeniedError):
    """403: the API key is valid, and may not do this."""

    default_code = "forbidden"


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


class StorageError(CrmctlError):
    """A file cannot be written, or one of crmctl's own files is damaged. Codes: `no_space`, `unwritable_file`, `damaged_file`."""

    exit_code = ExitCode.USAGE
    default_code = "unwritable_file"


class RejectedError(CrmctlError):
    """400, 409, 413, 422, or local validation: the input must change."""

    exit_code = ExitCode.REJECTED
    default_code = "rejected"


class DifferenceError(CrmctlError):
    """Something differs from what it must be: a masked value is left, changes are forgotten."""

    exit_code = ExitCode.DIFFERENT
    default_code = "different"


class PartialError(CrmctlError):
    """Some records of a bulk job were written, some were not."""

    exit_code = ExitCode.PARTIAL
    default_code = "partial"


class InterruptedByUser(CrmctlError):
    """Ctrl-C, or a declined prompt."""

    exit_code = ExitCode.INTERRUPTED
    default_code = "interrupted"


_DECORATION = r"^\[[^\]]*\] ?| ?\(_ssl\.c:\d+\)$"
_JSON_PROBLEMS = {
    "Expecting value": "a value is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Extra data": "text follows the end of the document",
    "Unterminated string starting at": "the string that starts here is not closed",
    "Invalid control character at": "a control character in a string",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Illegal trailing comma before end of object": "a trailing comma",
    "Illegal trailing comma before end of array": "a trailing comma",
}


def json_words(text: str) -> str:
    """Return a JSON parser's complaint in plain words."""
    return "an invalid escape sequence" if "escape" in text else _sentence(_JSON_PROBLEMS.get(text, text))


_TOO_DEEP = "it is nested too deeply"
_ODD_KIND = "it contains a value of an unexpected type"
_WORDS_OF_KINDS = {
    "BadZipFile": "it is not a zip file, or it is damaged",
    "BadGzipFile": "it is damaged",
    "EOFError": "it ends too early",
    "KeyError": "a part of it is missing",
    "IndexError": "a part of it is missing",
    "AttributeError": _ODD_KIND,
    "TypeError": _ODD_KIND,
    "RecursionError": _TOO_DEEP,
    "UnicodeEncodeError": "half a character (a lone surrogate)",
    "ArrowInvalid": "it is not a Parquet file, or it is damaged",
    "OverflowError": "a date or number is out of range",
    "ReaderError": "an invalid character",
    "InvalidOperation": "it is not a number",
}
"""Plain words by exception class, where the library's own text describes its internals."""
_WORDS_OF_DATABASES = {
    "SQLITE_FULL": "no space left on its disk",
    "SQLITE_NOTADB": "it is not a database",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_BUSY": "another process is using it",
    "SQLITE_LOCKED": "another process is using it",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_IOERR": "the disk failed",
}


def reason(error: BaseException) -> str:
    """Return the cause of an error as part of a sentence: `permission denied`, `line 3, column 5: a value is missing`.

    Error numbers, brackets and class names of the system or a library are removed.
    """
    if isinstance(error, CrmctlError):
        return error.message
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1:,} is not {error.encoding.upper()}"
    text, mark = getattr(error, "msg", None), getattr(error, "problem_mark", None)
    if isinstance(text, str) and hasattr(error, "colno"):
        return f"line {error.lineno}, column {error.colno}: {json_words(text)}"  # type: ignore[attr-defined]
    if mark is not None:
        problem = re.sub(_SYMBOL, r"the \1", getattr(error, "problem", None) or "it ends here")
        return f"line {mark.line + 1}, column {mark.column + 1}: {_sentence(problem)}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror and type(cause).__name__ not in _WORDS_OF_KINDS:
            return _sentence(cause.strerror)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return _known_words(error) or _sentence(str(error) or "no reason given")


def _known_words(error: BaseException) -> str | None:
    database, kind = getattr(error, "sqlite_errorname", None), type(error)
    if database is not None:
        return next((words for name, words in _WORDS_OF_DATABASES.items() if str(database).startswith(name)), None)
    if isinstance(error, SyntaxError) or (kind.__module__, kind.__name__) == ("zlib", "error"):
        return "it is damaged"
    if (kind.__module__, kind.__name__) == ("_csv", "Error"):
        return "a quote inside a cell, or a cell that is too long"
    return _WORDS_OF_KINDS.get(kind.__name__)


_SYMBOL = r"'?<([a-z ]+)>'?"
"""A token in a YAML parser's message: `'<stream end>'`."""


def _sentence(text: str) -> str:
    text = " ".join(re.sub(_DECORATION, "", text).split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}" if text.partition(" ")[0][1:].islower() or text[1:2] == " " else text


NO_SPACE = frozenset({errno.ENOSPC, errno.EFBIG, *((errno.EDQUOT,) if hasattr(errno, "EDQUOT") else ())})
"""Full disks, quotas, and the size a process may give a file."""

STORAGE = NO_SPACE | {errno.EIO, errno.EROFS}
"""Errors of the disk rather than the path."""

LEAST_BYTES = 65_536
"""Free space below which SQLite reports an I/O error instead of a full disk (it needs this much for shared memory)."""


def storage_error(error: Exception, path: Path | None = None, otherwise: Exception | None = None) -> Exception:
    """Return the StorageError for an error of the disk or a database on it, else `otherwise` or the error itself.

    `path` is None for temporary files.
    """
    if type(error).__name__ in ("ProgrammingError", "InterfaceError"):
        return otherwise or error  # a wrong call of sqlite3, not its file
    database = getattr(error, "sqlite_errorname", None)
    if database is None and type(error).__module__ != "sqlite3" and not (isinstance(error, OSError) and error.errno in STORAGE):
        return otherwise or error
    named = getattr(error, "filename", None)
    where = str(named or path or "temporary files (set TMPDIR to move them)")
    if (isinstance(error, OSError) and error.errno in NO_SPACE) or database == "SQLITE_FULL" or _is_full(database, path):
        return StorageError(f"no space left on the disk of {where}", code="no_space", hint="free some space, then run the command again")
    if isinstance(error, OSError):
        return StorageError(f"cannot write {where}: {reason(error)}")
    damaged = database in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or str(database).startswith("SQLITE_CORRUPT_")
    return StorageError(f"cannot use {where}: {reason(error)}", code="damaged_file" if damaged else "unwritable_file")


def _is_full(database: str | None, path: Path | None) -> bool:
    """Whether a full disk is behind SQLite's error."""
    if path is None or not str(database).startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) or not hasattr(os, "statvfs"):
        return False
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < LEAST_BYTES


INSTALLERS = {"pipx_metadata.json": "pipx install --force", "uv-receipt.toml": "uv tool install"}
"""The file that each installer leaves in its environment, and its command."""


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation."""
    commands = (command for name, command in INSTALLERS.items() if os.path.exists(os.path.join(sys.prefix, name)))  # noqa: PTH110, PTH118 - pathlib is slow to import
    return f"{next(commands, 'pip install')} 'crmctl[{extra}]'"
