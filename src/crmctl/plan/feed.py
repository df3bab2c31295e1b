"""Feeds: the values each feed wrote last, and the import that compares them with the records."""

from __future__ import annotations

import hmac
import os
import secrets
import sqlite3
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from crmctl.clock import Clock
from crmctl.errors import CrmctlError, UsageError, storage_error
from crmctl.files.spills import CHUNK_ROWS, open_spill, open_tables
from crmctl.files.validation import Payload
from crmctl.frozen import frozen
from crmctl.match.keys import Wanted
from crmctl.models import jsontext
from crmctl.models.resources import Attribute
from crmctl.plan.import_plan import FeedPlan
from crmctl.values.composites import NO_PARTS, Form, Parts, part_name
from crmctl.values.equality import base_form, is_unchanged
from crmctl.write.database import JobState, RowState
from crmctl.write.jobs import FeedCounts
from crmctl.write.journal import UNDONE, Journal, is_undone
from crmctl.write_ahead_log import begin_log

NOTHING: Sequence[Any] = (None, "", [], {})


class OnConflict(StrEnum):
    """Rule for a value that both the file and another client changed, or whose base is unknown."""

    KEEP = "keep"
    TAKE = "take"
    FAIL = "fail"
    FILL = "fill"


class ValueChoice(StrEnum):
    """Outcome of a choice between the file's value and the record's value."""

    KEPT = "kept"
    TAKEN = "taken"
    FILLED = "filled"
    FAILED = "failed"


@frozen
class Policy:
    """The parsed `--on-conflict` option, such as `take,phone=keep`."""

    default: OnConflict = OnConflict.KEEP
    by_slug: Mapping[str, OnConflict] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None, slugs: Collection[str] | None = None) -> Policy:
        """Parse a policy. Raises UsageError if it is malformed or names an attribute that is not in `slugs`."""
        default, by_slug = OnConflict.KEEP, {}
        for item in (text or "").split(",") if text else ():
            slug, sign, word = item.strip().rpartition("=")
            if word not in list(OnConflict) or (sign and not slug):
                hint = "for example --on-conflict take,phone=keep,notes=fill"
                raise UsageError(f"--on-conflict takes {', '.join(OnConflict)}, not {item.strip()!r}", hint=hint)
            if not slug:
                default = OnConflict(word)
            elif slugs is not None and slug not in slugs:
                hint = f"the attributes are: {', '.join(slugs)}"
                raise UsageError(f"--on-conflict: there is no attribute {slug}", hint=hint, code="unknown_attribute")
            else:
                by_slug[slug] = OnConflict(word)
        return cls(default, by_slug)

    def of(self, slug: str) -> OnConflict:
        return self.by_slug.get(slug, self.default)


class ChosenValue(NamedTuple):
    """A value that differs between file and record, and the choice made.

    `unit`: the attribute, or `attribute.part`. `is_conflict`: both changed it or the base is unknown; otherwise only another client did.
    """

    unit: str
    choice: ValueChoice
    is_conflict: bool
    base_known: bool
    file: Any
    record: Any

    def to_document(self) -> dict[str, Any]:
        return {
            "attribute": self.unit,
            "choice": str(self.choice),
            "conflict": self.is_conflict,
            "baseKnown": self.base_known,
            "file": self.file,
            "record": self.record,
        }


class Merge(NamedTuple):
    """Outcome of the comparison for one row.

    `left_out`: values not written, by attribute its parts, or None for the whole attribute. `bases`: by unit, the hash of each value that
    the record then shares with the file.
    """

    left_out: Mapping[str, Sequence[str] | None] = {}
    chosen: Sequence[ChosenValue] = ()
    bases: Mapping[str, str] = {}

    @property
    def kept(self) -> int:
        return sum(choice.choice is ValueChoice.KEPT and not choice.is_conflict for choice in self.chosen)

    @property
    def conflicts(self) -> int:
        return sum(choice.is_conflict for choice in self.chosen)

    @property
    def told(self) -> str:
        """List the kept values for the result files. Values in conflict are marked."""
        kept = [choice for choice in self.chosen if choice.choice is ValueChoice.KEPT]
        return ", ".join(f"{choice.unit} (conflict)" if choice.is_conflict else choice.unit for choice in kept)

    @property
    def failed(self) -> Sequence[ChosenValue]:
        return [choice for choice in self.chosen if choice.choice is ValueChoice.FAILED]

    def reduced(self, data: Mapping[str, Any], parts: Mapping[str, Parts]) -> tuple[dict[str, Any], dict[str, Parts]]:
        out = self.left_out
        remaining = {
            slug: {part: value for part, value in values.items() if part not in (out.get(slug) or ())} for slug, values in parts.items()
        }
        gone = {slug for slug in out if out[slug] is None or not remaining.get(slug)}
        return (
            {slug: value for slug, value in data.items() if slug not in gone},
            {slug: values for slug, values in remaining.items() if slug not in gone},
        )


