"""Read the rows of things with an id and show them on the wire."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic.alias_generators import to_camel

from crmctl.models.jsontext import Json
from crmctl.service.faults import NotFound
from crmctl.service.store.tx import Params, Row, Tx
from crmctl.values.value_readers import canonical_uuid


class Rows:
    """The rows of `table`, each a `noun`, with the columns that are shown: `plain` ones, and those that `read` converts.

    A column's name in camelCase is its name on the wire. NULL is shown as null.
    """

    def __init__(self, table: str, noun: str, plain: str, **read: Callable[[Any], Any]) -> None:
        self.table = table
        self.noun = noun
        columns: dict[str, Callable[[Any], Any] | None] = {**dict.fromkeys(plain.split(", ")), **read}
        self.columns = ", ".join(columns)
        self._fields = [(to_camel(re.split("[ .]", column)[-1]), reader) for column, reader in columns.items()]
        self._id = plain.partition(", ")[0]

    def show(self, row: Row) -> Json:
        shown = zip(self._fields, row, strict=True)
        return {field: value if value is None or reader is None else reader(value) for (field, reader), value in shown}

    def all(self, tx: Tx, rest: str = "", params: Params = ()) -> list[Json]:
        """Return the rows; `rest` follows the FROM clause."""
        return [self.show(row) for row in tx.all(f"SELECT {self.columns} FROM {self.table} {rest}", params)]

    def find(self, tx: Tx, condition: str, *params: Any) -> Json | None:
        """Return the first row that meets the condition."""
        return next(iter(self.all(tx, f"WHERE {condition} LIMIT 1", params)), None)

    def get(self, tx: Tx, thing_id: str) -> Json:
        """Return the row with this id. Raises NotFound."""
        row = self.find(tx, f"{self._id} = ?", canonical_uuid(thing_id) or "")
        if row is None:
            raise NotFound(f"there is no {self.noun} with the id {thing_id}")
        return row
