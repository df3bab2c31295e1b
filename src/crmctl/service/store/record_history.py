"""History of a record, read backwards from the log of changes, and the way back: ordinary changes, in batches, that the log keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Fault, NotFound
from crmctl.service.store import change_log, logs
from crmctl.service.store.change_log import differ
from crmctl.service.store.keys import get_value
from crmctl.service.store.record_tables import Schema, load_schema
from crmctl.service.store.record_writes import RecordChange, StoredRecord, Writing, allowing
from crmctl.service.store.tx import MAX_IN, Stamp, Tx, all_in, to_micros, to_wire
from crmctl.values.projection import Projection, project
from crmctl.values.value_readers import Invalid, canonical_uuid

Data = Json


@frozen
class History:
    """`changes` in wire form, newest first, with their `total`. `since` is the moment before which changes are unknown, None when all are
    known."""

    changes: list[Json]
    total: int
    since: str | None


@frozen
class Past:
    """A past record: `data` None when it did not exist; `created_at` if it must be created again."""

    data: Data | None
    created_at: int | None = None


@frozen
class _Change:
    at: int
    type: str
    actor: str | None
    before: str | None

    def undone(self, after: Data | None) -> Past:
        """Return the record before this change, from its state after it."""
        if self.type == change_log.CREATED:
            return Past(None)
        overwritten = jsontext.loads(self.before or "{}")
        if self.type == change_log.DELETED:
            return Past(overwritten["data"], overwritten["createdAt"])
        merged = {**(after or {}), **overwritten}
        return Past({slug: value for slug, value in merged.items() if value is not None})


def read_history(tx: Tx, object_id: str, record_id: str, limit: int = 50, offset: int = 0) -> History:
    """Return the history of a record, also of a deleted one as long as its deletion is known. Raises NotFound."""
    schema = load_schema(tx, object_id)
    known_id = canonical_uuid(record_id) or ""
    row = tx.one(f"SELECT data, created_at FROM {schema.table} WHERE id = ?", (known_id,))
    changes = _changes(tx, schema, known_id, None if row is None else row[1])
    if row is None and not changes:
        raise NotFound(f"there is no record with the id {record_id}, and none is known to have been")
    names = logs.described(tx, (change.actor for change in changes[offset : offset + limit]))
    data: Data | None = None if row is None else schema.values_in(row[0])
    recorded = []
    for place, change in enumerate(changes[: offset + limit]):
        before = change.undone(data).data
        if place >= offset:
            about = {"at": to_wire(change.at), "type": change.type, "by": names[change.actor]}
            recorded.append(about | {"changes": _differences(before, data)})
        data = before
    is_whole = bool(changes) and changes[-1].type == change_log.CREATED and changes[-1].before is None
    since = None if is_whole else known_since(tx)
    return History(recorded, len(changes), None if since is None else to_wire(since))


def changed_at(tx: Tx, object_id: str, at: int, actor: str | None) -> list[tuple[str, str, bool]]:
    """Return the records of an object that were created, changed or deleted at a moment, by one actor or any: id, change, and whether it
    is still the newest change of the record."""
    rows = tx.all(
        "SELECT c.subject, c.type, coalesce((SELECT max(later.sequence) FROM change_log AS later WHERE later.subject = c.subject "
        "AND later.before IS NOT NULL), c.sequence) = c.sequence FROM change_log AS c WHERE c.at = ? AND c.object_number = ? "
        "AND c.subject IS NOT NULL AND (c.actor = ? OR ? = 1) ORDER BY c.sequence",
        (at, load_schema(tx, object_id).number, actor or "", 1 if actor is None else 0),
    )
    changes: dict[str, tuple[str, str, bool]] = {}
    for subject, kind, is_newest in rows:
        changes[subject] = (subject, changes.get(subject, ("", kind))[1], bool(is_newest))
    return list(changes.values())


LOOKED = 200_000
"""How many of the newest changes are searched for deletions."""


def deleted_records(tx: Tx, object_id: str, limit: int, offset: int) -> list[Json]:
    """Return records that were deleted lately and are still gone, newest first, as `{id, at, by, data}`."""
    schema = load_schema(tx, object_id)
    newest = "SELECT max(later.sequence) FROM change_log AS later WHERE later.subject = c.subject AND later.before IS NOT NULL"
    rows = tx.all(
        "SELECT c.subject, c.at, c.actor, c.before FROM change_log AS c WHERE c.sequence > (SELECT max(sequence) FROM change_log) - ? "
        f"AND c.type = ? AND c.object_number = ? AND c.before IS NOT NULL AND c.sequence = ({newest}) "
        f"AND NOT EXISTS (SELECT 1 FROM {schema.table} AS r WHERE r.id = c.subject) ORDER BY c.sequence DESC LIMIT ? OFFSET ?",
        (LOOKED, change_log.DELETED, schema.number, limit, offset),
    )
    names = logs.described(tx, (actor for _, _, actor, _ in rows))
    return [
        {"id": record_id, "at": to_wire(at), "by": names[actor], "data": jsontext.loads(before)["data"]}
        for record_id, at, actor, before in rows
    ]


def past_of(tx: Tx, record_ids: Iterable[str], now: dict[str, Data], moment: int) -> Iterator[tuple[str, Past]]:
    """Return the past states of records that existed at the moment or before; `now` is what existing ones hold."""
    ids = list(record_ids)
    sql = "SELECT subject, at, type, before FROM change_log WHERE before IS NOT NULL AND subject IN {} ORDER BY sequence"
    later: dict[str, list[_Change]] = {}
    for subject, at, kind, before in all_in(tx, sql, ids):
        if at > moment or subject in later:
            later.setdefault(subject, []).append(_Change(at, kind, None, before))
    for record_id in ids:
        past = Past(now.get(record_id))
        for change in reversed(later.get(record_id, ())):
            undone = change.undone(past.data)
            past = Past(undone.data, undone.created_at or past.created_at)
        yield record_id, past


def known_since(tx: Tx) -> int | None:
    """Return the moment before which changes are unknown, None when all are known."""
    since = get_value(tx, change_log.KNOWN_SINCE)
    return None if since is None else int(since)


def _changes(tx: Tx, schema: Schema, record_id: str, created_at: int | None) -> list[_Change]:
    """Return changes, newest first, without those that only a delivery still needs."""
    since = known_since(tx) or 0
    rows = tx.all(
        "SELECT at, type, actor, before FROM change_log WHERE subject = ? AND before IS NOT NULL AND object_number = ? AND at >= ? "
        "ORDER BY sequence DESC",
        (record_id, schema.number, since),
    )
    changes = [_Change(*row) for row in rows]
    if created_at is None:
        created_at = next(
            (jsontext.loads(change.before)["createdAt"] for change in changes if change.type == change_log.DELETED and change.before), None
        )
    creation = tx.one(
        "SELECT at, type, actor, before FROM change_log WHERE at = ? AND subject = ? AND object_number = ? AND before IS NULL AND at >= ?",
        (created_at, record_id, schema.number, since),
    )
    return changes if creation is None else [*changes, _Change(*creation)]


def _differences(before: Data | None, after: Data | None) -> list[Json]:
    old, new = before or {}, after or {}
    slugs = [*new, *(slug for slug in old if slug not in new)]
    differing = (slug for slug in slugs if change_log.differ(old.get(slug), new.get(slug)))
    return [{"attributeSlug": slug, "old": old.get(slug), "new": new.get(slug)} for slug in differing]


CREATED, UPDATED, DELETED, UNCHANGED = "created", "updated", "deleted", "unchanged"


@dataclass
class RestoreOutcome:
    """How many records were recreated, updated, deleted, or unchanged; `failed` gives the reason by record."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Attributes that were deleted or do not take such values any more."""