class _Unit(NamedTuple):
    slug: str
    part: str | None
    attribute: Attribute | None
    file: Any
    record: Any

    @property
    def name(self) -> str:
        return self.slug if self.part is None else f"{self.slug}.{self.part}"


Hash = Callable[[str, str], str]
"""Hash the normal form of a value, given the name of its unit."""


@frozen
class ThreeWay:
    """Comparison for one import. `policy` decides conflicts."""

    policy: Policy
    attributes: Mapping[str, Attribute]

    def first(self, data: Mapping[str, Any], parts: Mapping[str, Parts], hash_of: Hash) -> Merge:
        """Return the outcome for a row that creates its record: every value comes from the file."""
        return Merge(bases={unit.name: _hashed(unit, unit.file, hash_of) for unit in self._units(data, parts, {})})

    def merge(
        self, row: tuple[Mapping[str, Any], Mapping[str, Parts]], current: Mapping[str, Any], last_bases: Mapping[str, str], hash_of: Hash
    ) -> Merge:
        """Compare a row (data and parts) with its record and with the hashes of the values the feed wrote last (`known`)."""
        slugs: dict[str, None] = {}
        parts: dict[str, list[str]] = {}
        chosen: list[ChosenValue] = []
        bases: dict[str, str] = {}
        for unit in self._units(*row, current):
            base, now = last_bases.get(unit.name), _hashed(unit, unit.file, hash_of)
            writes, choice = self._choose(unit, base, now, _hashed(unit, unit.record, hash_of))
            if choice is not None:
                chosen.append(choice)
            if writes or choice is None:
                bases[unit.name] = now
            if not writes and not self._goes_along(unit):
                if unit.part is None:
                    slugs[unit.slug] = None
                else:
                    parts.setdefault(unit.slug, []).append(unit.part)
        return Merge({**slugs, **parts}, chosen, bases)

    def _choose(self, unit: _Unit, base: str | None, now: str, there: str) -> tuple[bool, ChosenValue | None]:
        """Return whether to write the file's value, and the choice if one was necessary."""
        rule, is_known, is_empty = self.policy.of(unit.slug), base is not None, unit.record in NOTHING
        if self._holds(unit):
            return False, None
        if rule is not OnConflict.TAKE and now == there:
            return False, None  # the same value in another spelling
        bases = base.split("\n") if base is not None else []  # several after a write of unknown outcome
        if there in bases:
            return now != there or rule is OnConflict.TAKE, None
        is_conflict = now not in bases
        if rule is OnConflict.TAKE:
            quiet = now == there or (is_empty and not is_known)
            return True, None if quiet else _chosen(unit, ValueChoice.TAKEN, is_conflict, is_known)
        if not is_conflict:
            return False, _chosen(unit, ValueChoice.KEPT, is_conflict, is_known)
        if rule is OnConflict.FILL and is_empty:
            return True, _chosen(unit, ValueChoice.FILLED, is_conflict, is_known) if is_known else None
        return False, _chosen(unit, ValueChoice.FAILED if rule is OnConflict.FAIL else ValueChoice.KEPT, is_conflict, is_known)

    def _goes_along(self, unit: _Unit) -> bool:
        """Whether a value that the record already holds may be sent with the other values of its row."""
        return self._holds(unit) and (unit.file == unit.record or self.policy.of(unit.slug) is OnConflict.TAKE)

    def _holds(self, unit: _Unit) -> bool:
        attributes = {"it": unit.attribute} if unit.attribute is not None and unit.part is None else {}
        return is_unchanged({"it": unit.file}, {"it": unit.record}, attributes)

    def _units(self, data: Mapping[str, Any], parts: Mapping[str, Parts], current: Mapping[str, Any]) -> Iterator[_Unit]:
        for slug, value in data.items():
            attribute = self.attributes.get(slug)
            if slug not in parts:
                yield _Unit(slug, None, attribute, value, current.get(slug))
        for slug, values in (parts or NO_PARTS).items():
            for part, value in values.items():
                yield _Unit(slug, part, self.attributes.get(slug), value, _part(self.attributes.get(slug), part, current.get(slug)))


