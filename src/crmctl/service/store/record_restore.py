"""Take the records of an object back to a moment, in batches, by ordinary changes that the log keeps.

To continue after an interruption, start again: unchanged records are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Fault
from crmctl.service.store.change_log import differ
from crmctl.service.store.record_history import Past, changed_since, known_since, past_of
from crmctl.service.store.record_tables import Schema, load_schema
from crmctl.service.store.record_writes import RecordChange, StoredRecord, Writing
from crmctl.service.store.tx import MAX_IN, Stamp, Tx, to_micros, to_wire
from crmctl.values.projection import Projection, project
from crmctl.values.value_readers import Invalid

CREATED, UPDATED, DELETED, UNCHANGED = "created", "updated", "deleted", "unchanged"


@dataclass
class RestoreOutcome:
    """How many records were recreated, updated, deleted, or unchanged; `failed` gives the reason by record."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Attributes that were deleted or do not take such values any more."""


@dataclass(frozen=True)
class Candidates:
    """Records that changed since the moment, in batches. Those in `new` did not exist then."""

    moment: int
    batches: Sequence[Sequence[str]]
    new: frozenset[str]

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))


def find_candidates(tx: Tx, object_id: str, moment: float, *, now: float) -> Candidates:
    """Find the records to restore. Raises NotFound for the object, BadRequest for a moment in the future or before the log."""
    schema = load_schema(tx, object_id)
    at, since = to_micros(moment), known_since(tx)
    if moment > now:
        raise BadRequest("the moment is in the future", {"field": "asOf"})
    if since is not None and at < since:
        raise BadRequest(f"changes are known since {to_wire(since)} only; a backup may go further back", {"field": "asOf"})
    changed, new = changed_since(tx, schema.number, at)
    # New records go first: they may hold unique values that others get back.
    ordered = [*(record_id for record_id in changed if record_id in new), *(record_id for record_id in changed if record_id not in new)]
    batches = [ordered[start : start + MAX_IN] for start in range(0, len(ordered), MAX_IN)]
    return Candidates(at, batches, frozenset(new))


def restore(
    candidates: Candidates, transact: Callable[[Callable[[Tx], RestoreOutcome]], RestoreOutcome], object_id: str, stamp: Callable[[], Stamp]
) -> RestoreOutcome:
    """Restore the candidates; `transact` runs a function in a transaction. Failed ones are tried again while some succeed: another record
    may have to give up a value first."""
    whole = RestoreOutcome()
    waiting: Sequence[Sequence[str]] = candidates.batches
    while waiting:
        whole.failed = {}
        for batch in waiting:
            part = transact(lambda tx, batch=batch: restore_batch(tx, object_id, batch, candidates, **stamp()))  # type: ignore[misc]
            whole.counts += part.counts
            whole.failed |= part.failed
            whole.left_out |= part.left_out
        failed = list(whole.failed)
        again = [failed[start : start + MAX_IN] for start in range(0, len(failed), MAX_IN)]
        waiting = again if len(failed) < sum(map(len, waiting)) else []
    return whole


def restore_batch(tx: Tx, object_id: str, batch: Sequence[str], candidates: Candidates, **stamp: Unpack[Stamp]) -> RestoreOutcome:
    """Restore these records to the moment of the candidates."""
    schema = load_schema(tx, object_id, tx.dialect.share_object)
    writing, done = Writing(tx, schema, **stamp), RestoreOutcome()
    present = dict(writing.load(batch))
    was_there = [each for each in batch if each not in candidates.new]
    pasts = dict(past_of(tx, was_there, {each: present[each].data for each in present}, candidates.moment))
    targets = {record_id: _change(schema, record_id, past.data, done) for record_id, past in pasts.items() if past.data is not None}
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
            projections[slug] = project(schema.every[slug], value)
            kept[slug] = value
        except (KeyError, Invalid):
            done.left_out.add(slug)
    return RecordChange(record_id, kept, projections)
