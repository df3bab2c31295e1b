"""What a store function may ask of its transaction. No engine, no dialect beyond the protocol."""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol

from crmctl.service.store.dialect import SqlDialect

_ONE_ROW = re.compile(r"^INSERT INTO .* VALUES (\([?, ]+\))$")
_ROWS_AT_ONCE = (100, 32, 8, 2, 1)
"""Few sizes, so that the same statements come again and are prepared."""

_MOST_PARAMETERS = 30_000
"""Of one statement: SQLite takes 32,766, PostgreSQL twice as many."""

Params = Sequence[Any]
Row = tuple[Any, ...]

MAX_IN = 500
"""Most values in one IN list; both engines allow far more, but the statement must stay cacheable and small."""


class Tx(Protocol):
    """One open transaction. SQL has `?` placeholders and holds no other question mark or percent sign."""

    @property
    def dialect(self) -> SqlDialect: ...

    @property
    def by(self) -> str | None:
        """Who is acting: see actors. None for the service itself."""
        ...

    def execute(self, sql: str, params: Params = ()) -> int:
        """Run a statement; the number of rows it touched."""
        ...

    def execute_many(self, sql: str, rows: Iterable[Params]) -> None: ...

    def one(self, sql: str, params: Params = ()) -> Row | None:
        """The first row, or None."""
        ...

    def all(self, sql: str, params: Params = ()) -> list[Row]: ...


def all_in(tx: Tx, sql: str, values: Iterable[Any], before: Params = ()) -> Iterator[Row]:
    """Rows of a statement that ends in `IN {}`, asked for any number of values."""
    remaining = list(values)
    for start in range(0, len(remaining), MAX_IN):
        chunk = remaining[start : start + MAX_IN]
        yield from tx.all(sql.format("(" + ", ".join("?" * len(chunk)) + ")"), [*before, *chunk])


def execute_in(tx: Tx, sql: str, values: Iterable[Any], before: Params = ()) -> None:
    """A statement that ends in `IN {}`, for any number of values."""
    remaining = list(values)
    for start in range(0, len(remaining), MAX_IN):
        chunk = remaining[start : start + MAX_IN]
        tx.execute(sql.format("(" + ", ".join("?" * len(chunk)) + ")"), [*before, *chunk])


def table_of(name: str, columns: Mapping[str, Sequence[int | str | None]]) -> tuple[str, list[Any]]:
    """`WITH name (columns) AS (...)` of at least one row, given column by column, and its parameters. No column may be all None."""
    # The first row says the types, which the values of parameters do not.
    kinds = ["BIGINT" if any(isinstance(value, int) for value in values) else "TEXT" for values in columns.values()]
    first, rows = ", ".join(f"CAST(? AS {kind})" for kind in kinds), list(zip(*columns.values(), strict=True))
    others = f", ({', '.join('?' * len(columns))})" * (len(rows) - 1)
    return f"WITH {name} ({', '.join(columns)}) AS (VALUES ({first}){others})", [value for row in rows for value in row]


def insert_columns(tx: Tx, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Rows, given column by column. A column that no row fills is left out: to hand over a NULL takes longer than to hand over a text."""
    filled = {name: values for name, values in columns.items() if values.count(None) < len(values)}
    if filled:
        marks = ", ".join("?" * len(filled))
        tx.execute_many(f"INSERT INTO {table} ({', '.join(filled)}) VALUES ({marks})", list(zip(*filled.values(), strict=True)))


def several_at_once(sql: str, rows: Iterable[Params]) -> Iterator[tuple[str, Iterable[Params]]]:
    """An INSERT of one row, given many, as statements of many rows, which take about half the time on either engine; any other as it is."""
    one = _ONE_ROW.search(sql)
    if one is None:
        yield sql, rows
        return
    left, width = list(rows), one[1].count("?")
    for count in _ROWS_AT_ONCE:
        groups = len(left) // count if count * width <= _MOST_PARAMETERS else 0
        if groups:
            flat = list(chain.from_iterable(left[: groups * count]))
            size = count * width
            yield _of_rows(sql, one[1], count), [flat[start : start + size] for start in range(0, len(flat), size)]
            del left[: groups * count]


@lru_cache(256)
def _of_rows(sql: str, one: str, count: int) -> str:
    return f"{sql}{f', {one}' * (count - 1)}"


def required(row: Row | None) -> Row:
    """For statements that always give a row, such as a count or an INSERT with RETURNING."""
    if row is None:
        raise LookupError("the statement gave no row")
    return row
