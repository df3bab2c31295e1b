"""Compare a mirror with a full read of the service, name every wrong record, and repair it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from crmctl.bulk_context import BulkContext
from crmctl.mirror.file import ACTIVITIES, WAIT_SECONDS, MirrorFile, SyncState, wire_text, writing_turn
from crmctl.mirror.object_sync import ObjectSync
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import MirrorSync, read_activities, take_activities, wrong_activities
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Record
from crmctl.read.export_passes import UNEVEN, Staging
from crmctl.read.stable_pages import SeenIds
from crmctl.values.moments import micros_of


class Wrong(StrEnum):
    """Problems of a record in the mirror: missing, different, or unknown to the service."""

    MISSING = "missing"
    STALE = "stale"
    GHOST = "ghost"


class _Difference(NamedTuple):
    id: str
    held: str | None
    listed: str | None

    @property
    def is_one_version(self) -> bool:
        return None not in (self.held, self.listed) and _changed_at(self.held) == _changed_at(self.listed)


@dataclass
class Verification:
    """The wrong records of a mirror, and what the full read took."""

    wrong: list[Json]
    records: int = 0
    requests: int = 0


def verify_mirror(context: BulkContext, objects: list[str]) -> Verification:
    """Compare the named objects of the mirror, or all of them.

    Raises NotFoundError for an object that is not in it, and what requests raise.
    """
    path = mirror_path(context.state, context.origin, context.key)
    with (
        writing_turn(path, context.clock, context.listener.note, WAIT_SECONDS),
        MirrorFile.create(path, context.profile, context.origin) as file,
    ):
        names, mirror = [name for name in objects if name != ACTIVITIES], MirrorSync(context, file)
        state = file.state(ACTIVITIES)
        is_asked = state is not None and (not objects or ACTIVITIES in objects)
        if objects and not is_asked:
            names = objects
        syncs = mirror.object_syncs(names) if names or not objects else []
        verification = Verification([], requests=mirror.report.requests)
        for sync in syncs:
            verification.wrong += _verify(sync)
            verification.records += sync.state.records
            verification.requests += sync.lister.requests
        if state is not None and is_asked:
            reading = read_activities(context, file)
            verification.wrong += _verify_activities(file, state)
            verification.records += take_activities(file, reading).state.records
            verification.requests += reading.requests
        return verification


def _verify_activities(file: MirrorFile, state: SyncState) -> list[Json]:
    """Return the wrong activities. Activities that have not changed since the last sync must equal those in the mirror."""
    [count] = file.db.execute("SELECT count(*) FROM activities").fetchone()
    differences = [_Difference(*row) for row in wrong_activities(file)]
    problems = {
        difference.id: Wrong.STALE if difference.is_one_version else _problem(difference, state.as_of - UNEVEN)
        for difference in differences
    }
    return _told(state, problems, is_intact=count == state.records)


def _verify(sync: ObjectSync) -> list[Json]:
    """Return the wrong records. Records that the service has not changed since the last sync must equal those in the mirror.

    Records that are gone may have been deleted since. The count was right at the last sync, so they were deleted, unless the mirror lacks
    other records or its count has changed: then they are reported.
    """
    state = sync.state
    newest, is_intact = state.newest, sync.table.count() == state.records
    with sync.staged(resumes=False) as staging:
        scan = sync.scan(staging, "every record is compared")
        with sync.file.transaction():
            sync.prepare_table()
        differences = list(_differences(sync, staging))
        sync.take(staging, scan)
    return _told(state, {difference.id: _problem(difference, newest) for difference in differences}, is_intact=is_intact)


def _told(state: SyncState, problems: dict[str, Wrong | None], *, is_intact: bool) -> list[Json]:
    if is_intact and Wrong.MISSING not in problems.values():
        problems = {record_id: problem for record_id, problem in problems.items() if problem is not Wrong.GHOST}
    return [
        {"object": state.slug, "id": record_id, "problem": str(problem)} for record_id, problem in problems.items() if problem is not None
    ]


def _differences(sync: ObjectSync, staging: Staging) -> Iterator[_Difference]:
    with SeenIds() as listed:
        for wire in staging.wires():
            record = Record.parse(jsontext.loads(wire))
            listed.add(record.id)
            if not sync.table.holds(record):
                stored = sync.table.known(record.id)
                yield _Difference(record.id, None if stored is None else stored.wire, wire_text(record.wire))
        for record_id in sync.table.ids():
            if record_id not in listed and (stored := sync.table.known(record_id)) is not None:
                yield _Difference(record_id, stored.wire, None)


def _problem(difference: _Difference, newest: int | None) -> Wrong | None:
    """Return what is wrong with a record, or None. A change after the last sync's newest change is not the mirror's mistake."""
    if difference.listed is None:
        return Wrong.GHOST
    if difference.held == difference.listed:
        return Wrong.STALE
    changed = _changed_at(difference.listed) or 0
    if newest is None or changed > newest:
        return None
    return Wrong.MISSING if difference.held is None else Wrong.STALE


def _changed_at(wire: str | None) -> int | None:
    return micros_of(Record.parse(jsontext.loads(wire)).updated_at) if wire is not None else None
