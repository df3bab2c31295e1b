"""References given by a unique value instead of an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crmctl.client.answers import Page
from crmctl.client.directory import Lister
from crmctl.errors import RejectedError, UsageError
from crmctl.files.spills import open_tables
from crmctl.files.validation import Payload
from crmctl.frozen import frozen
from crmctl.match.key_lookups import RecordSink, ask, is_whole
from crmctl.match.keys import KeyIndex, KeyRule, key_rule
from crmctl.models import jsontext
from crmctl.models.findings import Finding
from crmctl.models.ids import reference_ids, suggestion
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType, Record
from crmctl.read.records import PAGE_STEP, scan
from crmctl.read.stable_pages import Listing
from crmctl.values.composites import fold
from crmctl.values.conditions import elements_of
from crmctl.values.equality import as_sent
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator

if TYPE_CHECKING:
    from crmctl.match.key_lookups import Lookup


@frozen
class Reference:
    """The attribute `slug` refers to records by the attribute `key` of their object, which has other `required` attributes."""

    slug: str
    object: str
    object_id: str
    key: str
    type: str
    config: Json | None = None
    required: tuple[str, ...] = ()
    is_required: bool = False
    """Whether the reference itself is required."""
    is_unique: bool = False
    """Whether the service accepts a value of `key` only once."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Reference:
        return cls(**{**document, "required": tuple(document.get("required", ()))})

    @property
    def told(self) -> str:
        return f"{self.object}.{self.key}"

    @property
    def rule(self) -> KeyRule:
        return KeyRule((Attribute(id=self.key, slug=self.key, type=self.type, config=self.config, is_unique=self.is_unique),))

    def to_document(self) -> Json:
        return asdict(self)


def parse_references(
    texts: Iterable[str], attributes: Sequence[Attribute], target_of: Callable[[str], tuple[str, Sequence[Attribute]]]
) -> tuple[Reference, ...]:
    """Parse `--ref ATTR=OBJECT.KEY`. Raises UsageError for an invalid reference. `target_of`: the id and attributes of an object."""
    by_slug = {attribute.slug: attribute for attribute in attributes}
    parsed: dict[str, Reference] = {}
    for text in texts:
        slug, _, rest = text.partition("=")
        name, _, key = rest.partition(".")
        if not (slug and name and key):
            raise UsageError(f"--ref: not ATTR=OBJECT.KEY: {text}", hint="for example --ref company=companies.domain")
        attribute = by_slug.get(slug)
        if attribute is None or attribute.type != AttributeType.REFERENCE:
            references = [name for name, attribute in by_slug.items() if attribute.type == AttributeType.REFERENCE]
            hint = suggestion(slug, references, f"references: {', '.join(references)}" if references else "")
            raise UsageError(f"--ref: {slug} is not a reference attribute", hint=hint, code="unknown_attribute")
        object_id, of_target = target_of(name)
        if attribute.target_object_id not in (None, object_id):
            raise UsageError(f"--ref: {slug} does not point to {name}", code="wrong_object")
        (key_attribute,) = key_rule([key], of_target, "--ref").attributes
        required = tuple(
            attribute.slug
            for attribute in of_target
            if attribute.is_required and attribute.is_active is not False and attribute.slug != key
        )
        is_required, is_unique = bool(attribute.is_required), bool(key_attribute.is_unique)
        parsed[slug] = Reference(
            slug, name, object_id, key, str(key_attribute.type), key_attribute.config, required, is_required, is_unique
        )
    return tuple(parsed.values())


def columns_of(header: Sequence[str], slug: str) -> Iterator[tuple[str, str]]:
    """Yield the columns named after a key of a reference, such as `company.domain`, with the key."""
    for column in header:
        owner, dot, key = column.strip().partition(".")
        if dot and fold(owner) == fold(slug) and key:
            yield column, key


def references_in(header: Sequence[str], attributes: Sequence[Attribute], texts: Iterable[str], name_of: Callable[[str], str]) -> list[str]:
    """Return the `--ref` options implied by columns such as `company.domain`, for attributes without an explicit option."""
    slugs = {text.partition("=")[0] for text in texts}
    return [
        f"{attribute.slug}={name_of(attribute.target_object_id)}.{key}"
        for attribute in attributes
        if attribute.type == AttributeType.REFERENCE and attribute.slug not in slugs and attribute.target_object_id is not None
        for _, key in columns_of(header, attribute.slug)
    ]


