"""Read records to find out whether a write took effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

from crmctl.client.answers import Page
from crmctl.client.crm import Crm
from crmctl.client.session import AttemptObserver
from crmctl.clock import Backoff, Clock
from crmctl.errors import CrmctlError, DeniedError, ForbiddenError, NotFoundError, RejectedError, ServiceError
from crmctl.files.validation import Entry
from crmctl.match.agreement import Scale
from crmctl.match.record_match import by_content
from crmctl.models.resources import PAGE_LIMIT, Attribute, BulkFailure, BulkResult, Record
from crmctl.read.read_back import Reader
from crmctl.read.records import read_one
from crmctl.values.equality import alike, canonical, is_same
from crmctl.values.moments import MICROS, micros_of, micros_of_date, seconds_of
from crmctl.write.send_context import samples


class StepStanding(StrEnum):
    """State of a record relative to a step: its old values, its new values, or `changed` since by another client."""

    BEFORE = "before"
    AFTER = "after"
    CHANGED = "changed"


Attributes = Mapping[str, Attribute]
"""The attributes of an object by slug."""


def standing(
    before: Mapping[str, Any], after: Mapping[str, Any], current: Mapping[str, Any], attributes: Attributes
) -> tuple[StepStanding, list[str]]:
    """Return the standing of a record, and its attributes that hold neither their old nor their new value.

    `before`: the overwritten values as they were read; `after`: the values sent.
    """
    if all(is_same(attributes.get(slug), value, current.get(slug)) for slug, value in before.items()):
        return StepStanding.BEFORE, []
    new = [slug for slug, value in after.items() if alike(attributes.get(slug), value, current.get(slug))]
    old = [slug for slug in after if alike(attributes.get(slug), before.get(slug, after[slug]), current.get(slug))]
    if changed := [slug for slug in after if slug not in new and slug not in old]:
        return StepStanding.CHANGED, changed
    return (StepStanding.BEFORE if len(old) == len(after) > len(new) else StepStanding.AFTER), []


def current_records(
    reader: Reader, ids: Sequence[str], page: Page[Record] | None = None, holds: Callable[[int, Record], bool] = lambda *_: False
) -> Iterator[Record | None]:
    """Yield the current record of each id; None if it was deleted. Raises the errors of reading.

    `page`: the records changed last. One of them counts as current if it `holds` the values that were sent to its position.
    """
    changed = {record.id.lower(): record for record in page.items} if page is not None else {}
    for position, record_id in enumerate(ids):
        record = changed.get(record_id.lower())
        yield record if record is not None and holds(position, record) else read_one(reader, record_id)


def changed_last(reader: Reader) -> Page[Record] | None:
    """Return the records changed last; None if the service cannot sort by the time of changes."""
    try:
        return reader.list_records(reader.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
    except RejectedError:
        return None


Images = Mapping[int, Mapping[str, Any]]
"""The values that rows overwrite, by row."""

NOTHING_KEPT: Images = MappingProxyType({})
CLOCK_MARGIN = 60.0
"""Allowed difference in seconds between the service's clock and the local clock if the service sends no Date."""

DATE_MARGIN = 2.0
"""Allowed difference in seconds between the service's Date and its times of change: either may be rounded."""


