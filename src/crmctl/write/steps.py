"""Steps: writes to existing records.

Merges, undos and deletions of ids use one `StepSender`. Before it repeats an update whose answer was lost, it reads the records. Creates
need more care: see `sender`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

from crmctl.bulk_context import Interrupt, Progress, watch_interrupts
from crmctl.client.crm import Crm
from crmctl.client.session import encode_json
from crmctl.clock import Backoff, Clock
from crmctl.errors import CrmctlError, InterruptedByUser, NotFoundError, RejectedError, ServiceError
from crmctl.files.validation import Batch, Batcher, Entry
from crmctl.match.agreement import canonical
from crmctl.match.keys import is_unchanged
from crmctl.match.record_match import key_form
from crmctl.match.references import ids_only
from crmctl.models.resources import BULK_LIMIT, PAGE_LIMIT, Attribute, AttributeType, Record
from crmctl.read.read_back import Reader
from crmctl.read.stable_pages import SeenIds
from crmctl.values.attribute_types import Trait, types_with
from crmctl.write.database import BatchState
from crmctl.write.journal import Verdict, judge

PATIENCE = Backoff(first=1.0)

ATTEMPTS = 4
"""Most attempts of a request while its outcome is unknown."""

Part = TypeVar("Part")


class InHalves(Generic[Part]):
    """Parts to send, in order. The halves of a refused part come next."""

    def __init__(self, parts: Sequence[Part], halves: Callable[[Part], Sequence[Part]]) -> None:
        self._left = list(parts[::-1])
        self._halves = halves

    def __iter__(self) -> Iterator[Part]:
        while self._left:
            yield self._left.pop()

    def judged(self, part: Part, verdict: Verdict) -> Verdict:
        """Return the verdict on the last part. If the service refused it as a whole, queue its halves next."""
        if verdict.state is BatchState.BISECT:
            self._left += reversed(self._halves(part))
        return verdict


def attempts(most: int, clock: Clock) -> Iterator[int]:
    """Yield 1, 2, 3 up to `most`, waiting before each but the first."""
    yield 1
    for number in range(2, most + 1):
        clock.sleep(PATIENCE.gap(number - 1))
        yield number


class StepKind(StrEnum):
    """The purpose of a step. A merge takes its steps in the order of `MERGE_ORDER`."""

    UPDATE = "update"
    """Writes values to a record."""
    FREE = "free"
    """Clears a loser's unique value for the survivor."""
    SURVIVOR = "survivor"
    """Writes the merged values to the survivor."""
    REFERENCE = "reference"
    """Makes a record refer to the survivor in place of a loser."""
    ACTIVITY = "activity"
    """Makes an activity name the survivor in place of a loser."""
    DELETE = "delete"
    """Deletes a record."""
    CLAIM = "claim"
    """Writes a unique value to the survivor after its loser is deleted, because the loser required it."""


MERGE_ORDER = tuple(kind for kind in StepKind if kind is not StepKind.UPDATE)


class StepState(StrEnum):
    """State of a step. `sending`: it may be on its way, or done."""

    PLANNED = "planned"
    SENDING = "sending"
    DONE = "done"
    FAILED = "failed"
    UNDONE = "undone"


@dataclass(frozen=True)
class Step:
    """One write. `before` and `after` hold the changed attributes (for an activity, its links) with old and new values."""

    kind: StepKind
    object_id: str
    target: str
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    group: int = 0
    state: StepState = StepState.PLANNED


Mark = Callable[[Sequence[Step], StepState, str | None], None]
"""Stores the state of steps, before they are sent and afterwards, with the service's message for failed ones."""


class StepStanding(StrEnum):
    """State of a record relative to a step: its old values, its new values, or `changed` since by another client."""

    BEFORE = "before"
    AFTER = "after"
    CHANGED = "changed"


Attributes = Mapping[str, Attribute]
"""The attributes of an object by slug."""

REWRITTEN = types_with(Trait.REWRITTEN)


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


def is_same(attribute: Attribute | None, value: Any, current: Any) -> bool:
    """Whether two values from the service are equal. Blank values are, and references to the same records."""
    if value == current or canonical(value) is None:
        return value == current or canonical(current) is None
    is_reference = attribute is None or attribute.type == AttributeType.REFERENCE
    return is_reference and ids_only(value) is not None and ids_only(value) == ids_only(current)


