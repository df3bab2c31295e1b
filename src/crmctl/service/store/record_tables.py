"""The table of one object's records: its name, columns and indexes. All DDL at run time is here.

Per attribute there are two columns: `c<number>` holds what operators compare, `x<number>` the unfolded text where it differs from that.
"""

from __future__ import annotations

from crmctl.service.store.tx import Tx
from crmctl.service.values.attribute import StoredAttribute

MOMENTS = ("created_at", "updated_at")
"""The order of a whole list: each has an index."""


def table_name(object_number: int) -> str:
    return f"record_{object_number}"


def column(attribute: StoredAttribute) -> str:
    return columns_of(attribute.number)[0]


def exact_column(attribute: StoredAttribute) -> str:
    return columns_of(attribute.number)[1]


def columns_of(number: int) -> tuple[str, str]:
    """Both columns of the attribute with this number."""
    return f"c{number}", f"x{number}"


def index_name(table: str, column: str) -> str:
    """The index that starts with this column: an attribute's, or one of MOMENTS."""
    return f"{table}_{column}"


def create_table(tx: Tx, object_number: int) -> None:
    table = table_name(object_number)
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE {table} (seq {tx.dialect.sequence}, id {text} NOT NULL UNIQUE, created_at BIGINT NOT NULL,
            updated_at BIGINT NOT NULL, data {text} NOT NULL)"""
    )
    for field in MOMENTS:
        tx.execute(f"CREATE INDEX {index_name(table, field)} ON {table} ({field}, seq)")
    _let_grow(tx, table)


def let_tables_grow(tx: Tx) -> None:
    """The migration for tables that were made without the setting."""
    for (number,) in tx.all("SELECT number FROM crm_object"):
        _let_grow(tx, table_name(number))


def _let_grow(tx: Tx, table: str) -> None:
    if tx.dialect.growth:
        tx.execute(f"ALTER TABLE {table} SET ({tx.dialect.growth})")


def drop_table(tx: Tx, object_number: int) -> None:
    _wait_only_briefly(tx)
    tx.execute(f"DROP TABLE {table_name(object_number)}")


def add_attribute(tx: Tx, object_number: int, attribute: StoredAttribute, vacant: int | None = None) -> None:
    """`vacant` is the number of a deleted attribute whose columns are free."""
    _wait_only_briefly(tx)
    table = table_name(object_number)
    names = columns_of(attribute.number)
    if vacant is None:
        for name in names:
            tx.execute(f"ALTER TABLE {table} ADD COLUMN {name} {tx.dialect.text}")
    else:
        for old, name in zip(columns_of(vacant), names, strict=True):
            tx.execute(f"ALTER TABLE {table} RENAME COLUMN {old} TO {name}")
    index_attribute(tx, object_number, attribute)


def index_attribute(tx: Tx, object_number: int, attribute: StoredAttribute) -> None:
    """Where attributes of its kind have an index."""
    table = table_name(object_number)
    if attribute.is_indexed:
        tx.execute(f"CREATE INDEX {index_name(table, column(attribute))} ON {table} ({column(attribute)}, created_at, seq)")


def drop_index(tx: Tx, object_number: int, column: str) -> None:
    """The one that starts with this column."""
    _wait_only_briefly(tx)
    tx.execute(f"DROP INDEX IF EXISTS {index_name(table_name(object_number), column)}")


def _wait_only_briefly(tx: Tx) -> None:
    """Raise Held soon, here and for the rest of the transaction, where others use the table: whoever comes later waits behind a try."""
    if tx.dialect.impatience:
        tx.execute(tx.dialect.impatience)
