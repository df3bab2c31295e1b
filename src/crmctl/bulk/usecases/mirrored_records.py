"""Keys and references looked up in the mirror: it is brought up to date first, and believed only where that is proven."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from crmctl.bulk.context import BulkContext
from crmctl.bulk.match.at_hand import RecordStock
from crmctl.errors import CrmctlError, PendingError, ServiceError, StorageError, UsageError
from crmctl.mirror.file import MirrorFile, SyncState
from crmctl.mirror.object_sync import JustRead
from crmctl.mirror.object_table import ObjectTable
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute
from crmctl.models.records import Record
from crmctl.models.timestamps import in_a_sentence, to_timestamp

ONLY = "only"
"""The wish that nobody but the mirror is asked."""

CHUNK = 500


class MirroredRecords:
    """The records of objects that the mirror of the context's service has. `wish`: `auto`: where it has the object; `only`: or none."""

    def __init__(self, context: BulkContext, wish: str) -> None:
        self._context = context
        self._is_wanted = wish == ONLY
        self._path = mirror_path(context.state, context.profile, context.origin)
        self._synced: dict[str, SyncState] = {}
        self._just_read: dict[str, JustRead] = {}

    def has_read(self, object_id: str, attributes: Sequence[Attribute], asked: int) -> None:
        """All attributes of an object, asked for at this moment: the mirror need not read them again."""
        self._just_read[object_id] = JustRead(attributes, asked)

    def __call__(self, object_id: str, slugs: Collection[str] | None) -> RecordStock | None:
        """All records of an object with at least these attributes (None: all of them); None where the mirror cannot say. Raises UsageError
        and ServiceError where nobody else may be asked, and what a sync raises."""
        known = self._state(object_id)
        if known is None:
            if self._is_wanted:
                hint = "crmctl mirror sync makes one; --mirror auto reads the service"
                raise UsageError("there is no mirror of what this import looks up", hint=hint, code="no_mirror")
            return None
        missing = [slug for slug in known.excluded if slugs is None or slug in slugs]
        if missing:
            why = f"it leaves out {known.slug}.{missing[0]}"
            self._tell(UsageError(f"the mirror cannot be used: {why}", hint="--mirror never reads the service", code="excluded_attribute"))
            return None
        requests = 0
        if (state := self._synced.get(object_id)) is None:
            state, requests = self._sync(object_id)
        return RecordStock(_pages(self._path, state), requests, state.newest or state.since or 0) if state is not None else None

    def _sync(self, object_id: str) -> tuple[SyncState | None, int]:
        try:
            report = sync_mirror(self._context, SyncRequest(objects=[object_id], just_read=self._just_read))
        except (StorageError, PendingError) as error:
            self._tell(error)
            return None, 0
        state = next((result.state for result in report.results if result.state.object_id == object_id), None)
        if state is None or not state.proven:
            proof = state.proof if state is not None else "the object is gone"
            hint = "--mirror never reads the service"
            self._tell(ServiceError(f"the mirror cannot be used: {proof}", hint=hint, code="unproven_mirror"))
            return None, 0
        self._synced[object_id] = state
        as_of = in_a_sentence(to_timestamp(state.as_of), self._context.clock.now())
        self._context.listener.note(f"{state.slug} from the mirror, as of {as_of}")
        return state, report.requests

    def _state(self, object_id: str) -> SyncState | None:
        """What the mirror knows of an object before it is synced."""
        with suppress(StorageError):
            file = MirrorFile.read(self._path)
            if file is not None:
                with file:
                    return file.state(object_id)
        return None

    def _tell(self, error: CrmctlError) -> None:
        """Why the mirror is not used; raised where only it may be."""
        if self._is_wanted:
            raise error
        self._context.listener.note(error.message)


def _pages(path: Path, state: SyncState) -> Iterator[Sequence[Record]]:
    file = MirrorFile.read(path)
    if file is None:
        raise StorageError(f"{path} is gone", code="damaged_file")
    with file, file.snapshot():
        wires = ObjectTable(file.db, state.table_name, ()).wires()
        while chunk := list(islice(wires, CHUNK)):
            yield [Record.parse(jsontext.loads(wire)) for wire in chunk]