def _part(attribute: Attribute | None, part: str, value: Any) -> Any:
    """Return one part of a value. A value without parts stands for every part, a bare amount only for the amount."""
    if not isinstance(value, dict):
        is_amount = attribute is not None and part == part_name(attribute, "currency", Form()) and not isinstance(value, str)
        return None if is_amount else value
    return value.get(part_name(attribute, part, Form(keys=tuple(value)))) if attribute is not None else value.get(part)


def _hashed(unit: _Unit, value: Any, hash_of: Hash) -> str:
    return hash_of(unit.name, base_form(unit.attribute if unit.part is None else None, value))


def _chosen(unit: _Unit, choice: ValueChoice, is_conflict: bool, base_known: bool) -> ChosenValue:
    return ChosenValue(unit.name, choice, is_conflict, base_known, unit.file, unit.record)


FOLDER = "feeds"
KEY_NAME = "key"
LONGEST_WAIT = 60.0
"""Seconds to wait for other writers."""

_TABLES = """
CREATE TABLE IF NOT EXISTS base (row BLOB PRIMARY KEY, hashes TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS written (
    job TEXT NOT NULL, ordinal INTEGER NOT NULL, row BLOB NOT NULL, hashes TEXT NOT NULL, before TEXT, undoing INTEGER NOT NULL DEFAULT 0,
    is_old INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (job, ordinal)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS written_row ON written (row);
"""
"""`base` holds the hash of each value by row of the feed. `written` holds the rows of jobs. A confirmed row has `before`, the bases it
replaced. `is_old` marks a row that another job has written since."""

_WRITTEN = frozenset({RowState.CREATED, RowState.UPDATED, RowState.UNCHANGED})

Hashes = dict[str, str]
NONE: Mapping[str, str] = MappingProxyType({})