def stand_ins(attributes: Sequence[Attribute], references: Sequence[Reference]) -> list[Attribute]:
    """Return the attributes as the file fills them: references with the type of their key."""
    keys = {reference.slug: {"type": reference.type, "config": reference.config, "is_unique": False} for reference in references}
    return [attribute.with_changes(**keys[attribute.slug]) if attribute.slug in keys else attribute for attribute in attributes]


FILE_NAME = "references.sqlite"
NAMED_IDS = 5

ERROR, NULL, CREATE = "error", "null", "create"
"""Treatments of a value that matches no record: reject the row, leave the reference empty, or create the record."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meant (
    slug TEXT, key TEXT, ids TEXT NOT NULL, row INTEGER, rival TEXT, problem TEXT, parent INTEGER, PRIMARY KEY (slug, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parent (
    no INTEGER PRIMARY KEY, object_id TEXT NOT NULL, attribute TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, id TEXT, error TEXT,
    UNIQUE (object_id, attribute, key)
);
CREATE TABLE IF NOT EXISTS later (ordinal INTEGER PRIMARY KEY, links TEXT NOT NULL, parents TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS unlinked (ordinal INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS as_of (object_id TEXT PRIMARY KEY, micros INTEGER NOT NULL);
CREATE TEMP TABLE given (slug TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (slug, key)) WITHOUT ROWID;
CREATE TEMP TABLE own (slug TEXT, key TEXT, ordinal INTEGER, id TEXT, PRIMARY KEY (slug, key, ordinal)) WITHOUT ROWID;
"""


@frozen
class OwnRows:
    """The rows of this import, which may become the records that its references name."""

    object_id: str
    creates: bool
    keys: tuple[str, ...] = ()
    on_duplicate_key: str = "error"


class RowLink(NamedTuple):
    """One value of a reference to set later: a record, the record of a row, or a parent by number. `rival` has the row's key too."""

    id: str | None = None
    row: int | None = None
    rival: str | None = None
    parent: int | None = None


class Links(NamedTuple):
    """The values of one reference. `many`: the reference is a list."""

    many: bool
    values: Sequence[RowLink]


class ParentGroup(NamedTuple):
    """Records of one object to create from one attribute."""

    reference: Reference
    size: int


class _Meaning(NamedTuple):
    ids: Sequence[str] = ()
    row: int | None = None
    rival: str | None = None
    problem: str | None = None
    parent: int | None = None

    @property
    def is_later(self) -> bool:
        return self.row is not None or (self.parent is not None and not self.ids)


