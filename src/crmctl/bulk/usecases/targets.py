"""What use cases look at first: the object with its attributes as they are now, the jobs of this machine, places, whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.bulk.atomic_file import check_place
from crmctl.bulk.context import BulkContext
from crmctl.bulk.journal.jobs import JobStore
from crmctl.bulk.run.job_start import ImportTarget
from crmctl.bulk.sources.given_input import is_stream
from crmctl.bulk.usecases.requests import check_choice
from crmctl.client.directory import active_ones
from crmctl.errors import DeniedError
from crmctl.mirror.place import mirror_path
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.composites import COMPOSITE_TYPES
from crmctl.models.timestamps import MICROS

if TYPE_CHECKING:
    from crmctl.bulk.read.newest_page import NewestPage
    from crmctl.bulk.usecases.mirrored_records import MirroredRecords

SAMPLES = 20
"""How many existing records show the form of composite values."""


def store_of(context: BulkContext) -> JobStore:
    """The bulk jobs of this machine."""
    return JobStore(context.state, context.clock)


def resolve_target(context: BulkContext, object_name: str, mirror: MirroredRecords | None = None) -> ImportTarget:
    """The object, and its attributes as they are now: bulk work trusts no cache. What is read of it the mirror need not read again.
    Raises NotFoundError, and what reading raises."""
    tell = context.listener.progress.note
    if mirror is None:
        attributes = context.directory.attributes(object_name, refresh=True)
        object_id = context.directory.object_id(object_name)
        return ImportTarget(object_name, object_id, context.origin, attributes, context.service, tell=tell)
    asked = int(context.clock.now() * MICROS)
    object_id, every = context.directory.every_attribute(object_name)
    mirror.has_read(object_id, every, asked)
    return ImportTarget(object_name, object_id, context.origin, active_ones(every), context.service, at_hand=mirror, tell=tell)


def newest_page(context: BulkContext, target: ImportTarget) -> NewestPage | None:
    """The records that changed last; None where the key may not read them."""
    from crmctl.bulk.read.newest_page import NewestPage

    try:
        return NewestPage.read(context.crm, target.object_id, context.clock)
    except DeniedError as error:
        if error.status != 403:
            raise
        return None


def sample_records(context: BulkContext, target: ImportTarget) -> tuple[dict[str, Any], ...]:
    """The data of a few existing records, whose form composite values follow; none where the key may not read them."""
    if target.newest is not None:
        return tuple(record.data for record in target.newest.page.items[:SAMPLES])
    if not any(attribute.type in COMPOSITE_TYPES for attribute in target.attributes):
        return ()
    try:
        page = context.crm.list_records(target.object_id, limit=SAMPLES)
    except DeniedError as error:
        if error.status != 403:
            raise
        return ()
    return tuple(record.data for record in page.items)


def check_places(failed: Path | None, *files: str | Path | None) -> None:
    """Notice before the first request what cannot be read, and where nothing can be written. Raises UsageError."""
    regular = [Path(file) for file in files if file is not None and not is_stream(str(file))]
    if failed is not None:
        check_place(failed, regular[0] if regular else None)


def mirror_of(context: BulkContext, wish: str) -> MirroredRecords | None:
    """Where records, and those that are referred to, are at hand; None where that is not wished or there is no mirror."""
    check_choice("--mirror", wish, ("auto", "never", "only"))
    is_there = wish == "only" or mirror_path(context.state, context.profile, context.origin).exists()
    if wish == "never" or not is_there:
        return None
    from crmctl.bulk.usecases.mirrored_records import MirroredRecords

    return MirroredRecords(context, wish)


def last_turn(context: BulkContext, target: ImportTarget) -> str | None:
    """What `takes_turn` gives where no import by key has had a turn since."""
    from crmctl.bulk.journal.object_lock import ObjectLock

    return ObjectLock(store_of(context), target.object_id, target.object).last_turn()


@contextmanager
def takes_turn(context: BulkContext, target: ImportTarget, patience: float, *, by_key: bool) -> Iterator[str]:
    """An import by key runs while no other one runs into the same object. Raises PendingError after `patience` seconds."""
    if not by_key:
        yield ""
        return
    from crmctl.bulk.journal.object_lock import ObjectLock

    lock = ObjectLock(store_of(context), target.object_id, target.object, patience)
    with lock.hold(context.clock, context.listener.note) as before:
        yield before


def note_if_empty(context: BulkContext, file: str, rows: int) -> None:
    """A file without rows is nothing wrong: a nightly run may have nothing to do. It is said all the same."""
    if not rows:
        context.listener.note(f"{'stdin' if file == '-' else file} holds no rows: nothing to import")


def referring_attributes(context: BulkContext, object_id: str) -> dict[str, list[Attribute]]:
    """The attributes that may refer to records of an object, by the object that has them."""
    found: dict[str, list[Attribute]] = {}
    for one in context.service.list_objects():
        for attribute in context.directory.attributes(one.id, refresh=True):
            is_mine = attribute.target_object_id is None or attribute.target_object_id.lower() == object_id.lower()
            if attribute.type == AttributeType.REFERENCE and is_mine and attribute.is_active is not False:
                found.setdefault(one.id, []).append(attribute)
    return found
