"""Rows of two organizations in a temporary database: records, activities and entries, their references, and which mean the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from itertools import groupby

from crmctl.errors import RejectedError
from crmctl.files.whole_files import Spill
from crmctl.match.references import ids_only
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.org.folder import ACTIVITY_ROWS, OrgRow, references_of
from crmctl.values.object_spec import ObjectSpec

UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
USERS, ANY = " users", " any"
"""Targets of references besides objects: user ids of members, and records of an unnamed object."""

NewId = Callable[[str, str, str], str | None]
"""Returns the new id for the name of a reference, its target and its id; None leaves the reference out."""


def _moved_activity(data: Json, new: NewId) -> tuple[Json, list[str]]:
    links, participants, lost = list[str](), list[Json](), list[str]()
    for link in data.get("links", ()):
        slug, _, record_id = link.partition("/")
        moved_id = new("links", slug, record_id)
        links += [] if moved_id is None else [f"{slug}/{moved_id}"]
        lost += [link] if moved_id is None else []
    for participant in data.get("participants", ()):
        moved_id = new("participants", USERS if participant["type"] == "user" else ANY, str(participant["id"]))
        participants += [] if moved_id is None else [participant | {"id": moved_id}]
        lost += [f"participant {participant['id']}"] if moved_id is None else []
    listed = {"participants": sorted(participants, key=jsontext.dumps), "links": sorted(links)}
    plain = {name: value for name, value in data.items() if name not in listed}
    return plain | {name: value for name, value in listed.items() if value}, lost


class Side(IntEnum):
    """`LEFT` is compared with `RIGHT`: what is there with what shall be there."""

    LEFT = 0
    RIGHT = 1


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
    CREATE TABLE chosen (kind TEXT, id TEXT, round INTEGER, reference TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID;
    CREATE INDEX chosen_round ON chosen (round);
    """
    CACHE_KIB = 16_000

    def __init__(self, objects: Iterable[ObjectSpec]) -> None:
        """`objects`: those of the folder, or those to pull. Only their references count, and those of activities and entries."""
        super().__init__()
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

    def add(self, side: Side, row: OrgRow, key: str | None = None) -> str | None:
        """Add a row with its references; return the place of the row that already has its id."""
        links = list[tuple[str, str, str]]()
        data, _ = self.moved(row.kind, row.data, lambda *link: links.append(link) or link[2])  # type: ignore[func-returns-value]
        values = (side, row.kind, row.id, row.place, jsontext.dumps(data), key)
        if not self._db.execute("INSERT OR IGNORE INTO item VALUES (?, ?, ?, ?, ?, ?)", values).rowcount:
            return str(self._db.execute("SELECT place FROM item WHERE side = ? AND kind = ? AND id = ?", values[:3]).fetchone()[0])
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
        query = "SELECT data FROM item WHERE side = ? AND kind = ? AND id = ?"
        data: Json = jsontext.loads(self._db.execute(query, (side, kind, row_id)).fetchone()[0])
        return data

    def count(self, side: Side, kind: str) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM item WHERE side = ? AND kind = ?", (side, kind)).fetchone()[0])

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
        self._db.executemany("INSERT OR IGNORE INTO chosen VALUES (?, ?, 0, NULL)", roots)
        follow = (
            "INSERT OR IGNORE INTO chosen SELECT i.kind, i.id, ?1 + 1, c.kind || '.' || l.name FROM chosen c "
            "CROSS JOIN link l ON l.side = 0 AND l.kind = c.kind AND l.item = c.id "  # CROSS: not every link in each round
            "JOIN item i ON i.side = 0 AND i.kind = l.target AND i.id = l.id WHERE c.round = ?1 ORDER BY c.kind, l.name"
        )
        number = 0
        while self._db.execute(follow, (number,)).rowcount:
            number += 1
        is_chosen = "EXISTS (SELECT 1 FROM chosen c WHERE c.kind = item.kind AND c.id = item.id)"
        links = (
            "link l JOIN chosen c ON c.kind = l.target AND c.id = l.id WHERE l.side = item.side AND l.kind = item.kind AND l.item = item.id"
        )
        has_item = "EXISTS (SELECT 1 FROM item i WHERE i.side = link.side AND i.kind = link.kind AND i.id = link.item)"
        self._db.execute(f"DELETE FROM item WHERE kind NOT LIKE ' %' AND NOT {is_chosen}")
        self._db.execute(f"DELETE FROM item WHERE kind = ? AND NOT EXISTS (SELECT 1 FROM {links})", (ACTIVITY_ROWS,))
        self._db.execute(f"DELETE FROM link WHERE NOT {has_item}")
        return dict(self._db.execute("SELECT reference, COUNT(*) FROM chosen WHERE reference IS NOT NULL GROUP BY reference"))

    # -- matching --------------------------------------------------------------------------------------------------------------------

    def match(self, id_map: Mapping[str, str]) -> None:
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

    def lefts(self, kind: str) -> dict[str, str]:
        """Map the right ids of a kind to left ids."""
        return dict(self._db.execute("SELECT right, left FROM pair WHERE kind = ?", (kind,)))

    def has_keys(self, kind: str) -> bool:
        """Whether a row of the folder has a key."""
        query = "SELECT 1 FROM item WHERE side = 1 AND kind = ? AND key IS NOT NULL LIMIT 1"
        return self._db.execute(query, (kind,)).fetchone() is not None

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