def compare(
    reader: Reader, entries: Sequence[Entry], sent_at: float, before: Images = NOTHING_KEPT, *, now: Callable[[], float]
) -> tuple[set[int], set[int]]:
    """Return the ordinals of rows already applied, and of rows safe to send again.

    A row is applied if its record holds the values sent, or has changed to values that the service may have made of them. It is safe to
    repeat if the record is missing, or still has its `before` values; if these are unknown, if it is older than the request. Another client
    changed the remaining records.

    Sends one request for several rows that were applied, or for rows without `before` values, and one for each other row. `sent_at` and
    `now()` are in Unix seconds by the local clock. Raises the errors of reading.
    """
    applied: set[int] = set()
    repeatable: set[int] = set()

    def holds(entry: Entry, record: Record) -> bool:
        """Whether the record has the values sent, also if these differ only in capitals or blanks from the old ones."""
        image = before.get(entry.ordinal)
        return _holds(entry, record) and (not image or not _is_as_before(entry, image, record.data))

    page = changed_last(reader) if len(entries) > 2 or not all(entry.ordinal in before for entry in entries) else None
    since = _send_time(page, sent_at, now)
    records = current_records(reader, [str(entry.id) for entry in entries], page, lambda position, record: holds(entries[position], record))
    for entry, record in zip(entries, records, strict=True):
        image = before.get(entry.ordinal)
        if record is None:
            repeatable.add(entry.ordinal)
        elif holds(entry, record):
            applied.add(entry.ordinal)
        elif _is_older(record, since) if image is None else _is_as_before(entry, image, record.data):
            repeatable.add(entry.ordinal)
        elif image is not None and Scale([entry]).compare(entry, record.data).is_strong:
            applied.add(entry.ordinal)
    return applied, repeatable


def shows_refused(reader: Reader, entries: Sequence[Entry], sent_at: float, *, now: Callable[[], float]) -> bool:
    """Whether one of the records changed last holds a row without `before` values, and changed since it was sent, in one request."""
    page = changed_last(reader)
    since, by_id = _send_time(page, sent_at, now), {str(entry.id).lower(): entry for entry in entries}
    records = page.items if page is not None else []
    return any(
        (entry := by_id.get(record.id.lower())) is not None and not _is_older(record, since) and _holds(entry, record) for record in records
    )


def _send_time(page: Page[Record] | None, sent_at: float, now: Callable[[], float]) -> float:
    """Return the earliest time by the service's clock at which a request may have been sent."""
    date = micros_of_date(page.date) if page is not None else None
    return sent_at - CLOCK_MARGIN if date is None else sent_at + date / MICROS - now() - DATE_MARGIN


def _holds(entry: Entry, record: Record) -> bool:
    content = by_content([entry])
    return content.key(entry.data) == content.key(record.data)


