"""Transactions and rows as store functions see them, and every difference between the SQL engines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from pydantic.alias_generators import to_camel

from crmctl.models.jsontext import Json
from crmctl.service.faults import NotFound
from crmctl.values.folded_text import capitals
from crmctl.values.operators import Engine
from crmctl.values.value_readers import canonical_uuid


class SqliteDialect:
    """SQLite's words where SQL leaves a choice; PostgreSQL has its own. Expressions are SQL text with `?` placeholders."""

    engine: Engine = "sqlite"
    identity = "INTEGER PRIMARY KEY AUTOINCREMENT"
    """Column type of a primary key that counts up and is never reused."""
    sequence = "INTEGER PRIMARY KEY"
    """Column type of a primary key that counts up."""
    text = "TEXT"
    """Column type of text that compares by code point."""
    blob = "BLOB"
    keyed_table = " WITHOUT ROWID"
    """Suffix of a CREATE TABLE whose rows live in their primary key."""
    # One writer at a time holds the whole database, so that there is nothing left to lock.
    for_update = ""
    """Suffix of a SELECT that locks its rows until the transaction ends."""
    share_object = ""
    """Statement that keeps others from changing the object with this id, its attributes and its table until the transaction ends."""
    own_object = ""
    """Statement that keeps all other writers away from the object with this id until the transaction ends."""
    hold_claims = ""
    """Statement that makes this the only transaction that claims work until it ends."""
    impatience = ""
    """Statement that makes the transaction give up locks of others soon."""
    before_migration: tuple[str, ...] = ()
    """Statements that make this the only migration, however long another one takes."""
    passing_table = "CREATE TABLE"
    """CREATE TABLE for rows that may be lost in a crash and are cheap to write."""
    growth = ""
    """Settings of a table that grows large."""
    names_indexes = True
    """Whether `table_by` has an effect. An engine with statistics of its values needs none."""

    def for_claim(self, table: str) -> str:
        """Return the suffix of a SELECT that takes rows for this transaction and skips those that another one has taken."""
        return ""

    def any_element(self, array: str, predicate: str) -> str:
        """Return the condition that `predicate`, on `element.value`, holds for an element of a JSON array of strings."""
        return f"EXISTS (SELECT 1 FROM json_each({array}) AS element WHERE {predicate})"

    def without_key(self, column: str) -> str:
        """Return the JSON object in the column without the member of `key_parameter`."""
        return f"json_remove({column}, ?)"

    def key_parameter(self, key: str) -> str:
        return f'$."{key}"'

    def member(self, column: str, key: str) -> str:
        """Return a member of a JSON object: JSON text if it is an object or array."""
        return f"""json_extract({column}, '$."{key}"')"""

    def part(self, column: str, key: str, name: str) -> tuple[str, str]:
        """Return a part of a composite value in a JSON object as folded text and as it is, null if there is none."""
        text = f"""json_extract({column}, '$."{key}"."{name}"')"""
        return f"fold({text})", text

    def table_alone(self, table: str) -> str:
        """Return the table in a FROM clause that is scanned from end to end."""
        return f"{table} NOT INDEXED"

    def table_by(self, table: str, index: str) -> str:
        """Return the table in a FROM clause that is read through this index."""
        return f"{table} INDEXED BY {index}"


_OBJECTS, _MIGRATIONS, _CLAIMS = 1, 2, 3
"""First halves of PostgreSQL's advisory lock numbers."""


