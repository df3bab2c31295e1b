"""A mirror compared with everything the service has, read anew: names every record that the mirror had wrong, and puts it right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from crmctl.bulk.context import BulkContext
from crmctl.bulk.export.collected_records import Staging
from crmctl.bulk.export.passes import UNEVEN
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.mirror.activity_sync import read_activities, take_activities, wrong_activities
from crmctl.mirror.columns import wire_text
from crmctl.mirror.file import ACTIVITIES, MirrorFile, SyncState
from crmctl.mirror.object_sync import ObjectSync
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import MirrorSync
from crmctl.mirror.turn import WAIT_SECONDS, writing_turn
from crmctl.models import jsontext
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of


class Wrong(StrEnum):
    """What the mirror had wrong about a record: it had none, another content, or one that the service has not."""

    MISSING = "missing"
    STALE = "stale"
    GHOST = "ghost"


class WrongRecord(NamedTuple):
    """A record that the mirror did not have as the service had it."""

    object: str
    id: str
    problem: Wrong

    def to_document(self) -> dict[str, Any]:
        return {"object": self.object, "id": self.id, "problem": str(self.problem)}


class _Difference(NamedTuple):
    id: str
    held: str | None
    listed: str | None

    @property
    def is_one_version(self) -> bool:
        """Whether both say that it changed last at the same moment."""
        return None not in (self.held, self.listed) and _changed_at(self.held) == _changed_at(self.listed)


@dataclass
class Verification:
    """Of a mirror: the records it had wrong, and what reading everything took."""

    wrong: list[WrongRecord]
    records: int = 0
    requests: int = 0


def verify_mirror(context: BulkContext, objects: list[str]) -> Verification:
    """Compare objects of the mirror, all of them where none is named. Raises NotFoundError for one that is not in it, and what requests
    raise."""
    path = mirror_path(context.state, context.profile, context.origin)
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
        found = Verification([])
        for sync in syncs:
            found.wrong += _verify(sync)
            found.records += sync.state.records
            found.requests += sync.lister.requests
        if state is not None and is_asked:
            reading = read_activities(mirror.plan, context.service, file)
            found.wrong += _verify_activities(file, state)
            found.records += take_activities(file, reading).state.records
            found.requests += reading.requests
        return found


def _verify_activities(file: MirrorFile, state: SyncState) -> list[WrongRecord]:
    """Those that were read and have not changed since the last sync must be as the mirror has them."""
    [held] = file.db.execute("SELECT count(*) FROM activities").fetchone()
    differences = [_Difference(*row) for row in wrong_activities(file)]
    problems = {each.id: Wrong.STALE if each.is_one_version else _problem(each, state.as_of - UNEVEN) for each in differences}
    return _told(state, problems, is_intact=held == state.records)


def _verify(sync: ObjectSync) -> list[WrongRecord]:
    """What the service has not changed since the last sync must be as the mirror has it.

    Records that are there no more may have been deleted since. As the count was right at the last sync, they were, unless the mirror also
    lacks records or holds another number than then: in that case nobody can tell, and they are named.
    """
    state = sync.state
    newest, is_intact = state.newest, sync.table.count() == state.records
    with sync.staged(resumes=False) as staging:
        scan = sync.scan(staging)
        differences = list(_differences(sync, staging))
        sync.take(staging, scan)
    return _told(state, {each.id: _problem(each, newest) for each in differences}, is_intact=is_intact)


def _told(state: SyncState, problems: dict[str, Wrong | None], *, is_intact: bool) -> list[WrongRecord]:
    if is_intact and Wrong.MISSING not in problems.values():
        problems = {record_id: problem for record_id, problem in problems.items() if problem is not Wrong.GHOST}
    return [WrongRecord(state.slug, record_id, problem) for record_id, problem in problems.items() if problem is not None]


def _differences(sync: ObjectSync, staging: Staging) -> Iterator[_Difference]:
    """Between what the mirror holds and what was listed."""
    with SeenIds() as listed:
        for wire in staging.wires():
            record = Record.parse(jsontext.loads(wire))
            listed.add(record.id)
            known, text = sync.table.known(record.id), wire_text(record.wire)
            if known is None or known.wire != text:
                yield _Difference(record.id, None if known is None else known.wire, text)
        for record_id in sync.table.ids():
            if record_id not in listed and (known := sync.table.known(record_id)) is not None:
                yield _Difference(record_id, known.wire, None)


def _problem(found: _Difference, newest: int | None) -> Wrong | None:
    """What is wrong, if it is. What was changed after the newest change of the last sync is newer than the mirror, and no mistake of it."""
    if found.listed is None:
        return Wrong.GHOST
    changed = _changed_at(found.listed) or 0
    if newest is None or changed > newest:
        return None
    return Wrong.MISSING if found.held is None else Wrong.STALE


def _changed_at(wire: str | None) -> int | None:
    return micros_of(Record.parse(jsontext.loads(wire)).updated_at) if wire is not None else None
