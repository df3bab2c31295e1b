"""A PostgreSQL database into plain files and back, over the protocol's COPY: needs no program of PostgreSQL, of whatever version.

Not pg_dump: it must not be older than the server, and a restore would need two programs to be there instead of none.
"""
# ruff: noqa: S608 - statements are put together from this package's own names only; values are always parameters

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crmctl.errors import RejectedError, UsageError
from crmctl.service.store import record_tables
from crmctl.service.store.schema import load_schema
from crmctl.service.store.tx import Tx

_TRIES = 5
_TABLES = (
    "SELECT c.relname, c.oid::bigint FROM pg_class AS c WHERE c.relnamespace = current_schema()::regnamespace "
    "AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY c.relname"
)
_COLUMNS = (
    "SELECT a.attname, a.attidentity <> '' FROM pg_attribute AS a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped "
    "ORDER BY a.attnum"
)
_NAME = re.compile(r"[a-z_][a-z0-9_]*")


def copy_out(connection: Any, folder: Path) -> dict[str, Any]:
    """All tables as of one moment, each in a file of its own; what has to be known to load them. `connection` is psycopg's."""
    for _ in range(_TRIES):
        tables = connection.execute(_TABLES).fetchall()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute("SET LOCAL statement_timeout = 0")
            # The locks before the first look at the data: what is looked at then stays, and is what the tables hold.
            connection.execute(f"LOCK TABLE {', '.join(name for name, _ in tables)} IN ACCESS SHARE MODE")
            if connection.execute(_TABLES).fetchall() != tables:
                continue
            described = [_copy_table(connection, name, oid, folder) for name, oid in tables]
            version = connection.execute("SELECT max(version) FROM schema_version").fetchone()[0]
            records = connection.execute("SELECT coalesce(sum(total), 0)::bigint FROM record_total").fetchone()[0]
            return {"engine": "postgresql", "schemaVersion": version, "records": records, "tables": described}
    raise RejectedError("objects are made and deleted faster than they can be copied", hint="try again when nobody changes the schema")


def _copy_table(connection: Any, name: str, oid: int, folder: Path) -> dict[str, Any]:
    columns = connection.execute(_COLUMNS, (oid,)).fetchall()
    names = [column for column, _ in columns]
    identity = next((column for column, is_identity in columns if is_identity), None)
    described: dict[str, Any] = {"name": name, "columns": names}
    if identity is not None:
        sequence = connection.execute("SELECT pg_get_serial_sequence(CAST($1 AS text), CAST($2 AS text))", (name, identity)).fetchone()[0]
        last, is_called = connection.execute(f"SELECT last_value, is_called FROM {sequence}").fetchone()
        described |= {"identity": identity, "next": last + 1 if is_called else last}
    with (
        open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,  # noqa: PTH123
        connection.cursor().copy(f"COPY {name} ({', '.join(names)}) TO STDOUT") as rows,
    ):
        for piece in rows:
            file.write(piece)
    return described


def has_tables(connection: Any) -> bool:
    return bool(connection.execute(_TABLES).fetchall())


def copy_in(connection: Any, tx: Tx, folder: Path, described: Mapping[str, Any], migrate: Callable[[Tx, int], None]) -> None:
    """Into a database that is empty, all in the open transaction; `migrate` makes the tables of the version that was copied."""
    if has_tables(connection):
        raise UsageError("there is data in this database already", hint="--database-url of an empty one")
    migrate(tx, described["schemaVersion"])
    for name in ("organisation", "service_value", "schema_version"):
        connection.execute(f"DELETE FROM {name}")
    for table in described["tables"]:
        _check_names(table["name"], *table["columns"])
        if table["name"].startswith("record_") and table["name"].removeprefix("record_").isdigit():
            _make_record_table(tx, int(table["name"].removeprefix("record_")), table["columns"])
    for table in described["tables"]:
        with (
            (folder / table["name"]).open("rb") as file,
            connection.cursor().copy(f"COPY {table['name']} ({', '.join(table['columns'])}) FROM STDIN") as rows,
        ):
            while piece := file.read(256 * 1024):
                rows.write(piece)
        if "identity" in table:
            _check_names(table["identity"])
            connection.execute(f"ALTER TABLE {table['name']} ALTER COLUMN {table['identity']} RESTART WITH {int(table['next'])}")
    _make_indexes(connection, tx)


def _make_record_table(tx: Tx, number: int, columns: list[str]) -> None:
    record_tables.create_table(tx, number)
    for column in columns:
        if re.fullmatch(r"[cx][0-9]+", column):
            tx.execute(f"ALTER TABLE {record_tables.table_name(number)} ADD COLUMN {column} {tx.dialect.text}")


def _make_indexes(connection: Any, tx: Tx) -> None:
    """Of the attributes, once the records are there: quicker than growing them row by row."""
    for (object_id,) in connection.execute("SELECT id FROM crm_object ORDER BY number").fetchall():
        schema = load_schema(tx, object_id)
        for attribute in schema.every.values():
            record_tables.index_attribute(tx, schema.number, attribute)


def _check_names(*names: str) -> None:
    if not all(_NAME.fullmatch(name) for name in names):
        raise RejectedError("the backup names a table or column that no service has", code="damaged_backup")