def alike(attribute: Attribute | None, written: Any, current: Any) -> bool:
    """Whether a service that stored the written value may return the current one."""
    known = {"it": attribute} if attribute is not None else {}
    if is_same(attribute, written, current) or is_unchanged({"it": written}, {"it": current}, known):
        return True
    if attribute is None or attribute.type not in REWRITTEN:
        return False
    if canonical(written) == canonical(current):
        return True
    form = key_form(attribute.type, written)
    return attribute.type == AttributeType.PHONE_NUMBER and form is not None and form == key_form(attribute.type, current)


def current_records(reader: Reader, ids: Sequence[str], holds: Callable[[int, Record], bool] | None) -> Iterator[Record | None]:
    """Yield the current record of each id; None if it was deleted.

    `holds` says whether the record at a position has the values that were sent. Sends one request for several such records, and one for
    each other id. Raises the errors of reading.
    """
    changed = _changed_last(reader) if holds is not None and len(ids) > 2 else {}
    for position, record_id in enumerate(ids):
        record = changed.get(record_id.lower())
        if record is None or holds is None or not holds(position, record):
            try:
                record = reader.record(record_id)
            except NotFoundError:
                record = None
        yield record


def _changed_last(reader: Reader) -> Mapping[str, Record]:
    """Return the records changed last, by id in lower case; none if the service cannot sort by the time of changes."""
    try:
        page = reader.list_records(reader.object_id, sort="updated_at", order="desc", limit=PAGE_LIMIT)
    except RejectedError:
        return {}
    return {record.id.lower(): record for record in page.items}


LOOKS, MOST_LOOKS = Backoff(longest=4.0, jitter=0.0), 3
"""How crmctl looks again for a record that should be gone."""

UNREADABLE = "the service deleted fewer records than it was asked for, and whether this one is left could not be read"
UNTRUE = "the service answered that it deleted this record, and still returns it"
STILL_THERE = "the service deleted fewer records than it was asked for, and this one is still there"


