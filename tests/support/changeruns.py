"""Changes by key, deletions, feeds, undos and parents against a service that answers wrongly, compared with the ground truth of every
record.

A play is data; `play_change` runs it through the use cases on an injected clock. Lost, doubled or misnamed rows, overwritten values of
people, and exit 0 for unfinished work are faults of crmctl.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from crmctl.api import Bulk
from crmctl.client.directory import Directory
from crmctl.errors import CrmctlError
from crmctl.plan.requests import RunRequest
from crmctl.write.database import RowState
from crmctl.write.jobs import JobStore
from crmctl.write.journal import RIVALS, surplus_records
from tests.support.answerruns import ALTERATIONS, ANSWERS, BATCHES, LISTS, some_answers
from tests.support.bulkcontext import QuietListener
from tests.support.changingservice import COMPANIES, PEOPLE, ROWS, ChangePlay, ChangingService, Data, VersionedRecord, data_of
from tests.support.faultruns import FOLDER, ORIGIN, MovingClock, client_of, repeatable_turns
from tests.support.mishaps import killed_at

SEEDED = 8
NIGHT = 20_000.0
KINDS = ("keyed", "delete", "feed", "undo", "parents")
WRITERS = ("none", "edits", "rivals")
KILLS = (None, None, None, ("after begin", 1), ("after begin", 2), ("before settle", 2), ("after settle", 1), ("after settle", 5))


@dataclass
class ChangeOutcome:
    """Faults of crmctl, in words, and the number of rows it left in doubt."""

    faults: list[str] = field(default_factory=list)
    in_doubt: int = 0
    rows: int = 0

    @property
    def is_right(self) -> bool:
        return not self.faults


@dataclass
class PlayContext:
    """The dependencies of a use case; `guard_write` is that of a client."""

    client: Any
    clock: MovingClock
    state: Path
    listener: QuietListener = field(default_factory=QuietListener)
    origin: str = ORIGIN
    profile: str = "default"
    key: str = "key"

    def __post_init__(self) -> None:
        self.crm = self.service = self.client
        self.directory = Directory(self.client, self.state / "cache", self.profile, self.origin, self.clock)

    def guard_write(self) -> None:
        self.client.session.take_requests()


@dataclass
class Refused:
    """The outcome of a command that raised an error."""

    error: CrmctlError
    summary: Any = None

    def raise_for_error(self) -> None:
        raise self.error


def error_of(result: Any) -> CrmctlError | None:
    try:
        result.raise_for_error()
    except CrmctlError as error:
        return error
    return None


class Stage:
    """One play: the service, the state of crmctl, and the faults found."""

    def __init__(self, spec: ChangePlay, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.clock = MovingClock()
        self.service = ChangingService(self.clock, spec)
        self.outcome = ChangeOutcome()
        self.store = JobStore(folder, self.clock)

    @property
    def bulk(self) -> Bulk:
        """Bulk commands of a new process."""
        return Bulk(PlayContext(client_of(self.service, self.clock, self.spec.senders), self.clock, self.folder))  # type: ignore[arg-type]

    def begin(self) -> None:
        """Let the service misbehave from now on."""
        service, spec = self.service, self.spec
        service.answers = {service.writes + at: ANSWERS[name] for at, name in spec.answers}
        service.alters = service.is_late = True
        service.writer, service.began = spec.writer, self.clock.now()

    def end(self) -> None:
        self.service.answers.clear()
        self.service.writer = "none"

    def attempt(self, work: Callable[[Bulk], Any]) -> Any:
        try:
            return work(self.bulk)
        except CrmctlError as error:
            return Refused(error)

    def run(self, work: Callable[[Bulk], Any]) -> Any:
        """Run a job, kill it if the play says so, and resume it until nothing changes. Return None if it was killed and not resumed."""
        if self.spec.kill is None:
            result = self.attempt(work)
        else:
            try:
                with killed_at(*self.spec.kill):
                    result = self.attempt(work)
            except BaseException as error:  # pytest's exception for a process that ended before its death
                if type(error).__name__ != "Failed":
                    raise
            else:
                result = None
            self.clock.advance(600)
            self.service.began = self.clock.now()
            if not self.spec.resumes:
                return result
        for _ in range(4):
            job = next(iter(self.store.list()), None)
            if job is None or not (job.is_resumable or result is None):
                break
            self.clock.advance(60)
            self.service.began = self.clock.now()
            try:
                result = self.bulk.resume(job.id, concurrency=self.spec.senders)
            except CrmctlError as error:
                self.outcome.faults.append(f"resume refuses: {error.code} {error.message}")
                break
        return result

    def fault(self, text: str, *, when: bool = True) -> None:
        if when:
            self.outcome.faults.append(text)

    def count_rows(self, result: Any, sent: Mapping[int, Data], what: str) -> None:
        """Compare the newest job's report of each row with the stored records."""
        jobs = self.store.list()
        with closing(self.store.open(jobs[0])) as journal:
            rows, extra, rivals = journal.rows(1, ROWS), surplus_records(journal), journal.kept(RIVALS)
        succeeded = result is not None and error_of(result) is None and not jobs[0].is_resumable
        there: dict[int, list[VersionedRecord]] = {n: [] for n in sent}
        for record in self.service.of():
            if record.row in there:
                there[record.row].append(record)  # type: ignore[index]
        named = Counter(entry.record_id for entry in rows.values() if entry.record_id is not None)
        self.fault(f"{what}: records named twice", when=any(count > 1 for count in named.values()))
        for n, records in there.items():
            state = rows[n].state if n in rows else RowState.UNSENT
            doubtful = state is RowState.IN_DOUBT
            self.outcome.in_doubt += doubtful
            self.outcome.rows += 1
            if state in (RowState.CREATED, RowState.UPDATED, RowState.UNCHANGED):
                self.fault(f"{what}: row {n} is {state} and lost", when=not records)
                if records and state is not RowState.UNCHANGED:
                    is_written = any(self._holds(record, n, sent[n]) for record in records)
                    self.fault(f"{what}: row {n} is {state} and not written", when=not is_written)
            elif succeeded:
                self.fault(f"{what}: exit 0 and row {n} is {state}", when=state is not RowState.SKIPPED)
            mine = [record for record in records if record.versions[0][2] == "job"]
            spare = len(extra.get(n, ())) + len(rivals.get(n, ((), ()))[1]) + doubtful + (state is RowState.REJECTED)  # as ambiguous
            self.fault(f"{what}: row {n} is doubled ({len(mine)})", when=len(mine) > 1 + spare)
            # A row found by its key refers to its own record. A record that a rival adds at that moment is ambiguous for the next import by
            # key.
            is_claimed = bool(mine) and state not in (RowState.UPDATED, RowState.UNCHANGED)
            self.fault(f"{what}: exit 0 and row {n} exists {len(records)} times", when=succeeded and is_claimed and len(records) > 1)
            record_id = rows[n].record_id if n in rows else None
            if record_id is not None:
                record = self.service.records.get(record_id)
                self.fault(f"{what}: row {n} is misnamed", when=record is None or record.row != n)

    def is_back(self, record: VersionedRecord, before: Data) -> bool:
        """Whether a record has its old values, or what the service stores when they are written again."""
        again = self.service.stored(record.row, before)
        return record.data is not None and all(record.data.get(slug) in (value, again.get(slug)) for slug, value in before.items())

    def _holds(self, record: VersionedRecord, n: int, data: Data) -> bool:
        """Whether some version of the record has the row's values, except those that people changed since."""
        stored = {slug: value for slug, value in self.service.stored(n, data).items() if slug in data and slug not in record.edits}
        return any(
            version is not None and all(version.get(slug) == value for slug, value in stored.items()) for _, version, _ in record.versions
        )


