"""The error and the exit code of a finished job as values."""

from __future__ import annotations

from typing import Any

from crmctl.errors import CrmctlError, ExitCode


def error_of(result: Any) -> CrmctlError | None:
    try:
        result.raise_for_error()
    except CrmctlError as error:
        return error
    return None


def code_of(result: Any) -> ExitCode:
    error = error_of(result)
    return ExitCode.OK if error is None else error.exit_code