class PostgresDialect(SqliteDialect):
    engine: Engine = "postgresql"
    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    sequence = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    text = 'TEXT COLLATE "C"'
    blob = "BYTEA"
    keyed_table = ""
    for_update = " FOR UPDATE"
    # Advisory locks queue fairly, so that a stream of writers cannot hold off a change of attributes, and they write nothing.
    share_object = f"SELECT pg_advisory_xact_lock_shared({_OBJECTS}, CAST(number AS INTEGER)) FROM crm_object WHERE id = ?"
    own_object = f"SELECT pg_advisory_xact_lock({_OBJECTS}, CAST(number AS INTEGER)) FROM crm_object WHERE id = ?"
    hold_claims = f"SELECT pg_advisory_xact_lock({_CLAIMS}, 0)"
    # While a statement waits for a whole table, all later ones wait too.
    impatience = "SET LOCAL lock_timeout = 300"
    before_migration: tuple[str, ...] = (
        "SET LOCAL lock_timeout = 0",
        "SET LOCAL statement_timeout = 0",
        f"SELECT pg_advisory_xact_lock({_MIGRATIONS}, 0)",
    )
    passing_table = "CREATE UNLOGGED TABLE"
    # An index-only count looks rows up in the table until it is vacuumed, by default after a fifth of new rows.
    growth = "autovacuum_vacuum_insert_scale_factor = 0.02"
    names_indexes = False

    def for_claim(self, table: str) -> str:
        return f" FOR UPDATE OF {table} SKIP LOCKED"

    def any_element(self, array: str, predicate: str) -> str:
        elements = f'SELECT value COLLATE "C" AS value FROM json_array_elements_text(CAST({array} AS JSON))'
        return f"EXISTS (SELECT 1 FROM ({elements}) AS element WHERE {predicate})"

    def without_key(self, column: str) -> str:
        # Built from the members' own text, because jsonb would rewrite numbers.
        members = f"json_each(CAST({column} AS JSON)) WITH ORDINALITY AS member (key, value, place)"
        text = "to_json(member.key)::text || ':' || member.value::text"
        return f"(SELECT '{{' || coalesce(string_agg({text}, ',' ORDER BY place), '') || '}}' FROM {members} WHERE member.key <> ?)"

    def key_parameter(self, key: str) -> str:
        return key

    def member(self, column: str, key: str) -> str:
        return f"CAST(CAST({column} AS JSON) -> '{key}' AS TEXT)"

    def part(self, column: str, key: str, name: str) -> tuple[str, str]:
        text = f"(CAST({column} AS JSON) -> '{key}' ->> '{name}')"
        large, small = capitals()
        return f"lower(translate({text}, '{large}', '{small}'))", text

    def table_alone(self, table: str) -> str:
        return table

    def table_by(self, table: str, index: str) -> str:
        return table


_ONE_ROW = re.compile(r"^INSERT INTO .* VALUES (\([?, ]+\))$")
_ROWS_AT_ONCE = (100, 32, 8, 2, 1)
"""Few sizes, so that statements repeat and are prepared."""

_MOST_PARAMETERS = 30_000
"""Most parameters of one statement: SQLite takes 32,766, PostgreSQL twice as many."""

Params = Sequence[Any]
Row = tuple[Any, ...]

MAX_IN = 500
"""Most values in one IN list. The engines allow more, but the statement must stay small enough to be cached."""

if TYPE_CHECKING:
    from crmctl.service.store.postgres import PostgresTx
    from crmctl.service.store.sqlite import SqliteTx

    Tx: TypeAlias = SqliteTx | PostgresTx
    """An open transaction. SQL has `?` placeholders and no other question or percent sign. `execute` returns the number of rows that the
    statement touched; `by` is the actor (see logs), None for the service itself. `remembered` returns what `read` reads here, or has read
    in an earlier transaction since which nobody has written."""
else:
    Tx = object


def all_in(tx: Tx, sql: str, values: Iterable[Any], before: Params = ()) -> Iterator[Row]:
    """Yield the rows of a statement that ends in `IN {}`, for any number of values."""
    for marked, params in _in_parts(sql, values, before):
        yield from tx.all(marked, params)


def execute_in(tx: Tx, sql: str, values: Iterable[Any], before: Params = ()) -> None:
    """Execute a statement that ends in `IN {}`, for any number of values."""
    for marked, params in _in_parts(sql, values, before):
        tx.execute(marked, params)


def _in_parts(sql: str, values: Iterable[Any], before: Params) -> Iterator[tuple[str, Params]]:
    remaining = list(values)
    for start in range(0, len(remaining), MAX_IN):
        chunk = remaining[start : start + MAX_IN]
        yield sql.format(f"({', '.join('?' * len(chunk))})"), [*before, *chunk]


def table_of(name: str, columns: Mapping[str, Sequence[int | str | None]]) -> tuple[str, list[Any]]:
    """Return `WITH name (columns) AS (...)` for at least one row, given by column, with its parameters. No column may be all None."""
    # The first row declares the types, which parameters do not.
    kinds = ["BIGINT" if any(isinstance(value, int) for value in values) else "TEXT" for values in columns.values()]
    first, rows = ", ".join(f"CAST(? AS {kind})" for kind in kinds), list(zip(*columns.values(), strict=True))
    others = f", ({', '.join('?' * len(columns))})" * (len(rows) - 1)
    return f"WITH {name} ({', '.join(columns)}) AS (VALUES ({first}){others})", [value for row in rows for value in row]


