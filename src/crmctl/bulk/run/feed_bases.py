"""What a feed wrote last, as keyed hashes that say nothing to anybody else: one SQLite file per feed, kept between its imports.

A base is either known to be what the record held when the feed's last import of the row was confirmed, or it is not there. What a job is
about to write is written down before it is sent, and becomes a base when the job's journal confirms the row.
"""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import MappingProxyType

from crmctl.bulk.journal.journal import Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.errors import storage_error
from crmctl.models import jsontext
from crmctl.write_ahead_log import begin_log

FOLDER = "feeds"
KEY_NAME = "key"
CHUNK_ROWS = 500
LONGEST_WAIT = 60.0
"""Seconds for others who write."""

_TABLES = """
CREATE TABLE IF NOT EXISTS base (row BLOB PRIMARY KEY, hashes TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS written (
    job TEXT NOT NULL, ordinal INTEGER NOT NULL, row BLOB NOT NULL, hashes TEXT NOT NULL, before TEXT, undoing INTEGER NOT NULL DEFAULT 0,
    is_old INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job, ordinal)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS written_row ON written (row);
"""
"""`base`: by row of the feed, the hash of each value. `written`: rows of jobs; those with `before`, which are the bases they replaced, are
confirmed. `is_old`: another job has written the row since."""

_WRITTEN = frozenset({RowState.CREATED, RowState.UPDATED, RowState.UNCHANGED})

Hashes = dict[str, str]
NONE: Mapping[str, str] = MappingProxyType({})


