"""The profile's mirror as who answers a question that would cost too much: where it holds the object as the service has it, and said so."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from crmctl.cli.counted_words import counted
from crmctl.errors import DeniedError, StorageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.queries.query_context import ReadingCost
    from crmctl.mirror.file import SyncState
    from crmctl.mirror.mirrored_lists import MirroredLists

LOCKED_SECONDS = 1.0
"""So long at most is waited for a mirror that somebody keeps locked; then there is none."""


class MirrorAnswers:
    """Of one question. A mirror of another format, unproven, without some attribute or with others than the object has now is as good as
    none. A sync that is under way changes nothing before it is complete."""

    def __init__(self, runtime: Runtime, *, most: int) -> None:
        """`most`: the requests that need no agreement; whoever has agreed to more does not get here."""
        self._runtime = runtime
        self._most = most
        self._said: set[str] = set()

    def at_hand(self, cost: ReadingCost) -> MirroredLists | None:
        """What to read instead of more requests than are made unasked."""
        state = self._state(cost.of) if cost.requests > self._most and not self._runtime.assume_yes else None
        if state is None:
            return None
        if state.slug not in self._said:
            instead = f"--yes reads the service ({counted(cost.requests, 'request')})"
            self._runtime.messages.warn(f"{state.slug} from the mirror, as of {self._when(state)}; {instead}")
            self._said.add(state.slug)
        return self._lists

    def named_at_hand(self, cost: ReadingCost) -> MirroredLists | None:
        """What to take the names of a reference from. Not for who wants to hear nothing: it must be said."""
        state = self._state(cost.of) if not self._runtime.flags.get("quiet") else None
        if state is None:
            return None
        self._runtime.messages.note(f"{cost.purpose}: names as of {self._when(state)}, from the mirror")
        return self._lists

    @cached_property
    def _lists(self) -> MirroredLists | None:
        from crmctl.mirror.place import mirror_path

        runtime = self._runtime
        place = mirror_path(runtime.paths.state, runtime.settings.profile.value, runtime.settings.require_origin())
        if not place.is_file():
            return None
        from crmctl.mirror.local_copy import LocalCopy
        from crmctl.mirror.mirrored_lists import MirroredLists

        with suppress(StorageError):
            copy = LocalCopy.at(place, LOCKED_SECONDS)
            if copy is not None:
                runtime.at_end(copy.__exit__)
                return MirroredLists(copy)
        return None

    def _state(self, object_name: str) -> SyncState | None:
        if self._lists is None:
            return None
        directory = self._runtime.directory
        with suppress(DeniedError, StorageError):
            return self._lists.state_of(directory.object_id(object_name), directory.attributes(object_name))
        return None

    def _when(self, state: SyncState) -> str:
        from crmctl.models.timestamps import in_a_sentence, to_timestamp

        return in_a_sentence(to_timestamp(state.as_of), self._runtime.clock.now())