class FeedBases:
    """The bases of one feed into one object. Without a database file there are none, and none can be stored; `prepare` creates the file."""

    def __init__(self, state: Path, identity: tuple[str, str, str]) -> None:
        """Open the bases for `identity`: the origin of the service, the object's id and the name of the feed."""
        self._folder = state / FOLDER
        self._name = "\0".join(identity).encode()
        self._key = _key(self._folder / KEY_NAME, make=False) or secrets.token_bytes(32)
        self._db = self._connect() if self._path.exists() else open_spill(_TABLES)
        self._is_settled = False

    @property
    def _path(self) -> Path:
        """The database file. Its name depends on the hash key, because a different key cannot use the hashes."""
        return self._folder / f"{hmac.digest(self._key, self._name, 'sha256').hex()[:32]}.sqlite"

    def close(self) -> None:
        self._db.close()

    def prepare(self) -> None:
        """Create the hash key and the database file. Raises StorageError."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._key = _key(self._folder / KEY_NAME, make=True) or self._key
            self._path.touch(mode=0o600)
            self._db.close()
            self._db = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise storage_error(error, self._path) from error

    def row_of(self, key: str) -> bytes:
        """Return the hash that identifies a row, from the normal form of its key."""
        return hmac.digest(self._key, self._name + b"\0" + key.encode(), "sha256")[:16]

    def hash_of(self, row: bytes) -> Callable[[str, str], str]:
        """Return the hash function for the values of a row. Equal values in two rows have different hashes."""

        def hashed(unit: str, form: str) -> str:
            return b64encode(hmac.digest(self._key, row + unit.encode() + b"\0" + form.encode(), "sha256")[:9]).decode()

        return hashed

    def known(self, row: bytes) -> Hashes:
        """Return the hashes of the values the feed wrote last, by unit.

        A unit that an unsettled job may have overwritten has several hashes, one a line.
        """
        bases = self._bases(row)
        if not bases or self._is_settled:
            return bases
        for (hashes,) in self._db.execute("SELECT hashes FROM written WHERE row = ? AND before IS NULL", (row,)):
            bases = _either(bases, jsontext.loads(hashes))
        return bases

    def intend(self, job: str, rows: Iterable[tuple[int, bytes, Mapping[str, str]]]) -> None:
        """Store the values a job is about to write as (ordinal, row, hashes). They are on disk when this returns."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(
                "INSERT OR REPLACE INTO written (job, ordinal, row, hashes) VALUES (?, ?, ?, ?)",
                ((job, ordinal, row, jsontext.dumps(dict(hashes))) for ordinal, row, hashes in rows),
            )

    def forget(self, job: str) -> None:
        """Forget the rows of a job that starts again before it has sent anything."""
        self._db.execute("DELETE FROM written WHERE job = ?", (job,))

    def begin_undo(self, job: str) -> None:
        """Note that an undo may restore the records of a job from now on."""
        self._db.execute("UPDATE written SET undoing = 1 WHERE job = ?", (job,))

    def settle_all(self, jobs: Path, clock: Clock, *, but: str) -> None:
        """Update the bases from the journals of all jobs except `but`. For a missing journal, drop the bases its job may have changed."""
        self._is_settled = True
        for (job,) in self._db.execute("SELECT DISTINCT job FROM written WHERE job <> ?", (but,)).fetchall():
            try:
                journal = Journal(jobs / job, clock)
            except CrmctlError:
                self._lose(job)
                continue
            with closing(journal):
                self.settle(journal)

    def settle(self, journal: Journal) -> None:
        job, last = journal.header.job, -1
        is_over = journal.state not in (JobState.CHECKING, JobState.OPEN)
        was_undone = bool(journal.number_kept(UNDONE))
        may_be_written = bool(journal.header.plan.get("references"))  # a row that could not be linked counts as failed
        query = (
            "SELECT ordinal, row, hashes, before, is_old FROM written WHERE job = ? AND ordinal > ? AND (before IS NULL OR ?) "
            "ORDER BY ordinal LIMIT ?"
        )
        while pending := self._db.execute(query, (job, last, was_undone, CHUNK_ROWS)).fetchall():
            states = journal.rows(pending[0][0], pending[-1][0])
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for ordinal, row, hashes, before, is_old in pending:
                    entry = states.get(ordinal)
                    state = entry.state if entry is not None else RowState.UNSENT
                    if before is not None:
                        if entry is not None and entry.record_id is not None and is_undone(journal, entry.record_id):
                            self._take_back(job, ordinal, (row, jsontext.loads(hashes), jsontext.loads(before)), is_old=bool(is_old))
                    elif state in _WRITTEN:
                        self._confirm(job, ordinal, (row, jsontext.loads(hashes)), is_old=bool(is_old))
                    elif state is RowState.IN_DOUBT or (state is RowState.FAILED and may_be_written):
                        if not is_old:  # the record holds the values of an earlier import, or these
                            self._change(row, (), _either(self._bases(row), jsontext.loads(hashes)))
                    elif is_over or state is not RowState.UNSENT:
                        self._db.execute("DELETE FROM written WHERE job = ? AND ordinal = ?", (job, ordinal))
            last = pending[-1][0]
        if journal.state is JobState.UNDONE or not was_undone:
            self._db.execute("UPDATE written SET undoing = 0 WHERE job = ?", (job,))

    def _confirm(self, job: str, ordinal: int, written: tuple[bytes, Hashes], *, is_old: bool) -> None:
        row, hashes = written
        before = {unit: value_hash for unit, value_hash in self._bases(row).items() if unit in hashes}
        if is_old:
            self._change(row, hashes)
        else:
            self._change(row, (), hashes)
            self._db.execute("UPDATE written SET is_old = 1 WHERE row = ? AND (job <> ? OR ordinal <> ?)", (row, job, ordinal))
        self._db.execute(
            "UPDATE written SET before = ? WHERE job = ? AND ordinal = ?", (jsontext.dumps({} if is_old else before), job, ordinal)
        )

    def _take_back(self, job: str, ordinal: int, written: tuple[bytes, Hashes, Hashes], *, is_old: bool) -> None:
        row, hashes, before = written
        self._change(row, hashes, {} if is_old else before)
        self._db.execute("DELETE FROM written WHERE job = ? AND ordinal = ?", (job, ordinal))

    def _lose(self, job: str) -> None:
        """Drop the bases of a job without a journal: crmctl cannot tell which of its rows were written or undone."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for row, hashes in self._db.execute(
                "SELECT row, hashes FROM written WHERE job = ? AND (before IS NULL OR undoing)", (job,)
            ).fetchall():
                self._change(row, jsontext.loads(hashes))
            self._db.execute("DELETE FROM written WHERE job = ?", (job,))

    def _bases(self, row: bytes) -> Hashes:
        row_found = self._db.execute("SELECT hashes FROM base WHERE row = ?", (row,)).fetchone()
        return jsontext.loads(row_found[0]) if row_found is not None else {}

    def _change(self, row: bytes, gone: Collection[str], new: Mapping[str, str] = NONE) -> None:
        """Replace bases of a row: drop the units in `gone`, then set those in `new`."""
        kept = {unit: value_hash for unit, value_hash in self._bases(row).items() if unit not in gone}
        self._db.execute("INSERT OR REPLACE INTO base VALUES (?, ?)", (row, jsontext.dumps(kept | dict(new))))

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, timeout=LONGEST_WAIT)
        begin_log(database, LONGEST_WAIT)
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(_TABLES)
        return database


def _either(bases: Mapping[str, str], hashes: Mapping[str, str]) -> Hashes:
    """Return the bases with further hashes that may be of the values written last."""
    both = dict(bases)
    for unit, value_hash in hashes.items():
        hashes_so_far = both[unit].split("\n") if unit in both else []
        both[unit] = "\n".join(dict.fromkeys([*hashes_so_far, *value_hash.split("\n")]))
    return both


def _key(path: Path, *, make: bool) -> bytes | None:
    """Return the random key of this machine's hashes. With `make`, create it if it is missing."""
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
        with suppress(FileExistsError):  # another process created it first
            os.link(fresh, path)
    finally:
        fresh.unlink()
    return path.read_bytes()


