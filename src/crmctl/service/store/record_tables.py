"""The schema of an object and the table of its records."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from typing import Any

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, NotFound
from crmctl.service.store.tx import Row, Tx, all_in, to_wire
from crmctl.values.attribute_types import StoredAttribute
from crmctl.values.value_readers import UUID, Invalid, canonical_uuid, require_text

MOMENTS = ("created_at", "updated_at")
"""The orders of a whole list, each with an index."""


def table_name(object_number: int) -> str:
    return f"record_{object_number}"


def column(attribute: StoredAttribute) -> str:
    return columns_of(attribute.number)[0]


def exact_column(attribute: StoredAttribute) -> str:
    return columns_of(attribute.number)[1]


def columns_of(number: int) -> tuple[str, str]:
    return f"c{number}", f"x{number}"


def index_name(table: str, column: str) -> str:
    """Return the name of the index that starts with this column: an attribute's, or one of MOMENTS."""
    return f"{table}_{column}"


def existing_ids(tx: Tx, object_id: str | None, record_ids: Iterable[str]) -> set[str] | None:
    """Return which of the ids are records of the object, None if there is no such object."""
    row = tx.one("SELECT number FROM crm_object WHERE id = ?", (object_id,))
    return (
        None
        if row is None
        else {record_id for (record_id,) in all_in(tx, f"SELECT id FROM {table_name(row[0])} WHERE id IN {{}}", record_ids)}
    )


def record_wire(object_id: str, record_id: str, data: Json, created_at: int, updated_at: int) -> Json:
    times = {"createdAt": to_wire(created_at), "updatedAt": to_wire(updated_at)}
    return {"id": record_id, "objectId": object_id, "data": data, **times}


def record_text(object_id: str, record_id: str, document: str, created_at: int, updated_at: int) -> str:
    """Return the JSON of what `record_wire` returns, with the stored JSON of the values."""
    times = f'"createdAt":"{to_wire(created_at)}","updatedAt":"{to_wire(updated_at)}"'
    return f'{{"id":"{record_id}","objectId":"{object_id}","data":{document},{times}}}'


def create_table(tx: Tx, object_number: int) -> None:
    table = table_name(object_number)
    text = tx.dialect.text
    tx.execute(
        f"""CREATE TABLE {table} (seq {tx.dialect.sequence}, id {text} NOT NULL UNIQUE, created_at BIGINT NOT NULL,
            updated_at BIGINT NOT NULL, data {text} NOT NULL)"""
    )
    for moment in MOMENTS:
        tx.execute(f"CREATE INDEX {index_name(table, moment)} ON {table} ({moment}, seq)")
    if tx.dialect.growth:
        tx.execute(f"ALTER TABLE {table} SET ({tx.dialect.growth})")


def drop_table(tx: Tx, object_number: int) -> None:
    _wait_only_briefly(tx)
    tx.execute(f"DROP TABLE {table_name(object_number)}")


def add_attribute(tx: Tx, object_number: int, attribute: StoredAttribute, vacant: int | None = None) -> None:
    """Add the columns of an attribute. `vacant` is the number of a deleted attribute whose columns are free."""
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
    table = table_name(object_number)
    if attribute.is_indexed:
        tx.execute(f"CREATE INDEX {index_name(table, column(attribute))} ON {table} ({column(attribute)}, created_at, seq)")


def drop_index(tx: Tx, object_number: int, column: str) -> None:
    _wait_only_briefly(tx)
    tx.execute(f"DROP INDEX IF EXISTS {index_name(table_name(object_number), column)}")


def _wait_only_briefly(tx: Tx) -> None:
    """Raise Held soon, for the rest of the transaction, when others use the table: everyone else waits behind each try."""
    if tx.dialect.impatience:
        tx.execute(tx.dialect.impatience)


@frozen
class Schema:
    """The active `attributes` by slug, in display order. Records keep the values of `inactive` ones, and may still hold values of the
    deleted slugs in `leaving`."""

    object_id: str
    number: int
    attributes: Mapping[str, StoredAttribute]
    inactive: Mapping[str, StoredAttribute] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()

    @property
    def table(self) -> str:
        return table_name(self.number)

    def values_in(self, document: str) -> Json:
        return self.without_leaving(jsontext.loads(document))

    def without_leaving(self, data: Json) -> Json:
        for slug in self.leaving:
            data.pop(slug, None)
        return data

    def shown_json(self, document: str) -> str:
        """Return the JSON of the values that are shown: as it is stored, unless an attribute is being deleted."""
        return jsontext.dumps(self.values_in(document)) if self.leaving else document

    @cached_property
    def every(self) -> Mapping[str, StoredAttribute]:
        return {**self.attributes, **self.inactive}

    @cached_property
    def unique(self) -> tuple[StoredAttribute, ...]:
        """The unique attributes, inactive ones included."""
        return tuple(attribute for attribute in self.every.values() if attribute.is_unique)

    @cached_property
    def required(self) -> tuple[StoredAttribute, ...]:
        return tuple(attribute for attribute in self.attributes.values() if attribute.is_required)


