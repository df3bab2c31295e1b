"""Conditions on when a record was made or changed, and moments in conditions on date attributes: one grammar, `models/moments.py`."""

from __future__ import annotations

from crmctl.client.queries.record_filter import Bound, Criterion, RecordFilter
from crmctl.models.comparison import COMPARISONS
from crmctl.models.filters import Clause, Condition, Operator
from crmctl.models.moments import Moment, read_moment
from crmctl.models.timestamps import EPOCH, micros_of, to_timestamp

MICRO = 1


def moment_value(text: str, now: float) -> str:
    """What a date attribute is compared with. ISO dates and times stay as they are. Raises UsageError for what is no moment."""
    if micros_of(text) is not None and text[4:5] == "-":
        return text
    return read_moment(text, now).for_date


def moment_filter(name: str, clause: Clause, now: float) -> RecordFilter:
    """A condition on `created_at` or `updated_at`. A day is compared by its first moment, and equal to all of its moments.

    Raises UsageError for what is no moment.
    """
    if clause.is_exact or clause.operator not in COMPARISONS | {Operator.EQUALS, Operator.NOT_EQUALS}:
        return RecordFilter(tuple(Condition(name, clause.operator, value) for value in clause.values))
    spans = [_span(name, clause.operator, read_moment(value, now)) for value in clause.values]
    if clause.operator is Operator.NOT_EQUALS:
        return RecordFilter(criteria=(Criterion(lambda record: not any(span.admits(record) for span in spans)),))
    if len(spans) == 1:
        return RecordFilter(bounds=(spans[0],))
    hull = _bound(name, min(span.least or 0 for span in spans), max(span.below or 0 for span in spans))
    return RecordFilter(bounds=(hull,), criteria=(Criterion(lambda record: any(span.admits(record) for span in spans)),))


def _span(name: str, operator: Operator, moment: Moment) -> Bound:
    at = _micros(moment)
    match operator:
        case Operator.LESS_THAN:
            return _bound(name, None, at)
        case Operator.LESS_THAN_OR_EQUAL:
            return _bound(name, None, at + MICRO)
        case Operator.GREATER_THAN:
            return _bound(name, at + MICRO, None)
        case Operator.GREATER_THAN_OR_EQUAL:
            return _bound(name, at, None)
        case _:
            return _bound(name, at, _micros(moment.next_day) if moment.is_day else at + MICRO)


def _micros(moment: Moment) -> int:
    return (moment.at - EPOCH) // (EPOCH.resolution)


def _bound(name: str, least: int | None, below: int | None) -> Bound:
    conditions = []
    if least is not None:
        operator, at = (Operator.GREATER_THAN_OR_EQUAL, least) if least % 1_000 == 0 else (Operator.GREATER_THAN, least - MICRO)
        conditions.append(Condition(name, operator, to_timestamp(at)))
    if below is not None:
        operator, at = (Operator.LESS_THAN, below) if below % 1_000 == 0 else (Operator.LESS_THAN_OR_EQUAL, below - MICRO)
        conditions.append(Condition(name, operator, to_timestamp(at)))
    return Bound(name, least, below, tuple(conditions))
