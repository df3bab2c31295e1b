"""Two sides of a comparison in a temporary database: records, activities and references, matched and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import islice
from typing import Any

from crmctl.errors import RejectedError
from crmctl.files.whole_files import Spill
from crmctl.match.references import ids_only
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.org.folder import ACTIVITIES, FILES, MOST_PROBLEMS, SCHEMA, SECTIONS, OrgFolder, OrgLine, file_facts, references_of
from crmctl.org.sections import portable

ACTIVITY_ROWS = " activities"
"""The activities among the objects; the blank keeps the name free of slugs."""

SECTION_ROWS = {f" {section}": section for section in SECTIONS}
"""The sections among the objects."""

Problem = tuple[str, str]


class Side(IntEnum):
    """`LEFT` is compared with `RIGHT`: what is there with what shall be there."""

    LEFT = 0
    RIGHT = 1


class OrgTables(Spill):
    """Rows of both sides. A row is an id, its data and the place it comes from; `pair` joins rows that mean the same record."""

    TABLES = """
    CREATE TABLE item (
        side INTEGER, object TEXT, id TEXT, place TEXT, data TEXT NOT NULL, key TEXT, PRIMARY KEY (side, object, id)
    ) WITHOUT ROWID;
    CREATE INDEX item_key ON item (side, object, key) WHERE key IS NOT NULL;
    CREATE TABLE link (side INTEGER, place TEXT, what TEXT, object TEXT, id TEXT);
    CREATE TABLE pair (object TEXT, left TEXT, right TEXT, PRIMARY KEY (object, left), UNIQUE (object, right)) WITHOUT ROWID;
    CREATE TABLE known (left TEXT, right TEXT);
    CREATE INDEX known_left ON known (left);
    """
    CACHE_KIB = 16_000

    def add(self, side: Side, slug: str, row: OrgLine, key: str | None = None) -> str | None:
        """Add a row; return the place of the row that already has its id."""
        document = row.document
        data = jsontext.dumps(document["data"] if "data" in document else {name: document[name] for name in document if name != "id"})
        values = (side, slug, document["id"], row.place, data, key)
        if self._db.execute("INSERT OR IGNORE INTO item VALUES (?, ?, ?, ?, ?, ?)", values).rowcount:
            return None
        return str(self._db.execute("SELECT place FROM item WHERE side = ? AND object = ? AND id = ?", values[:3]).fetchone()[0])

    def add_links(self, side: Side, place: str, what: str, target: str, ids: Iterable[Any]) -> None:
        self._db.executemany("INSERT INTO link VALUES (?, ?, ?, ?, ?)", ((side, place, what, target, str(one)) for one in ids))

    def open_links(self, side: Side, slugs: Iterable[str]) -> Iterator[Problem]:
        """Yield the place and text of each reference to a record of these objects that the side lacks."""
        for slug in slugs:
            query = (
                "SELECT place, what, id FROM link WHERE side = ? AND object = ? AND NOT EXISTS "
                "(SELECT 1 FROM item WHERE item.side = link.side AND item.object = link.object AND item.id = link.id)"
            )
            for place, what, target in self._db.execute(query, (side, slug)):
                yield place, f"{what} refers to {slug} {target}, which the folder does not hold"

    def has(self, side: Side, slug: str, row_id: str) -> bool:
        query = "SELECT 1 FROM item WHERE side = ? AND object = ? AND id = ?"
        return self._db.execute(query, (side, slug, row_id)).fetchone() is not None

    def count(self, side: Side, slug: str) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM item WHERE side = ? AND object = ?", (side, slug)).fetchone()[0])

    # -- matching --------------------------------------------------------------------------------------------------------------------

    def know(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Remember known pairs of ids, left and right."""
        self._db.executemany("INSERT INTO known VALUES (?, ?)", pairs)

    def match(self, slug: str, place: str = "") -> None:
        """Pair the rows of an object: by id, else by a known pair, else by key. Raises RejectedError for a key that several rows have."""
        same = "l.object = r.object AND l.object = ? AND l.side = 0 AND r.side = 1"
        free = (
            "NOT EXISTS (SELECT 1 FROM pair p WHERE p.object = l.object AND p.left = l.id) AND "
            "NOT EXISTS (SELECT 1 FROM pair p WHERE p.object = r.object AND p.right = r.id)"
        )
        self._db.execute(f"INSERT INTO pair SELECT l.object, l.id, r.id FROM item l JOIN item r ON {same} AND l.id = r.id", (slug,))
        known = f"item l JOIN known k ON k.left = l.id JOIN item r ON {same} AND r.id = k.right"
        self._db.execute(f"INSERT OR IGNORE INTO pair SELECT l.object, l.id, r.id FROM {known} WHERE {free}", (slug,))
        by_key = f"item l JOIN item r ON {same} AND l.key = r.key WHERE {free}"
        for one, other in (("r", "l"), ("l", "r")):
            query = f"SELECT {one}.place, COUNT(*) FROM {by_key} GROUP BY {one}.id HAVING COUNT(*) > 1 LIMIT 1"
            if (twice := self._db.execute(query, (slug,)).fetchone()) is not None:
                sides = {"l": "the service", "r": "the folder"}
                raise RejectedError(
                    f"{twice[0] or place or slug}: {twice[1]} records of {sides[other]} have its key, so crmctl cannot tell which is meant",
                    hint="merge them first (crmctl bulk dedupe), or --match OBJECT=ATTR with another attribute",
                    code="ambiguous_key",
                )
        self._db.execute(f"INSERT INTO pair SELECT l.object, l.id, r.id FROM {by_key}", (slug,))

    def key_activities(self, translate: Callable[[Json], Json]) -> None:
        """Set the content of each activity as its key, with its number among equal ones."""
        names, seen = ("title", "summary", "activityDate", "links"), Counter[tuple[Side, str]]()
        for side in Side:
            rows = self._db.execute("SELECT id, data FROM item WHERE side = ? AND object = ? ORDER BY id", (side, ACTIVITY_ROWS)).fetchall()
            for activity_id, data in rows:
                document = jsontext.loads(data) if side is Side.LEFT else translate(jsontext.loads(data))
                content = jsontext.dumps([document.get(name) for name in names])
                seen[side, content] += 1
                key = f"{content}{seen[side, content]}"
                self._db.execute(
                    "UPDATE item SET key = ? WHERE side = ? AND object = ? AND id = ?", (key, side, ACTIVITY_ROWS, activity_id)
                )

    def pair(self, slug: str, left: str, right: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO pair VALUES (?, ?, ?)", (slug, left, right))

    def lefts(self, slug: str) -> dict[str, str]:
        """Map the right ids of an object to left ids."""
        return dict(self._db.execute("SELECT right, left FROM pair WHERE object = ?", (slug,)))

    def has_pairs(self, slug: str) -> bool:
        return self._db.execute("SELECT 1 FROM pair WHERE object = ? LIMIT 1", (slug,)).fetchone() is not None

    def has_keys(self, slug: str) -> bool:
        """Whether a record of the folder has a key."""
        query = "SELECT 1 FROM item WHERE side = 1 AND object = ? AND key IS NOT NULL LIMIT 1"
        return self._db.execute(query, (slug,)).fetchone() is not None

    def match_targets(self, slug: str) -> None:
        """Pair the references to an object that the folder does not hold: by id, else by a known pair."""
        there = "item l JOIN {} WHERE l.side = 0 AND l.object = ?"
        same = f"SELECT l.object, l.id, l.id FROM {there.format('link k ON k.side = 1 AND k.object = l.object AND k.id = l.id')}"
        known = f"SELECT l.object, k.left, k.right FROM {there.format('known k ON k.left = l.id')}"
        for query in (same, known):
            self._db.execute(f"INSERT OR IGNORE INTO pair {query}", (slug,))

    def rows(self, side: Side, slug: str) -> Iterator[tuple[str, Json]]:
        for record_id, data in self._db.execute("SELECT id, data FROM item WHERE side = ? AND object = ? ORDER BY id", (side, slug)):
            yield record_id, jsontext.loads(data)

    def pairs(self, slug: str) -> Iterator[tuple[str, Json, str, Json]]:
        """Yield id and data of both sides of each pair, in the order of the right ids."""
        query = (
            "SELECT l.id, l.data, r.id, r.data FROM pair p JOIN item l ON l.side = 0 AND l.object = p.object AND l.id = p.left "
            "JOIN item r ON r.side = 1 AND r.object = p.object AND r.id = p.right WHERE p.object = ? ORDER BY r.id"
        )
        for left, before, right, after in self._db.execute(query, (slug,)):
            if before != after or left != right:
                yield left, jsontext.loads(before), right, jsontext.loads(after)

    def unpaired(self, side: Side, slug: str) -> Iterator[tuple[str, Json]]:
        """Yield id and data of the rows that only one side has."""
        column = "left" if side is Side.LEFT else "right"
        query = (
            f"SELECT id, data FROM item WHERE side = ? AND object = ? AND NOT EXISTS "
            f"(SELECT 1 FROM pair WHERE pair.object = item.object AND pair.{column} = item.id) ORDER BY id"
        )
        for record_id, data in self._db.execute(query, (side, slug)):
            yield record_id, jsontext.loads(data)


KeyOf = Callable[[str], Callable[[Json], str | None]]
"""Returns for an object what takes the key from a record's data."""


def no_keys(_: str) -> Callable[[Json], str | None]:
    return lambda _: None


def load_folder(tables: OrgTables, side: Side, folder: OrgFolder, keys: KeyOf = no_keys) -> Iterator[Problem]:
    """Read a folder into the tables and yield its problems: bad lines, duplicate ids, references to missing records, wrong counts."""
    for slug, spec in folder.objects.items():
        references, known, key = references_of(spec), {attribute.slug for attribute in spec.attributes}, keys(slug)
        for line in folder.records(slug):
            data = line.document["data"]
            if unknown := sorted(data.keys() - known):
                yield line.place, f"{slug} has no attribute {unknown[0]} in {SCHEMA}"
            if (other := tables.add(side, slug, line, key(data))) is not None:
                yield line.place, f"the id {line.document['id']} is also in {other}"
            for name in data.keys() & references.keys():
                value = ids_only(data[name])
                tables.add_links(side, line.place, name, references[name].target or "", value if isinstance(value, list) else [value])
    for line in folder.activities():
        if (other := tables.add(side, ACTIVITY_ROWS, line)) is not None:
            yield line.place, f"the id {line.document['id']} is also in {other}"
        for link in activity_links(line):
            tables.add_links(side, line.place, "links", *link)
    for slug, section in SECTION_ROWS.items():
        for line in folder.entries(section):
            entry = line.document["data"]
            named = OrgLine(line.place, {"id": line.document["id"], "data": portable(section, entry)})
            if tables.add(side, slug, named) is not None:
                yield line.place, f"{line.document['id']} is there twice"
            if section == FILES and not (path := folder.file(f"{FILES}/{entry['sha256']}")).is_file():
                yield line.place, f"{line.document['id']} is missing: {FILES}/{path.name}"
            elif section == FILES and file_facts(path)["sha256"] != path.name:
                yield line.place, f"{line.document['id']} is not what its sha256 says: {FILES}/{path.name}"
    yield from tables.open_links(side, folder.objects)
    counts = {slug: tables.count(side, slug) for slug in folder.objects} | {ACTIVITIES: tables.count(side, ACTIVITY_ROWS)}
    told: Mapping[str, Any] = folder.manifest.get("records", {}) | {ACTIVITIES: folder.manifest.get("activities", 0)}
    for name, count in counts.items():
        if told.get(name, 0) != count:
            yield name, f"holds {count:,} rows, the manifest says {told.get(name, 0):,}"


def activity_links(line: OrgLine) -> list[tuple[str, list[str]]]:
    links = line.document.get("links", [])
    if not isinstance(links, list) or not all(isinstance(link, str) and "/" in link for link in links):
        raise RejectedError(f"{line.place}: links must be texts such as people/ID", code="damaged_folder")
    return [(link.partition("/")[0], [link.partition("/")[2]]) for link in links]


def folder_problems(tables: OrgTables, side: Side, folder: OrgFolder, keys: KeyOf = no_keys, *, edited: bool = False) -> list[Problem]:
    """Read a folder into the tables and return its first problems. `edited`: files may differ from the manifest."""

    def every() -> Iterator[Problem]:
        yield from () if edited else folder.checksum_problems()
        for place, text in load_folder(tables, side, folder, keys):
            if not (edited and place in (*folder.objects, ACTIVITIES)):
                yield place, text

    problems: list[Problem] = []
    try:
        problems.extend(islice(every(), MOST_PROBLEMS))
    except RejectedError as error:
        problems += [(each["place"], each["problem"]) for each in error.details or [{"place": str(folder.path), "problem": error.message}]]
    return problems


def check_folder(tables: OrgTables, side: Side, folder: OrgFolder, keys: KeyOf = no_keys, *, edited: bool = False) -> None:
    """Read a folder into the tables. Raises RejectedError that names its first problems."""
    problems = folder_problems(tables, side, folder, keys, edited=edited)
    if problems:
        place, text = problems[0]
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        raise RejectedError(
            f"{place}: {text}{more}",
            hint="--edited accepts changed files" if "changed" in text else "crmctl org verify DIR names every problem",
            code="damaged_folder",
            details=[{"place": place, "problem": text} for place, text in problems],
        )
