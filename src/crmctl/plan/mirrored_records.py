"""Look up keys and references in the mirror, where its copy is proven."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from crmctl.bulk_context import BulkContext
from crmctl.errors import CrmctlError, PendingError, ServiceError, StorageError, UsageError
from crmctl.match.keys import RecordStock
from crmctl.mirror.file import SyncState
from crmctl.mirror.local_copy import LocalCopy
from crmctl.mirror.object_sync import JustRead
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models.resources import Attribute, Record
from crmctl.values.moments import in_a_sentence, to_timestamp

ONLY = "only"
"""Value of `--mirror` that never reads the service."""


class MirroredRecords:
    """Records in the profile's mirror. `wish`: `auto` falls back on the service; `only` raises an error instead."""

    def __init__(self, context: BulkContext, wish: str) -> None:
        self._context = context
        self._is_wanted = wish == ONLY
        self._path = mirror_path(context.state, context.origin, context.key)
        self._synced: dict[str, SyncState] = {}
        self._just_read: dict[str, JustRead] = {}

    def has_read(self, object_id: str, attributes: Sequence[Attribute], asked: int) -> None:
        """Take the attributes of an object just read from the service, so that a sync need not read them again."""
        self._just_read[object_id] = JustRead(attributes, asked)

    def __call__(self, object_id: str, slugs: Collection[str] | None) -> RecordStock | None:
        """Return all records of an object with at least these attributes (None: all attributes), or None if the mirror lacks them.

        With `only`, raise UsageError or ServiceError instead of returning None. Raises errors of the sync.
        """
        stored_state = self._state(object_id)
        if stored_state is None:
            if self._is_wanted:
                hint = "crmctl mirror sync makes one; --mirror auto reads the service"
                raise UsageError("there is no mirror of what this import looks up", hint=hint, code="no_mirror")
            return None
        missing = [slug for slug in stored_state.excluded if slugs is None or slug in slugs]
        if missing:
            why = f"it leaves out {stored_state.slug}.{missing[0]}"
            self._tell(UsageError(f"the mirror cannot be used: {why}", hint="--mirror never reads the service", code="excluded_attribute"))
            return None
        state = self._synced.get(object_id) or self._sync(object_id)
        return RecordStock(_pages(self._path, object_id), state.newest or state.since or 0) if state is not None else None

    def _sync(self, object_id: str) -> SyncState | None:
        try:
            report = sync_mirror(self._context, SyncRequest(objects=[object_id], just_read=self._just_read))
        except (StorageError, PendingError) as error:
            self._tell(error)
            return None
        state = next((result.state for result in report.results if result.state.object_id == object_id), None)
        if state is None or not state.proven:
            proof = state.proof if state is not None else "the object is gone"
            hint = "--mirror never reads the service"
            self._tell(ServiceError(f"the mirror cannot be used: {proof}", hint=hint, code="unproven_mirror"))
            return None
        self._synced[object_id] = state
        as_of = in_a_sentence(to_timestamp(state.as_of), self._context.clock.now())
        self._context.listener.note(f"{state.slug} from the mirror, as of {as_of}")
        return state

    def _state(self, object_id: str) -> SyncState | None:
        """Return the state of an object in the mirror before a sync; None if the mirror lacks it."""
        with suppress(StorageError):
            if (copy := LocalCopy.at(self._path)) is not None:
                with copy:
                    return copy.state(object_id)
        return None

    def _tell(self, error: CrmctlError) -> None:
        if self._is_wanted:
            raise error
        self._context.listener.note(error.message)


def _pages(path: Path, object_id: str) -> Iterator[Sequence[Record]]:
    copy = LocalCopy.at(path)
    if copy is None:
        raise StorageError(f"{path} is gone", code="damaged_file")
    with copy:
        copy.hold_still()
        yield from copy.pages(object_id)
