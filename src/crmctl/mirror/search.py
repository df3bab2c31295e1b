"""Full text over every object of a mirror, and its activities: what has all words, or words that begin with them, best matches first."""
# ruff: noqa: S608 - names in statements are quoted, values are parameters

from __future__ import annotations

import heapq
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.errors import NotFoundError, UsageError
from crmctl.mirror.columns import quoted, searched_text
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SyncState, search_table, storage_errors
from crmctl.mirror.noun_tables import activity_texts
from crmctl.mirror.object_table import has_full_text
from crmctl.models import jsontext
from crmctl.models.records import Record

LIMIT = 20
_EXCERPT = 120
_WORD = re.compile(r"[\w\u0300-\u036f]+")
"""With accents that stand by themselves."""


@dataclass(frozen=True)
class SearchHit:
    """A record, or an activity, that was found: higher scores are better; `excerpt` is a text of it that holds one of the words."""

    object: str
    record: Record
    score: float
    excerpt: str

    def to_document(self) -> dict[str, Any]:
        return {
            "object": self.object,
            "id": self.record.id,
            "excerpt": self.excerpt,
            "score": round(self.score, 3),
            "data": self.record.data,
        }


def search(file: MirrorFile, text: str, objects: Sequence[str] = (), limit: int = LIMIT) -> list[SearchHit]:
    """The best matches. Raises UsageError for a text without words and where SQLite has no full text, NotFoundError for an object that is
    not in the mirror."""
    words = _WORD.findall(unicodedata.normalize("NFC", text))
    if not words:
        raise UsageError("the text to look for has no word in it", hint="crmctl mirror search Hopper")
    if not has_full_text(file.db):
        raise UsageError("this Python's SQLite has no full-text search (FTS5)", hint="crmctl mirror sql \"SELECT ... LIKE '%text%'\"")
    asked = " AND ".join(f'"{word}"*' for word in words)
    found: list[tuple[float, str, SyncState, int]] = []
    with storage_errors(file.path), file.snapshot():
        for state in _chosen(file, objects):
            index = quoted(search_table(state.table_name))
            statement = f"SELECT rowid, bm25({index}) FROM {index} WHERE {index} MATCH ? ORDER BY bm25({index}) LIMIT ?"
            found += [(score, state.slug, state, number) for number, score in file.db.execute(statement, (asked, limit))]
        best = heapq.nsmallest(limit, found, key=lambda hit: (hit[0], hit[1], hit[3]))
        return [_hit(file, state, number, -score, words) for score, _, state, number in best]


def _chosen(file: MirrorFile, objects: Sequence[str]) -> list[SyncState]:
    there = {row[0] for row in file.db.execute("SELECT name FROM sqlite_master")}
    states = [state for state in file.states() if state.syncs and search_table(state.table_name) in there]
    if not objects:
        return states
    known = {name: state for state in reversed(states) for name in (state.slug, state.object_id)}
    for name in objects:
        if name not in known:
            slugs = ", ".join(state.slug for state in states)
            raise NotFoundError(f"{name} is not in the mirror", hint=f"it has: {slugs}; crmctl mirror sync {name} adds it")
    return [known[name] for name in dict.fromkeys(objects)]


def _hit(file: MirrorFile, state: SyncState, number: int, score: float, words: Sequence[str]) -> SearchHit:
    place = "rowid" if state.object_id == ACTIVITIES else "_no"
    row = file.db.execute(f"SELECT _data FROM {quoted(state.table_name)} WHERE {place} = ?", (number,)).fetchone()
    wire = jsontext.loads(row[0])
    record = Record.parse({"id": wire["id"], "data": activity_texts(wire)} if state.object_id == ACTIVITIES else wire)
    return SearchHit(state.slug, record, score, _excerpt(searched_text(record.data), words))


def _excerpt(text: str, words: Sequence[str]) -> str:
    """The line that holds a word, shortened around it; the first line where none does as it is written."""
    lines = text.split("\n")
    for word in words:
        for line in lines:
            place = line.casefold().find(word.casefold())
            if place >= 0:
                start = max(0, place - _EXCERPT // 3)
                return ("…" if start else "") + line[start : start + _EXCERPT] + ("…" if len(line) > start + _EXCERPT else "")
    return lines[0][:_EXCERPT]
