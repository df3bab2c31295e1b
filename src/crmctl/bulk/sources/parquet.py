"""Parquet files: rows of typed values, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crmctl.bulk.extras import require_files_extra
from crmctl.bulk.findings import Finding
from crmctl.errors import UsageError, reason

BATCH = 2000


def read_parquet(path: Path, name: str) -> Callable[[], Iterator[tuple[int, list[Any], Finding | None]]]:
    """A function that reads the rows, the names of the columns first. Raises UsageError for a file that is not intact."""
    pyarrow, parquet = require_files_extra("pyarrow"), require_files_extra("pyarrow.parquet")

    def rows() -> Iterator[tuple[int, list[Any], Finding | None]]:
        try:
            with parquet.ParquetFile(path) as file:
                yield 1, list(file.schema_arrow.names), None
                number = 1
                for batch in file.iter_batches(batch_size=BATCH):
                    for values in zip(*(_values(pyarrow, column) for column in batch.columns), strict=True):
                        number += 1
                        yield number, list(values), _problem(values)
        except (OSError, pyarrow.ArrowException) as error:
            raise UsageError(f"{name} cannot be read as Parquet: {reason(error)}", code="unreadable_file") from error

    return rows


def _values(pyarrow: Any, column: Any) -> list[Any]:
    """Plain values; times are cut to microseconds, which is what Python's hold."""
    kind = column.type
    if pyarrow.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    return list(column.to_pylist())


def _problem(values: tuple[Any, ...]) -> Finding | None:
    for place, value in enumerate(values):
        if isinstance(value, bytes):
            return Finding("not_text", f"column {place + 1} holds bytes, not text", hint="write the column as strings").on(
                f"#{place + 1}", repr(value[:20])
            )
    return None
