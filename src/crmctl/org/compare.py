"""Tell a folder from a service, or from another folder: rows of both sides in a temporary database, their pairs and differences."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.errors import RejectedError, UsageError
from crmctl.files.spills import Spill
from crmctl.match.keys import KeyRule, key_rule
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType, Object
from crmctl.org.folder import (
    ACTIVITY_ROWS,
    FILES,
    MEMBER_ROWS,
    SCHEMA,
    SECTION_ROWS,
    OrgFolder,
    OrgRow,
    entry_id,
    file_facts,
    references_of,
)
from crmctl.org.organization import Entries, fetch_file, portable, sync_organization
from crmctl.schema.apply import ChangeAction, SchemaChange, compare
from crmctl.schema.schema_document import Present, SchemaDocument
from crmctl.values.equality import alike, ids_only
from crmctl.values.object_spec import TARGET, AttributeSpec, ObjectSpec

MOST_PROBLEMS = 100
FILE_ROWS = f" {FILES}"
EMAIL = Attribute(id="email", slug="email", type=AttributeType.EMAIL)
UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
USERS, ANY = " users", " any"
"""Targets of references besides objects: user ids of members, and records of an unnamed object."""

NewId = Callable[[str, str, str], str | None]
"""Returns the new id for the name of a reference, its target and its id; None leaves the reference out."""


class Side(IntEnum):
    """`LEFT` is compared with `RIGHT`: what is there with what shall be there."""

    LEFT = 0
    RIGHT = 1


# -- rows ----------------------------------------------------------------------------------------------------------------------------


class OrgTables(Spill):
    """Rows of both sides; `pair` joins rows that mean the same."""

    TABLES = """
    CREATE TABLE item (
        side INTEGER, kind TEXT, id TEXT, place TEXT, data TEXT NOT NULL, key TEXT, PRIMARY KEY (side, kind, id)
    ) WITHOUT ROWID;
    CREATE INDEX item_key ON item (side, kind, key) WHERE key IS NOT NULL;
    CREATE TABLE link (side INTEGER, kind TEXT, item TEXT, name TEXT, target TEXT, id TEXT);
    CREATE TABLE pair (kind TEXT, left TEXT, right TEXT, PRIMARY KEY (kind, left), UNIQUE (kind, right)) WITHOUT ROWID;
    CREATE TABLE known (left TEXT, right TEXT);
    CREATE INDEX known_left ON known (left);
    CREATE TABLE chosen (kind TEXT, id TEXT, reference TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    """
    CACHE_KIB = 16_000

    def __init__(self, objects: Iterable[ObjectSpec]) -> None:
        """`objects`: those of the folder, or those to pull. Only their references count, and those of activities and entries."""
        super().__init__()
        self._lefts: dict[str, dict[str, str]] = {}
        self._rules: dict[str, KeyRule] = {}
        self.references = {spec.slug: {name: attribute.target or "" for name, attribute in references_of(spec).items()} for spec in objects}
        self._objects = jsontext.dumps([*self.references])

    def moved(self, kind: str, data: Json, new: NewId) -> tuple[Json, list[str]]:
        """Return a row with plain new ids, and what was left out: names of attributes, links and participants of activities."""
        if kind == ACTIVITY_ROWS:
            return _moved_activity(data, new)
        if kind not in self.references:  # entries name records anywhere in their texts
            return jsontext.loads(UUID.sub(lambda match: new("", ANY, match[0]) or match[0], jsontext.dumps(data))), []
        moved, lost = dict(data), []
        for name, target in self.references[kind].items():
            if (value := ids_only(data.get(name))) is None:
                continue
            listed = value if isinstance(value, list) else [value]
            kept = [moved_id for item in listed if (moved_id := new(name, target, str(item))) is not None]
            if len(kept) < len(listed):
                lost.append(name)
            moved[name] = kept if isinstance(value, list) and (kept or not listed) else kept[0] if kept else None
            if moved[name] is None:
                del moved[name]
        return moved, lost

    def add(self, side: Side, row: OrgRow) -> str | None:
        """Add a row with its references; return the place of the row that already has its id."""
        links = list[tuple[str, str, str]]()
        data, _ = self.moved(row.kind, row.data, lambda *link: links.append(link) or link[2])  # type: ignore[func-returns-value]
        key = self._rules[row.kind].key(row.data) if row.kind in self._rules else None
        values = (side, row.kind, row.id, row.place, jsontext.dumps(data), key)
        if not self._db.execute("INSERT OR IGNORE INTO item VALUES (?, ?, ?, ?, ?, ?)", values).rowcount:
            return str(self._one("SELECT place FROM item WHERE side = ? AND kind = ? AND id = ?", *values[:3]))
        self._db.executemany("INSERT INTO link VALUES (?, ?, ?, ?, ?, ?)", ((*values[:3], *link) for link in links))
        return None

    def leave_out(self, side: Side, kind: str, ids: Iterable[str]) -> None:
        """Remove rows with their references."""
        values = (side, kind, jsontext.dumps([*ids]))
        for table, column in (("item", "id"), ("link", "item")):
            self._db.execute(f"DELETE FROM {table} WHERE side = ? AND kind = ? AND {column} IN (SELECT value FROM json_each(?))", values)

    def rows(self, side: Side, kind: str) -> Iterator[tuple[str, Json]]:
        for row_id, data in self._db.execute("SELECT id, data FROM item WHERE side = ? AND kind = ? ORDER BY id", (side, kind)):
            yield row_id, jsontext.loads(data)

    def data(self, side: Side, kind: str, row_id: str) -> Json:
        data: Json = jsontext.loads(self._one("SELECT data FROM item WHERE side = ? AND kind = ? AND id = ?", side, kind, row_id))
        return data

    def count(self, side: Side, kind: str) -> int:
        return int(self._one("SELECT COUNT(*) FROM item WHERE side = ? AND kind = ?", side, kind))

    def _one(self, query: str, *values: Any) -> Any:
        return self._db.execute(query, values).fetchone()[0]

    # -- references ------------------------------------------------------------------------------------------------------------------

    def open_links(self, side: Side) -> Iterator[tuple[str, str, str, str]]:
        """Yield place, name, target and id of each reference to a record that the side lacks, although it has the object."""
        origin = "link l JOIN item o ON o.side = l.side AND o.kind = l.kind AND o.id = l.item"
        yield from self._db.execute(f"SELECT place, name, target, l.id FROM {origin} WHERE {_OPEN} ORDER BY target", (side, self._objects))

    def cut_open_links(self, side: Side, *, is_subset: bool) -> Counter[str]:
        """Leave out those references, in a subset also its unknown participants; return their number by kind of row."""
        condition = f"{_OPEN} OR {_UNKNOWN_PERSON}" if is_subset else _OPEN
        return Counter(kind for kind, _, names in self._cut(condition, side) for _ in names)

    def cut_unpaired_links(self, *, inside: bool = False) -> Iterator[tuple[str, str, list[str]]]:
        """Leave out references of records in the folder that the other side does not have; yield kind, id and names of the references.

        `inside`: those to objects of the folder, instead of to others.
        """
        unpaired = "NOT EXISTS (SELECT 1 FROM pair p WHERE p.kind = l.target AND p.right = l.id)"
        condition = f"l.side = ?1 AND l.kind IN {_OBJECTS} AND l.target {'IN' if inside else 'NOT IN'} {_OBJECTS} AND {unpaired}"
        return self._cut(condition, Side.RIGHT)

    def _cut(self, condition: str, side: Side) -> Iterator[tuple[str, str, list[str]]]:
        query = f"SELECT l.kind, l.item, l.name, l.target, l.id FROM link l WHERE {condition} ORDER BY l.kind, l.item"
        for (kind, row_id), links in groupby(self._db.execute(query, (side, self._objects)).fetchall(), lambda link: (link[0], link[1])):
            gone = {link[2:] for link in links}
            row_data = self.data(side, kind, row_id)
            data, _ = self.moved(kind, row_data, lambda *link, gone=gone: None if link in gone else link[2])
            values = (jsontext.dumps(data), side, kind, row_id)
            self._db.execute("UPDATE item SET data = ? WHERE side = ? AND kind = ? AND id = ?", values)
            yield kind, row_id, sorted(name for name, _, _ in gone)

    def keep_only(self, roots: Iterable[tuple[str, str]]) -> dict[str, int]:
        """Keep these records of the left side, every record they refer to, and activities linked to them.

        Return how many records each reference added.
        """
        self._db.execute("CREATE INDEX link_item ON link (side, kind, item)")
        follow = (
            "WITH RECURSIVE reached (kind, id, reference) AS "
            "(SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), '' FROM json_each(?) "
            "UNION SELECT i.kind, i.id, r.kind || '.' || l.name FROM reached r "
            "CROSS JOIN link l ON l.side = 0 AND l.kind = r.kind AND l.item = r.id "  # CROSS: not every link in each round
            "JOIN item i ON i.side = 0 AND i.kind = l.target AND i.id = l.id) "
            "INSERT INTO chosen SELECT kind, id, MIN(reference) FROM reached GROUP BY kind, id"
        )
        self._db.execute(follow, (jsontext.dumps(list(roots)),))
        is_chosen = "EXISTS (SELECT 1 FROM chosen c WHERE c.kind = item.kind AND c.id = item.id)"
        links = (
            "link l JOIN chosen c ON c.kind = l.target AND c.id = l.id WHERE l.side = item.side AND l.kind = item.kind AND l.item = item.id"
        )
        has_item = "EXISTS (SELECT 1 FROM item i WHERE i.side = link.side AND i.kind = link.kind AND i.id = link.item)"
        self._db.execute(f"DELETE FROM item WHERE kind NOT LIKE ' %' AND NOT {is_chosen}")
        self._db.execute(f"DELETE FROM item WHERE kind = ? AND NOT EXISTS (SELECT 1 FROM {links})", (ACTIVITY_ROWS,))
        self._db.execute(f"DELETE FROM link WHERE NOT {has_item}")
        return dict(self._db.execute("SELECT reference, COUNT(*) FROM chosen WHERE reference <> '' GROUP BY reference"))

    # -- matching --------------------------------------------------------------------------------------------------------------------

    def match_ids(self, id_map: Mapping[str, str]) -> None:
        """Pair rows, and records that only references name: by id, else by known pairs (left ids by right ids)."""
        self._db.executemany("INSERT INTO known (right, left) VALUES (?, ?)", id_map.items())
        outside = "SELECT target, id FROM link WHERE side = 1 AND target NOT IN (SELECT value FROM json_each(?))"
        named = f"(SELECT kind, id FROM item WHERE side = 1 UNION {outside}) r ON r.kind = l.kind AND r.id"
        for query in (f"item l JOIN {named} = l.id", f"item l JOIN known k ON k.left = l.id JOIN {named} = k.right"):
            self._db.execute(f"INSERT OR IGNORE INTO pair SELECT l.kind, l.id, r.id FROM {query} WHERE l.side = 0", (self._objects,))

    def match_keys(self, kind: str) -> None:
        """Pair the other rows of a kind by their keys. Raises RejectedError for a key that several rows have."""
        same = "l.kind = r.kind AND l.kind = ? AND l.side = 0 AND r.side = 1"
        free = (
            "NOT EXISTS (SELECT 1 FROM pair p WHERE p.kind = l.kind AND p.left = l.id) AND "
            "NOT EXISTS (SELECT 1 FROM pair p WHERE p.kind = r.kind AND p.right = r.id)"
        )
        by_key = f"item l JOIN item r ON {same} AND l.key = r.key WHERE {free}"
        for side, other in (("r", "the service"), ("l", "the folder")):
            query = f"SELECT {side}.place, COUNT(*) FROM {by_key} GROUP BY {side}.id HAVING COUNT(*) > 1 LIMIT 1"
            if (twice := self._db.execute(query, (kind,)).fetchone()) is not None:
                raise RejectedError(
                    f"{twice[0] or kind}: {twice[1]} records of {other} have its key, so crmctl cannot tell which is meant",
                    hint="merge them first (crmctl bulk dedupe), or --match OBJECT=ATTR with another attribute",
                    code="ambiguous_key",
                )
        self._db.execute(f"INSERT INTO pair SELECT l.kind, l.id, r.id FROM {by_key}", (kind,))

    def key_activities(self, translate: Callable[[Json], Json]) -> None:
        """Set the content of each activity as its key, with its number among equal ones."""
        names, seen = ("title", "summary", "activityDate", "links"), Counter[tuple[Side, str]]()
        for side in Side:
            for activity_id, data in [*self.rows(side, ACTIVITY_ROWS)]:
                document = data if side is Side.LEFT else translate(data)
                content = jsontext.dumps([document.get(name) for name in names])
                seen[side, content] += 1
                values = (f"{content}{seen[side, content]}", side, ACTIVITY_ROWS, activity_id)
                self._db.execute("UPDATE item SET key = ? WHERE side = ? AND kind = ? AND id = ?", values)

    def pair(self, kind: str, lefts: Mapping[str, str]) -> None:
        """Pair rows: left ids by right ids."""
        self._db.executemany("INSERT OR IGNORE INTO pair VALUES (?, ?, ?)", ((kind, left_id, right) for right, left_id in lefts.items()))
        self.lefts(kind).update(lefts)

    def lefts(self, kind: str) -> dict[str, str]:
        """Map the right ids of a kind to left ids."""
        if kind not in self._lefts:
            self._lefts[kind] = dict(self._db.execute("SELECT right, left FROM pair WHERE kind = ?", (kind,)))
        return self._lefts[kind]

    def has_keys(self, kind: str) -> bool:
        """Whether a row of the folder has a key."""
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM item WHERE side = 1 AND kind = ? AND key IS NOT NULL)", kind))

    def pairs(self, kind: str) -> Iterator[tuple[str, Json, str, Json]]:
        """Yield id and data of both sides of each pair, in the order of the right ids."""
        query = (
            "SELECT l.id, l.data, r.id, r.data FROM pair p JOIN item l ON l.side = 0 AND l.kind = p.kind AND l.id = p.left "
            "JOIN item r ON r.side = 1 AND r.kind = p.kind AND r.id = p.right WHERE p.kind = ? ORDER BY r.id"
        )
        for left_id, before, right, after in self._db.execute(query, (kind,)):
            if before != after or left_id != right:
                yield left_id, jsontext.loads(before), right, jsontext.loads(after)

    def unpaired(self, side: Side, kind: str) -> Iterator[tuple[str, Json]]:
        """Yield id and data of the rows that only one side has."""
        for row_id, data in self._db.execute(f"SELECT id, data {_UNPAIRED[side]}", (side, kind)):
            yield row_id, jsontext.loads(data)

    def unpaired_ids(self, side: Side, kind: str) -> list[str]:
        return [row_id for (row_id,) in self._db.execute(f"SELECT id {_UNPAIRED[side]}", (side, kind))]


_UNPAIRED = {
    side: "FROM item WHERE side = ? AND kind = ? AND NOT EXISTS "
    f"(SELECT 1 FROM pair WHERE pair.kind = item.kind AND pair.{column} = item.id) ORDER BY id"
    for side, column in ((Side.LEFT, "left"), (Side.RIGHT, "right"))
}
_OBJECTS = "(SELECT value FROM json_each(?2))"
_LACKS = "NOT EXISTS (SELECT 1 FROM item i WHERE i.side = l.side AND i.id = l.id AND i.kind"
_OPEN = f"l.side = ?1 AND l.target IN {_OBJECTS} AND {_LACKS} = l.target)"
_UNKNOWN_PERSON = f"l.side = ?1 AND l.target = '{ANY}' AND {_LACKS} IN {_OBJECTS})"


def _moved_activity(data: Json, new: NewId) -> tuple[Json, list[str]]:
    links = {link: new("links", *link.split("/", 1)) for link in data.get("links", ())}
    people = [
        (person, new("participants", USERS if person["type"] == "user" else ANY, str(person["id"])))
        for person in data.get("participants", ())
    ]
    listed = {
        "participants": sorted((person | {"id": new_id} for person, new_id in people if new_id is not None), key=jsontext.dumps),
        "links": sorted(f"{link.partition('/')[0]}/{new_id}" for link, new_id in links.items() if new_id is not None),
    }
    lost = [link for link, new_id in links.items() if new_id is None]
    lost += [f"participant {person['id']}" for person, new_id in people if new_id is None]
    plain = {name: value for name, value in data.items() if name not in listed}
    return plain | {name: value for name, value in listed.items() if value}, lost


# -- differences ---------------------------------------------------------------------------------------------------------------------


def change_row(change: str, kind: str, row_id: str, values: Mapping[str, list[Any]], other_id: str | None = None) -> Json:
    """Return one difference: a record, activity or entry that was added, removed or changed. `values` maps slugs to `[before, after]`."""
    return {"change": change, "object": kind.strip(), "id": row_id, "otherId": other_id, "values": values}


class OrgComparison(OrgTables):
    """Two sides, of which the right one is the folder that shall be.

    `schema`: what separates the `present` one of the left side. `kinds`: the rows besides records that both sides show. `entries`: those of
    the service. `open_references`: slug, id and attributes of records in the folder that refer to records of other objects, unknown to the
    service. `is_exact`: values that mean the same differ if they are written differently.
    """

    is_exact = False
    schema: list[SchemaChange]
    present: Present
    entries: Entries
    open_references: Sequence[tuple[str, str, list[str]]] = ()

    def __init__(self, folder: OrgFolder, matches: Iterable[str]) -> None:
        """`matches`: options OBJECT=ATTR that replace the keys of the folder's settings. Raises UsageError for wrong ones."""
        attributes = present_of(folder.schema).attributes
        chosen = dict(object_option(folder.objects, text, "=", "--match OBJECT=ATTR, for example people=email") for text in matches)
        keys = {slug: key for slug, key in {**folder.settings.keys, **chosen}.items() if slug in attributes}
        rules = {slug: key_rule([key], [*attributes[slug].values()], "--match") for slug, key in keys.items()}
        super().__init__(folder.schema.objects)  # opens a database, which an error after it would leave open
        self.folder, self._rules = folder, rules
        self.kinds: Sequence[str] = (ACTIVITY_ROWS, *SECTION_ROWS)
        self._attributes = {**attributes, MEMBER_ROWS: {"email": EMAIL}}

    def match(self, id_map: Mapping[str, str], members: Iterable[Json]) -> None:
        """Pair rows by id, known pair or key; activities also by content, entries by name. `members`: those of the left side."""
        self.match_users(members)
        self.match_ids(id_map)
        for slug in self.folder.objects:
            self.match_keys(slug)
        self.key_activities(lambda data: self.translated(ACTIVITY_ROWS, data)[0])
        self.match_keys(ACTIVITY_ROWS)

    def match_users(self, members: Iterable[Json]) -> None:
        """Pair users by the e-mail addresses of the members."""
        users = {entry_id("members", member): member["userId"] for member in members}
        rows = self.folder.entries("members")
        self._lefts[USERS] = {str(row.data.get("userId")): users[row.id] for row in rows if row.id in users}

    def translated(self, kind: str, data: Json, *, strict: bool = False) -> tuple[Json, list[str]]:
        """Return a row of the folder with the ids of the other side, and names of what was left out.

        Unpaired ids stay; `strict` leaves them out.
        """

        def new(_: str, target: str, record_id: str) -> str | None:
            kinds = self.folder.objects if target == ANY else (target,)
            left_id = next((paired for target_kind in kinds if (paired := self.lefts(target_kind).get(record_id)) is not None), None)
            return left_id if left_id is not None or strict else record_id

        return self.moved(kind, data, new)

    def changed(self, kind: str, *, strict: bool = False) -> Iterator[Json]:
        """Yield the pairs that differ. `strict` is that of `translated`."""
        attributes = {} if self.is_exact else self._attributes.get(kind, {})
        for left_id, before, right, after in self.pairs(kind):
            values = {name: [before.get(name), value] for name, value in self.translated(kind, after, strict=strict)[0].items()}
            values = {name: [value, None] for name, value in before.items() if name not in values} | values
            values = {name: pair for name, pair in values.items() if not _alike(attributes.get(name), *pair)}
            if values:
                yield change_row("changed", kind, left_id, values, right)

    def updates(self, kind: str, *, strict: bool = True) -> Iterator[tuple[Json, Json]]:
        """Yield the pairs that an apply changes, each with the values that the folder holds: apply clears nothing."""
        for change in self.changed(kind, strict=strict):
            if values := {name: after for name, (_, after) in change["values"].items() if after is not None}:
                yield change, values

    def changes(self, *, strict: bool = False) -> Iterator[Json]:
        """Yield every difference of records, activities and entries."""
        for kind in (*self.folder.objects, *self.kinds):
            for row_id, data in self.unpaired(Side.RIGHT, kind):
                yield change_row("added", kind, row_id, {name: [None, value] for name, value in data.items()})
            for row_id, data in self.unpaired(Side.LEFT, kind):
                yield change_row("removed", kind, row_id, {name: [value, None] for name, value in data.items()})
            yield from self.changed(kind, strict=strict)


def _alike(attribute: Attribute | None, current: Any, expected: Any) -> bool:
    return bool(expected == current) or (attribute is not None and expected is not None and alike(attribute, expected, current))


def present_of(schema: SchemaDocument) -> Present:
    """Return a schema file as if a service had it, with slugs as ids."""

    def attribute_of(spec: AttributeSpec) -> Attribute:
        config = {"allowed_object_id" if name == TARGET else name: value for name, value in (spec.config or {}).items()}
        return Attribute.parse({"id": spec.slug, **spec.model_dump(by_alias=True), "config": config})

    objects = {spec.slug: Object.parse({"id": spec.slug, **spec.model_dump(by_alias=True)}) for spec in schema.objects}
    attributes = {spec.slug: {attribute.slug: attribute_of(attribute) for attribute in spec.attributes} for spec in schema.objects}
    return Present(objects, attributes)


def object_option(objects: Collection[str], text: str, sign: str, form: str) -> tuple[str, str]:
    """Return the object that an option names, and the rest. Raises UsageError."""
    slug, operator, rest = text.partition(sign)
    if not operator:
        raise UsageError(f"{text!r} is not {form}")
    if slug not in objects:
        raise UsageError(f"{text!r}: there is no object {slug!r}", hint=f"objects: {', '.join(objects)}", code="unknown_object")
    return slug, rest


# -- reading folders -----------------------------------------------------------------------------------------------------------------


def load_folder(tables: OrgTables, side: Side, folder: OrgFolder, *, edited: bool) -> Iterator[tuple[str, str]]:
    """Read a folder into the tables. Yield place and text of its problems. `edited`: files may differ from the manifest."""
    if not edited:
        yield from folder.checksum_problems()
    slugs = {slug: {attribute.slug for attribute in spec.attributes} for slug, spec in folder.objects.items()}
    for row in folder.rows():
        if unknown := sorted(row.data.keys() - slugs.get(row.kind, row.data.keys())):
            yield row.place, f"{row.kind} has no attribute {unknown[0]} in {SCHEMA}"
        if row.kind in SECTION_ROWS:
            row = row._replace(data=portable(row.kind.strip(), row.data))
        if (other := tables.add(side, row)) is not None:
            yield row.place, f"the id {row.id} is also in {other}"
        if row.kind == FILE_ROWS and not (path := folder.file(f"{FILES}/{row.data['sha256']}")).is_file():
            yield row.place, f"{row.id} is missing: {FILES}/{path.name}"
        elif row.kind == FILE_ROWS and file_facts(path)["sha256"] != path.name:
            yield row.place, f"{row.id} is not what its sha256 says: {FILES}/{path.name}"
    for place, name, target, row_id in tables.open_links(side):
        yield place, f"{name} refers to {target} {row_id}, which the folder does not hold"
    totals = {**folder.manifest.records, ACTIVITY_ROWS: folder.manifest.activities}
    for kind in () if edited else (*folder.objects, ACTIVITY_ROWS):
        if (count := tables.count(side, kind)) != totals.get(kind, 0):
            yield kind.strip(), f"holds {count:,} rows, the manifest says {totals.get(kind, 0):,}"


def check_folder(tables: OrgTables, side: Side, folder: OrgFolder, *, edited: bool = False) -> None:
    """Read a folder into the tables. Raises RejectedError with its first problems. `edited` is that of `load_folder`."""
    problems = list[Json]()
    try:
        problems.extend(
            {"place": place, "problem": text} for place, text in islice(load_folder(tables, side, folder, edited=edited), MOST_PROBLEMS)
        )
    except RejectedError as error:
        problems += error.details or [{"place": str(folder.path), "problem": error.message}]
    if problems:
        text = problems[0]["problem"]
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        hint = "--edited accepts changed files" if "changed" in text else "crmctl org verify DIR names every problem"
        raise RejectedError(f"{problems[0]['place']}: {text}{more}", hint=hint, code="damaged_folder", details=problems)


def verify(path: Path) -> OrgFolder:
    """Check checksums, JSON, schema, references and counts of a folder. Raises RejectedError with its first problems.

    Raises UsageError for a folder that crmctl did not write.
    """
    folder = OrgFolder(path)
    with OrgTables(folder.schema.objects) as tables:
        check_folder(tables, Side.RIGHT, folder)
    return folder


# -- comparing -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def folders_compared(
    before: OrgFolder, after: OrgFolder, matches: Iterable[str] = (), id_map: Mapping[str, str] | None = None
) -> Iterator[OrgComparison]:
    """Compare two folders. `id_map` maps ids of the second to ids of the first."""
    with OrgComparison(after, matches) as compared:
        check_folder(compared, Side.LEFT, before, edited=True)
        check_folder(compared, Side.RIGHT, after, edited=True)
        compared.schema = compare(after.schema, present_of(before.schema), prune=True)
        compared.match(id_map or {}, [row.data for row in before.entries("members")])
        yield compared


