"""One import against a service that alters values, answers wrongly, shows lists late and has another writer, compared with the ground truth
of every row.

A play is data; `play` runs it in process on an injected clock, resumes the job until nothing changes, and counts.
"""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.client.transport import Response
from crmctl.plan.import_run import run_import
from crmctl.plan.job_start import ImportRun
from crmctl.write.database import JobState, RowState
from crmctl.write.journal import Journal, surplus_records
from crmctl.write.send_context import DeliveryOptions
from tests.support.bulkjobs import NO_HOOKS, Prepared, Silent, header
from tests.support.faultruns import FOLDER, ORIGIN, MovingClock, audit_job, client_of, repeatable_turns
from tests.support.faultservice import Fault, FaultService, Habits, Lost, json_response

Data = dict[str, Any]
BATCHES, LARGE_BATCHES = (5, 5, 1, 2, 3, 8), (40, 60, 100)
RUNS = 6


def _text(change: Callable[[str], str], *slugs: str) -> Callable[[Data], Data]:
    def alter(data: Data) -> Data:
        return data | {slug: change(data[slug]) for slug in slugs if isinstance(data.get(slug), str)}

    return alter


ALTERATIONS: dict[str, Callable[[Data], Data]] = {
    "truncates text": _text(lambda text: text[:14], "name", "note"),
    "collapses blanks": _text(lambda text: " ".join(text.split()), "name", "note"),
    "rounds numbers": lambda data: data | {"score": round(data["score"], 1)},
    "sorts lists": lambda data: data | {"tags": sorted(data["tags"])},
    "lowers text": _text(str.lower, "name", "note"),
    "trims text": _text(str.strip, "name", "note"),
    "drops an attribute": lambda data: {slug: value for slug, value in data.items() if slug != "note"},
    "writes titles": _text(str.title, "name"),
    "escapes text": _text(lambda text: text.replace("&", "&amp;"), "name", "note"),
    "makes dates moments": lambda data: data | {"due": data["due"] + "T00:00:00Z"},
    "adds a default": lambda data: {"stage": "new", **data},
    "alters the unique attribute": _text(lambda text: text.replace("+x", "").lower(), "email"),
}

ANSWERS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("no answer, applied all", "all", "drop"),
        Fault("no answer, applied half", "half", "drop"),
        Fault("no answer, applied no", "no", "drop"),
        Fault("created, without effect", "no", "good"),
        Fault("created twice by a proxy", "twice", "good"),
        Fault("429, applied all", "all", "429 seconds"),
        Fault("401, applied all", "all", "401"),
        Fault("403, applied all", "all", "403"),
        Fault("404, applied all", "all", "404"),
        Fault("503, applied to the last rows", "last", "503"),
    )
}

LISTS = ("current", "5 s late", "each record late", "every second read late")
WRITERS = ("none", "others", "similar")
RECOGNITIONS = ("content", "unique", "capitals")


@dataclass(frozen=True)
class AnswerPlay:
    """One import and its faults. `altered`: the row to alter (None: all). `answers`: by number of the write. `refused`: a row the service
    refuses.
    """

    recognition: str = "content"
    alteration: str | None = None
    altered: int | None = None
    answers: tuple[tuple[int, str], ...] = ()
    lists: str = "current"
    writer: str = "none"
    total: bool = True
    refused: int | None = None
    rows: int = 23
    seed: int = 0
    batch: int = 5
    senders: int = 1


@dataclass(frozen=True)
class AnswerOutcome:
    """The result of a play. `lost`, `doubled` and `misnamed` count rows the job does not report; `false_success` is exit 0 in spite of
    them.
    """

    lost: int
    doubled: int
    misnamed: int
    in_doubt: int
    duplicates: int
    false_success: bool
    reads: int
    writes: int
    failed: int
    rows: int
    notes: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.doubled or self.misnamed or self.false_success)


