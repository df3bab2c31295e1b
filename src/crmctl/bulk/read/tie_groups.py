"""Reading a group of one timestamp that does not fit a page and comes in another order every time, until it is known to be complete."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator
from contextlib import closing

from crmctl.bulk.read.sorted_lists import NoProgress, Slice
from crmctl.bulk.spill import open_spill
from crmctl.models.records import Record

WALKS = 40
"""How often a group is walked before it is given up as unstable."""


class GroupWalk:
    """Walks from the page before the group to the page behind it, again and again.

    A walk that ends at offset `e` and a next one that finds the group starting at `s` tell that it held at most `e - s` records when the
    walk ended: positions around an old group only shrink, as what is new or changed comes at the end of the list. (In a list from the
    newest on it comes at the beginning: there a group is read from the other end.) What was read from that moment on was there at that
    moment. As soon as that many distinct records were read since, none is missing. A record read earlier does not count: it may have been
    deleted in the meantime, and must not stand for one that was missed.
    """

    def __init__(self, key: int, start: Callable[[], Slice], following: Callable[[int], Slice], is_deaf: Callable[[Slice], bool]) -> None:
        self.end = 0
        self.walks = 0
        self._key = key
        self._start = start
        self._following = following
        self._is_deaf = is_deaf
        self._pages = 0
        self._open: int | None = None
        self._bounds: dict[int, int] = {}

    def pages(self) -> Generator[list[Record], None, bool]:
        """Every page that was read. Returns whether the group is known to be complete; `end` is the offset behind it."""
        with closing(open_spill("CREATE TABLE seen (id TEXT PRIMARY KEY, page INTEGER NOT NULL) WITHOUT ROWID")) as db:
            while self.walks < WALKS:
                self.walks += 1
                if (yield from self._walk(db)):
                    return True
        return False

    def _walk(self, db: sqlite3.Connection) -> Generator[list[Record], None, bool]:
        page = self._start()
        start = page.offset + bisect_left(page.keys, self._key)
        if self._open is not None:
            self._bounds[self._open] = self.end - start
        while True:
            self._pages += 1
            inside = slice(bisect_left(page.keys, self._key), bisect_right(page.keys, self._key))
            db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?)", ((row.id, self._pages) for row in page.rows[inside]))
            yield page.rows
            if any(self._count(db, since) >= bound for since, bound in self._bounds.items()):
                return True
            if inside.stop < len(page.keys) or page.is_last:
                self.end, self._open = page.offset + inside.stop, self._pages
                return False
            following = self._following(page.end)
            if not following.rows and not following.is_last:
                raise NoProgress
            if following.rows == page.rows:
                if is_deaf := self._is_deaf(following):
                    raise NoProgress(is_deaf=is_deaf)
                self._open = None  # others have moved the list by a page: this walk tells nothing
                return False
            page = following

    def _count(self, db: sqlite3.Connection, since: int) -> int:
        return int(db.execute("SELECT count(*) FROM seen WHERE page >= ?", (since,)).fetchone()[0])