def _keyed(stage: Stage) -> None:
    """Some rows exist. A second import by key follows at once, while the lists are late."""
    stage.begin()
    sent = {n: data_of(n, 1) for n in range(1, ROWS + 1)}
    result = stage.run(lambda bulk: bulk.import_records("people", [*sent.values()], key="email", concurrency=stage.spec.senders))
    # A killed job that is not resumed has compared nothing yet and looks unfinished; the next import by key judges its rows.
    stage.count_rows(result, {} if result is None else sent, "first import")
    stage.fault(
        "a killed job looks finished", when=result is None and stage.store.list()[:1] != [] and not stage.store.list()[0].is_resumable
    )
    stage.end()
    if stage.spec.alteration == "alters the unique attribute":
        return  # these keys cannot be found again
    stage.service.watches = False  # the next import by key may change what people changed after an import
    again = {n: data_of(n, 2) for n in range(1, ROWS + 1)}
    second = stage.bulk.import_records("people", [*again.values()], key="email", concurrency=stage.spec.senders)
    mine = Counter(record.row for record in stage.service.of() if record.versions[0][2] == "job")
    journal = stage.store.open(stage.store.list()[0])
    with closing(journal):
        named = {*surplus_records(journal), *journal.kept(RIVALS)}
    was_clean = result is None or error_of(result) is None
    for n, count in mine.items():
        stage.fault(f"second import: row {n} is doubled", when=count > 1 and n not in named and was_clean and error_of(second) is None)


