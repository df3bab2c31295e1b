"""Reset a used copy of a template database: restoring its rows takes a tenth of the time of another copy."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

CATALOGS = ("pg_attribute a WHERE a.attrelid", "pg_attrdef a WHERE a.oid", "pg_constraint a WHERE a.oid", "pg_index a WHERE a.indexrelid",
            "pg_trigger a WHERE a.oid", "pg_proc a WHERE a.oid", "pg_type a WHERE a.oid", "pg_namespace a WHERE a.oid",
            "pg_extension a WHERE a.oid", "pg_statistic a WHERE a.starelid", "pg_largeobject_metadata a WHERE a.oid")  # fmt: skip
"""The catalogs in which PostgreSQL stores everything except rows."""
OWN = 16384
"""The first object id that PostgreSQL does not use itself."""
STATE = " - '{relfilenode,relpages,reltuples,relallvisible,relfrozenxid,relminmxid}'::text[]"
STRUCTURE = " UNION ALL ".join(
    [f"SELECT (to_jsonb(a){STATE})::text AS row FROM pg_class a WHERE a.oid >= {OWN}"]
    + [f"SELECT a::text FROM {catalog} >= {OWN}" for catalog in CATALOGS]
)
TABLES = "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
EMPTY = """
SET session_replication_role = replica;
DO $$ DECLARE name regclass; BEGIN
FOR name IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace LOOP
  IF pg_relation_size(name) > 8192 THEN EXECUTE format('TRUNCATE %s CASCADE', name);
  ELSIF pg_relation_size(name) > 0 THEN EXECUTE format('DELETE FROM %s', name); END IF;
END LOOP; END $$
"""
"""Deleting the rows of one page is faster than a new file; deleting more would leave holes that later rows fill in any order."""


@dataclass(frozen=True)
class Contents:
    """The contents of a template: a digest of everything except rows, the rows by table, and the positions of the sequences."""

    structure: str
    rows: dict[str, bytes]
    sequences: list[tuple[str, int, bool]]


def read_contents(connection: psycopg.Connection) -> Contents:
    """Read the contents of an unused copy."""
    rows = {table: _rows(connection, table) for (table,) in connection.execute(TABLES).fetchall()}
    names = [name for (name,) in connection.execute("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S'").fetchall()]
    places = [connection.execute(f"SELECT last_value, is_called FROM {name}").fetchone() for name in names]  # type: ignore[call-overload]
    sequences = [(name, *place) for name, place in zip(names, places, strict=True)]
    return Contents(_structure(connection), {table: content for table, content in rows.items() if content}, sequences)


def reset_copy(connection: psycopg.Connection, contents: Contents) -> bool:
    """Make the database a fresh copy. Return False, and change nothing, if more than rows changed."""
    if _structure(connection) != contents.structure:
        return False
    connection.execute(EMPTY)
    for table, content in contents.rows.items():
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN") as copy:  # type: ignore[call-overload]
            copy.write(content)
    for name, place, is_called in contents.sequences:
        connection.execute("SELECT setval(%s, %s, %s)", (name, place, is_called))
    return True


def _structure(connection: psycopg.Connection) -> str:
    found = connection.execute(f"SELECT md5(string_agg(row, ' ' ORDER BY row)) FROM ({STRUCTURE}) AS rows").fetchone()  # type: ignore[call-overload]
    return str(found[0])


def _rows(connection: psycopg.Connection, table: str) -> bytes:
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} TO STDOUT") as copy:  # type: ignore[call-overload]
        return b"".join(map(bytes, copy))
