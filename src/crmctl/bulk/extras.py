"""Libraries that are not always installed: loaded where they are needed, with one clear error where they are not."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from crmctl.errors import UsageError


def require_files_extra(library: str) -> Any:
    """Import a library of the extra `files`. Raises UsageError that names the command to install it."""
    try:
        return import_module(library)
    except ImportError as error:
        raise UsageError(
            f"Parquet and Excel files need {library.partition('.')[0]}, which is not installed",
            hint="pip install 'crmctl[files]'",
            code="not_installed",
        ) from error
