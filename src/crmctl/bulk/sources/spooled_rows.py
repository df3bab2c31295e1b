"""Rows that a program gives, kept as lines of JSON, so that they can be read again like any file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

from crmctl.errors import RejectedError, reason, storage_error
from crmctl.models import jsontext


def spool_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write one line for each row into a private file (0600). Dates become ISO text, UUIDs their text.

    Raises RejectedError for a row that is no JSON object, and StorageError when there is no room; what `rows` raises.
    """
    path.touch(mode=0o600)
    try:
        with path.open("w", encoding="utf-8") as file:
            for number, row in enumerate(rows, 1):
                file.write(f"{_line(number, row)}\n")
    except OSError as error:
        raise storage_error(error, path) or error from error


def spool_ids(ids: Iterable[str], path: Path) -> None:
    """Write a table of one column, `id`, into a private file (0600). Raises StorageError when there is no room."""
    path.touch(mode=0o600)
    try:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.write("id\n")
            file.writelines(f"{one}\n" for one in ids)
    except OSError as error:
        raise storage_error(error, path) or error from error


def _line(number: int, row: Mapping[str, Any]) -> str:
    if not isinstance(row, Mapping):
        raise RejectedError(f"row {number} is no mapping of columns to values but {type(row).__name__}", code="unusable_row")
    try:
        return jsontext.dumps({str(name): _plain(value) for name, value in row.items()})
    except (TypeError, ValueError, RecursionError) as error:
        raise RejectedError(f"row {number} cannot be sent as JSON: {reason(error)}", code="unusable_row") from error


def _plain(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