def load_schema(tx: Tx, object_id: str, lock: str = "") -> Schema:
    """Load the schema of an object. `lock` is a statement of the dialect: share_object to write records, own_object to change attributes.
    Raises NotFound."""
    known_id = canonical_uuid(object_id) or ""
    if not lock:
        return tx.remembered(known_id, lambda: _read_schema(tx, known_id, object_id))
    tx.one(lock, (known_id,))
    return _read_schema(tx, known_id, object_id)


def _read_schema(tx: Tx, known_id: str, object_id: str) -> Schema:
    # After the lock and in one statement: the previous holder may have changed anything.
    rows = tx.all(
        "SELECT o.number, a.is_active, a.id, a.number, a.slug, a.type, a.is_required, a.is_unique, a.is_list, a.config, a.display_order "
        "FROM crm_object AS o LEFT JOIN attribute AS a ON a.object_id = o.id WHERE o.id = ? "
        f"UNION ALL SELECT object_number, {_LEAVING}, NULL, number, slug, NULL, 0, 0, 0, NULL, 0 FROM attribute_removal "
        "WHERE object_id = ? AND done < last ORDER BY 11, 4",
        (known_id, known_id),
    )
    if not rows:
        raise NotFound(f"there is no object with the id {object_id}")
    return _schema(known_id, tuple(rows))


@lru_cache(64)
def _schema(object_id: str, rows: tuple[Row, ...]) -> Schema:
    """Build the schema of these rows. The rows are the key of the cache, so that no process ever sees an old schema."""
    active, inactive = ({row[4]: _attribute(row[2:10]) for row in rows if row[1] == flag} for flag in (1, 0))
    return Schema(object_id, rows[0][0], active, inactive, frozenset(row[4] for row in rows if row[1] == _LEAVING))


_LEAVING = -1
"""Marks the row of a deleted attribute."""


def _attribute(row: Row) -> StoredAttribute:
    attribute_id, number, slug, kind, is_required, is_unique, is_list, config = row
    settings: Json = jsontext.loads(config) if config else {}
    flags = (bool(is_required), bool(is_unique), bool(is_list))
    return StoredAttribute(attribute_id, number, slug, kind, *flags, tuple(settings.get("options", ())), settings.get("allowed_object_id"))


MAX_NAME = 200
MAX_DESCRIPTION = 10_000
MAX_SLUG = 64

RESERVED_SLUGS = frozenset({"id", "created_at", "updated_at"})
"""Slugs that filters and sorting use for fields of every record."""

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def invalid(field: str, problem: object) -> BadRequest:
    return BadRequest(f"{field} {problem}", {"field": field})


def require_name(value: Any, field: str) -> str:
    """Return a text on one line."""
    text = require_title(value, field)
    if _CONTROL.search(text):
        raise invalid(field, "must not contain line breaks or other control characters")
    return text


def require_title(value: Any, field: str) -> str:
    text = _text(value, field, MAX_NAME)
    if not text.strip():
        raise invalid(field, "must not be empty")
    return text


def require_description(value: Any, field: str = "description") -> str:
    """Return a text; null becomes the empty one."""
    return _text("" if value is None else value, field, MAX_DESCRIPTION)


def require_slug(value: Any) -> str:
    text = _text(value, "slug", MAX_SLUG)
    if not SLUG.fullmatch(text):
        raise invalid("slug", "must consist of lower-case letters, digits, underscores and hyphens, and start with a letter or digit")
    if UUID.fullmatch(text):
        raise invalid("slug", "must not look like an id")
    return text


def slug_from(name: str, fallback: str) -> str:
    """Return lower-case ASCII with underscores, or the fallback when a name has no such letters."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "_", ascii_name).strip("_")[:MAX_SLUG].rstrip("_")
    return slug or fallback


def _text(value: Any, field: str, limit: int) -> str:
    try:
        return require_text(value, limit)
    except Invalid as error:
        raise invalid(field, error) from None
