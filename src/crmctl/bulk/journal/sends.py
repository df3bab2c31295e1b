"""How much of a job was sent: by its journal, and by the high-water mark beside it. Where the mark knows of more, the journal lost it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk.journal.database import JournalDatabase, damaged
from crmctl.bulk.journal.high_water_mark import HighWaterMark, Mark
from crmctl.bulk.journal.states import BatchState
from crmctl.bulk.rows.batches import Batch
from crmctl.clock import Clock
from crmctl.models import jsontext

LOST = "lost sends"
"""The journal's fact: how many requests it knows from the mark only."""

UNCERTAIN = "sends uncertain"
"""The journal's fact: more may have been sent than is known, and that is not settled yet."""


class LostSends(NamedTuple):
    """What the journal does not know: at least `sends` requests with rows up to `last`, the newest at `at` (Unix time, 0 for unknown).

    `is_all`: no more than these.
    """

    sends: int
    last: int
    at: float
    is_all: bool


class DoubtedBatch(NamedTuple):
    """The number of a batch and its last row."""

    number: int
    last: int


class JournalSends(JournalDatabase):
    """Base of `Journal`."""

    folder: Path
    _clock: Clock
    _water: HighWaterMark
    _sent: Mark | None = None

    @property
    def has_sent(self) -> bool:
        """Whether any row was ever on its way."""
        known = self._one("SELECT EXISTS (SELECT 1 FROM batch WHERE state NOT IN ('PLANNED', 'BISECT'))")
        return bool(known) or self._water.read()[0].sends > self._counted().sends

    def lost_sends(self) -> LostSends | None:
        """What was sent, or may have been, without the journal's knowledge; None, as a rule, where there is nothing."""
        if self._sent is not None:
            return None  # whoever writes the two knows
        mark, is_all = self._water.read()
        lost = max(0, mark.sends - self._counted().sends)
        is_all = is_all and not self.recall(UNCERTAIN)
        return LostSends(lost, mark.last if lost else 0, mark.at, is_all) if lost or not is_all else None

    def doubt(self, batches: Iterable[Batch], lost: LostSends) -> Sequence[DoubtedBatch]:
        """Rows that may have been sent count as in doubt from now on, in these batches."""
        doubted: list[DoubtedBatch] = []
        with self._transaction():
            since, number = self._db.execute("SELECT MAX(sent_at), COALESCE(MAX(no), 0) FROM batch").fetchone()
            for batch in batches:
                number += 1
                doubted.append(DoubtedBatch(number, batch.ordinals[-1]))
                self._insert(number, batch, state=BatchState.IN_DOUBT, sent_at=self._created_at if since is None else since, attempt=0)
            self._db.execute("UPDATE batch SET reason = 'the journal lost what became of it' WHERE attempt = 0 AND reason IS NULL")
            self._remember_doubts()
            for name, value in ((LOST, (self.recall(LOST) or 0) + lost.sends), (UNCERTAIN, not lost.is_all)):
                self._db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, jsontext.dumps(value)))
            self._db.execute("UPDATE job SET requests = requests + ?", (lost.sends,))
        self._sent = None
        return doubted

    def were_absent(self, batches: Iterable[DoubtedBatch]) -> bool:
        """Whether every row of these was proven absent."""
        with self._lock:
            return not any(self._one("SELECT EXISTS (SELECT 1 FROM row WHERE batch = ?)", batch.number) for batch in batches)

    def last_confirmed(self) -> tuple[int, int, float, float] | None:
        """First and last row, and the Unix times of the send and of the answer, of the newest batch of which every row was created.

        Where none was confirmed, of the first one in doubt of which every row was found; that was answered at any time until now.
        """
        with self._lock:
            found = self._db.execute(
                "SELECT first, last, sent_at, settled_at FROM batch "
                "WHERE state = 'CONFIRMED' AND created = size AND last - first + 1 = size ORDER BY no DESC LIMIT 1"
            ).fetchone()
            found = (
                found
                or self._db.execute(
                    "SELECT first, last, sent_at, ? FROM batch WHERE state = 'RECONCILED' AND last - first + 1 = "
                    "(SELECT COUNT(*) FROM row WHERE row.batch = no AND row.state = 'created') ORDER BY no LIMIT 1",
                    (self._clock.now(),),
                ).fetchone()
            )
        return None if found is None else tuple(found)

    def trust(self) -> None:
        """From now on what the journal knows is all that was sent."""
        self.remember(UNCERTAIN, False)
        self._sent = self._counted()
        self._water.write(self._sent)

    def check_integrity(self) -> None:
        """Raises StorageError where the database is not whole."""
        if (found := self._one("PRAGMA integrity_check(1)")) != "ok":
            raise damaged(self.folder, str(found))

    @property
    def _created_at(self) -> float:
        raise NotImplementedError

    def _remember_doubts(self) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO doubted SELECT ordinal, sent_at FROM batch JOIN row ON ordinal BETWEEN first AND last AND batch = no "
            "WHERE batch.state = ?",
            (BatchState.IN_DOUBT,),
        )

    def _insert(self, number: int, batch: Batch, **facts: Any) -> None:
        """`facts` are the other columns of the batch: its state, when it was sent, the attempt, the batch it is a part of."""
        place = {"no": number, "first": batch.ordinals[0], "last": batch.ordinals[-1], "size": len(batch), "digest": batch.digest}
        self._db.execute(
            "INSERT INTO batch (no, parent, first, last, size, digest, state, attempt, sent_at) "
            "VALUES (:no, :parent, :first, :last, :size, :digest, :state, :attempt, :sent_at)",
            {"attempt": 1, "parent": None, **place, **facts},
        )
        ordinals = jsontext.dumps(batch.ordinals)  # one statement, half the time of a hundred
        self._db.execute("INSERT OR REPLACE INTO row (ordinal, batch) SELECT value, ? FROM json_each(?)", (number, ordinals))
        if given := [(entry.id, entry.ordinal) for entry in batch.entries if entry.id]:
            self._db.executemany("UPDATE row SET record_id = ? WHERE ordinal = ?", given)

    def _before_first_send(self) -> None:
        """What was found out before anything is sent is in the database itself then: a log that is lost later takes none of it along."""
        if not (self._sent or self._counted()).sends:
            with self._lock:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def _raise_mark(self, last: int) -> None:
        """A request with rows up to `last` is in the journal, and about to leave."""
        if self._sent is None or not self._sent.sends:
            self._sent = self._counted()._replace(last=max(last, self._counted().last, self._water.read()[0].last))
        else:
            self._sent = Mark(self._sent.sends + 1, max(self._sent.last, last), self._clock.now())
        self._water.write(self._sent)

    def _counted(self) -> Mark:
        """What the journal knows."""
        with self._lock:
            sends, last, at = self._db.execute(
                "SELECT COALESCE(SUM(attempt), 0), COALESCE(MAX(last), 0), COALESCE(MAX(sent_at), 0.0) FROM batch"
            ).fetchone()
            return Mark(sends + (self.recall(LOST) or 0), last, at)