@contextmanager
def service_compared(
    context: BulkContext, folder: OrgFolder, matches: Iterable[str], id_map: Mapping[str, str], *, edited: bool = False
) -> Iterator[OrgComparison]:
    """Compare a folder with the service, which is synced first.

    `id_map` maps ids of the folder to ids of the service. Raises RejectedError for a damaged folder before the first request.
    """
    with OrgComparison(folder, matches) as compared:
        check_folder(compared, Side.RIGHT, folder, edited=edited)
        slugs = {*folder.objects, *(reference.target for spec in folder.objects.values() for reference in references_of(spec).values())}
        organization = sync_organization(context, lambda every: [some for some in every if some.slug in slugs], folder.parts)
        with organization.copy:
            for slug in organization.objects.keys() & folder.objects:
                for excluded in {attribute.slug for attribute in folder.objects[slug].attributes} & organization.excluded(slug):
                    problem = f"the mirror of the service excludes {slug}.{excluded}, so crmctl cannot compare it"
                    raise UsageError(problem, hint="crmctl mirror remove, then give the command again")
            files = {*compared.unpaired_ids(Side.RIGHT, FILE_ROWS)}
            for row in organization.rows():
                if row.kind == FILE_ROWS and row.id in files:
                    row = row._replace(data=fetch_file(context, organization.entries[FILES][row.id]))
                compared.add(Side.LEFT, row)
        compared.present, compared.entries = organization.present, organization.entries
        compared.schema = compare(folder.schema, organization.present)
        compared.kinds = (ACTIVITY_ROWS, *(f" {section}" for section in organization.entries))
        compared.match(id_map, organization.entries.get("members", {}).values())
        compared.open_references = [*compared.cut_unpaired_links()]
        yield compared


