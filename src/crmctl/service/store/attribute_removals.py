"""What deleted attributes leave behind, taken out a piece at a time, so that no writer waits for all of it and a kill loses nothing.

Nobody sees it meanwhile: whoever reads a record passes over its slug (`Schema.values_in`). At the end its two columns are vacant, for the
next attribute of the object: taking a column away would rewrite all of a table on SQLite, and is counted for ever on PostgreSQL.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from crmctl.service.faults import Busy
from crmctl.service.store import record_tables
from crmctl.service.store.schema import Schema
from crmctl.service.store.tx import Tx, required
from crmctl.service.values.attribute import StoredAttribute

INDEX, VALUES, KEYS, RECORDS = "index", "values", "keys", "records"
"""Kinds of pieces. How long one takes for so many rows says nothing of another kind."""

Sizes = Mapping[str, int]
"""How many rows a piece of each kind has at most."""

AT_ONCE = 500
"""An object with no more records than this is done with when the attribute is."""


class StillLeaving(Busy):
    """The slug is free when the values of a deleted attribute are out of all records."""


class _Removal(NamedTuple):
    """The records up to `done` are through; those after `last` never had the attribute."""

    number: int
    object_id: str
    object_number: int
    slug: str
    is_indexed: int
    is_unique: int
    done: int
    last: int


_COLUMNS = ", ".join(_Removal._fields)
_BEGIN = f"INSERT INTO attribute_removal ({_COLUMNS}, is_vacant) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)"


def create_table(tx: Tx) -> None:
    """The migration that brings it."""
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE attribute_removal (number INTEGER PRIMARY KEY, object_id {text} NOT NULL, object_number INTEGER NOT NULL,
            slug {text} NOT NULL, is_indexed INTEGER NOT NULL, is_unique INTEGER NOT NULL, done BIGINT NOT NULL, last BIGINT NOT NULL,
            is_vacant INTEGER NOT NULL)"""
    )


def still_leaving(slug: str) -> StillLeaving:
    return StillLeaving(f"the deleted attribute {slug!r} is still being taken out of the records; nothing was done, try again")


def begin(tx: Tx, object_id: str, object_number: int, attribute: StoredAttribute) -> None:
    """Of an attribute that is no more from here on; whoever calls keeps all other writers away from the object."""
    table = record_tables.table_name(object_number)
    last: int = required(tx.one(f"SELECT coalesce(max(seq), 0) FROM {table}"))[0]
    flags = (int(attribute.is_indexed), int(attribute.is_unique))
    removal = _Removal(attribute.number, object_id, object_number, attribute.slug, *flags, 0, last)
    tx.execute(_BEGIN, removal)
    few: int = required(tx.one(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?) AS counted", (AT_ONCE + 1,)))[0]
    if few <= AT_ONCE:
        _take_values_out(tx, removal, AT_ONCE)
        tx.execute("UPDATE attribute_removal SET done = last WHERE number = ?", (attribute.number,))
        _forget_unique_values(tx, removal, AT_ONCE)


def begin_all(tx: Tx, schema: Schema) -> None:
    """Of an object that is no more: its values go with the table, and the indexes where that is dropped whole."""
    tx.execute("UPDATE attribute_removal SET done = last WHERE object_number = ?", (schema.number,))
    for each in schema.every.values():
        flags = (int(each.is_indexed and not tx.dialect.drops_whole), int(each.is_unique))
        if any(flags):
            tx.execute(_BEGIN, _Removal(each.number, schema.object_id, schema.number, each.slug, *flags, 0, 0))


def is_waiting(tx: Tx) -> bool:
    return tx.one("SELECT 1 FROM attribute_removal WHERE is_vacant = 0 LIMIT 1") is not None


def take_out(tx: Tx, sizes: Sizes) -> str | None:
    """One piece of the oldest removal that nobody else is at; its kind, None when there was none.

    Raises Busy where an index cannot be dropped at once because somebody reads the table.
    """
    for number, object_id in tx.all("SELECT number, object_id FROM attribute_removal WHERE is_vacant = 0 ORDER BY number"):
        if tx.dialect.share_object:
            tx.one(tx.dialect.share_object, (object_id,))
        claim = f"SELECT {_COLUMNS} FROM attribute_removal WHERE number = ? AND is_vacant = 0{tx.dialect.for_claim('attribute_removal')}"
        row = tx.one(claim, (number,))
        if row is not None:
            return _take_piece(tx, _Removal(*row), sizes)
    return None


def take_vacancy(tx: Tx, object_number: int) -> int | None:
    """The number of a deleted attribute whose columns hold nothing any more, and are the caller's now."""
    row = tx.one("SELECT min(number) FROM attribute_removal WHERE object_number = ? AND is_vacant = 1", (object_number,))
    number: int | None = required(row)[0]
    if number is not None:
        tx.execute("DELETE FROM attribute_removal WHERE number = ?", (number,))
    return number


def forget_object(tx: Tx, object_number: int) -> None:
    tx.execute("DELETE FROM attribute_removal WHERE object_number = ?", (object_number,))


def _take_piece(tx: Tx, removal: _Removal, sizes: Sizes) -> str:
    if removal.is_indexed:
        record_tables.drop_index(tx, removal.object_number, record_tables.columns_of(removal.number)[0])
        tx.execute("UPDATE attribute_removal SET is_indexed = 0 WHERE number = ?", (removal.number,))
        return INDEX
    if removal.done < removal.last:
        done = _take_values_out(tx, removal, sizes[VALUES])
        tx.execute("UPDATE attribute_removal SET done = ? WHERE number = ?", (done, removal.number))
        return VALUES
    if not removal.is_unique or _forget_unique_values(tx, removal, sizes[KEYS]) < sizes[KEYS]:
        tx.execute("UPDATE attribute_removal SET is_vacant = 1 WHERE number = ?", (removal.number,))
    return KEYS


def _take_values_out(tx: Tx, removal: _Removal, most: int) -> int:
    """Out of the next records; up to which it is done then."""
    table = record_tables.table_name(removal.object_number)
    column, exact = record_tables.columns_of(removal.number)
    part = f"SELECT seq FROM {table} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
    end: int | None = required(tx.one(f"SELECT max(seq) FROM ({part}) AS part", (removal.done, removal.last, most)))[0]
    if end is None:
        return removal.last
    # The text search only narrows down which rows to rewrite. A record that was written since has no value any more, but has the column.
    touched = f"seq > ? AND seq <= ? AND ({column} IS NOT NULL OR {tx.dialect.contains('data')})"
    where = (removal.done, end, f'"{removal.slug}":')
    if tx.dialect.for_update:
        # In the order in which writers lock them.
        tx.all(f"SELECT id FROM {table} WHERE {touched} ORDER BY id{tx.dialect.for_update}", where)
    strip = f"UPDATE {table} SET data = {tx.dialect.without_key('data')}, {column} = NULL, {exact} = NULL WHERE {touched}"
    tx.execute(strip, (tx.dialect.key_parameter(removal.slug), *where))
    return end


def _forget_unique_values(tx: Tx, removal: _Removal, most: int) -> int:
    some = "SELECT key FROM unique_value WHERE attribute = ? LIMIT ?"
    sql = f"DELETE FROM unique_value WHERE attribute = ? AND key IN ({some})"
    return tx.execute(sql, (removal.number, removal.number, most))
