"""Every difference between the SQL engines, so that all other SQL is common to them. What is not SQL does not belong here."""

# ruff: noqa: S608 - expressions come from this package only; values are always parameters

from __future__ import annotations

from typing import Protocol


class SqlDialect(Protocol):
    """How one engine spells what SQL leaves open. Expressions go in and come out as SQL text with `?` placeholders."""

    identity: str
    """Column type of a primary key the engine counts up and never gives out twice."""
    sequence: str
    """Column type of a primary key the engine counts up."""
    text: str
    """Column type of text that compares by code point."""
    blob: str
    keyed_table: str
    """Suffix of a CREATE TABLE whose rows live in their primary key, where the engine has such tables."""
    for_update: str
    """Suffix of a SELECT that locks the rows it reads until the transaction ends."""
    share_object: str
    """Statement that keeps others from changing the object with the given id, its attributes and table, until the transaction ends; empty
    where nobody else can be writing."""
    own_object: str
    """Statement that keeps all other writers away from the object with the given id until the transaction ends; may be empty too."""
    hold_claims: str
    """Statement that makes this the only transaction that claims work, until it ends; empty where nobody else can be writing."""
    impatience: str
    """Statement that makes the transaction give up soon what others hold; empty where nobody else can hold anything."""
    before_migration: tuple[str, ...]
    """Statements that make this the only migration under way, however long another one takes."""
    passing_table: str
    """CREATE TABLE for rows that may be lost when the database crashes, and are cheap to write for it."""

    def for_claim(self, table: str) -> str:
        """Suffix of a SELECT that takes rows of the table for this transaction alone and passes over those another one has taken."""
        ...

    growth: str
    """Settings of a table that grows large, where the engine has any."""
    drops_whole: bool
    """Whether a table goes in no time, however large it is; else nobody can write while each of its pages is freed."""
    names_indexes: bool
    """Whether `table_by` has a say; an engine that knows how its values are spread needs none."""

    def contains(self, expression: str) -> str:
        """True when the expression contains the one parameter."""
        ...

    def ends_with(self, expression: str) -> str:
        """True when the expression ends with the parameter, given twice (for its length, then itself)."""
        ...

    def any_element(self, array: str, predicate: str) -> str:
        """True when the predicate, written on `element.value`, holds for an element of a JSON array of strings."""
        ...

    def without_key(self, column: str) -> str:
        """The JSON object in the column without the member whose key `key_parameter` made."""
        ...

    def key_parameter(self, key: str) -> str: ...

    def table_alone(self, table: str) -> str:
        """The table in a FROM clause, gone through from one end to the other where the engine can be told."""
        ...

    def table_by(self, table: str, index: str) -> str:
        """The table in a FROM clause, read through this index where the engine can be told."""
        ...


class SqliteDialect:
    identity = "INTEGER PRIMARY KEY AUTOINCREMENT"
    sequence = "INTEGER PRIMARY KEY"
    text = "TEXT"
    blob = "BLOB"
    keyed_table = " WITHOUT ROWID"
    # One writer at a time holds the whole database: there is nothing left to lock.
    for_update = ""
    share_object = ""
    own_object = ""
    hold_claims = ""
    impatience = ""
    before_migration: tuple[str, ...] = ()
    passing_table = "CREATE TABLE"
    growth = ""
    drops_whole = False
    names_indexes = True

    def for_claim(self, table: str) -> str:
        return ""

    def contains(self, expression: str) -> str:
        # Not LIKE: its pattern is limited to 50,000 bytes and would need its wildcards escaped.
        return f"instr({expression}, ?) > 0"

    def ends_with(self, expression: str) -> str:
        return f"substr({expression}, -length(?)) = ?"

    def any_element(self, array: str, predicate: str) -> str:
        return f"EXISTS (SELECT 1 FROM json_each({array}) AS element WHERE {predicate})"

    def without_key(self, column: str) -> str:
        return f"json_remove({column}, ?)"

    def key_parameter(self, key: str) -> str:
        return f'$."{key}"'

    def table_alone(self, table: str) -> str:
        return f"{table} NOT INDEXED"

    def table_by(self, table: str, index: str) -> str:
        return f"{table} INDEXED BY {index}"


_OBJECTS, _MIGRATIONS, _CLAIMS = 1, 2, 3
"""First halves of PostgreSQL's advisory lock numbers."""


class PostgresDialect:
    identity = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    sequence = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    text = 'TEXT COLLATE "C"'
    blob = "BYTEA"
    keyed_table = ""
    for_update = " FOR UPDATE"
    # Advisory locks and not row locks: they queue fairly, so that a stream of writers cannot hold off a change of attributes for ever,
    # and they write nothing.
    share_object = f"SELECT pg_advisory_xact_lock_shared({_OBJECTS}, CAST(number AS INTEGER)) FROM crm_object WHERE id = ?"
    own_object = f"SELECT pg_advisory_xact_lock({_OBJECTS}, CAST(number AS INTEGER)) FROM crm_object WHERE id = ?"
    hold_claims = f"SELECT pg_advisory_xact_lock({_CLAIMS}, 0)"
    # While a statement waits for all of a table, everybody who comes after it waits too.
    impatience = "SET LOCAL lock_timeout = 300"
    before_migration: tuple[str, ...] = (
        "SET LOCAL lock_timeout = 0",
        "SET LOCAL statement_timeout = 0",
        f"SELECT pg_advisory_xact_lock({_MIGRATIONS}, 0)",
    )
    passing_table = "CREATE UNLOGGED TABLE"
    # What is counted in an index alone has to be looked up in the table as well until it is vacuumed, which waits for a fifth of new rows.
    growth = "autovacuum_vacuum_insert_scale_factor = 0.02"
    drops_whole = True
    names_indexes = False

    def for_claim(self, table: str) -> str:
        return f" FOR UPDATE OF {table} SKIP LOCKED"

    def contains(self, expression: str) -> str:
        return f"strpos({expression}, ?) > 0"

    def ends_with(self, expression: str) -> str:
        return f"right({expression}, length(CAST(? AS TEXT))) = ?"

    def any_element(self, array: str, predicate: str) -> str:
        elements = f'SELECT value COLLATE "C" AS value FROM json_array_elements_text(CAST({array} AS JSON))'
        return f"EXISTS (SELECT 1 FROM ({elements}) AS element WHERE {predicate})"

    def without_key(self, column: str) -> str:
        # Put together from the members' own text: jsonb would rewrite numbers.
        members = f"json_each(CAST({column} AS JSON)) WITH ORDINALITY AS member (key, value, place)"
        text = "to_json(member.key)::text || ':' || member.value::text"
        return f"(SELECT '{{' || coalesce(string_agg({text}, ',' ORDER BY place), '') || '}}' FROM {members} WHERE member.key <> ?)"

    def key_parameter(self, key: str) -> str:
        return key

    def table_alone(self, table: str) -> str:
        return table

    def table_by(self, table: str, index: str) -> str:
        return table