FILE_NAME = "kept.sqlite"


class KeptValues:
    """Kept values by row, stored in the job's folder. Without a folder they are temporary."""

    def __init__(self, folder: Path | None = None) -> None:
        tables = (
            "CREATE TABLE IF NOT EXISTS kept "
            "(ordinal INTEGER PRIMARY KEY, left_out TEXT NOT NULL, kept INTEGER, conflicts INTEGER, told TEXT NOT NULL)"
        )
        self._db = open_tables(folder / FILE_NAME if folder is not None else None, tables)

    def close(self) -> None:
        self._db.close()

    def restart(self) -> None:
        self._db.execute("DELETE FROM kept")

    def keep(self, rows: Iterable[tuple[int, Merge]]) -> None:
        """Store the kept values of rows. They are on disk when this returns."""
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
        entry = self._db.execute("SELECT told FROM kept WHERE ordinal = ?", (ordinal,)).fetchone()
        return None if entry is None else str(entry[0])

    def translate(self, payloads: Iterable[Payload]) -> Iterator[Payload]:
        for payload in payloads:
            entry = self._db.execute("SELECT left_out FROM kept WHERE ordinal = ?", (payload.ordinal,)).fetchone()
            if entry is None:
                yield payload
                continue
            data, parts = Merge(jsontext.loads(entry[0])).reduced(payload.data, payload.parts)
            yield payload._replace(data=data, parts=parts)


@contextmanager
def feed_of(journal: Journal, plan: FeedPlan, attributes: Sequence[Attribute]) -> Iterator[Feed]:
    """Provide the feed of a job. Its bases are updated from earlier jobs first, and from this job at the end."""
    header, jobs = journal.header, journal.folder.parent
    with closing(FeedBases(jobs.parent, (header.origin, header.object_id, plan.name))) as bases:
        bases.prepare()
        bases.settle_all(jobs, journal.clock, but=header.job)
        if journal.state is JobState.CHECKING:
            bases.forget(header.job)
        try:
            yield Feed.of(plan, bases, attributes)
        finally:
            bases.settle(journal)


@frozen
class Feed:
    """The bases of earlier imports, and the comparison rule of this one."""

    bases: FeedBases
    rule: ThreeWay

    @classmethod
    def of(cls, plan: FeedPlan, bases: FeedBases, attributes: Sequence[Attribute]) -> Feed:
        """Create a feed; `attributes` have the types that records show."""
        by_slug = {attribute.slug: attribute for attribute in attributes}
        return cls(bases, ThreeWay(Policy.parse(plan.on_conflict), by_slug))

    def merge(self, row: Wanted, current: Mapping[str, Any] | None) -> Merge:
        """Return the values of a row to write; `current` is the data of its record, or None for a new one."""
        place = self.bases.row_of(row.key or "")
        hash_of = self.bases.hash_of(place)
        if current is None:
            return self.rule.first(row.data, row.parts, hash_of)
        bases = self.bases.known(place)
        merge = self.rule.merge((row.data, row.parts), current, bases, hash_of)
        return merge._replace(bases={unit: value_hash for unit, value_hash in merge.bases.items() if bases.get(unit) != value_hash})

    def write_down(self, journal: Journal, kept: KeptValues, rows: Sequence[tuple[int, str, Merge]]) -> None:
        """Store the kept values and the new bases of rows before anything is sent. Each row is (ordinal, key, merge)."""
        kept.keep((ordinal, merge) for ordinal, _, merge in rows)
        self.bases.intend(
            journal.header.job, [(ordinal, self.bases.row_of(key), merge.bases) for ordinal, key, merge in rows if merge.bases]
        )
