"""Reading many records of an object for a computation: all that match, a chunk at a time, or the first ones in some order.

Memory stays flat however many there are; the caller's transaction makes it one snapshot.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from crmctl.models.filters import Condition
from crmctl.service.store import record_tables
from crmctl.service.store.conditions import Where, combine, compile_conditions
from crmctl.service.store.record_pages import SORTS
from crmctl.service.store.schema import Schema
from crmctl.service.store.timestamps import to_wire
from crmctl.service.store.tx import MAX_IN, Row, Tx, all_in, required
from crmctl.service.values.attribute import StoredAttribute
from crmctl.service.values.kinds import KINDS, Family

CHUNK = 5000


def comparable(attribute: StoredAttribute) -> str:
    """The expression for the canonical value: numbers and dates as keys that sort."""
    return record_tables.column(attribute)


def exact(attribute: StoredAttribute) -> str:
    """The expression for the value as `equals` sees it: text to the character."""
    column = record_tables.column(attribute)
    is_text = KINDS[attribute.type].family is Family.TEXT
    return f"coalesce({record_tables.exact_column(attribute)}, {column})" if is_text else column


def scan(tx: Tx, schema: Schema, conditions: Sequence[Condition], expressions: Sequence[str]) -> Iterator[Row]:
    """`(seq, *expressions)` of every record that matches, in order of creation. Raises BadRequest as compile_condition does."""
    where = _where(tx, schema, conditions)
    wanted = ", ".join(["seq", *expressions])
    # The inner limit keeps an engine from looking the conditions up in an index, and sorting what it finds, once for every chunk.
    part = f"(SELECT * FROM {schema.table} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?) AS part"
    ends = f"SELECT max(seq) FROM (SELECT seq FROM {schema.table} WHERE seq > ? ORDER BY seq LIMIT ?) AS part"
    after = 0
    while (last := required(tx.one(ends, (after, CHUNK)))[0]) is not None:
        yield from tx.all(f"SELECT {wanted} FROM {part} WHERE {where.sql}", (after, last, CHUNK, *where.params))
        after = last


def first_sequences(tx: Tx, schema: Schema, conditions: Sequence[Condition], sorting: tuple[str | None, bool], limit: int) -> Sequence[int]:
    """Which records come first, at most `limit`: sorted by an attribute or a time, those without a value last; newest first by default.

    `sorting`: by what, and whether descending.
    """
    sort, descending = sorting
    where = _where(tx, schema, conditions)
    direction = "DESC" if descending or sort is None else "ASC"
    if sort is None or sort in SORTS:
        order = f"{sort or SORTS[0]} {direction}"
    else:
        column = record_tables.column(schema.attributes[sort])
        order = f"CASE WHEN {column} IS NULL THEN 1 ELSE 0 END, {column} {direction}"
    sql = f"SELECT seq FROM {schema.table} WHERE {where.sql} ORDER BY {order}, seq {direction} LIMIT ?"
    return [row[0] for row in tx.all(sql, (*where.params, limit))]


def records_at(tx: Tx, schema: Schema, sequences: Iterable[int]) -> Iterator[dict[str, Any]]:
    """The records with these sequence numbers, in the order given: their data, and id, created_at and updated_at beside it."""
    waiting = list(sequences)
    for start in range(0, len(waiting), MAX_IN):
        chunk = waiting[start : start + MAX_IN]
        sql = f"SELECT seq, id, created_at, updated_at, data FROM {schema.table} WHERE seq IN {{}}"
        found = {row[0]: row[1:] for row in all_in(tx, sql, chunk)}
        for sequence in chunk:
            record_id, created_at, updated_at, data = found[sequence]
            fields = {"id": record_id, "created_at": to_wire(created_at), "updated_at": to_wire(updated_at)}
            yield schema.values_in(data) | fields


def _where(tx: Tx, schema: Schema, conditions: Sequence[Condition]) -> Where:
    wheres = compile_conditions(conditions, schema.attributes, tx.dialect)
    return combine(wheres) if wheres else Where("1 = 1")