@dataclass
class StepSender:
    """Sends steps. Raises errors that end everything: no network, no permission, interrupt.

    Marks refused steps as failed. `in_doubt` counts steps on their way at the end, `absent` records already gone before their deletion.
    `attributes`: by object id, to recognise values in the service's spelling.
    """

    service: Crm
    clock: Clock
    interrupt: Interrupt = field(default_factory=Interrupt)
    requests: int = 0
    in_doubt: int = 0
    absent: int = 0
    attributes: Mapping[str, Attributes] = field(default_factory=dict)
    _known_objects: set[str] = field(default_factory=set)

    def update(self, steps: Iterable[Step], mark: Mark) -> None:
        """Write the `after` values of the steps to their records."""
        for _, of_object in groupby(steps, key=attrgetter("object_id")):
            pending: dict[int, Step] = {}
            for batch in Batcher().batches(_entries(of_object, pending)):
                self._send([pending.pop(number) for number in batch.ordinals], self._write, mark)

    def delete(self, steps: Iterable[Step], mark: Mark) -> None:
        """Delete the records of these steps, all of one object. Records already gone count as deleted and as `absent`."""
        iterator = iter(steps)
        while chunk := list(islice(iterator, BULK_LIMIT)):
            self._send(chunk, self._delete, mark)

    def unsettled(self, steps: Sequence[Step], mark: Mark) -> list[Step]:
        """Return the steps of one object that the service has not carried out, although they were sent. Mark the other ones.

        Updates of records that another client changed since fail. Raises the errors of reading.
        """
        is_deletion, object_id = steps[0].kind is StepKind.DELETE, steps[0].object_id
        attributes, reader = self.attributes.get(object_id, {}), Reader(self.service, object_id, lambda: self.interrupt.requested)
        left = [step for step in steps if not is_deletion and not step.before]  # to be written whatever the record holds
        steps = [step for step in steps if is_deletion or step.before]

        def holds(position: int, record: Record) -> bool:
            step = steps[position]
            return standing(step.before, step.after, record.data, attributes)[0] is StepStanding.AFTER

        try:
            records = current_records(reader, [step.target for step in steps], None if is_deletion else holds)
            for step, record in zip(steps, list(records), strict=True):
                if is_deletion and record is None:
                    mark([step], StepState.DONE, None)
                elif is_deletion or record is None:
                    left.append(step)
                else:
                    state, changed = standing(step.before, step.after, record.data, attributes)
                    if state is StepStanding.BEFORE:
                        left.append(step)
                    elif state is StepStanding.AFTER:
                        mark([step], StepState.DONE, None)
                    else:
                        mark([step], StepState.FAILED, f"another client changed {', '.join(changed)} since the update was sent")
        finally:
            self.requests += reader.requests
        return left

    def begin(self) -> None:
        """Count a request about to be sent. Raises InterruptedByUser."""
        if self.interrupt.requested:
            raise InterruptedByUser("interrupted")
        self.requests += 1

    def _send(self, steps: Sequence[Step], send: Callable[[Sequence[Step], bool], Verdict], mark: Mark) -> None:
        mark(steps, StepState.SENDING, None)
        parts = InHalves([steps], _halves)
        for part in parts:
            left, verdict = self._settle(part, send, mark)
            if parts.judged(left, verdict).state is BatchState.CONFIRMED:
                mark([step for index, step in enumerate(left) if index not in verdict.failures], StepState.DONE, None)
                for index, why in verdict.failures.items():
                    mark([left[index]], StepState.FAILED, why)

    def _settle(self, part: Sequence[Step], send: Callable[[Sequence[Step], bool], Verdict], mark: Mark) -> tuple[Sequence[Step], Verdict]:
        """Send a part, and repeat the steps not carried out while the outcome is unknown. Return the steps sent last, and the verdict.

        Raises errors that end everything.
        """
        for number in attempts(ATTEMPTS, self.clock):
            if number > 1 and part[0].kind is not StepKind.DELETE:  # a repeated deletion changes nothing
                try:
                    part = self.unsettled(part, mark)
                except CrmctlError:
                    self.in_doubt += len(part)
                    raise
                if not part:
                    return part, Verdict(BatchState.CONFIRMED)
            if number == 1 or not self.interrupt.requested:
                self.begin()
                verdict = send(part, number > 1)
            if not verdict.repeatable or self.interrupt.requested:
                break
        if verdict.state in (BatchState.IN_DOUBT, BatchState.PLANNED):
            self.in_doubt += len(part) if verdict.state is BatchState.IN_DOUBT else 0
            raise verdict.fatal or ServiceError(verdict.reason)
        return part, verdict

    def _write(self, steps: Sequence[Step], _: bool) -> Verdict:
        batch = Batch(tuple(_entries(steps, {})))
        try:
            return judge(batch, self.service.bulk_write(steps[0].object_id, batch.records, mode="upsert"), mode="upsert")
        except NotFoundError as missing:
            return judge(batch, RejectedError(missing.message), mode="upsert")
        except CrmctlError as error:
            verdict = judge(batch, error, mode="upsert")
            return replace(verdict, fatal=error) if verdict.state is BatchState.IN_DOUBT else verdict

    def _delete(self, steps: Sequence[Step], doubted: bool) -> Verdict:
        object_id, ids = steps[0].object_id, [step.target for step in steps]
        try:
            deleted = self.service.bulk_delete(object_id, ids)
        except (NotFoundError, RejectedError) as error:
            return self._judge_refusal(object_id, len(ids), error)
        except CrmctlError as error:
            state = BatchState.IN_DOUBT if error.outcome_unknown else BatchState.PLANNED
            return Verdict(state, reason=error.message, repeatable=error.outcome_unknown, fatal=error)
        kept = still_there(self.service, object_id, ids, deleted, self.begin)
        if deleted is not None and not doubted:
            self.absent += max(0, len(ids) - deleted - len(kept))
        return Verdict(BatchState.CONFIRMED, failures=kept)

    def _judge_refusal(self, object_id: str, size: int, error: CrmctlError) -> Verdict:
        """Judge a refusal. A 404 for the object itself ends everything."""
        is_absent = isinstance(error, NotFoundError)
        if is_absent and object_id not in self._known_objects:
            self.service.get_object(object_id)
            self._known_objects.add(object_id)
        if size > 1:
            return Verdict(BatchState.BISECT, reason=error.message)
        self.absent += is_absent
        return Verdict(BatchState.CONFIRMED, failures={} if is_absent else {0: error.message})