class ReferenceMap:
    """The meanings of reference values, in the job's folder or a temporary database. `missing`: how to treat a value without a record."""

    def __init__(self, references: Sequence[Reference], folder: Path | None = None, *, missing: str = ERROR) -> None:
        self._references = [(reference, reference.rule) for reference in references]
        self._missing = missing
        self._db = open_tables(folder / FILE_NAME if folder is not None else None, _TABLES)

    def close(self) -> None:
        self._db.close()

    def learn(self, payloads: Callable[[], Iterable[Payload]], lookup: Callable[[str], Lookup], own: OwnRows | None = None) -> None:
        """Look up every value of the input.

        `lookup` returns the look-up of an object. Raises the errors of reading, and RejectedError for parents that crmctl cannot create and
        for links that cannot be set later.
        """
        for reference, _ in self._references:
            self._learn(reference, payloads, lookup(reference.object_id), own)
        for group in self.groups():
            if group.reference.required:
                raise RejectedError(
                    f"{group.reference.object} cannot be created from {group.reference.key} alone: "
                    f"{', '.join(group.reference.required)} must be given too",
                    hint=f"create the {group.size:,} missing ones first, or --on-missing-ref null",
                    code="incomplete_parent",
                )
        if self._db.execute("SELECT EXISTS (SELECT 1 FROM meant WHERE row IS NOT NULL OR parent IS NOT NULL)").fetchone()[0]:
            self._plan_later(payloads())

    def _learn(self, reference: Reference, payloads: Callable[[], Iterable[Payload]], lookup: Lookup, own: OwnRows | None) -> None:
        slug, rule, among = reference.slug, reference.rule, own if own is not None and own.object_id == reference.object_id else None
        with KeyIndex(rule) as index:
            self._db.execute("BEGIN")
            number = 0
            for payload in payloads():
                if payload.findings and payload.rejected:
                    continue
                if among is not None and (key := rule.key(payload.data)) is not None:
                    self._db.execute("INSERT INTO own VALUES (?, ?, ?, ?)", (slug, key, payload.ordinal, (payload.id or "").lower()))
                for value in elements_of(payload.data.get(slug)):
                    number += 1
                    data = {reference.key: value}
                    index.want(number, data, lines=(payload.first_line, payload.last_line))
                    self._db.execute("INSERT OR IGNORE INTO given VALUES (?, ?, ?)", (slug, rule.key(data) or "", jsontext.dumps(value)))
            lookup.slugs = (reference.key,)
            lookup.fill(index)
            for key in index.distinct():
                ids = [record_id for record_id, _ in index.found(key)]
                meaning = self._among(among, reference, key, ids) if among is not None else _Meaning(ids)
                if self._missing == CREATE and not meaning.ids and meaning.row is None and meaning.problem is None:
                    meaning = meaning._replace(parent=self._parent(reference, key))
                values = (slug, key, jsontext.dumps(meaning.ids), meaning.row, meaning.rival, meaning.problem, meaning.parent)
                self._db.execute("INSERT OR REPLACE INTO meant VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            self._db.execute("INSERT OR IGNORE INTO as_of VALUES (?, ?)", (reference.object_id, lookup.as_of))
            self._db.execute("COMMIT")

    def _among(self, own: OwnRows, reference: Reference, key: str, ids: Sequence[str]) -> _Meaning:
        """Return the meaning of a key that rows of the file may have."""
        query = "SELECT ordinal, id FROM own WHERE slug = ? AND key = ? ORDER BY ordinal"
        rows = self._db.execute(query, (reference.slug, key)).fetchall()
        if not rows or len(ids) > 1:
            return _Meaning(ids)
        is_their_key = own.keys == (reference.key,)
        if len(rows) > 1 and not is_their_key:
            return _Meaning(problem=f"{len(rows)} rows of the file have this {reference.told}")
        row, row_id = rows[-1] if own.on_duplicate_key == "last" else rows[0]
        if not ids:
            return _Meaning(row=row)
        if is_their_key or row_id == ids[0].lower():
            return _Meaning(ids)
        if own.creates:
            return _Meaning(problem=f"record {ids[0]} has this {reference.told}, and a row of the file will have it too")
        return _Meaning(row=row, rival=ids[0])

    def _parent(self, reference: Reference, key: str) -> int:
        (value,) = self._db.execute("SELECT value FROM given WHERE slug = ? AND key = ?", (reference.slug, key)).fetchone()
        identity = (reference.object_id, reference.key, key)
        self._db.execute("INSERT OR IGNORE INTO parent (object_id, attribute, key, value) VALUES (?, ?, ?, ?)", (*identity, value))
        query = "SELECT no FROM parent WHERE object_id = ? AND attribute = ? AND key = ?"
        return int(self._db.execute(query, identity).fetchone()[0])

    def _plan_later(self, payloads: Iterable[Payload]) -> None:
        """Store which rows must wait for other records. Raises RejectedError for rows that cannot wait."""
        waiting = None
        self._db.execute("BEGIN")
        for payload in payloads:
            if payload.findings and payload.rejected:
                continue
            links: dict[str, Links] = {}
            parents: set[int] = set()
            for reference, rule in self._references:
                value = payload.data.get(reference.slug)
                meanings = [self._meaning(reference, rule, item) or _Meaning() for item in elements_of(value)]
                parents.update(meaning.parent for meaning in meanings if meaning.parent is not None)
                if any(meaning.row is not None for meaning in meanings):
                    waiting = reference.slug if reference.is_required else waiting
                    every = [
                        RowLink(meaning.ids[0] if meaning.ids else None, meaning.row, meaning.rival, meaning.parent) for meaning in meanings
                    ]
                    links[reference.slug] = Links(isinstance(value, list), every)
            if links or parents:
                values = (payload.ordinal, jsontext.dumps(links), jsontext.dumps(sorted(parents)))
                self._db.execute("INSERT OR REPLACE INTO later VALUES (?, ?, ?)", values)
        self._db.execute("COMMIT")
        if waiting is not None:
            message = f"{waiting} is required, so no row can wait for the record it refers to"
            raise RejectedError(message, hint="import the rows they refer to first", code="required_link")

    def later_slugs(self, ordinal: int) -> frozenset[str]:
        """Return the references that may be set later on a waiting row."""
        waits = self._db.execute("SELECT 1 FROM later WHERE ordinal = ?", (ordinal,)).fetchone() is not None
        return frozenset(reference.slug for reference, _ in self._references) if waits else frozenset()

    def groups(self) -> list[ParentGroup]:
        query = "SELECT object_id, attribute, COUNT(*) FROM parent GROUP BY object_id, attribute ORDER BY MIN(no)"
        by_key = {(reference.object_id, reference.key): reference for reference, _ in self._references}
        return [ParentGroup(by_key[object_id, attribute], count) for object_id, attribute, count in self._db.execute(query)]

    def parents(self, group: ParentGroup) -> Iterator[tuple[int, Json, str | None]]:
        """Yield each parent's number, data, and id if known."""
        last, query = 0, "SELECT no, value, id FROM parent WHERE object_id = ? AND attribute = ? AND no > ? ORDER BY no LIMIT 500"
        while rows := self._db.execute(query, (group.reference.object_id, group.reference.key, last)).fetchall():
            for number, value, record_id in rows:
                yield number, {group.reference.key: jsontext.loads(value)}, record_id
            last = rows[-1][0]

    def know_parents(self, ids: Mapping[int, str], errors: Mapping[int, str]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("UPDATE parent SET id = ? WHERE no = ?", ((record_id, number) for number, record_id in ids.items()))
        self._db.executemany("UPDATE parent SET error = ? WHERE no = ?", ((error, number) for number, error in errors.items()))
        self._db.execute("COMMIT")

    def orphans(self) -> Iterator[tuple[int, str]]:
        """Yield rows whose parent could not be created, with the reason."""
        query = (
            "SELECT ordinal, error FROM later, json_each(later.parents) AS one JOIN parent ON parent.no = one.value "
            "WHERE error IS NOT NULL ORDER BY ordinal"
        )
        for ordinal, errors in groupby(self._db.execute(query), key=lambda row: row[0]):
            yield int(ordinal), "; ".join(error for _, error in errors)

    @property
    def link_count(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM later WHERE links <> '{}'").fetchone()[0])

    def links(self) -> Iterator[tuple[int, dict[str, Links]]]:
        last, query = 0, "SELECT ordinal, links FROM later WHERE links <> '{}' AND ordinal > ? ORDER BY ordinal LIMIT 500"
        while rows := self._db.execute(query, (last,)).fetchall():
            for ordinal, links in rows:
                every = jsontext.loads(links).items()
                yield ordinal, {slug: Links(many, [self._link(*value) for value in values]) for slug, (many, values) in every}
            last = rows[-1][0]

    def _link(self, record_id: str | None, row: int | None, rival: str | None, parent: int | None) -> RowLink:
        if parent is not None:
            record_id = self._db.execute("SELECT id FROM parent WHERE no = ?", (parent,)).fetchone()[0]
        return RowLink(record_id, row, rival, parent)

    def know_unlinked(self, ordinal: int) -> None:
        self._db.execute("INSERT OR IGNORE INTO unlinked VALUES (?)", (ordinal,))

    def is_unlinked(self, ordinal: int) -> bool:
        return bool(self._db.execute("SELECT EXISTS (SELECT 1 FROM unlinked WHERE ordinal = ?)", (ordinal,)).fetchone()[0])

    @property
    def unlinked_count(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM unlinked").fetchone()[0])

    def as_of(self, object_id: str) -> int:
        """Return the time up to which the records of an object are known."""
        return int(self._db.execute("SELECT micros FROM as_of WHERE object_id = ?", (object_id,)).fetchone()[0])

    def translate(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """Yield the rows with ids in place of values, without references to set later. An ambiguous or missing value gets a finding."""
        for payload in payloads:
            yield self._translated(payload)

    def _translated(self, payload: Payload) -> Payload:
        data, findings = dict(payload.data), list(payload.findings)
        for reference, rule in self._references:
            value = data.get(reference.slug)
            if value is None:
                continue
            ids, is_later = [], False
            for item in elements_of(value):
                meaning = self._meaning(reference, rule, item)
                if meaning is not None and len(meaning.ids) == 1:
                    ids.append(meaning.ids[0])
                is_later = is_later or (meaning is not None and meaning.is_later)
                # Values of invalid rows were not looked up, and get no finding.
                is_blank = meaning is None and not payload.rejected and rule.key({reference.key: item}) is None
                finding = self._finding(reference, meaning) if meaning is not None or is_blank else None
                if finding is not None:
                    findings.append(finding.at(payload.ordinal, payload.first_line, payload.last_line).on(reference.slug, item))
            if is_later:
                del data[reference.slug]
            else:
                data[reference.slug] = ids if isinstance(value, list) else next(iter(ids), None)
        return payload._replace(data=data, findings=findings)

    def _meaning(self, reference: Reference, rule: KeyRule, value: Any) -> _Meaning | None:
        query = (
            "SELECT ids, row, rival, problem, parent, parent.id FROM meant LEFT JOIN parent ON no = parent WHERE slug = ? AND meant.key = ?"
        )
        row = self._db.execute(query, (reference.slug, rule.key({reference.key: value}))).fetchone()
        if row is None:
            return None
        *facts, created_id = row[1:]
        return _Meaning([created_id] if created_id is not None else jsontext.loads(row[0]), *facts)

    def _finding(self, reference: Reference, meaning: _Meaning | None) -> Finding | None:
        """Return the finding about a value; `meaning` is None for a blank."""
        if meaning is None:
            return Finding("blank_reference", f"a blank is no {reference.told}", hint="give the record, or leave the cell empty")
        if len(meaning.ids) == 1 or meaning.is_later:
            return None
        if meaning.problem is not None:
            return Finding("ambiguous_reference", meaning.problem, hint="give the record by its id, or import in two steps")
        if meaning.ids:
            named = ", ".join(meaning.ids[:NAMED_IDS]) + (", ..." if len(meaning.ids) > NAMED_IDS else "")
            message = f"{len(meaning.ids)} records have this {reference.told}: {named}"
            return Finding("ambiguous_reference", message, hint="merge or delete the duplicates")
        if self._missing == NULL:
            return None
        hint = f"create it first; or --on-missing-ref create makes it, null leaves {reference.slug} empty"
        return Finding("missing_reference", f"no record has this {reference.told}", hint=hint)


def replace_ids(value: Any, new: Mapping[str, str]) -> Any:
    """Return a reference value with new ids; `new` is keyed by the old ids in lower case. A list names each record only once."""
    if isinstance(value, list):
        return list(dict.fromkeys(replace_ids(item, new) for item in value))
    return new.get(value.lower(), value) if isinstance(value, str) else value


def moved_references(data: Mapping[str, Any], attributes: Iterable[Attribute], new: Mapping[str, str]) -> tuple[Json, Json]:
    """Return the references that name an old id, and the same references with the new one."""
    current = {attribute.slug: as_sent(attribute, data.get(attribute.slug)) for attribute in attributes}
    moved = {slug: value_moved for slug, value in current.items() if (value_moved := replace_ids(value, new)) != value}
    return {slug: current[slug] for slug in moved}, moved


def asks(slugs: Collection[str], ids: Collection[Any], others: int, total: int | None) -> bool:
    """Whether a query per id and attribute, a control per attribute and `others` cost less than reading all records."""
    return total is not None and len(slugs) * (len(ids) + 1) + others < -(-total // PAGE_STEP) + 2


@frozen
class Referrers:
    """The records of an object whose attributes `slugs` name one of `ids`. `newest`, those changed last, are the control of a filter."""

    lister: Lister
    object_id: str
    slugs: Collection[str]
    ids: Collection[str]
    newest: Page[Record]

    def ask(self, see: RecordSink, others: int = 0) -> bool:
        """Pass the records that filters find to `see`. `others`: more records that would be read one by one.

        Return False if an answer may be incomplete, or if reading all records costs less.
        """
        if not asks(self.slugs, self.ids, others, self.newest.total):
            return False
        for slug in self.slugs:
            if (sample := _sample(self.newest, slug)) is None:
                return False
            record, stored_id = sample
            control = self._answer(slug, stored_id.swapcase())
            if control is None or all(item.id != record.id for item in control.items):
                return False
            for record_id in self.ids:
                page = self._answer(slug, record_id)
                if page is None or not is_whole(page):
                    return False
                see(page.items)
        return True

    def read_all(self, see: RecordSink) -> None:
        """Pass all records of the object to `see`."""
        for page in scan(self.lister, Listing(self.object_id)):
            see(page)

    def _answer(self, slug: str, record_id: str) -> Page[Record] | None:
        def names(record: Record) -> bool:
            return record_id.lower() in reference_ids(record.data.get(slug))

        return ask(self.lister, self.object_id, (Condition(slug, Operator.EQUALS, record_id),), names)


def _sample(newest: Page[Record], slug: str) -> tuple[Record, str] | None:
    """Return a record and a rarely used id that it names. None if there is none, or if the attribute holds lists."""
    named = [(record, value) for record in newest.items if (value := record.data.get(slug)) is not None]
    if any(isinstance(value, list) for _, value in named):
        return None
    pairs = [(record, record_id) for record, value in named for record_id in reference_ids(value) if record_id != record_id.upper()]
    often = Counter(record_id for _, record_id in pairs)
    return min(pairs, key=lambda pair: often[pair[1]], default=None)