def _is_as_before(entry: Entry, image: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    """Whether the attributes of this row still have the values read before it was sent."""
    pairs = ((current.get(slug), image.get(slug, value)) for slug, value in entry.data.items())
    return all(now == old or (old is None and now in ("", [])) for now, old in pairs)


def _is_older(record: Record, moment: float) -> bool:
    changed_at = seconds_of(record.updated_at)
    return changed_at is not None and changed_at < moment


LOOKS, MOST_LOOKS = Backoff(longest=4.0, jitter=0.0), 4
"""How crmctl looks again for a change that a record does not show yet."""

UNREADABLE = "the service deleted fewer records than it was asked for, and whether this one is left could not be read"
UNTRUE = "the service answered that it deleted this record, and still returns it"
STILL_THERE = "the service deleted fewer records than it was asked for, and this one is still there"


Weigh = Callable[[Record], StepStanding]
"""Returns how a record stands to a write: before it, after it, or changed in some other way."""


def took_effect(reader: Reader, clock: Clock, written: Iterable[tuple[str, Weigh]]) -> bool:
    """Whether records show a write that the service acknowledged. The first record stands for its request.

    If it has changed in some other way, perhaps by another client, the next one decides; without a next one, crmctl believes the answer.
    crmctl looks again while a record shows the old state, because reads may lag. A deleted record is not old, and with a key that may not
    read crmctl takes the service's word. Raises all other errors of reading.
    """
    for record_id, weigh in written:
        state = StepStanding.BEFORE
        for _ in LOOKS.tries(MOST_LOOKS, clock.sleep):
            try:
                state = weigh(reader.record(record_id))
            except (NotFoundError, ForbiddenError):
                return True
            if state is not StepStanding.BEFORE:
                break
        if state is not StepStanding.CHANGED:
            return state is StepStanding.AFTER
    return True


def updates_to_show(entries: Sequence[Entry], before: Images, as_of: int | None) -> Iterator[tuple[str, Weigh]]:
    """Yield some of the rows whose updates a record must show.

    `as_of`: changes before this moment of the service were made before the request. A single record that changed later proves nothing.
    """
    visible = [entry for entry in entries if (image := before.get(entry.ordinal)) is None or is_visible(image, entry.data)]
    for entry in samples(visible):
        yield str(entry.id), partial(_standing_of_row, entry, before.get(entry.ordinal), as_of if len(visible) > 1 else None)


def is_visible(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether an update changes more than services change by themselves."""
    return not _agrees({slug: value for slug, value in after.items() if slug in before}, before)


def _standing_of_row(entry: Entry, image: Mapping[str, Any] | None, as_of: int | None, record: Record) -> StepStanding:
    data, current = entry.data, record.data
    changes = data if image is None else {slug: value for slug, value in data.items() if slug in image}
    parts = [changes] if image is None else [{slug: value} for slug, value in changes.items()]
    if any(_agrees(part, current) and not (image is not None and _agrees(part, image)) for part in parts):
        return StepStanding.AFTER
    has_moved = as_of is not None and (micros_of(record.updated_at) or 0) > as_of
    if image is None:
        has_changed = Scale([entry]).compare(entry, current).is_strong
    else:
        has_changed = not all(is_same(None, image[slug], current.get(slug)) for slug in changes)
    return StepStanding.CHANGED if has_moved or has_changed else StepStanding.BEFORE


def _agrees(data: Mapping[str, Any], current: Mapping[str, Any]) -> bool:
    pairs = [(value, current.get(slug)) for slug, value in data.items()]
    return all(canonical(value) == canonical(stored) or is_same(None, value, stored) for value, stored in pairs)


def still_there(reader: Reader, clock: Clock, ids: Sequence[str], deleted: int | None) -> dict[int, str]:
    """Return why some ids do not count as deleted, by index.

    If the service `deleted` fewer records than requested, crmctl reads all of them. If it deleted all or gives no count, crmctl looks for
    the last one only: an answer without effect leaves that one too.
    """
    problem = STILL_THERE
    if deleted is None or deleted >= len(ids):
        try:
            if took_effect(reader, clock, [(ids[-1], lambda _: StepStanding.BEFORE)]):
                return {}
        except CrmctlError:
            return {}
        problem = UNTRUE
    kept: dict[int, str] = {}
    unread: dict[int, str] = {}
    for index, record_id in enumerate(ids):
        try:
            reader.record(record_id)
        except NotFoundError:
            continue
        except CrmctlError:
            unread = dict.fromkeys(range(index, len(ids)), UNREADABLE)
            break
        kept[index] = problem
    return kept | unread


def delete_records(
    service: Crm, object_id: str, ids: Sequence[str], *, watch: AttemptObserver | None = None, stop: Callable[[], bool] = lambda: False
) -> tuple[BulkResult, int]:
    """Delete records in one request. Return the result, and how many of them were gone before.

    The result counts deleted records as `updated`, and a single one that was gone as `created`. Raises RejectedError for a 404 about one
    of several ids, or about a record that is there.
    """
    try:
        deleted = service.bulk_delete(object_id, ids, watch=watch)
    except NotFoundError as error:
        if len(ids) == 1:
            service.get_object(object_id)  # raises if the 404 is about the object
            if _is_gone(service, object_id, ids[0]):
                return BulkResult(created=1), 1
        raise RejectedError(error.message, code=error.code, status=error.status) from error
    except DeniedError as error:
        # Some services refuse after carrying out the request.
        if any(_is_gone(service, object_id, record_id) for record_id in {ids[0], ids[-1]}):
            raise ServiceError(error.message, status=error.status, outcome_unknown=True) from error
        raise
    kept = still_there(Reader(service, object_id, stop), service.session.clock, ids, deleted)
    failed = [BulkFailure(index=index, error=error) for index, error in kept.items()]
    absent = max(0, len(ids) - deleted - len(failed)) if deleted is not None else 0
    return BulkResult(updated=len(ids) - len(failed), failed=failed), absent


def _is_gone(service: Crm, object_id: str, record_id: str) -> bool:
    try:
        service.get_record(object_id, record_id)
    except CrmctlError as error:
        return isinstance(error, NotFoundError)
    return False