def still_there(
    service: Crm, object_id: str, ids: Sequence[str], deleted: int | None, begin: Callable[[], None] = lambda: None
) -> dict[int, str]:
    """Return why some ids do not count as deleted, by index.

    If the service `deleted` fewer records than requested, crmctl reads them until it has found the others. If it deleted all or gives no
    count, crmctl looks for the last one only: an answer without effect leaves that one too.
    """
    problem = STILL_THERE
    if deleted is None or deleted >= len(ids):
        begin()
        if not _is_left(service, object_id, ids[-1]):
            return {}
        deleted, problem = 0, UNTRUE
    kept: dict[int, str] = {}
    unread: dict[int, str] = {}
    for index, record_id in enumerate(ids):
        if len(kept) >= len(ids) - deleted:
            return kept
        begin()
        try:
            service.get_record(object_id, record_id)
        except NotFoundError:
            continue
        except CrmctlError:
            unread = dict.fromkeys(range(index, len(ids)), UNREADABLE)
            break
        kept[index] = problem
    return kept | unread


def _is_left(service: Crm, object_id: str, record_id: str) -> bool:
    """Whether the service still returns a deleted record, for longer than its reads lag."""
    looks = 0
    while True:
        try:
            service.get_record(object_id, record_id)
        except CrmctlError:
            return False  # gone, or a key that may not read
        looks += 1
        if looks > MOST_LOOKS:
            return True
        service.session.clock.sleep(LOOKS.gap(looks))


@dataclass
class StepOutcome:
    """Result of taking steps.

    `failed` maps step numbers to the service's messages. After an `error`, `unsent` counts the steps not tried.
    """

    done: int = 0
    absent: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    in_doubt: int = 0
    unsent: int = 0
    requests: int = 0
    error: CrmctlError | None = None

    @property
    def left(self) -> int:
        """The number of steps that were not carried out, or may not have been."""
        return len(self.failed) + self.in_doubt + self.unsent


def take_steps(
    sender: StepSender, progress: Progress, steps: Iterable[Step], total: int, remember: Callable[[Sequence[str]], None]
) -> StepOutcome:
    """Take steps that are all deletions or all updates. `remember` receives the ids of each finished step at once.

    Does not raise errors of the service: one that ended the steps early is the outcome's `error`.
    """
    outcome = StepOutcome()

    def mark(steps: Sequence[Step], state: StepState, why: str | None) -> None:
        if state is StepState.DONE:
            remember([step.target for step in steps])
            outcome.done += len(steps)
        elif state is StepState.FAILED:
            outcome.failed[steps[0].number] = why or "refused"
        progress.advance(len(steps) if state is not StepState.SENDING else 0)

    with watch_interrupts(progress.note, sender.interrupt):
        try:
            for is_deletion, some in groupby(steps, key=lambda step: step.kind is StepKind.DELETE):
                (sender.delete if is_deletion else sender.update)(some, mark)
        except CrmctlError as error:
            outcome.error = error
    progress.finish()
    outcome.absent, outcome.in_doubt, outcome.requests = sender.absent, sender.in_doubt, sender.requests
    outcome.unsent = total - outcome.done - len(outcome.failed) - outcome.in_doubt
    return outcome


def deletions(object_id: str, ids: SeenIds) -> Iterator[Step]:
    """Yield the steps that delete these records."""
    for number, record_id in enumerate(record_id for chunk in ids.chunks(BULK_LIMIT) for record_id in chunk):
        yield Step(StepKind.DELETE, object_id, record_id, number=number)


def _entries(steps: Iterable[Step], pending: dict[int, Step]) -> Iterator[Entry]:
    for step in steps:
        pending[step.number] = step
        yield Entry(step.number, b'{"data":%s,"id":%s}' % (encode_json(step.after), encode_json(step.target)), step.target)


def _halves(steps: Sequence[Step]) -> Sequence[Sequence[Step]]:
    middle = len(steps) // 2
    return steps[:middle], steps[middle:]