def _delete(stage: Stage) -> None:
    kept = [stage.service.create(PEOPLE, data_of(n), "person") for n in range(101, 106)]
    ids = [record.id for record in stage.service.of() if record not in kept]
    stage.begin()
    result = stage.run(lambda bulk: bulk.delete("people", ids, concurrency=stage.spec.senders))
    left = [record_id for record_id in ids if stage.service.records[record_id].data is not None]
    stage.fault("other records were deleted", when=any(record.data is None for record in kept))
    if result is not None:
        summary = getattr(result.summary, "to_document", dict)()
        reported = summary["deleted"] + summary["notFound"] if "notFound" in summary else None
        stage.fault("records were deleted without a job", when=len(left) < len(ids) and not stage.store.list())
        stage.fault(
            f"{reported} of {len(ids)} are reported gone, {len(left)} exist", when=reported is not None and reported > len(ids) - len(left)
        )
        stage.fault(f"exit 0 and {len(left)} exist", when=error_of(result) is None and bool(left))
    stage.outcome.rows += len(ids)


def _feed(stage: Stage) -> None:
    """Import on three nights; people edit records after the first and during the second."""
    nights = [{n: data_of(n, night) for n in range(1, ROWS + 1)} for night in (1, 2)]

    def play_night(bulk: Bulk, night: int) -> Any:
        return bulk.import_records(
            "people", [*nights[night - 1].values()], key="email", feed="erp", again=True, concurrency=stage.spec.senders
        )

    stage.service.alters = True
    play_night(stage.bulk, 1)
    stage.clock.advance(NIGHT)
    for record in stage.service.of()[:4]:
        stage.service.edit(record, "note", f"by hand {record.row}")
    stage.clock.advance(100)
    stage.begin()
    result = stage.run(lambda bulk: play_night(bulk, 2))
    if stage.spec.alteration == "alters the unique attribute":
        return  # these keys cannot be found again
    stage.count_rows(result, {}, "second night")
    stage.end()
    stage.clock.advance(NIGHT)
    stage.service.began = stage.clock.now()
    last = play_night(stage.bulk, 2)
    stage.count_rows(last, {}, "third night")
    for record in stage.service.of():
        if not record.edits and record.row in nights[1] and error_of(last) is None:
            stored = stage.service.stored(record.row, nights[1][record.row])  # type: ignore[index]
            wrong = [slug for slug, value in stored.items() if record.data is not None and record.data.get(slug) != value]
            stage.fault(f"third night: row {record.row} has an old {', '.join(wrong)}", when=bool(wrong) and record.versions[0][2] == "job")


def _undo(stage: Stage) -> None:
    """Undo an import by key after people edited some of its records; the lists are late, or show an old state for ever."""
    before = {record.id: dict(record.data or {}) for record in stage.service.of()}
    sent = {n: data_of(n, 1) for n in range(1, ROWS + 1)}
    stage.service.alters = True
    result = stage.run(lambda bulk: bulk.import_records("people", [*sent.values()], key="email", concurrency=stage.spec.senders))
    if result is not None and error_of(result) is not None:
        return
    stage.clock.advance(3600)
    frozen = stage.spec.lists == "each record late"
    stage.service.frozen = stage.clock.now() if frozen else None
    stage.clock.advance(1)
    chosen = random.Random(stage.spec.seed).sample(stage.service.of(), 5)
    for at, record in enumerate(chosen):
        stage.service.edit(record, ("note", "stage", "score")[at % 3], 7000 + at if at % 3 == 2 else f"by hand {at}")
    edited = {record.id: dict(record.edits) for record in chosen}
    stage.clock.advance(30)
    stage.begin()
    stage.service.writer = "none"
    error: CrmctlError | None = None
    undone: Any = None
    for _ in range(3):
        try:
            undone = stage.bulk.undo(stage.store.list()[0].id)
            error = error_of(undone)
        except CrmctlError as failure:
            error = failure
            if failure.code == "nothing_to_undo":
                error = None
                break
        if error is None:
            break
        stage.clock.advance(60)
    for record_id, edits in edited.items():
        data = stage.service.records[record_id].data
        lost = [slug for slug, (value, _) in edits.items() if data is None or data.get(slug) != value]
        stage.fault(f"undo: row {stage.service.records[record_id].row} lost {', '.join(lost)}", when=bool(lost))
    if error is None or (error.details and {*error.details} == {"conflicts"}):
        kept = {row["id"] for row in undone.to_document()["rows"]["conflicts"]} if error is not None else set()
        for record in stage.service.of():
            if record.id not in edited.keys() | kept and record.row in sent:
                stage.fault(
                    f"undo: row {record.row} is not undone", when=record.id not in before or not stage.is_back(record, before[record.id])
                )
    if error is None:
        stage.fault(
            "undo: exit 0 with conflicts",
            when=any(stage.service.records[record_id].data is not None and record_id not in before for record_id in edited),
        )
    stage.outcome.rows += ROWS


