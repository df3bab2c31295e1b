"""The error of a finished job as a value."""

from __future__ import annotations

from typing import Any

from crmctl.errors import CrmctlError


def error_of(result: Any) -> CrmctlError | None:
    try:
        result.raise_for_error()
    except CrmctlError as error:
        return error
    return None