@frozen
class Candidates:
    """Ids of records that changed since the moment. Those in `new` did not exist then."""

    moment: int
    ids: Sequence[str]
    new: frozenset[str]


def find_candidates(tx: Tx, object_id: str, moment: float, *, now: float) -> Candidates:
    """Find the records to restore. Raises NotFound for the object, BadRequest for a moment in the future or before the log."""
    schema = load_schema(tx, object_id)
    at, since = to_micros(moment), known_since(tx)
    if moment > now:
        raise BadRequest("the moment is in the future", {"field": "asOf"})
    if since is not None and at < since:
        raise BadRequest(f"changes are known since {to_wire(since)} only; a backup may go further back", {"field": "asOf"})
    # New records go first: they may hold unique values that others get back.
    rows = tx.all(
        "SELECT subject, max(CASE WHEN before IS NULL THEN 1 ELSE 0 END) AS is_new FROM change_log "
        "WHERE object_number = ? AND at > ? AND subject IS NOT NULL GROUP BY subject ORDER BY is_new DESC, subject",
        (schema.number, at),
    )
    return Candidates(at, [row[0] for row in rows], frozenset(row[0] for row in rows if row[1]))


def restore(
    candidates: Candidates, transact: Callable[[Callable[[Tx], RestoreOutcome]], RestoreOutcome], object_id: str, stamp: Callable[[], Stamp]
) -> RestoreOutcome:
    """Restore the candidates; `transact` runs a function in a transaction. Failed ones are tried again while some succeed: another record
    may have to give up a value first."""
    outcome, waiting = RestoreOutcome(), candidates.ids
    while waiting:
        outcome.failed = {}
        for start in range(0, len(waiting), MAX_IN):
            batch = waiting[start : start + MAX_IN]
            part = transact(lambda tx, batch=batch: restore_batch(tx, object_id, batch, candidates, **stamp()))  # type: ignore[misc]
            outcome.counts += part.counts
            outcome.failed |= part.failed
            outcome.left_out |= part.left_out
        waiting = list(outcome.failed) if len(outcome.failed) < len(waiting) else []
    return outcome


