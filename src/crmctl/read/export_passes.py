"""Read an export: every record once, then the changes made meanwhile."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from crmctl.bulk_context import Progress
from crmctl.client.answers import Page
from crmctl.client.directory import Lister
from crmctl.clock import Clock
from crmctl.errors import ConfigError, UsageError, reason, storage_error
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Record
from crmctl.read.records import Sweep, SweepState
from crmctl.read.stable_pages import AnchoredPass, Listing, PassStatistics, Position, Unsorted
from crmctl.values.filters import Condition
from crmctl.values.moments import MICROS, micros_of, micros_of_date

_SCHEMA = """
CREATE TABLE IF NOT EXISTS record (
    no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, updated INTEGER NOT NULL, wire TEXT NOT NULL, older INTEGER
);
CREATE TABLE IF NOT EXISTS kept (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_MERGE = """
INSERT INTO record (id, updated, wire) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET
    updated = max(record.updated, excluded.updated),
    wire = CASE WHEN excluded.updated >= record.updated THEN excluded.wire ELSE record.wire END,
    older = CASE WHEN excluded.updated < record.updated THEN excluded.updated ELSE record.older END
WHERE excluded.wire <> record.wire AND (excluded.updated >= record.updated OR excluded.updated < coalesce(record.older, record.updated))
"""


class Staging(ExitStack):
    """Records on disk. Without `path`, they are in a temporary file. Raises UsageError if another process has the file open."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self._path = path
        try:
            if path is not None:
                path.touch(mode=0o600)
            # The garbage collector may close it in any thread.
            connected = sqlite3.connect(path or "", isolation_level=None, timeout=0, check_same_thread=False)
            self._db = self.enter_context(closing(connected))
            # One process only and no shared memory, so it works on network file systems.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute(f"PRAGMA journal_mode = {'WAL' if path is not None else 'OFF'}")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            self.close()
            if getattr(error, "sqlite_errorname", None) in ("SQLITE_BUSY", "SQLITE_LOCKED"):
                raise UsageError(f"another export is working on {path}", code="export_running") from error
            if path is not None and path.is_file() and not path.stat().st_size:
                path.unlink()  # the disk is full
            failure = storage_error(error, path, UsageError(f"cannot write {path}: {reason(error)}", code="unwritable_file"))
            raise failure from error

    def __len__(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM record").fetchone()[0])

    @contextmanager
    def step(self, other: Path | None = None) -> Iterator[None]:
        """Write everything in the block together, or nothing. Raises StorageError; if the other database fails, the error names `other`."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise storage_error(error, other or self._path) from error
            raise

    def merge(self, rows: Iterable[Record]) -> int:
        """Add records, each id once with its newest content; return how many were new or changed.

        Content read later with an earlier time of change comes from a lagging replica or a slow clock. The newest by time stays, and the
        conflict is noted.
        """
        before = self._db.total_changes
        self._db.executemany(_MERGE, ((row.id, micros_of(row.updated_at) or 0, jsontext.dumps(row.wire)) for row in rows))
        return self._db.total_changes - before

    def oldest_contradiction(self) -> int | None:
        """Return the earliest time of change (microseconds) of content that arrived after newer content."""
        older: int | None = self._db.execute("SELECT min(older) FROM record").fetchone()[0]
        return older

    def wires(self) -> Iterator[str]:
        """Yield the JSON of every record, in the order of first arrival."""
        return (row[0] for row in self._db.execute("SELECT wire FROM record ORDER BY no"))

    def keep(self, rows: Iterable[Record]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO kept VALUES (?)", ((row.id,) for row in rows))

    def prune(self) -> int:
        """Remove every record not marked as existing, and the marks. Return how many were removed."""
        removed = self._db.execute("DELETE FROM record WHERE id NOT IN (SELECT id FROM kept)").rowcount
        self._db.execute("DELETE FROM kept")
        return removed

    def keep_only(self, admits: Callable[[str], bool]) -> None:
        self._db.create_function("admits", 1, admits, deterministic=True)
        with self.step():
            self._db.execute("DELETE FROM record WHERE NOT admits(wire)")

    @contextmanager
    def attached(self, path: Path, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Open another database as `other` and write to one of the two in a transaction: to `other` with `writes`, else to this one.

        SQL can call `digest`. Raises StorageError.
        """
        self._db.create_function("digest", 1, _digest, deterministic=True)
        self._db.execute("ATTACH ? AS other", (str(path),))
        try:
            with self.step(path if writes else None):
                yield self._db
        finally:
            self._db.execute("DETACH other")

    def note(self, name: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, jsontext.dumps(value)))

    def noted(self, name: str) -> Any:
        row = self._db.execute("SELECT value FROM note WHERE name = ?", (name,)).fetchone()
        return jsontext.loads(row[0]) if row is not None else None


def remove_staging(place: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        place.with_name(place.name + suffix).unlink(missing_ok=True)


RESUMED_WITHIN = 24 * 3600.0
"""Seconds within which an interrupted read is resumed. A later one could hold records deleted since."""


_STATE_FORM = 3
"""Form of the noted progress of a read. Reads with another form begin anew."""


def reopen_staging(place: Path, request: Json, clock: Clock, *, resumes: bool = True) -> tuple[Staging, bool]:
    """Open the staging of a read. Return it, and whether it holds the remains of an interrupted read with the same `request`."""
    staging, now, request = Staging(place), clock.now(), {**request, "form": _STATE_FORM}
    noted, begun = staging.noted("request"), staging.noted("begun")
    if resumes and noted == request and 0 <= now - begun < RESUMED_WITHIN:
        return staging, True
    if noted is not None:
        staging.close()
        remove_staging(place)
        staging = Staging(place)
    with staging.step():
        staging.note("request", request)
        staging.note("begun", now)
    return staging, False


LOOKBACK = 15 * 60.0
"""Seconds before the start from which changes are read again, because the service may have committed them late."""

SETTLE = 60.0
"""Overlap in seconds between two passes over changes."""

UNEVEN = 2 * MICROS
"""Largest difference between two readings of one clock that whole seconds and slow answers can explain."""

ROUNDS = 8
"""Most passes over changes. If the service never rests, the last pass decides how consistent the export is."""


class Phase(StrEnum):
    SWEEP = "sweep"
    PRUNE = "prune"
    CHANGES = "changes"
    DONE = "done"


class Flag(StrEnum):
    """A warning about the file."""

    UNSTABLE_TIES = "unstable_ties"
    UNSORTED = "unsorted"
    UPDATES_UNSEEN = "updates_unseen"
    STILL_CHANGING = "still_changing"


@frozen
class GatherMark:
    """The end of a read of changes. Changes before `since` are known.

    `as_of` is the start of its last pass by the service's clock, `taken` the same moment by this machine's clock. All times are in
    microseconds.
    """

    since: int
    as_of: int
    taken: int

    def horizon(self, now: int, here: int) -> int:
        """Return the time from which to read changes, if the service's clock shows `now` and this machine's `here`.

        If the service's clock was set back, read that much further back: newer changes carry times that seem known.
        """
        gone_back = self.as_of - now + max(0, here - self.taken)
        return self.since - (gone_back if gone_back > UNEVEN else 0)


@dataclass
class GatherState:
    """The progress of an export, stored with the records.

    Times are in microseconds of the service's clock. `started` is T0, `horizon` the start of the next pass over changes, `as_of` the start
    of the last pass, `taken` the same by this machine's clock, `newest` the newest change at that start.
    """

    phase: Phase = Phase.SWEEP
    sweep: SweepState = field(default_factory=lambda: SweepState(Position()))
    started: int | None = None
    horizon: int = 0
    as_of: int = 0
    taken: int = 0
    newest: int | None = None
    rounds: int = 0
    pruned: int = 0
    passes: list[Json] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    statistics: PassStatistics = field(default_factory=PassStatistics)

    @classmethod
    def from_document(cls, document: Json) -> Self:
        sweep, statistics = SweepState.from_document(document["sweep"]), PassStatistics(**document["statistics"])
        return cls(**{**document, "phase": Phase(document["phase"]), "sweep": sweep, "statistics": statistics})

    def flag(self, flag: Flag) -> None:
        if flag not in self.flags:
            self.flags.append(str(flag))


@dataclass
class Gathering:
    """Reads one export and resumes where its staging ended. With `mark`, it reads only the changes since an earlier run."""

    lister: Lister
    object_id: str
    staging: Staging
    clock: Clock
    progress: Progress
    conditions: Sequence[Condition] = ()
    prune: bool = False
    mark: GatherMark | None = None

    def __post_init__(self) -> None:
        noted = self.staging.noted("gathering")
        self.state = GatherState.from_document(noted) if noted else GatherState()

    def run(self) -> GatherState:
        """Read until the staging is complete. It keeps every page. Raises the errors of a sweep."""
        state = self.state
        if state.started is None:
            state.statistics.requests += 1
            self.begin(
                self.lister.list_records(self.object_id, filters=self.conditions, sort="updated_at", order="desc", limit=1, offset=0)
            )
        while state.phase is not Phase.DONE:
            if state.phase is Phase.SWEEP:
                self.sweep()
                self._enter(Phase.PRUNE if self.prune else Phase.CHANGES)
            elif state.phase is Phase.PRUNE:
                self._prune()
            else:
                self._follow_changes()
        return state

    def begin(self, head: Page[Record]) -> None:
        """Take T0 from the service's clock, and the newest change in case records use another clock. `head`: the newest changes."""
        state = self.state
        newest = micros_of(head.items[0].updated_at) if head.items else None
        now = self._now(head.date)
        mark = self.mark
        state.started, state.as_of, state.taken, state.newest = now, now, self._here(), newest
        if mark is None:
            horizon = now - int(LOOKBACK * MICROS)
            state.horizon = horizon if newest is None else min(horizon, newest)
        else:
            state.horizon = mark.horizon(now, state.taken)
        self._enter(Phase.SWEEP if mark is None else Phase.CHANGES)

    def _enter(self, phase: Phase) -> None:
        self.state.phase = phase
        if phase is Phase.PRUNE:
            self.state.sweep = SweepState(Position())
        with self.staging.step():
            self._save()

    def _save(self) -> None:
        self.staging.note("gathering", asdict(self.state))

    def sweep(self, take: Callable[[Iterable[Record]], int | None] | None = None) -> None:
        """Read every record that exists from beginning to end into the staging, or give the pages to `take`."""
        state, before = self.state, self.state.statistics.requests
        unstable = state.statistics.unstable
        reading = Sweep(self.lister, Listing(self.object_id, self.conditions), state.statistics, state.sweep)
        for page in reading.pages():
            state.sweep = reading.state
            with self.staging.step():
                new = (take or self.staging.merge)(page)
                self._save()
            self.progress.advance(len(page) if new is None else new)
        if state.statistics.unstable > unstable:
            state.flag(Flag.UNSTABLE_TIES)
        if not reading.state.by_time:
            state.flag(Flag.UNSORTED)
        state.passes.append({"pass": str(state.phase), "requests": state.statistics.requests - before, "records": reading.state.rows})

    def _prune(self) -> None:
        """Read everything again and drop records that are no longer listed; after an unstable group, absence proves nothing."""

        def take(rows: Iterable[Record]) -> None:
            kept = list(rows)
            self.staging.keep(kept)
            self.staging.merge(kept)

        unstable = self.state.statistics.unstable
        self.sweep(take)
        with self.staging.step():
            if self.state.statistics.unstable == unstable:
                self.state.pruned = self.staging.prune()
            self.state.phase = Phase.CHANGES
            self._save()

    def _follow_changes(self) -> None:
        """Read the changes since the horizon once, newest first."""
        state, before = self.state, self.state.statistics.requests
        unsorted = Flag.UPDATES_UNSEEN in state.flags
        field = "created_at" if unsorted else "updated_at"
        listing = Listing(self.object_id, self.conditions, field, descending=True, until=state.horizon)
        reading = AnchoredPass(self.lister, listing, state.statistics)
        earlier = GatherMark(state.horizon, state.as_of, state.taken)
        news, rows, began, newest = 0, 0, None, None
        try:
            for page in reading.pages():
                if began is None:
                    began = self._now(None), self._here()
                    newest = listing.key(page[0]) if page else None
                    reading.read_back_to(earlier.horizon(*began))
                with self.staging.step():
                    news += self.staging.merge(page)
                rows += len(page)
        except Unsorted:
            # Records without a time of change may be sorted by creation, so changes are invisible.
            # A full read shows the changes since an earlier run.
            state.flag(Flag.UPDATES_UNSEEN)
            if unsorted:
                self._enter(Phase.DONE)
            elif self.mark is not None:
                self._enter(Phase.SWEEP)
            return
        state.rounds += 1
        if began is not None:
            state.as_of, state.taken = began
        state.newest = -newest if newest is not None else state.newest
        state.horizon = min(state.as_of, state.as_of if state.newest is None else state.newest) - int(SETTLE * MICROS)
        state.passes.append({"pass": str(state.phase), "requests": state.statistics.requests - before, "records": rows, "news": news})
        if news and state.rounds == ROUNDS:
            state.flag(Flag.STILL_CHANGING)
        self._enter(Phase.CHANGES if news and state.rounds < ROUNDS else Phase.DONE)

    def _here(self) -> int:
        return int(self.clock.now() * MICROS)

    def _now(self, date: str | None) -> int:
        date_told = micros_of_date(date) if date is not None else self.state.statistics.date
        return date_told if date_told is not None else self._here()


_DELIVERED_SCHEMA = """
CREATE TABLE IF NOT EXISTS delivered (id TEXT PRIMARY KEY, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS mark (
    one INTEGER PRIMARY KEY CHECK (one = 1), run INTEGER NOT NULL, since INTEGER, as_of INTEGER NOT NULL, taken INTEGER NOT NULL
);
"""

_DROP = """
DELETE FROM record
WHERE EXISTS (SELECT 1 FROM other.delivered AS old WHERE old.id = record.id AND old.digest = digest(record.wire))
"""
_REMEMBER = "INSERT OR REPLACE INTO other.delivered SELECT id, digest(wire) FROM record"
_MARK = "INSERT OR REPLACE INTO other.mark VALUES (1, ?, ?, ?, ?)"
_FORMAT = 2
"""Format of the memory. Other formats are not read."""


class Increments:
    """The memory of one incremental export, identified by service, object, conditions and file.

    `run` counts complete runs. `mark` is the end of the last one; None before the first run and after a run without records.
    """

    def __init__(self, state_directory: Path, identity: Json) -> None:
        folder = state_directory / "increments"
        name = hashlib.sha256(jsontext.dumps({**identity, "format": _FORMAT}, sort_keys=True).encode()).hexdigest()[:24]
        self._path = folder / f"{name}.db"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError as error:
            refused = ConfigError(f"cannot write to {folder}: {reason(error)}", hint="CRMCTL_STATE_DIR names another directory")
            raise storage_error(error, self._path, refused) from error
        try:
            with closing(sqlite3.connect(self._path, isolation_level=None)) as db:
                db.executescript(_DELIVERED_SCHEMA)
                row = db.execute("SELECT run, since, as_of, taken FROM mark").fetchone()
        except sqlite3.Error as error:
            raise storage_error(error, self._path) from error
        self.run: int = row[0] if row is not None else 0
        self.mark = GatherMark(*row[1:]) if row is not None and row[1] is not None else None

    def drop_delivered(self, staging: Staging) -> None:
        """Remove records already delivered as they are now. Only a record's last delivery counts, so a change back is a change."""
        noted, oldest = staging.noted("contradiction"), staging.oldest_contradiction()
        with staging.attached(self._path, writes=False) as db:
            staging.note("contradiction", min((moment for moment in (noted, oldest) if moment is not None), default=None))
            db.execute(_DROP)

    def remember(self, staging: Staging, state: GatherState) -> None:
        """Mark the records of the staging as delivered.

        Raises UsageError if another run has finished meanwhile, because it delivered the same. The next run also looks back from the newest
        change, because the clock that stamps records may be slow, and checks records with conflicting contents again.
        """
        back, contradiction = int(LOOKBACK * MICROS), staging.noted("contradiction")
        since = None if state.newest is None else min(state.as_of - back, state.newest - back, contradiction or state.newest)
        with staging.attached(self._path, writes=True) as db:
            run = db.execute("SELECT run FROM other.mark").fetchone()
            if run is not None and run[0] != self.run:
                raise UsageError(
                    "another run of this export was complete meanwhile, and gave the same changes",
                    hint="leave out what this one gave",
                    code="export_running",
                )
            db.execute(_REMEMBER)
            db.execute(_MARK, (self.run + 1, since, state.as_of, state.taken))


def _digest(wire: str) -> bytes:
    """Return a digest of a record that ignores the order of its keys."""
    return hashlib.blake2b(jsontext.dumps(jsontext.loads(wire), sort_keys=True).encode("utf-8", "surrogatepass"), digest_size=8).digest()
