"""Remove the data of deleted attributes and objects piece by piece."""

from __future__ import annotations

from typing import NamedTuple

from crmctl.service.store import record_tables
from crmctl.service.store.record_tables import Schema
from crmctl.service.store.tx import Tx, required
from crmctl.values.attribute_types import StoredAttribute
from crmctl.values.operators import holds_text

PIECE = 500
"""Most rows of a piece, so that no other writer waits long. An object with no more records is finished at once."""


class _Removal(NamedTuple):
    """The records up to `done` are finished; those after `last` never had the attribute."""

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


def begin(tx: Tx, object_id: str, object_number: int, attribute: StoredAttribute) -> None:
    """Begin to remove a deleted attribute. The caller keeps all other writers away from the object."""
    table = record_tables.table_name(object_number)
    last: int = required(tx.one(f"SELECT coalesce(max(seq), 0) FROM {table}"))[0]
    flags = (int(attribute.is_indexed), int(attribute.is_unique))
    removal = _Removal(attribute.number, object_id, object_number, attribute.slug, *flags, 0, last)
    tx.execute(_BEGIN, removal)
    few: int = required(tx.one(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?) AS counted", (PIECE + 1,)))[0]
    if few <= PIECE:
        _take_values_out(tx, removal)
        tx.execute("UPDATE attribute_removal SET done = last WHERE number = ?", (attribute.number,))
        _forget_unique_values(tx, removal)


def is_waiting(tx: Tx) -> bool:
    waiting = "SELECT 1 FROM attribute_removal WHERE is_vacant = 0 UNION ALL SELECT 1 FROM object_removal LIMIT 1"
    return tx.one(waiting) is not None


def take_out(tx: Tx) -> bool:
    """Take one piece of the oldest removal that no other process works on, and return whether there was one. Raises Busy when a reader
    holds the table."""
    for number, object_id in tx.all("SELECT number, object_id FROM attribute_removal WHERE is_vacant = 0 ORDER BY number"):
        if tx.dialect.share_object:
            tx.one(tx.dialect.share_object, (object_id,))
        claim = f"SELECT {_COLUMNS} FROM attribute_removal WHERE number = ? AND is_vacant = 0{tx.dialect.for_claim('attribute_removal')}"
        row = tx.one(claim, (number,))
        if row is not None:
            _take_piece(tx, _Removal(*row))
            return True
    theirs = "SELECT 1 FROM attribute_removal AS a WHERE a.object_number = object_removal.number AND a.is_vacant = 0"
    claim = f"SELECT number, is_indexed FROM object_removal WHERE NOT EXISTS ({theirs}) ORDER BY number LIMIT 1"
    row = tx.one(claim + tx.dialect.for_claim("object_removal"))
    if row is not None:
        _take_piece_of_object(tx, *row)
    return row is not None


def take_vacancy(tx: Tx, object_number: int) -> int | None:
    """Return the number of a deleted attribute whose columns are empty, for the caller's use."""
    row = tx.one("SELECT min(number) FROM attribute_removal WHERE object_number = ? AND is_vacant = 1", (object_number,))
    number: int | None = required(row)[0]
    if number is not None:
        tx.execute("DELETE FROM attribute_removal WHERE number = ?", (number,))
    return number


def _take_piece(tx: Tx, removal: _Removal) -> None:
    if removal.is_indexed:
        record_tables.drop_index(tx, removal.object_number, record_tables.columns_of(removal.number)[0])
        tx.execute("UPDATE attribute_removal SET is_indexed = 0 WHERE number = ?", (removal.number,))
    elif removal.done < removal.last:
        tx.execute("UPDATE attribute_removal SET done = ? WHERE number = ?", (_take_values_out(tx, removal), removal.number))
    elif not removal.is_unique or _forget_unique_values(tx, removal) < PIECE:
        tx.execute("UPDATE attribute_removal SET is_vacant = 1 WHERE number = ?", (removal.number,))


def _take_values_out(tx: Tx, removal: _Removal) -> int:
    """Remove values from the next records, and return up to which they are removed."""
    table = record_tables.table_name(removal.object_number)
    column, exact = record_tables.columns_of(removal.number)
    part = f"SELECT seq FROM {table} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
    end: int | None = required(tx.one(f"SELECT max(seq) FROM ({part}) AS part", (removal.done, removal.last, PIECE)))[0]
    if end is None:
        return removal.last
    # The text search only narrows the rows to rewrite. A record written since has no value, but has the column.
    touched = f"seq > ? AND seq <= ? AND ({column} IS NOT NULL OR {holds_text('data', tx.dialect.engine)})"
    where = (removal.done, end, f'"{removal.slug}":')
    if tx.dialect.for_update:
        # In the order in which writers lock them.
        tx.all(f"SELECT id FROM {table} WHERE {touched} ORDER BY id{tx.dialect.for_update}", where)
    strip = f"UPDATE {table} SET data = {tx.dialect.without_key('data')}, {column} = NULL, {exact} = NULL WHERE {touched}"
    tx.execute(strip, (tx.dialect.key_parameter(removal.slug), *where))
    return end


def _forget_unique_values(tx: Tx, removal: _Removal) -> int:
    some = "SELECT key FROM unique_value WHERE attribute = ? LIMIT ?"
    sql = f"DELETE FROM unique_value WHERE attribute = ? AND key IN ({some})"
    return tx.execute(sql, (removal.number, removal.number, PIECE))


def begin_object(tx: Tx, schema: Schema) -> None:
    """Begin to remove a deleted object, away from all other writers. Its values go with the table."""
    tx.execute("INSERT INTO object_removal (number, is_indexed) VALUES (?, 1)", (schema.number,))
    tx.execute("UPDATE attribute_removal SET done = last WHERE object_number = ?", (schema.number,))
    for attribute in schema.every.values():
        flags = (int(attribute.is_indexed), int(attribute.is_unique))
        if any(flags):
            tx.execute(_BEGIN, _Removal(attribute.number, schema.object_id, schema.number, attribute.slug, *flags, 0, 0))


def _take_piece_of_object(tx: Tx, number: int, is_indexed: int) -> None:
    table = record_tables.table_name(number)
    if is_indexed:
        for column in record_tables.MOMENTS:
            record_tables.drop_index(tx, number, column)
        tx.execute("UPDATE object_removal SET is_indexed = 0 WHERE number = ?", (number,))
        return
    part = f"SELECT seq FROM {table} ORDER BY seq LIMIT ?"
    if tx.execute(f"DELETE FROM {table} WHERE seq <= (SELECT max(seq) FROM ({part}) AS part)", (PIECE,)) < PIECE:
        record_tables.drop_table(tx, number)
        for removal, column in (("attribute_removal", "object_number"), ("object_removal", "number")):
            tx.execute(f"DELETE FROM {removal} WHERE {column} = ?", (number,))
