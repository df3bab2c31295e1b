"""Questions about records as the command line asks them: what --filter means, and what an answer costs before it costs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from crmctl.cli.counted_words import counted
from crmctl.errors import UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.client.queries.query_context import QueryContext, ReadingCost
    from crmctl.client.queries.record_filter import RecordFilter
    from crmctl.client.queries.record_query import RecordQuery
    from crmctl.models.filters import Condition
    from crmctl.models.records import Record

FEW_REQUESTS = 10
"""More take so long that they are announced at once, in every format."""

MOST_REQUESTS = 50
"""More need to be agreed to."""


def query_context(runtime: Runtime, *, strict: bool = False, agreed: bool = False) -> QueryContext:
    """`agreed`: whatever it costs. With `strict` a value that no record can have is an error."""
    from crmctl.client.queries.query_context import QueryContext

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
    """For what is only shown: what costs more than is agreed to comes from the mirror where there is one."""
    from crmctl.cli.mirror_answers import MirrorAnswers

    context = query_context(runtime, strict=strict, agreed=agreed)
    mirror = MirrorAnswers(runtime, most=MOST_REQUESTS)
    if not agreed:
        context = replace(context, at_hand=mirror.at_hand)
    return replace(context, named_at_hand=mirror.named_at_hand)


def read_filter(runtime: Runtime, object_name: str, filters: Sequence[str] | None) -> RecordFilter:
    """What --filter means. Raises UsageError for what is no condition, and what looking up others raises."""
    from crmctl.client.queries.record_filter import RecordFilter

    if not filters:
        return RecordFilter()
    from crmctl.client.queries.clauses import FilterReader

    return FilterReader(query_context(runtime), object_name).read(filters)


def record_query(context: QueryContext, object_name: str, wanted: RecordFilter) -> RecordQuery:
    from crmctl.client.queries.record_query import RecordQuery

    return RecordQuery(context, object_name, wanted)


def check_references(context: QueryContext, object_name: str, wanted: RecordFilter) -> None:
    """After an empty answer: say of a reference's id that it is the id of nothing. Raises UsageError where that is an error."""
    from crmctl.client.queries.references_checked import dangling_ids

    for slug, one in dangling_ids(context, object_name, wanted):
        context.doubt(f"{one!r} is the id of no record that {slug} could name")


def one_list(
    runtime: Runtime, object_name: str, filters: Sequence[str] | None
) -> tuple[tuple[Condition, ...], Callable[[Record], bool] | None]:
    """For commands that read a list by themselves: the conditions to ask it with, and what decides the rest, where there is a rest."""
    if not filters:
        return (), None
    context = query_context(runtime)
    return record_query(context, object_name, read_filter(runtime, object_name, filters)).one_list()


def approve_cost(runtime: Runtime, cost: ReadingCost, *, agreed: bool = False) -> None:
    """Announce a cost; a high one must be agreed to. Raises UsageError where nobody can be asked, InterruptedByUser for a no."""
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
