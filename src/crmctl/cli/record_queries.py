"""Queries from the command line, their cost, and answers from the mirror."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from crmctl.errors import DeniedError, StorageError, UsageError
from crmctl.models.numbers import counted

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.query.record_filter import QueryContext, ReadingCost, RecordFilter
    from crmctl.mirror.file import SyncState
    from crmctl.mirror.local_copy import MirroredLists
    from crmctl.models.resources import Record
    from crmctl.values.filters import Condition


FEW_REQUESTS = 10
"""More requests are announced at once, in every format."""

MOST_REQUESTS = 50
"""More requests need the user's agreement."""


def query_context(runtime: Runtime, *, strict: bool = False, agreed: bool = False) -> QueryContext:
    """Return the context of a query. `agreed` accepts any cost; with `strict` a condition that can never match is an error."""
    from crmctl.client.query.record_filter import QueryContext

    return QueryContext(
        runtime.crm,
        runtime.directory,
        runtime.clock.now(),
        approve=lambda cost: approve_cost(runtime, cost, agreed=agreed),
        warn=runtime.messages.warn,
        tell=runtime.messages.detail,
        strict=strict,
    )


def shown_context(runtime: Runtime, *, strict: bool = False, agreed: bool = False) -> QueryContext:
    """Return the context of a query that is only shown: expensive ones use the mirror if there is one."""
    context = query_context(runtime, strict=strict, agreed=agreed)
    mirror = MirrorAnswers(runtime)
    if not agreed:
        context = replace(context, at_hand=mirror.at_hand)
    return replace(context, named_at_hand=mirror.named_at_hand)


def check_references(context: QueryContext, object_name: str, record_filter: RecordFilter) -> None:
    """After an empty answer, warn about ids of missing records. Raises UsageError with --strict."""
    from crmctl.client.query.related_records import dangling_ids

    for slug, identity in dangling_ids(context, object_name, record_filter):
        context.doubt(f"{slug} refers to no record with the id {identity!r}")


def one_list(
    runtime: Runtime, object_name: str, filters: Sequence[str] | None, *, strict: bool = False
) -> tuple[tuple[Condition, ...], Callable[[Record], bool] | None]:
    """Return the conditions that the service can apply to a list, and a test for the others, if any."""
    if not filters:
        return (), None
    from crmctl.client.query.clauses import FilterReader
    from crmctl.client.query.record_query import RecordQuery

    context = query_context(runtime, strict=strict)
    return RecordQuery(context, object_name, FilterReader(context, object_name).read(filters)).one_list()


def approve_cost(runtime: Runtime, cost: ReadingCost, *, agreed: bool = False) -> None:
    """Announce the cost; ask if it is high. Raises UsageError if crmctl cannot prompt, InterruptedByUser if the user declines."""
    from crmctl.output.progress import duration

    seconds = max(runtime.crm.session.time_for(cost.requests), cost.requests * 0.1)
    lasting = f", about {duration(seconds)}" if seconds >= 1 else ""
    text = f"{cost.purpose}: {counted(cost.requests, 'more request')}{lasting}"
    if cost.requests > MOST_REQUESTS and not (agreed or runtime.assume_yes):
        if not runtime.prompter.can_ask:
            raise UsageError(text, hint="--yes reads them all the same; a narrower --filter takes fewer", code="confirmation_required")
        runtime.prompter.confirm(f"{text}. Go on?")
    elif cost.requests > FEW_REQUESTS and not runtime.flags.get("quiet"):
        runtime.messages.progress(text)
    else:
        runtime.messages.note(text)


LOCKED_SECONDS = 1.0
"""Longest wait for a locked mirror."""


class MirrorAnswers:
    """Answers of the mirror to one query, if its copy is proven and has the object's present attributes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._said: set[str] = set()

    def at_hand(self, cost: ReadingCost) -> MirroredLists | None:
        """Return the mirrored records if the service would need too many requests."""
        state = self._state(cost.of) if cost.requests > MOST_REQUESTS and not self._runtime.assume_yes else None
        if state is None:
            return None
        if state.slug not in self._said:
            instead = f"--yes reads the service ({counted(cost.requests, 'request')})"
            self._runtime.messages.warn(f"{state.slug} from the mirror, as of {self._when(state)}; {instead}")
            self._said.add(state.slug)
        return self._lists

    def named_at_hand(self, cost: ReadingCost) -> MirroredLists | None:
        """Return mirrored records for the names of references; not with --quiet, which would hide their age."""
        state = self._state(cost.of) if not self._runtime.flags.get("quiet") else None
        if state is None:
            return None
        self._runtime.messages.note(f"{cost.purpose}: names as of {self._when(state)}, from the mirror")
        return self._lists

    @cached_property
    def _lists(self) -> MirroredLists | None:
        from crmctl.mirror.place import mirror_path

        runtime = self._runtime
        place = mirror_path(runtime.paths.state, runtime.origin, runtime.key)
        if not place.is_file():
            return None
        from crmctl.mirror.local_copy import LocalCopy, MirroredLists

        with suppress(StorageError):
            copy = LocalCopy.at(place, LOCKED_SECONDS)
            if copy is not None:
                runtime.at_end(copy.close)
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
        from crmctl.values.moments import in_a_sentence, to_timestamp

        return in_a_sentence(to_timestamp(state.as_of), self._runtime.clock.now())
