"""The journal of a job that merges: its groups, every step before and after it is taken, and what was there before. No decisions here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.merge.steps import MergeStep, StepKind, StepState
from crmctl.clock import Clock
from crmctl.models import jsontext

MODE = "merge"
"""The mode of such a job in its header."""

EXCHANGING = "exchanging"
"""The fact of a job that lists groups, in their order, that get unique values of each other."""

_TABLES = """
CREATE TABLE IF NOT EXISTS merge_group (
    no INTEGER PRIMARY KEY, survivor TEXT NOT NULL, losers TEXT NOT NULL, state TEXT NOT NULL, error TEXT
);
CREATE TABLE IF NOT EXISTS merge_step (
    no INTEGER PRIMARY KEY, merge INTEGER NOT NULL, kind TEXT NOT NULL, object_id TEXT NOT NULL, target TEXT NOT NULL,
    before TEXT NOT NULL, after TEXT NOT NULL, state TEXT NOT NULL, error TEXT
);
CREATE INDEX IF NOT EXISTS merge_step_group ON merge_step (merge, kind);
CREATE TABLE IF NOT EXISTS merge_image (
    id TEXT PRIMARY KEY, merge INTEGER NOT NULL, data TEXT NOT NULL, survivor TEXT, new_id TEXT, sent_at REAL
) WITHOUT ROWID;
"""
"""`merge_image`: every record of a group as it was; of a loser its survivor, and the id it has since an undo made it again."""


class GroupState(StrEnum):
    """`merging`: some steps may be taken; `refused`: nothing of it was written; `failed`: it was, and was taken back; `partly`: it is
    merged but for a value; `undone`: taken apart again."""

    PLANNED = "planned"
    MERGING = "merging"
    MERGED = "merged"
    PARTLY = "partly"
    REFUSED = "refused"
    FAILED = "failed"
    UNDONE = "undone"


ROW_STATES = {
    GroupState.MERGED: RowState.UPDATED,
    GroupState.PARTLY: RowState.FAILED,
    GroupState.REFUSED: RowState.REJECTED,
    GroupState.FAILED: RowState.FAILED,
}
"""How a list of jobs counts a group."""


class GroupEntry(NamedTuple):
    """What the journal knows of a group."""

    number: int
    survivor: str
    losers: Sequence[str]
    state: GroupState
    error: str | None


class LostRecord(NamedTuple):
    """A record that was merged into another, as it was: the id it was given again, and when that was asked for."""

    id: str
    data: dict[str, Any]
    new_id: str | None
    sent_at: float | None


class MergeJournal(Journal):
    """A journal whose rows are groups."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        super().__init__(folder, clock)
        with self._lock:
            self._db.executescript(_TABLES)

    # -- groups ----------------------------------------------------------------------------------------------------------------------

    def list_groups(self, groups: Iterable[tuple[int, str, Sequence[str]]]) -> None:
        """The groups of the plan, once: number, survivor, losers."""
        self.restart_check()
        with self._transaction():
            self._db.execute("DELETE FROM merge_group")
            rows = ((number, survivor, jsontext.dumps(losers), GroupState.PLANNED) for number, survivor, losers in groups)
            self._db.executemany("INSERT INTO merge_group (no, survivor, losers, state) VALUES (?, ?, ?, ?)", rows)
        self.record_check(int(self._one("SELECT COUNT(*) FROM merge_group")), ())

    def groups(self, *states: GroupState) -> Iterator[GroupEntry]:
        """The groups in these states, in the order of the plan; each may be changed while they are listed."""
        marks = ", ".join("?" * len(states))
        query = f"SELECT no, survivor, losers, state, error FROM merge_group WHERE state IN ({marks}) AND no > ? ORDER BY no LIMIT 500"  # noqa: S608
        last = -1
        while True:
            with self._lock:
                rows = self._db.execute(query, (*states, last)).fetchall()
            if not rows:
                return
            for number, survivor, losers, state, error in rows:
                last = number
                yield GroupEntry(number, survivor, jsontext.loads(losers), GroupState(state), error)

    def group_counts(self) -> dict[GroupState, int]:
        with self._lock:
            found = dict(self._db.execute("SELECT state, COUNT(*) FROM merge_group GROUP BY state").fetchall())
        return {state: found.get(state, 0) for state in GroupState}

    def begin_merges(self, merges: Iterable[tuple[int, Sequence[MergeStep], Iterable[tuple[str, Mapping[str, Any], str | None]]]]) -> None:
        """Of each group everything that will be written, and all that is there now (record, data, and of a loser its survivor): on disk
        when this returns, before the first step; all of them or none."""
        with self._transaction():
            for number, steps, images in merges:
                self._db.execute("UPDATE merge_group SET state = ?, error = NULL WHERE no = ?", (GroupState.MERGING, number))
                rows = ((record_id.lower(), number, jsontext.dumps(data), survivor) for record_id, data, survivor in images)
                self._db.executemany("INSERT OR REPLACE INTO merge_image (id, merge, data, survivor) VALUES (?, ?, ?, ?)", rows)
                self._insert_steps(number, steps)

    def add_steps(self, number: int, steps: Sequence[MergeStep]) -> None:
        """Further steps of a group, before they are taken."""
        with self._transaction():
            self._insert_steps(number, steps)

    def end_merge(self, number: int, state: GroupState, error: str | None = None) -> None:
        with self._transaction(durable=False):
            self._db.execute("UPDATE merge_group SET state = ?, error = ? WHERE no = ?", (state, error, number))
            if (row := ROW_STATES.get(state)) is not None:
                columns = "INSERT OR REPLACE INTO row (ordinal, state, record_id, error)"
                self._db.execute(f"{columns} SELECT no, ?, survivor, ? FROM merge_group WHERE no = ?", (row, error, number))  # noqa: S608

    # -- steps -----------------------------------------------------------------------------------------------------------------------

    def steps(self, group: int, *states: StepState) -> list[MergeStep]:
        """The steps of a group in these states, in order."""
        marks = ", ".join("?" * len(states))
        query = f"SELECT * FROM merge_step WHERE merge = ? AND state IN ({marks}) ORDER BY no"  # noqa: S608
        with self._lock:
            return [_step(row) for row in self._db.execute(query, (group, *states)).fetchall()]

    def step_error(self, group: int) -> str | None:
        """Why a step of a group failed."""
        first = "SELECT error FROM merge_step WHERE merge = ? AND state = 'failed' ORDER BY no LIMIT 1"
        found: str | None = self._one(f"SELECT ({first})", group)
        return found

    def step_counts(self) -> dict[tuple[StepKind, StepState], int]:
        query = "SELECT kind, merge_step.state, COUNT(*) FROM merge_step GROUP BY kind, merge_step.state"
        with self._lock:
            return {(StepKind(kind), StepState(state)): count for kind, state, count in self._db.execute(query)}

    def mark_steps(self, numbers: Iterable[int], state: StepState, error: str | None = None) -> None:
        """Where steps are; on disk at once when they are about to be taken."""
        with self._transaction(durable=state is StepState.SENDING):
            self._db.executemany("UPDATE merge_step SET state = ?, error = ? WHERE no = ?", ((state, error, number) for number in numbers))

    def change_step(self, number: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """What a step changes, as it is found to be just before it is taken."""
        self._write(
            "UPDATE merge_step SET before = ?, after = ?, state = ? WHERE no = ?",
            jsontext.dumps(before), jsontext.dumps(after), StepState.SENDING, number,
        )  # fmt: skip

    # -- what was there --------------------------------------------------------------------------------------------------------------

    def image(self, record_id: str) -> dict[str, Any] | None:
        """What a record of a group held."""
        found = self._one("SELECT (SELECT data FROM merge_image WHERE id = ?)", record_id.lower())
        return None if found is None else jsontext.loads(found)

    def lost_records(self, group: int) -> list[LostRecord]:
        """The losers of a group, as they were."""
        query = "SELECT id, data, new_id, sent_at FROM merge_image WHERE merge = ? AND survivor IS NOT NULL ORDER BY id"
        with self._lock:
            rows = self._db.execute(query, (group,)).fetchall()
        return [LostRecord(record_id, jsontext.loads(data), new_id, sent_at) for record_id, data, new_id, sent_at in rows]

    def survivors(self) -> dict[str, str]:
        """What became of every record that this job has merged away: its id in lower case, and the survivor's."""
        query = (
            "SELECT id, merge_image.survivor FROM merge_image JOIN merge_group ON merge = no "
            "WHERE merge_image.survivor IS NOT NULL AND state IN ('merged', 'partly', 'merging')"
        )
        with self._lock:
            return dict(self._db.execute(query).fetchall())

    def asks_again(self, record_id: str) -> None:
        """A loser is about to be made again."""
        self._write("UPDATE merge_image SET sent_at = ? WHERE id = ?", self._clock.now(), record_id.lower())

    def made_again(self, record_id: str, new_id: str) -> None:
        self._write("UPDATE merge_image SET new_id = ? WHERE id = ?", new_id, record_id.lower())

    def new_ids(self) -> dict[str, str]:
        """The ids of losers that were made again, by the old ones in lower case."""
        with self._lock:
            return dict(self._db.execute("SELECT id, new_id FROM merge_image WHERE new_id IS NOT NULL").fetchall())

    def _insert_steps(self, number: int, steps: Sequence[MergeStep]) -> None:
        rows = (
            (number, step.kind, step.object_id, step.target, jsontext.dumps(step.before), jsontext.dumps(step.after), step.state)
            for step in steps
        )
        query = "INSERT INTO merge_step (merge, kind, object_id, target, before, after, state) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._db.executemany(query, rows)


def _step(row: tuple[Any, ...]) -> MergeStep:
    number, group, kind, object_id, target, before, after, state, _ = row
    return MergeStep(StepKind(kind), object_id, target, jsontext.loads(before), jsontext.loads(after), number, group, StepState(state))