def _parents(stage: Stage) -> None:
    sent = {n: data_of(n, 1) for n in range(1, ROWS + 1)}
    rows = [data | {"company": f"Firm {n % 6}"} for n, data in sent.items()]
    for n in range(2):
        stage.service.create(COMPANIES, {"name": f"Firm {n}"}, "person")
    stage.clock.advance(3600)
    stage.begin()
    stage.service.writer = "none"
    options: dict[str, Any] = {"references": ["company=companies.name"], "on_missing_ref": "create", "concurrency": stage.spec.senders}
    result = stage.run(lambda bulk: bulk.import_records("people", rows, key="email", **options))
    firms = Counter(record.row for record in stage.service.of(COMPANIES))
    names = {record.id: record.row for record in stage.service.of(COMPANIES)}
    stage.count_rows(result, {} if result is None else sent, "rows with parents")
    is_good = result is not None and error_of(result) is None
    for name, count in firms.items():
        stage.fault(f"exit 0 and parent {name} exists {count} times", when=count > 1 and is_good)
    for record in stage.service.of():
        if record.versions[-1][2] == "job" and record.row is not None and (record.data or {}).get("company") is not None:
            company = names.get(str((record.data or {})["company"]))
            stage.fault(f"row {record.row} refers to {company}", when=company != f"Firm {int(record.row) % 6}")


SCRIPTS: dict[str, Callable[[Stage], None]] = {"keyed": _keyed, "delete": _delete, "feed": _feed, "undo": _undo, "parents": _parents}


@contextmanager
def small_batches(size: int = 5) -> Iterator[None]:
    delivery = RunRequest.delivery
    with patch.object(RunRequest, "delivery", lambda request: replace(delivery(request), max_rows=size)):
        yield


def play_change(spec: ChangePlay) -> ChangeOutcome:
    with tempfile.TemporaryDirectory(dir=FOLDER) as name, small_batches(spec.batch), repeatable_turns(spec.senders):
        stage = Stage(spec, Path(name))
        seeded = range(1, ROWS + 1) if spec.kind == "delete" else () if spec.kind == "feed" else range(1, SEEDED + 1)
        for n in seeded:
            stage.service.create(PEOPLE, data_of(n), "person")
        for n in range(2001, 2004):
            stage.service.create(PEOPLE, data_of(n), "person")
        stage.clock.advance(3600)
        SCRIPTS[spec.kind](stage)
        for text in stage.service.overwritten:
            stage.fault(f"overwritten: {text}")
        return stage.outcome


def change_plays(count: int, seed: int) -> Iterator[ChangePlay]:
    """Yield random plays, reproducible by seed."""
    chance = random.Random(seed)
    for number in range(count):
        batch = chance.choice(BATCHES)
        yield ChangePlay(
            chance.choice(KINDS),
            chance.choice((None, *ALTERATIONS)),
            chance.choice((None, None, 3, 7, 12)),
            some_answers(chance, ROWS, batch),
            chance.choice(("current", *LISTS)),
            chance.choice(("none", *WRITERS)),
            chance.random() < 0.75,
            chance.random() < 0.4,
            chance.choice(KILLS),
            chance.random() < 0.8,
            number,
            batch,
        )
