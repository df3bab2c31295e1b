"""One import of a feed: what of each row is left out because people's values count (kept with the job), what the feed will have written."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState
from crmctl.bulk.journal.summary import FeedCounts
from crmctl.bulk.match.key_index import Wanted
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.feed_bases import FeedBases
from crmctl.bulk.run.three_way import Merge, Policy, ThreeWay
from crmctl.clock import Clock
from crmctl.errors import CrmctlError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute

FILE_NAME = "kept.sqlite"


@dataclass(frozen=True)
class FeedPlan:
    """What a user says: the name of the feed, and whose value counts (`--on-conflict`)."""

    name: str
    on_conflict: str = "keep"

    def to_document(self) -> dict[str, Any]:
        return {"name": self.name, "onConflict": self.on_conflict}

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> FeedPlan | None:
        return None if document is None else cls(document["name"], document["onConflict"])


class KeptValues:
    """What rows leave out, by row. In the job's folder, or, without one, gone when closed."""

    def __init__(self, folder: Path | None = None) -> None:
        path = folder / FILE_NAME if folder is not None else None
        if path is not None:
            path.touch(mode=0o600)
        with ExitStack() as unless_ready:
            self._db = unless_ready.enter_context(closing(sqlite3.connect(path or "", isolation_level=None)))
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS kept "
                "(ordinal INTEGER PRIMARY KEY, left_out TEXT NOT NULL, kept INTEGER, conflicts INTEGER, told TEXT NOT NULL)"
            )
            unless_ready.pop_all()

    def close(self) -> None:
        self._db.close()

    def restart(self) -> None:
        """Forget everything: the input is checked anew."""
        self._db.execute("DELETE FROM kept")

    def keep(self, rows: Iterable[tuple[int, Merge]]) -> None:
        """On disk when it returns."""
        self._db.execute("BEGIN")
        for ordinal, merge in rows:
            if merge.left_out or merge.chosen:
                values = (ordinal, jsontext.dumps(dict(merge.left_out)), merge.kept, merge.conflicts, merge.told)
                self._db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", values)
            else:
                self._db.execute("DELETE FROM kept WHERE ordinal = ?", (ordinal,))
        self._db.execute("COMMIT")

    @property
    def counts(self) -> FeedCounts:
        return FeedCounts(*self._db.execute("SELECT COALESCE(SUM(kept), 0), COALESCE(SUM(conflicts), 0) FROM kept").fetchone())

    def told(self, ordinal: int) -> str | None:
        """Which values of a row were kept."""
        found = self._db.execute("SELECT told FROM kept WHERE ordinal = ?", (ordinal,)).fetchone()
        return None if found is None else str(found[0])

    def translate(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        """The rows without what they leave out."""
        for payload in payloads:
            found = self._db.execute("SELECT left_out FROM kept WHERE ordinal = ?", (payload.ordinal,)).fetchone()
            if found is None:
                yield payload
                continue
            data, parts = Merge(jsontext.loads(found[0])).reduced(payload.data, payload.parts)
            yield payload._replace(data=data, parts=parts)


@contextmanager
def feed_of(journal: Journal, plan: FeedPlan | None, attributes: Sequence[Attribute]) -> Iterator[Feed | None]:
    """The feed of a job, its bases brought up to date with what became of earlier jobs before, and with this one after it."""
    if plan is None:
        yield None
        return
    header, jobs = journal.header, journal.folder.parent
    with closing(FeedBases(jobs.parent, (header.origin, header.object_id, plan.name))) as bases:
        bases.prepare()
        bases.settle_all(lambda job: _journal_of(jobs / job, journal.clock), but=header.job)
        if journal.state is JobState.CHECKING:
            bases.forget(header.job)
        try:
            yield Feed.of(plan, bases, attributes)
        finally:
            bases.settle(journal)


def _journal_of(folder: Path, clock: Clock) -> Journal | None:
    """The journal of a job; None where it is gone or cannot be read."""
    try:
        return Journal(folder, clock)
    except CrmctlError:
        return None


@dataclass(frozen=True)
class Feed:
    """`bases` of earlier imports, the `rule` of this one."""

    bases: FeedBases
    rule: ThreeWay

    @classmethod
    def of(cls, plan: FeedPlan, bases: FeedBases, attributes: Sequence[Attribute]) -> Feed:
        """`attributes` as their records show them."""
        by_slug = {attribute.slug: attribute for attribute in attributes}
        return cls(bases, ThreeWay(Policy.parse(plan.on_conflict), by_slug))

    def merge(self, row: Wanted, current: Mapping[str, Any] | None) -> Merge:
        """What of a row is written, given its record or None."""
        place = self.bases.row_of(row.key or "")
        hash_of = self.bases.hash_of(place)
        if current is None:
            return self.rule.first(row.data, row.parts, hash_of)
        known = self.bases.known(place)
        merge = self.rule.merge((row.data, row.parts), current, known, hash_of)
        return merge._replace(bases={unit: one for unit, one in merge.bases.items() if known.get(unit) != one})

    def write_down(self, journal: Journal, kept: KeptValues, rows: Sequence[tuple[int, str, Merge]]) -> None:
        """Keep what rows (ordinal, key) leave out and what they will have written, before anything is sent."""
        kept.keep((ordinal, merge) for ordinal, _, merge in rows)
        self.bases.intend(
            journal.header.job, [(ordinal, self.bases.row_of(key), merge.bases) for ordinal, key, merge in rows if merge.bases]
        )