def insert_columns(tx: Tx, table: str, columns: Mapping[str, Sequence[Any]]) -> None:
    """Insert rows, given by column. A column without values is left out: passing a NULL takes longer than passing a text."""
    filled = {name: values for name, values in columns.items() if values.count(None) < len(values)}
    if filled:
        marks = ", ".join("?" * len(filled))
        tx.execute_many(f"INSERT INTO {table} ({', '.join(filled)}) VALUES ({marks})", list(zip(*filled.values(), strict=True)))


def insert(tx: Tx, table: str, values: Mapping[str, Any]) -> None:
    tx.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})", tuple(values.values()))


def update(tx: Tx, table: str, values: Mapping[str, Any], where: str, *params: Any) -> int:
    assignments = ", ".join(f"{column} = ?" for column in values)
    return tx.execute(f"UPDATE {table} SET {assignments} WHERE {where}", (*values.values(), *params))


def several_at_once(sql: str, rows: Iterable[Params]) -> Iterator[tuple[str, Iterable[Params]]]:
    """Yield an INSERT of one row as statements of many rows, in half the time on either engine, and any other statement as it is."""
    row = _ONE_ROW.search(sql)
    if row is None:
        yield sql, rows
        return
    remaining, width = list(rows), row[1].count("?")
    for count in _ROWS_AT_ONCE:
        groups = len(remaining) // count if count * width <= _MOST_PARAMETERS else 0
        if groups:
            flat = list(chain.from_iterable(remaining[: groups * count]))
            size = count * width
            yield _of_rows(sql, row[1], count), [flat[start : start + size] for start in range(0, len(flat), size)]
            del remaining[: groups * count]


@lru_cache(256)
def _of_rows(sql: str, row: str, count: int) -> str:
    return f"{sql}{f', {row}' * (count - 1)}"


def required(row: Row | None) -> Row:
    """Return the row of a statement that always gives one, such as a count or an INSERT with RETURNING."""
    if row is None:
        raise LookupError("the statement gave no row")
    return row


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def to_wire(micros: int) -> str:
    """Return a timestamp such as 2026-01-31T09:30:00.000000Z."""
    seconds, rest = divmod(micros, 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(4096)
def _second(seconds: int) -> str:
    """Return a moment without its fraction. Records that were written together share it."""
    # strftime omits the leading zeros of an early year.
    return (_NAIVE_EPOCH + timedelta(seconds=seconds)).isoformat()


def micros_of(when: datetime) -> int:
    return (when.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


Ids = Callable[[], str]
"""Makes a new identifier: a UUID string."""


class Stamp(TypedDict):
    """`ids` makes a new UUID as text; `now` is Unix seconds. Passed as keywords: `**stamp: Unpack[Stamp]`."""

    ids: Ids
    now: float


def _usual_reader(column: str) -> Callable[[Any], Any] | None:
    return bool if column.startswith("is_") else to_wire if re.search("(^|_)(at|since|date)$", column) else None


class Rows:
    """The rows of `table`, each a `noun`, with the columns that are shown; `read` converts some of them.

    Columns named like moments are shown as timestamps, those that begin with `is_` as true or false. A column's name in camelCase is its
    name on the wire. NULL is shown as null.
    """

    def __init__(self, table: str, noun: str, columns: str, /, **read: Callable[[Any], Any]) -> None:
        self.table = table
        self.noun = noun
        self.columns = columns
        names = [re.split("[ .]", column)[-1] for column in columns.split(", ")]
        self._fields = [(to_camel(name), read.get(name) or _usual_reader(name)) for name in names]
        self._id = columns.partition(", ")[0]

    def show(self, row: Row) -> Json:
        shown = zip(self._fields, row, strict=True)
        return {field: value if value is None or reader is None else reader(value) for (field, reader), value in shown}

    def all(self, tx: Tx, rest: str = "", params: Params = ()) -> list[Json]:
        """Return the rows; `rest` follows the FROM clause."""
        return [self.show(row) for row in tx.all(f"SELECT {self.columns} FROM {self.table} {rest}", params)]

    def find(self, tx: Tx, condition: str, *params: Any) -> Json | None:
        return next(iter(self.all(tx, f"WHERE {condition} LIMIT 1", params)), None)

    def get(self, tx: Tx, thing_id: str) -> Json:
        row = self.find(tx, f"{self._id} = ?", canonical_uuid(thing_id) or "")
        if row is None:
            raise NotFound(f"there is no {self.noun} with the id {thing_id}")
        return row
