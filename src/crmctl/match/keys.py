"""Keys that identify a record, and an index of the rows and records that have them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from crmctl.errors import UsageError
from crmctl.files.spills import Spill
from crmctl.files.validation import Payload
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, Record
from crmctl.values.attribute_types import Trait, types_with
from crmctl.values.composites import NO_PARTS, Parts
from crmctl.values.equality import key_of

KEY_TYPES = types_with(Trait.KEY)


@frozen
class KeyRule:
    """The attributes that together identify a record."""

    attributes: tuple[Attribute, ...]

    @property
    def slugs(self) -> tuple[str, ...]:
        return tuple(attribute.slug for attribute in self.attributes)

    @property
    def label(self) -> str:
        return "+".join(self.slugs)

    def key(self, data: Mapping[str, Any]) -> str | None:
        """Return the normal form of a record's key; None if a part of it is blank."""
        return key_of(data, ((attribute.slug, attribute.type) for attribute in self.attributes))


def key_rule(slugs: Sequence[str], attributes: Sequence[Attribute], option: str = "--key") -> KeyRule:
    """Return the rule for attributes given by slug. Raises UsageError for an attribute that does not exist or cannot be a key."""
    by_slug = {attribute.slug: attribute for attribute in attributes if attribute.is_active is not False}
    key_attributes = []
    for slug in dict.fromkeys(slugs):
        attribute = by_slug.get(slug)
        if attribute is None:
            listing = f"the attributes are: {', '.join(by_slug)}"
            hint = "--mode upsert updates records by their id" if slug == "id" else suggestion(slug, by_slug, listing)
            raise UsageError(f"{option}: there is no attribute {slug}", hint=hint, code="unknown_attribute")
        if attribute.type not in KEY_TYPES or attribute.is_list:
            kind = "list of values" if attribute.is_list else attribute.type
            raise UsageError(f"{option}: {slug} is a {kind}, which cannot be a key", code="unusable_key")
        key_attributes.append(attribute)
    return KeyRule(tuple(key_attributes))


_TABLES = """
CREATE TABLE wanted (ordinal INTEGER PRIMARY KEY, line INTEGER NOT NULL, last_line INTEGER NOT NULL, key TEXT, data TEXT NOT NULL,
    parts TEXT
);
CREATE INDEX wanted_key ON wanted (key, ordinal);
CREATE TABLE found (id TEXT PRIMARY KEY, key TEXT NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX found_key ON found (key);
"""


class Wanted(NamedTuple):
    """A row with its lines, its key (None if blank), and the record it would write. `parts`: values that it gives only in part."""

    ordinal: int
    line: int
    last_line: int
    key: str | None
    data: Json
    parts: Mapping[str, Parts] = NO_PARTS


class KeyIndex(Spill):
    """An index of rows and records by one key rule."""

    TABLES = _TABLES
    CACHE_KIB = 16_000

    def __init__(self, rule: KeyRule) -> None:
        super().__init__()
        self.rule = rule

    def want(self, ordinal: int, data: Json, parts: Mapping[str, Parts] = NO_PARTS, lines: tuple[int, int] = (0, 0)) -> None:
        """Add a row; `lines` are its first and last line."""
        row = (ordinal, *lines, self.rule.key(data), jsontext.dumps(data), jsontext.dumps(parts) if parts else None)
        self._db.execute("INSERT INTO wanted VALUES (?, ?, ?, ?, ?, ?)", row)

    def want_all(self, payloads: Iterable[Payload]) -> None:
        for payload in payloads:
            self.want(payload.ordinal, payload.data, payload.parts, (payload.first_line, payload.last_line))

    @property
    def key_count(self) -> int:
        return int(self._db.execute("SELECT COUNT(DISTINCT key) FROM wanted").fetchone()[0])

    def distinct(self) -> Iterator[str]:
        return (key for (key,) in self._db.execute("SELECT DISTINCT key FROM wanted WHERE key IS NOT NULL ORDER BY key"))

    def rows(self) -> Iterator[Wanted]:
        statement = "SELECT ordinal, line, last_line, key, data, parts FROM wanted ORDER BY ordinal"
        for ordinal, line, last_line, key, data, parts in self._db.execute(statement):
            parts_given = jsontext.loads(parts) if parts is not None else NO_PARTS
            yield Wanted(ordinal, line, last_line, key, jsontext.loads(data), parts_given)

    def first(self, key: str) -> Wanted:
        return self._edge(key, "ASC")

    def last(self, key: str) -> Wanted:
        return self._edge(key, "DESC")

    def _edge(self, key: str, order: str) -> Wanted:
        statement = f"SELECT ordinal, line, last_line, key FROM wanted WHERE key = ? ORDER BY ordinal {order} LIMIT 1"
        ordinal, line, last_line, key = self._db.execute(statement, (key,)).fetchone()
        return Wanted(ordinal, line, last_line, key, {})

    def see(self, records: Iterable[Record]) -> None:
        """Keep the records that have a wanted key. Later data of a record replaces earlier data."""
        for record in records:
            key = self.rule.key(record.data)
            if key is not None and self._db.execute("SELECT 1 FROM wanted WHERE key = ? LIMIT 1", (key,)).fetchone():
                row = (record.id, key, jsontext.dumps(record.data))
                self._db.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?)", row)
            else:
                self._db.execute("DELETE FROM found WHERE id = ?", (record.id,))

    def found(self, key: str) -> list[tuple[str, Json]]:
        """Return the ids and data of all records of a key."""
        rows = self._db.execute("SELECT id, data FROM found WHERE key = ? ORDER BY id", (key,))
        return [(record_id, jsontext.loads(data)) for record_id, data in rows]

    def matches(self) -> Iterator[tuple[int, str, str]]:
        """Return each row whose key exists, in input order, with the first and the last id of its records: equal if there is one record."""
        return self._db.execute("SELECT ordinal, MIN(id), MAX(id) FROM wanted JOIN found USING (key) GROUP BY ordinal ORDER BY ordinal")


class RecordStock(NamedTuple):
    """All records of an object from the mirror, complete up to `as_of`."""

    pages: Iterable[Sequence[Record]]
    as_of: int


AtHand = Callable[[str, Collection[str] | None], RecordStock | None]
"""Return an object's records from the mirror, if it holds the attributes of these slugs (None: all)."""