def restore_batch(tx: Tx, object_id: str, batch: Sequence[str], candidates: Candidates, **stamp: Unpack[Stamp]) -> RestoreOutcome:
    writing, done = Writing(tx, object_id, **stamp), RestoreOutcome()
    present = dict(writing.load(batch))
    was_there = [record_id for record_id in batch if record_id not in candidates.new]
    pasts = dict(past_of(tx, was_there, {record_id: present[record_id].data for record_id in present}, candidates.moment))
    targets = {record_id: _change(writing.schema, record_id, past.data, done) for record_id, past in pasts.items() if past.data is not None}
    writing.prepare([change for record_id, change in targets.items()])
    for record_id in batch:
        past = pasts.get(record_id, Past(None))
        try:
            done.counts[_restore_one(writing, present.get(record_id), targets.get(record_id), past.created_at or 0)] += 1
        except Fault as fault:
            done.failed[record_id] = fault.message
    writing.flush()
    return done


def _restore_one(writing: Writing, present: StoredRecord | None, target: RecordChange | None, created_at: int) -> str:
    """Restore a record to `past`, None if it did not exist."""
    if target is None:
        if present is None:
            return UNCHANGED
        writing.delete(present)
        return DELETED
    if present is not None and not differ(present.data, target.data):
        return UNCHANGED
    writing.put_back(target, created_at)
    return CREATED if present is None else UPDATED


def _change(schema: Schema, record_id: str, data: Json, done: RestoreOutcome) -> RecordChange:
    """Return the change without attributes that are gone or have another type."""
    kept: Json = {}
    projections: dict[str, Projection] = {}
    for slug, value in data.items():
        try:
            projections[slug] = project(allowing(schema.every[slug], data), value)
            kept[slug] = value
        except (KeyError, Invalid):
            done.left_out.add(slug)
    return RecordChange(record_id, kept, projections)