class FeedBases:
    """Of one feed into one object. Without a file it is empty, and nothing is made before something is to be kept."""

    def __init__(self, state: Path, identity: tuple[str, str, str]) -> None:
        """`identity`: the origin of the service, the object's id, the name of the feed."""
        self._folder = state / FOLDER
        self._name = "\0".join(identity).encode()
        self._key = _key(self._folder / KEY_NAME, make=False) or secrets.token_bytes(32)
        self._db: sqlite3.Connection | None = self._connect() if self._path.exists() else None
        self._is_settled = False

    @property
    def _path(self) -> Path:
        """Another one where the key is another: what it hashed means nothing then."""
        return self._folder / f"{hmac.digest(self._key, self._name, 'sha256').hex()[:32]}.sqlite"

    def close(self) -> None:
        if self._db is not None:
            self._db.close()

    def prepare(self) -> None:
        """Make what is needed to keep something. Raises StorageError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._key = _key(self._folder / KEY_NAME, make=True) or self._key
            self._path.touch(mode=0o600)
            self._db = self._db or self._connect()
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error, self._path) or error from error

    # -- hashes ----------------------------------------------------------------------------------------------------------------------

    def row_of(self, key: str) -> bytes:
        """What stands for a row, by the normal form of its key."""
        return hmac.digest(self._key, self._name + b"\0" + key.encode(), "sha256")[:16]

    def hash_of(self, row: bytes) -> Callable[[str, str], str]:
        """What stands for the values of a row: two rows with one value do not have the same."""

        def hashed(unit: str, form: str) -> str:
            return b64encode(hmac.digest(self._key, row + unit.encode() + b"\0" + form.encode(), "sha256")[:9]).decode()

        return hashed

    # -- bases -----------------------------------------------------------------------------------------------------------------------

    def known(self, row: bytes) -> Hashes:
        """What the feed wrote last, by unit; before `settle_all` nothing of what a job may or may not have written since."""
        if self._db is None:
            return {}
        found = self._db.execute("SELECT hashes FROM base WHERE row = ?", (row,)).fetchone()
        bases: Hashes = jsontext.loads(found[0]) if found is not None else {}
        if not bases or self._is_settled:
            return bases
        for (hashes,) in self._db.execute("SELECT hashes FROM written WHERE row = ? AND before IS NULL", (row,)):
            bases = _without(bases, jsontext.loads(hashes))
        return bases

    def intend(self, job: str, rows: Iterable[tuple[int, bytes, Mapping[str, str]]]) -> None:
        """What the rows of a job will have written: ordinal, row, hashes. On disk when it returns."""
        assert self._db is not None
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR REPLACE INTO written (job, ordinal, row, hashes) VALUES (?, ?, ?, ?)",
                ((job, ordinal, row, jsontext.dumps(dict(hashes))) for ordinal, row, hashes in rows),
            )

    def forget(self, job: str) -> None:
        """The job begins anew; nothing of it was sent."""
        if self._db is not None:
            self._db.execute("DELETE FROM written WHERE job = ?", (job,))

    def begin_undo(self, job: str) -> None:
        """From now on the records of a job may be as they were before it."""
        if self._db is not None:
            self._db.execute("UPDATE written SET undoing = 1 WHERE job = ?", (job,))

    # -- what became of jobs ---------------------------------------------------------------------------------------------------------

    def settle_all(self, open_job: Callable[[str], Journal | None], *, but: str) -> None:
        """Bring the bases up to date with the journals of all jobs `but` one; a job that is gone leaves nothing that is not known."""
        self._is_settled = True
        if self._db is None:
            return
        for (job,) in self._db.execute("SELECT DISTINCT job FROM written WHERE job <> ?", (but,)).fetchall():
            journal = open_job(job)
            if journal is None:
                self._lose(job)
                continue
            with closing(journal):
                self.settle(journal)

    def settle(self, journal: Journal) -> None:
        """Bring the bases up to date with what a journal says of the rows of its job."""
        if self._db is None:
            return
        job, last = journal.header.job, -1
        is_over = journal.state not in (JobState.CHECKING, JobState.OPEN)
        has_undone = journal.undone_count > 0
        may_be_written = bool(journal.header.plan.get("references"))  # a row that could not be linked counts as failed
        query = (
            "SELECT ordinal, row, hashes, before, is_old FROM written WHERE job = ? AND ordinal > ? AND (before IS NULL OR ?) "
            "ORDER BY ordinal LIMIT ?"
        )
        while found := self._db.execute(query, (job, last, has_undone, CHUNK_ROWS)).fetchall():
            known = journal.rows(found[0][0], found[-1][0])
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for ordinal, row, hashes, before, is_old in found:
                    entry = known.get(ordinal)
                    state = entry.state if entry is not None else RowState.UNSENT
                    if before is not None:
                        if entry is not None and journal.is_undone(entry.record_id):
                            self._take_back(job, ordinal, (row, jsontext.loads(hashes), jsontext.loads(before)), is_old=bool(is_old))
                    elif state in _WRITTEN:
                        self._confirm(job, ordinal, (row, jsontext.loads(hashes)), is_old=bool(is_old))
                    elif state is RowState.IN_DOUBT or (state is RowState.FAILED and may_be_written):
                        self._change(row, jsontext.loads(hashes))
                    elif is_over or state is not RowState.UNSENT:
                        self._db.execute("DELETE FROM written WHERE job = ? AND ordinal = ?", (job, ordinal))
            last = found[-1][0]
        if journal.state is JobState.UNDONE or not has_undone:
            self._db.execute("UPDATE written SET undoing = 0 WHERE job = ?", (job,))

    def _confirm(self, job: str, ordinal: int, written: tuple[bytes, Hashes], *, is_old: bool) -> None:
        assert self._db is not None
        row, hashes = written
        before = {unit: one for unit, one in self._bases(row).items() if unit in hashes}
        if is_old:
            self._change(row, hashes)
        else:
            self._change(row, (), hashes)
            self._db.execute("UPDATE written SET is_old = 1 WHERE row = ? AND (job <> ? OR ordinal <> ?)", (row, job, ordinal))
        self._db.execute(
            "UPDATE written SET before = ? WHERE job = ? AND ordinal = ?", (jsontext.dumps({} if is_old else before), job, ordinal)
        )

    def _take_back(self, job: str, ordinal: int, written: tuple[bytes, Hashes, Hashes], *, is_old: bool) -> None:
        assert self._db is not None
        row, hashes, before = written
        self._change(row, hashes, {} if is_old else before)
        self._db.execute("DELETE FROM written WHERE job = ? AND ordinal = ?", (job, ordinal))

    def _lose(self, job: str) -> None:
        """Nobody can say any more which rows of a job were written, or taken back."""
        assert self._db is not None
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for row, hashes in self._db.execute(
                "SELECT row, hashes FROM written WHERE job = ? AND (before IS NULL OR undoing)", (job,)
            ).fetchall():
                self._change(row, jsontext.loads(hashes))
            self._db.execute("DELETE FROM written WHERE job = ?", (job,))

    def _bases(self, row: bytes) -> Hashes:
        assert self._db is not None
        found = self._db.execute("SELECT hashes FROM base WHERE row = ?", (row,)).fetchone()
        return jsontext.loads(found[0]) if found is not None else {}

    def _change(self, row: bytes, gone: Iterable[str], new: Mapping[str, str] = NONE) -> None:
        """Forget the bases of some units of a row, and learn others."""
        assert self._db is not None
        self._db.execute("INSERT OR REPLACE INTO base VALUES (?, ?)", (row, jsontext.dumps(_without(self._bases(row), gone) | dict(new))))

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, timeout=LONGEST_WAIT)
        begin_log(database, LONGEST_WAIT)
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(_TABLES)
        return database


def _without(bases: Mapping[str, str], units: Iterable[str]) -> Hashes:
    gone = set(units)
    return {unit: one for unit, one in bases.items() if unit not in gone}


def _key(path: Path, *, make: bool) -> bytes | None:
    """The random key of this machine's hashes; with `make` there is one afterwards."""
    with suppress(FileNotFoundError):
        if len(key := path.read_bytes()) == 32:
            return key
    if not make:
        return None
    fresh = path.with_name(f"{KEY_NAME}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):  # somebody else was faster
            os.link(fresh, path)
    finally:
        fresh.unlink()
    return path.read_bytes()
