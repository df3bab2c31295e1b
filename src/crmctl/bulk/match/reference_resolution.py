"""Which record each value of a reference means: looked up once, kept with the job. A value may also mean a record that is still to be made:
a parent, or the record of another row of the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from crmctl.bulk.findings import Finding
from crmctl.bulk.match.key_index import KeyIndex
from crmctl.bulk.match.keys import KeyRule
from crmctl.bulk.match.references import Reference
from crmctl.bulk.rows.validation import Payload
from crmctl.errors import RejectedError
from crmctl.models import jsontext

if TYPE_CHECKING:
    from crmctl.bulk.match.key_lookups import Lookup

FILE_NAME = "references.sqlite"
NAMED_IDS = 5

ERROR, NULL, CREATE = "error", "null", "create"
"""What a value that means no record is: an error of its row, no value, or a record to be made."""

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


@dataclass(frozen=True)
class OwnRows:
    """The import the references belong to: rows of it may be what they mean."""

    object_id: str
    creates: bool
    keys: tuple[str, ...] = ()
    on_duplicate_key: str = "error"


class RowLink(NamedTuple):
    """One value of a reference that is set later: a record, the record of a row, or a parent by its number. `rival`: another record with
    the key of the row."""

    id: str | None = None
    row: int | None = None
    rival: str | None = None
    parent: int | None = None


class Links(NamedTuple):
    """The values of one reference; `many` says whether it is a list."""

    many: bool
    values: Sequence[RowLink]


class ParentGroup(NamedTuple):
    """Records of one object that are made from one attribute."""

    reference: Reference
    size: int

    @property
    def rule(self) -> KeyRule:
        return self.reference.rule


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
    """In the job's folder, or, without one, gone when closed. `missing` says what a value that means no record is."""

    def __init__(self, references: Sequence[Reference], folder: Path | None = None, *, missing: str = ERROR) -> None:
        self._references = [(reference, reference.rule) for reference in references]
        self._missing = missing
        path = folder / FILE_NAME if folder is not None else None
        if path is not None:
            path.touch(mode=0o600)
        with ExitStack() as unless_ready:
            self._db = unless_ready.enter_context(closing(sqlite3.connect(path or "", isolation_level=None)))
            self._db.executescript(_TABLES)
            unless_ready.pop_all()

    def close(self) -> None:
        self._db.close()

    # -- learning --------------------------------------------------------------------------------------------------------------------

    def learn(self, payloads: Callable[[], Iterable[Payload]], lookup: Callable[[str], Lookup], own: OwnRows | None = None) -> int:
        """Look up every value of the input; `lookup` is the one of an object. Returns how many requests that took.

        Raises what reading raises, and RejectedError for parents that cannot be made, or links that cannot wait.
        """
        requests = 0
        for reference, _ in self._references:
            requests += self._learn(reference, payloads, lookup(reference.object_id), own)
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
        return requests

    def _learn(self, reference: Reference, payloads: Callable[[], Iterable[Payload]], lookup: Lookup, own: OwnRows | None) -> int:
        slug, rule, among = reference.slug, reference.rule, own if own is not None and own.object_id == reference.object_id else None
        with KeyIndex(rule) as index:
            self._db.execute("BEGIN")
            number = 0
            for payload in payloads():
                if payload.findings and payload.rejected:
                    continue
                if among is not None and (key := rule.key(payload.data)) is not None:
                    self._db.execute("INSERT INTO own VALUES (?, ?, ?, ?)", (slug, key, payload.ordinal, (payload.id or "").lower()))
                for value in _values(payload.data.get(slug)):
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
            return lookup.requests

    def _among(self, own: OwnRows, reference: Reference, key: str, ids: Sequence[str]) -> _Meaning:
        """What a key means that rows of the file may have themselves."""
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
        """Write down which rows are not complete before others are there. Raises RejectedError for rows that cannot wait."""
        waiting = None
        self._db.execute("BEGIN")
        for payload in payloads:
            if payload.findings and payload.rejected:
                continue
            links: dict[str, Links] = {}
            parents: set[int] = set()
            for reference, rule in self._references:
                value = payload.data.get(reference.slug)
                meanings = [self._meaning(reference, rule, one) or _Meaning() for one in _values(value)]
                parents.update(one.parent for one in meanings if one.parent is not None)
                if any(one.row is not None for one in meanings):
                    waiting = reference.slug if reference.is_required else waiting
                    every = [RowLink(one.ids[0] if one.ids else None, one.row, one.rival, one.parent) for one in meanings]
                    links[reference.slug] = Links(isinstance(value, list), every)
            if links or parents:
                values = (payload.ordinal, jsontext.dumps(links), jsontext.dumps(sorted(parents)))
                self._db.execute("INSERT OR REPLACE INTO later VALUES (?, ?, ?)", values)
        self._db.execute("COMMIT")
        if waiting is not None:
            message = f"{waiting} is required, so no row can wait for the record it refers to"
            raise RejectedError(message, hint="import the rows they refer to first", code="required_link")

    # -- parents and links -----------------------------------------------------------------------------------------------------------

    def is_later(self, ordinal: int) -> bool:
        """Whether a row is not complete before others are there."""
        return bool(self._db.execute("SELECT EXISTS (SELECT 1 FROM later WHERE ordinal = ?)", (ordinal,)).fetchone()[0])

    def later_slugs(self, ordinal: int) -> frozenset[str]:
        """The references that a row may get only then."""
        return frozenset(reference.slug for reference, _ in self._references) if self.is_later(ordinal) else frozenset()

    def groups(self) -> list[ParentGroup]:
        """The parents that are to be made, by object and attribute."""
        query = "SELECT object_id, attribute, COUNT(*) FROM parent GROUP BY object_id, attribute ORDER BY MIN(no)"
        by_key = {(reference.object_id, reference.key): reference for reference, _ in self._references}
        return [ParentGroup(by_key[object_id, attribute], count) for object_id, attribute, count in self._db.execute(query)]

    def parents(self, group: ParentGroup) -> Iterator[tuple[int, dict[str, Any], str | None]]:
        """Each one's number, data, and id where it is known."""
        last, query = 0, "SELECT no, value, id FROM parent WHERE object_id = ? AND attribute = ? AND no > ? ORDER BY no LIMIT 500"
        while found := self._db.execute(query, (group.reference.object_id, group.reference.key, last)).fetchall():
            for number, value, record_id in found:
                yield number, {group.reference.key: jsontext.loads(value)}, record_id
            last = found[-1][0]

    def know_parents(self, ids: Mapping[int, str], errors: Mapping[int, str]) -> None:
        """Keep what became of parents: their ids, or why there is none."""
        self._db.execute("BEGIN")
        self._db.executemany("UPDATE parent SET id = ? WHERE no = ?", ((record_id, number) for number, record_id in ids.items()))
        self._db.executemany("UPDATE parent SET error = ? WHERE no = ?", ((error, number) for number, error in errors.items()))
        self._db.execute("COMMIT")

    def orphans(self) -> Iterator[tuple[int, str]]:
        """Rows that have no parent because none could be made, and why."""
        query = (
            "SELECT ordinal, error FROM later, json_each(later.parents) AS one JOIN parent ON parent.no = one.value "
            "WHERE error IS NOT NULL ORDER BY ordinal"
        )
        for ordinal, errors in groupby(self._db.execute(query), key=lambda row: row[0]):
            yield int(ordinal), "; ".join(error for _, error in errors)

    @property
    def link_count(self) -> int:
        """How many rows are linked to others afterwards."""
        return int(self._db.execute("SELECT COUNT(*) FROM later WHERE links <> '{}'").fetchone()[0])

    def links(self) -> Iterator[tuple[int, dict[str, Links]]]:
        """Each such row, and the values of its references."""
        last, query = 0, "SELECT ordinal, links FROM later WHERE links <> '{}' AND ordinal > ? ORDER BY ordinal LIMIT 500"
        while found := self._db.execute(query, (last,)).fetchall():
            for ordinal, links in found:
                every = jsontext.loads(links).items()
                yield ordinal, {slug: Links(many, [self._link(*one) for one in values]) for slug, (many, values) in every}
            last = found[-1][0]

    def _link(self, record_id: str | None, row: int | None, rival: str | None, parent: int | None) -> RowLink:
        if parent is not None:
            record_id = self._db.execute("SELECT id FROM parent WHERE no = ?", (parent,)).fetchone()[0]
        return RowLink(record_id, row, rival, parent)

    def know_unlinked(self, ordinal: int) -> None:
        """A row was written, and its links were not."""
        self._db.execute("INSERT OR IGNORE INTO unlinked VALUES (?)", (ordinal,))

    def is_unlinked(self, ordinal: int) -> bool:
        return bool(self._db.execute("SELECT EXISTS (SELECT 1 FROM unlinked WHERE ordinal = ?)", (ordinal,)).fetchone()[0])

    @property
    def unlinked_count(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM unlinked").fetchone()[0])

    def as_of(self, object_id: str) -> int:
        """Up to which moment the records of an object are known."""
        return int(self._db.execute("SELECT micros FROM as_of WHERE object_id = ?", (object_id,)).fetchone()[0])

    # -- rows ------------------------------------------------------------------------------------------------------------------------

    def translate(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """The rows with ids in place of values, and without references that are set later; a value that means no record, or several, is an
        error of its row."""
        for payload in payloads:
            yield self._translated(payload)

    def _translated(self, payload: Payload) -> Payload:
        data, findings = dict(payload.data), list(payload.findings)
        for reference, rule in self._references:
            value = data.get(reference.slug)
            if value is None:
                continue
            ids, is_later = [], False
            for one in _values(value):
                meaning = self._meaning(reference, rule, one)
                if meaning is None:
                    findings += self._not_looked_up(payload, reference, rule, one)
                    continue
                is_later = is_later or meaning.is_later
                if len(meaning.ids) == 1:
                    ids.append(meaning.ids[0])
                elif not meaning.is_later and (finding := self._finding(reference, meaning)) is not None:
                    findings.append(finding.at(payload.ordinal, payload.first_line, payload.last_line).on(reference.slug, one))
            if is_later:
                del data[reference.slug]
            else:
                data[reference.slug] = ids if isinstance(value, list) else next(iter(ids), None)
        return payload._replace(data=data, findings=findings)

    def _not_looked_up(self, payload: Payload, reference: Reference, rule: KeyRule, value: Any) -> list[Finding]:
        """Nothing is said about records that nobody looked for: of a row that is invalid anyway, or by a value that is none."""
        if payload.rejected or rule.key({reference.key: value}) is not None:
            return []
        finding = Finding("blank_reference", f"a blank is no {reference.told}", hint="give the record, or leave the cell empty")
        return [finding.at(payload.ordinal, payload.first_line, payload.last_line).on(reference.slug, value)]

    def _meaning(self, reference: Reference, rule: KeyRule, value: Any) -> _Meaning | None:
        """What a value means; None for one that was not looked up."""
        query = (
            "SELECT ids, row, rival, problem, parent, parent.id FROM meant LEFT JOIN parent ON no = parent WHERE slug = ? AND meant.key = ?"
        )
        found = self._db.execute(query, (reference.slug, rule.key({reference.key: value}))).fetchone()
        if found is None:
            return None
        *facts, made = found[1:]
        return _Meaning([made] if made is not None else jsontext.loads(found[0]), *facts)

    def _finding(self, reference: Reference, meaning: _Meaning) -> Finding | None:
        """What is wrong with a value that does not mean one record."""
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


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