class AnsweringService(FaultService):
    """A service that alters records as the play says; every stored record keeps the row it came from as `truth`."""

    def __init__(self, clock: MovingClock, spec: AnswerPlay) -> None:
        faults = {number: ANSWERS[name] for number, name in spec.answers}
        super().__init__(clock, faults, Habits(total=spec.total), spec.seed)
        self.spec = spec
        self._chance = random.Random(spec.seed)
        self._snapshot: tuple[float, list[Any]] = (0.0, [])

    def _write(self, body: Data, timeout: float) -> Response:
        if self.spec.writer != "none":
            n = 1000 + self.writes
            data = row_data(n) | {"email": f"other{n}@else.org"}
            if self.spec.writer == "others":
                data = {"name": f"Stranger {n}", "email": f"other{n}@else.org", "score": n + 0.5}
            super()._apply([{"data": data | {"_truth": -n}}])
        rows = body["records"]
        fault = self.faults.get(self.writes)
        refused = [at for at, row in enumerate(rows) if not self._accepts(row["data"])]
        if not refused or (fault is not None and fault.applies == "no"):
            return super()._write(body, timeout)
        fault = self.faults.pop(self.writes, Fault("none", "all"))
        self.writes += 1
        good = [row for at, row in enumerate(rows) if at not in refused]
        self._apply({"all": good, "half": good[: len(good) // 2], "last": good[len(good) // 2 :], "twice": good}[fault.applies])
        if fault.reply != "good":
            return self._reply(fault.reply, len(rows), timeout)
        failed = [{"index": at, "error": "email is already used" if self.spec.recognition == "unique" else "refused"} for at in refused]
        return json_response(200, {"created": len(good), "updated": 0, "failed": failed})

    def _accepts(self, data: Data) -> bool:
        if self.spec.refused is not None and data["_truth"] == self.spec.refused:
            return False
        return self.spec.recognition != "unique" or all(
            record["wire"]["data"].get("email") != self._stored(data).get("email") for record in self.records
        )

    def _stored(self, data: Data) -> Data:
        applies = self.spec.alteration is not None and self.spec.altered in (None, data["_truth"])
        return ALTERATIONS[str(self.spec.alteration)](data) if applies else data

    def _apply(self, rows: list[Data]) -> None:
        if self.spec.recognition == "unique":  # even a proxy cannot make a second one
            rows = [row for at, row in enumerate(rows) if self._accepts(row["data"]) and row not in rows[:at]]
        super()._apply([{"data": self._stored(row["data"])} for row in rows])
        for record in self.records[len(self.records) - len(rows) :]:
            record["lag"] = {"5 s late": 5.0, "each record late": self._chance.uniform(0, 25)}.get(self.spec.lists, 0.0)

    def _page(self, query: dict[str, list[str]]) -> Response:
        every, now = self.records, self.clock.now()
        self.records = [record for record in every if record["moment"] + record.get("lag", 0.0) <= now]
        if self.spec.lists == "every second read late" and self.reads % 2:
            self.records = [record for record in every if record["moment"] + 20.0 <= now]
        try:
            return super()._page(query)
        finally:
            self.records = every

    def _seen(self, record: Data) -> Data:
        return record | {"data": {slug: value for slug, value in record["data"].items() if slug != "_truth"}}


def row_data(n: int) -> Data:
    return {
        "name": f"  Ann  & Co Number {n:03d} of the North ",
        "note": f"row {n} with a note that is rather long",
        "email": f"P{n}+x@acme.com",
        "score": n * 1.37 + 0.123,
        "tags": [f"t{n % 3}", "b", "a"],
        "due": f"2026-01-{n % 27 + 1:02d}",
        "country": "DE",
    }


def rows_of_play(spec: AnswerPlay) -> list[Prepared]:
    def data(n: int) -> Data:
        same = (n + 1) // 2 if spec.recognition == "capitals" else n
        found = row_data(same)
        if spec.recognition == "capitals":
            found["name"] = found["name"].swapcase() if n % 2 else found["name"]
            found["note"] = f" {found['note']}" if n % 4 == 1 else found["note"]
        return found

    return [Prepared(n, data(n)) for n in range(1, spec.rows + 1)]


def know_truth(service: AnsweringService, rows: list[Prepared]) -> None:
    """Make the service remember the row of each record it receives."""
    original = {json.dumps(row.data, sort_keys=True): row.ordinal for row in rows}
    write = service._write

    def write_with_truth(body: Data, timeout: float) -> Response:
        for record in body["records"]:
            record["data"] = record["data"] | {"_truth": original[json.dumps(record["data"], sort_keys=True)]}
        return write(body, timeout)

    service._write = write_with_truth  # type: ignore[method-assign]


def play(spec: AnswerPlay) -> AnswerOutcome:
    with repeatable_turns(spec.senders):
        return _play(spec)


def _play(spec: AnswerPlay) -> AnswerOutcome:
    clock = MovingClock()
    rows = rows_of_play(spec)
    service = AnsweringService(clock, spec)
    know_truth(service, rows)
    slugs = {"unique": {"unique": "email"}}.get(spec.recognition, {})
    for n in range(3):
        service.create(row_data(2000 + n) | {"_truth": -2000 - n})
    clock.advance(3600)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        folder = Path(name) / "job"
        Journal.create(folder, dataclasses.replace(header(origin=ORIGIN), **slugs), clock).close()
        succeeded = False
        for _ in range(RUNS):
            with closing(Journal(folder, clock)) as journal:
                before, trouble = journal.counts(), len(service.faults)
                options = DeliveryOptions(concurrency=spec.senders, max_rows=spec.batch)
                client = client_of(service, clock, spec.senders)
                result = run_import(ImportRun(client, journal, options, clock, Silent(), rows=lambda: rows, hooks=NO_HOOKS))
                notes += result.notes
                counts = journal.counts()
                bad = any(counts[state] for state in (RowState.FAILED, RowState.IN_DOUBT, RowState.UNSENT, RowState.REJECTED))
                ended = result.error is None and journal.state is JobState.FINISHED
                succeeded = ended and not bad and not surplus_records(journal)
                stuck = counts == before and len(service.faults) == trouble
            if ended or stuck:
                break
        first, failed = _count(service, folder, rows, clock), counts[RowState.FAILED]
        false_success = succeeded and not _is_exact(service, rows)
        clock.advance(1000)
        with closing(Journal(folder, clock)) as journal:
            audit_job(service, journal, rows, clock)
        last = _count(service, folder, rows, clock)
    lost, doubled, misnamed = (max(first[at], last[at]) for at in range(3))
    return AnswerOutcome(
        lost, doubled, misnamed, first[3], first[4], false_success, service.reads, service.writes, failed, spec.rows, tuple(notes)
    )


def _contents(service: AnsweringService) -> dict[str, str]:
    """Return the content of every record by id."""
    return {record["wire"]["id"]: _content(record["wire"]["data"]) for record in service.records}


def _content(data: Data) -> str:
    return json.dumps({slug: value for slug, value in data.items() if slug not in ("_truth", "ref")}, sort_keys=True)


def _stored(service: AnsweringService, rows: list[Prepared]) -> dict[int, str]:
    """Return the content the service stores for every row."""
    return {row.ordinal: _content(service._stored(row.data | {"_truth": row.ordinal})) for row in rows}


def _is_exact(service: AnsweringService, rows: list[Prepared]) -> bool:
    expected, there = Counter(_stored(service, rows).values()), Counter(_contents(service).values())
    return all(there[content] == count for content, count in expected.items())


def _count(service: AnsweringService, folder: Path, rows: list[Prepared], clock: MovingClock) -> tuple[int, int, int, int, int]:
    contents, stored = _contents(service), _stored(service, rows)
    there = Counter(contents.values())
    with closing(Journal(folder, clock)) as journal:
        entries, duplicates = journal.rows(1, len(rows)), surplus_records(journal)
    created, doubtful, extra = Counter[str](), Counter[str](), Counter[str]()
    misnamed = 0
    named_ids: list[str] = []
    for ordinal, content in stored.items():
        entry = entries.get(ordinal)
        state = entry.state if entry is not None else RowState.UNSENT
        created[content] += state is RowState.CREATED
        doubtful[content] += state is RowState.IN_DOUBT
        named = [entry.record_id] if entry is not None and entry.record_id is not None else []
        named += duplicates.get(ordinal, ())
        extra[content] += len(duplicates.get(ordinal, ()))
        misnamed += sum(contents.get(record_id) != content for record_id in named)
        named_ids += named
    misnamed += len(named_ids) - len(set(named_ids))
    lost = sum(max(0, created[content] - there[content]) for content in set(stored.values()))
    doubled = sum(max(0, there[content] - created[content] - doubtful[content] - extra[content]) for content in set(stored.values()))
    return lost, doubled, misnamed, sum(doubtful.values()), sum(map(len, duplicates.values()))


def some_answers(chance: random.Random, rows: int, batch: int) -> tuple[tuple[int, str], ...]:
    """Return up to four wrong answers to random writes of a job."""
    writes = chance.sample(range(rows // batch + 2), chance.choice((0, 0, 1, 1, 1, 1, 2, 2, 3, 4)))
    return tuple((at, chance.choice([*ANSWERS])) for at in sorted(writes))


def plays(count: int, seed: int, rows: int = AnswerPlay.rows) -> Iterator[AnswerPlay]:
    """Yield random plays, reproducible by seed."""
    chance = random.Random(seed)
    for number in range(count):
        batch = chance.choice(BATCHES if rows == AnswerPlay.rows else LARGE_BATCHES)
        yield AnswerPlay(
            chance.choice(RECOGNITIONS),
            chance.choice((None, *ALTERATIONS)),
            chance.choice((None, None, 3, 7, 8)),
            some_answers(chance, rows, batch),
            chance.choice(("current", *LISTS)),
            chance.choice(("none", "none", *WRITERS)),
            chance.random() < 0.75,
            chance.choice((None, None, 6, 12)),
            rows,
            seed=number,
            batch=batch,
        )


__all__ = ["ALTERATIONS", "ANSWERS", "LISTS", "AnswerOutcome", "AnswerPlay", "Lost", "play", "plays"]
