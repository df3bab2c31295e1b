"""Compare a mirror with a full read of the service, name every wrong record, and repair it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from crmctl.bulk_context import BulkContext
from crmctl.mirror.file import ACTIVITIES, WAIT_SECONDS, MirrorFile, SyncState, writing_turn
from crmctl.mirror.mirror_tables import OnDifference
from crmctl.mirror.object_sync import ObjectSync
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import MirrorSync, sync_activities
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Record
from crmctl.read.export_passes import UNEVEN
from crmctl.values.moments import micros_of


class Wrong(StrEnum):
    """Problems of a record in the mirror: missing, different, or unknown to the service."""

    MISSING = "missing"
    STALE = "stale"
    GHOST = "ghost"


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
            [count] = file.db.execute("SELECT count(*) FROM activities").fetchone()

            def take(see: OnDifference) -> None:
                result = sync_activities(context, file, see)
                verification.records += result.state.records
                verification.requests += result.requests

            verification.wrong += _wrong(state, count, state.as_of - UNEVEN, take)
        return verification


def _verify(sync: ObjectSync) -> list[Json]:
    def take(see: OnDifference) -> None:
        with sync.staged(resumes=False) as staging:
            sync.take(staging, sync.scan(staging, "every record is compared"), see)

    return _wrong(sync.state, sync.table.count(), sync.state.newest, take)


def _wrong(state: SyncState, count: int, newest: int | None, take: Callable[[OnDifference], None]) -> list[Json]:
    """Return the wrong records. Records that the service has not changed since the last sync must equal those in the mirror.

    `take` reads everything and tells of differences. Records that are gone may have been deleted since. The count was right at the last
    sync, so they were deleted, unless the mirror lacks other records or its count has changed: then they are reported.
    """
    problems: dict[str, Wrong] = {}

    def see(record_id: str, held: str | None, listed: str | None) -> None:
        if (problem := _problem(held, listed, newest)) is not None:
            problems[record_id] = problem

    is_intact = count == state.records
    take(see)
    reports_ghosts = not is_intact or Wrong.MISSING in problems.values()
    return [
        {"object": state.slug, "id": record_id, "problem": str(problem)}
        for record_id, problem in problems.items()
        if reports_ghosts or problem is not Wrong.GHOST
    ]


def _problem(held: str | None, listed: str | None, newest: int | None) -> Wrong | None:
    """Return what is wrong with a record, or None. A change after the last sync's newest change is not the mirror's mistake."""
    if listed is None:
        return Wrong.GHOST
    changed = _changed_at(listed)
    if held is not None and (held == listed or (changed is not None and changed == _changed_at(held))):
        return Wrong.STALE
    if newest is None or (changed or 0) > newest:
        return None
    return Wrong.MISSING if held is None else Wrong.STALE


def _changed_at(wire: str) -> int | None:
    return micros_of(Record.parse(jsontext.loads(wire)).updated_at)
