"""What deleted objects leave behind, taken away a piece at a time: unique values and indexes, then records, then the table.

Nobody sees it meanwhile: the object and its attributes are no more, and no later one gets their numbers.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

from crmctl.service.store import attribute_removals, record_tables
from crmctl.service.store.attribute_removals import INDEX, RECORDS, Sizes
from crmctl.service.store.schema import Schema
from crmctl.service.store.tx import Tx


def create_table(tx: Tx) -> None:
    """The migration that brings it."""
    tx.execute("CREATE TABLE object_removal (number INTEGER PRIMARY KEY, is_indexed INTEGER NOT NULL)")


def begin(tx: Tx, schema: Schema) -> None:
    """Of an object that is no more from here on; whoever calls keeps all other writers away from it."""
    tx.execute("INSERT INTO object_removal (number, is_indexed) VALUES (?, ?)", (schema.number, int(not tx.dialect.drops_whole)))
    attribute_removals.begin_all(tx, schema)


def is_waiting(tx: Tx) -> bool:
    return tx.one("SELECT 1 FROM object_removal LIMIT 1") is not None


def take_out(tx: Tx, sizes: Sizes) -> str | None:
    """One piece of the oldest removal that nobody else is at; its kind, None when there was none.

    Raises Busy where a table cannot be dropped at once because somebody reads it.
    """
    theirs = "SELECT 1 FROM attribute_removal AS a WHERE a.object_number = object_removal.number AND a.is_vacant = 0"
    claim = f"SELECT number, is_indexed FROM object_removal WHERE NOT EXISTS ({theirs}) ORDER BY number LIMIT 1"
    row = tx.one(claim + tx.dialect.for_claim("object_removal"))
    if row is None:
        return None
    number, is_indexed = row
    if is_indexed:
        for column in record_tables.MOMENTS:
            record_tables.drop_index(tx, number, column)
        tx.execute("UPDATE object_removal SET is_indexed = 0 WHERE number = ?", (number,))
        return INDEX
    if tx.dialect.drops_whole or _take_records_out(tx, record_tables.table_name(number), sizes[RECORDS]) < sizes[RECORDS]:
        record_tables.drop_table(tx, number)
        attribute_removals.forget_object(tx, number)
        tx.execute("DELETE FROM object_removal WHERE number = ?", (number,))
    return RECORDS


def _take_records_out(tx: Tx, table: str, most: int) -> int:
    part = f"SELECT seq FROM {table} ORDER BY seq LIMIT ?"
    return tx.execute(f"DELETE FROM {table} WHERE seq <= (SELECT max(seq) FROM ({part}) AS part)", (most,))
