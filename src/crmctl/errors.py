"""The error tree and the exit codes. Imports nothing of crmctl.

Whether a failure may be repeated, and whether the service may have acted all the same, is part of the exception's type and data:
nobody decides from a message's text.
"""

from __future__ import annotations

import errno
import os
import re
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
    ExitCode.DIFFERENT: "differences found (schema diff --exit-code, mirror verify, mirror sql --expect-empty)",
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


class StorageError(CrmctlError):
    """A file cannot be written, or what crmctl keeps in one is damaged: a full disk, a bad one. Codes: `no_space`, `unwritable_file`,
    `damaged_file`."""

    exit_code = ExitCode.USAGE
    default_code = "unwritable_file"


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


_DECORATION = r"^\[[^\]]*\] ?| ?\(_ssl\.c:\d+\)$"
_JSON_PROBLEMS = {
    "Expecting value": "a value is missing",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing",
    "Expecting ':' delimiter": "a colon is missing",
    "Extra data": "the document has ended before",
    "Unterminated string starting at": "the text that begins here does not end",
    "Invalid control character at": "a control character inside a text",
    "Expecting property name enclosed in double quotes": "a name in double quotes is missing",
    "Illegal trailing comma before end of object": "a comma with nothing behind it",
    "Illegal trailing comma before end of array": "a comma with nothing behind it",
}


def json_words(found: str) -> str:
    """What a parser of JSON says is wrong, in our words."""
    return "an escape that JSON has not" if "escape" in found else _sentence(_JSON_PROBLEMS.get(found, found))


_TOO_DEEP = "arrays, objects or other parts stand too deep in each other"
_ODD_KIND = "something in it is of another kind than expected"
_WORDS_OF_KINDS = {
    "BadZipFile": "it is no zip file, or a damaged one",
    "BadGzipFile": "it is damaged",
    "EOFError": "it ends too early",
    "KeyError": "a part of it is missing",
    "IndexError": "a part of it is missing",
    "AttributeError": _ODD_KIND,
    "TypeError": _ODD_KIND,
    "RecursionError": _TOO_DEEP,
    "UnicodeEncodeError": "half a character (a lone surrogate), which no text holds",
    "ArrowInvalid": "it is no Parquet file, or a damaged one",
    "ReaderError": "a character that no text holds",
    "InvalidOperation": "it is no number",
}
"""By the exception's class, where its text is about the inside of a library: zip, gzip, Python itself, YAML."""
_WORDS_OF_DATABASES = {
    "SQLITE_FULL": "no space is left on its disk",
    "SQLITE_NOTADB": "it is no database",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_BUSY": "another process keeps it busy",
    "SQLITE_LOCKED": "another process keeps it busy",
    "SQLITE_READONLY": "it may not be written",
    "SQLITE_IOERR": "the disk failed",
}


def reason(error: BaseException) -> str:
    """Why something was refused, as part of a sentence: `permission denied`, `line 3, column 5: a value is missing`.

    Of what the system, a parser or a library says, without its numbers, brackets and class names.
    """
    if isinstance(error, CrmctlError):
        return error.message
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1:,} is not {error.encoding.upper()}"
    found, mark = getattr(error, "msg", None), getattr(error, "problem_mark", None)
    if isinstance(found, str) and hasattr(error, "colno"):
        return f"line {error.lineno}, column {error.colno}: {json_words(found)}"  # type: ignore[attr-defined]
    if mark is not None:
        problem = re.sub(_SYMBOL, r"the \1", getattr(error, "problem", None) or "it ends here")
        return f"line {mark.line + 1}, column {mark.column + 1}: {_sentence(problem)}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror and type(cause).__name__ not in _WORDS_OF_KINDS:
            return _sentence(cause.strerror)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return _known_words(error) or _sentence(str(error) or "no reason was given")


def _known_words(error: BaseException) -> str | None:
    database, kind = getattr(error, "sqlite_errorname", None), type(error)
    if database is not None:
        return next((words for name, words in _WORDS_OF_DATABASES.items() if str(database).startswith(name)), None)
    if isinstance(error, SyntaxError) or (kind.__module__, kind.__name__) == ("zlib", "error"):
        return "it is damaged"
    if (kind.__module__, kind.__name__) == ("_csv", "Error"):
        return "a quote does not end where its cell does, or a cell is too long"
    return _WORDS_OF_KINDS.get(kind.__name__)


_SYMBOL = r"'?<([a-z ]+)>'?"
"""How a parser of YAML writes what it came upon: `'<stream end>'`."""


def _sentence(text: str) -> str:
    text = " ".join(re.sub(_DECORATION, "", text).split()).rstrip(".")
    return f"{text[:1].lower()}{text[1:]}" if text.partition(" ")[0][1:].islower() or text[1:2] == " " else text


NO_SPACE = frozenset({errno.ENOSPC, errno.EFBIG, *((errno.EDQUOT,) if hasattr(errno, "EDQUOT") else ())})
"""Full disks, quotas, and the size a process may give a file."""

STORAGE = NO_SPACE | {errno.EIO, errno.EROFS}
"""What is wrong with a disk and not with a path."""

LEAST_BYTES = 65_536
"""SQLite calls a disk that has less than it needs for its shared memory broken."""


def storage_error(error: Exception, path: Path | None = None) -> StorageError | None:
    """The error of a disk, or of a database on it, by name; None for any other exception. `path`: the file, None for temporary ones."""
    database = getattr(error, "sqlite_errorname", None)
    if database is None and type(error).__module__ != "sqlite3" and not (isinstance(error, OSError) and error.errno in STORAGE):
        return None
    named = getattr(error, "filename", None)
    where = str(named or path or "temporary files, which TMPDIR places elsewhere")
    if (isinstance(error, OSError) and error.errno in NO_SPACE) or database == "SQLITE_FULL" or _is_full(database, path):
        return StorageError(f"no space left on the disk of {where}", code="no_space", hint="make room there, then give the command again")
    if isinstance(error, OSError):
        return StorageError(f"cannot write {where}: {reason(error)}")
    damaged = database in ("SQLITE_CORRUPT", "SQLITE_NOTADB") or str(database).startswith("SQLITE_CORRUPT_")
    return StorageError(f"cannot use {where}: {reason(error)}", code="damaged_file" if damaged else "unwritable_file")


def _is_full(database: str | None, path: Path | None) -> bool:
    """Whether SQLite's own word for it only hides that the disk is full."""
    if path is None or not str(database).startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")) or not hasattr(os, "statvfs"):
        return False
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < LEAST_BYTES