def drill_differences(folder: OrgFolder, restored: OrgFolder, ids: Mapping[str, str]) -> list[Json]:
    """Compare a folder with what a throw-away service gave back; `ids` maps its ids to those of that service.

    References to what the folder does not hold do not count.
    """
    with folders_compared(restored, folder, id_map=ids) as compared:
        compared.is_exact = True
        problems = [
            {"place": change.place, "problem": change.summary} for change in compared.schema if change.action is not ChangeAction.DELETE
        ]
        words = {"added": "not restored", "removed": "restored although the folder lacks it", "changed": "restored differently"}
        for change in compared.changes(strict=True):
            values = f": {', '.join(change['values'])}" if change["change"] == "changed" else ""
            problem = words[change["change"]] + values
            problems.append({"place": f"{change['object']} {change['otherId'] or change['id']}", "problem": problem})
    return problems


def _git(place: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(place), *words], capture_output=True, check=False)  # noqa: S603, S607 - each word is one argument


@contextmanager
def opened(name: str) -> Iterator[OrgFolder]:
    """Open a folder, or with `DIR@REV` a commit of it. Raises UsageError."""
    path, at, revision = name.rpartition("@")
    if Path(name).exists() or not at or revision.startswith("-"):
        yield OrgFolder(Path(name))
        return
    with tempfile.TemporaryDirectory(prefix="crmctl-org-") as place:
        archive, folder = Path(place, "commit.zip"), Path(place, "folder")
        base = next(parent for parent in (Path(path), *Path(path).absolute().parents) if parent.is_dir())  # the folder may be gone
        try:
            top = Path(os.fsdecode(_git(base, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n")) or base).resolve()
            inside = "/".join(Path(path).resolve().relative_to(top).parts)
            done = _git(top, "archive", "-0", "-o", str(archive), f"{revision}:{inside}")
        except OSError as error:
            raise UsageError(f"{name}: git cannot be started", hint="install git, or compare two folders") from error
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip().splitlines()
            raise UsageError(f"{name}: {message[-1] if message else 'git has no such commit'}", code="unknown_commit")
        shutil.unpack_archive(archive, folder)
        yield OrgFolder(folder)


LISTED = 200
"""Most records of an object in a report; the counts are exact."""


def report_text(changes: Sequence[Json], schema: Sequence[SchemaChange], title: str) -> str:
    """Return the differences as Markdown for a merge request."""
    lines = [f"# {title}", ""]
    if schema:
        words = {ChangeAction.DELETE: "remove", ChangeAction.EXTRA: "remove"}
        lines += ["## Schema", ""]
        lines += [*(f"- {words.get(change.action, change.action)} `{change.place}`: {_cell(change.summary)}" for change in schema), ""]
    for slug in dict.fromkeys(change["object"] for change in changes):
        of_object = [change for change in changes if change["object"] == slug]
        counts = Counter(change["change"] for change in of_object)
        lines += [f"## {slug}", "", ", ".join(f"{count:,} {word}" for word, count in counts.items()), ""]
        lines += ["| record | change | attribute | before | after |", "|---|---|---|---|---|"]
        for change in of_object[:LISTED]:
            for name, (before, after) in change["values"].items() or {"": ("", "")}.items():
                lines.append(f"| `{_cell(change['id'])}` | {change['change']} | {name} | {_cell(before)} | {_cell(after)} |")
        lines += [f"| and {len(of_object) - LISTED:,} more | | | | |"] if len(of_object) > LISTED else []
        lines.append("")
    return "\n".join(lines if changes or schema else [*lines, "No differences.", ""])


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else jsontext.dumps(value)
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())[:120]
