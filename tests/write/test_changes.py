"""Changes by key, deletions, feeds, undos and parents against a service that answers wrongly: nothing is lost, doubled or overwritten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from crmctl.client.transport import Request, Response
from crmctl.errors import PartialError
from crmctl.write.database import RowState
from tests.support.answerruns import ALTERATIONS, ANSWERS
from tests.support.campaigns import rest_in_campaigns
from tests.support.changeruns import Stage, play_change, small_batches
from tests.support.changingservice import COMPANIES, PEOPLE, ROWS, ChangePlay, data_of
from tests.support.mishaps import killed_at

PLAYS = {
    "a feed whose rows may hold parts is resumed after people edited unsent rows": ChangePlay(
        "feed", "sorts lists", answers=((0, "404, applied all"),), lists="each record late", writer="edits", seed=271
    ),
    "a feed reads its rows again in the thread of a sender": ChangePlay(
        "feed", "alters the unique attribute", answers=((0, "403, applied all"),), total=False, resumes=False
    ),
    "a deletion is refused after it was carried out": ChangePlay("delete", answers=((0, "403, applied all"),)),
    "a person edits a record that was just created": ChangePlay(
        "keyed", "alters the unique attribute", 3, ((1, "429, applied all"),), writer="edits", total=False, unique=True, seed=165
    ),
    "others create records with the same keys, and every second list is old": ChangePlay(
        "keyed", lists="every second read late", writer="rivals", seed=233
    ),
    "a batch is refused twice after it was carried out, and the lists are late": ChangePlay(
        "parents", answers=((4, "429, applied all"), (5, "429, applied all")), lists="5 s late", kill=("after begin", 2), seed=1577
    ),
    "an undo is repeated after it deleted all records but the edited ones": ChangePlay(
        "undo", "rounds numbers", 3, ((0, "no answer, applied half"), (4, "created, without effect")), seed=19
    ),
    "a person changes a value that the service set by default": ChangePlay("undo", "adds a default", seed=169),
    "a person fills a value that the service dropped": ChangePlay(
        "undo", "drops an attribute", answers=((2, "403, applied all"),), lists="5 s late", unique=True, seed=92
    ),
    "the lists show for ever what they showed before people edited records": ChangePlay("undo", lists="each record late", seed=45),
    "the first deletion of an undo is refused after it was carried out, and the lists are old": ChangePlay(
        "undo", answers=((0, "403, applied all"),), lists="each record late", unique=True, seed=89
    ),
    "the record of another client has the key of a row accepted without effect": ChangePlay(
        "keyed",
        "sorts lists",
        answers=((3, "created, without effect"), (5, "no answer, applied all")),
        lists="each record late",
        writer="rivals",
        seed=23,
    ),
    "the record of another client has the key of a refused row, and the service alters the value that differs": ChangePlay(
        "keyed",
        "truncates text",
        12,
        ((3, "no answer, applied no"),),
        writer="rivals",
        unique=True,
        kill=("after settle", 1),
        seed=103,
    ),
    "most rows of a batch in doubt have records of another client with their keys, and no batch was confirmed": ChangePlay(
        "keyed",
        "adds a default",
        answers=((4, "404, applied all"),),
        lists="every second read late",
        writer="rivals",
        unique=True,
        kill=("before settle", 2),
        seed=72,
    ),
    "an update of records that another client created during the import has no effect": ChangePlay(
        "keyed",
        "rounds numbers",
        3,
        ((3, "no answer, applied all"), (5, "created, without effect")),
        writer="rivals",
        unique=True,
        seed=472,
    ),
    "a killed undo of dates that the service stores as moments": ChangePlay(
        "undo",
        "makes dates moments",
        3,
        ((1, "429, applied all"),),
        lists="every second read late",
        kill=("after settle", 1),
        resumes=False,
        seed=1324,
    ),
    "a resumed job sends rows again whose refused request was carried out, and the lists are late": ChangePlay(
        "keyed",
        "alters the unique attribute",
        answers=((2, "403, applied all"), (5, "401, applied all")),
        lists="5 s late",
        kill=("after begin", 2),
        seed=920,
    ),
    "a resumed deletion meets a record that a person edited after it was copied": ChangePlay(
        "delete",
        "collapses blanks",
        3,
        ((0, "no answer, applied half"), (4, "404, applied all")),
        writer="edits",
        unique=True,
        kill=("after begin", 2),
        seed=1116,
    ),
    "a proxy creates parents twice, and the lists show the second ones late": ChangePlay(
        "parents", answers=((0, "created twice by a proxy"),), lists="each record late", kill=("after begin", 2), seed=63
    ),
    "a refused batch was carried out, the service drops an attribute, and people edit two of its records": ChangePlay(
        "parents",
        "drops an attribute",
        answers=((1, "429, applied all"), (3, "404, applied all"), (5, "created, without effect")),
        writer="edits",
        kill=("after settle", 5),
        seed=1230,
    ),
    "a proxy creates a parent twice, alone in its batch, and the list shows the last batch first": ChangePlay(
        "parents", "rounds numbers", 7, ((1, "created twice by a proxy"),), "each record late", seed=357, batch=1
    ),
    "a proxy creates rows twice, and the list shows the last batch first": ChangePlay(
        "parents", "escapes text", None, ((9, "created twice by a proxy"),), "each record late", kill=("after settle", 1), seed=706, batch=2
    ),
    "parents are created twice after a 429, and the lists are late and have no totals": ChangePlay(
        "parents", answers=((0, "429, applied all"),), lists="5 s late", total=False, seed=415
    ),
    "a person edits one of two copies, and another row stays in doubt": ChangePlay(
        "keyed",
        "rounds numbers",
        12,
        ((1, "no answer, applied no"), (4, "created twice by a proxy")),
        writer="edits",
        seed=191,
    ),
    "people edit the first and the last record of an update without effect": ChangePlay(
        "feed",
        "sorts lists",
        answers=((0, "created, without effect"), (4, "created, without effect")),
        writer="edits",
        unique=True,
        seed=424,
    ),
    "the record of another client is updated twice without effect": ChangePlay(
        "keyed",
        "rounds numbers",
        7,
        ((4, "created, without effect"), (5, "created, without effect")),
        writer="rivals",
        total=False,
        seed=184,
    ),
    "the process ends after its last request, and another one was accepted without effect": ChangePlay(
        "keyed", answers=((3, "created, without effect"),), kill=("after settle", 5)
    ),
    "others create records with the same keys, and the service alters the keys of all rows": ChangePlay(
        "keyed", "alters the unique attribute", answers=((2, "401, applied all"),), lists="5 s late", writer="rivals", seed=1272
    ),
    "others create records with the keys of rows that are read back, and the service alters these keys": ChangePlay(
        "keyed",
        "alters the unique attribute",
        answers=((0, "503, applied to the last rows"),),
        lists="5 s late",
        writer="rivals",
        kill=("before settle", 2),
        seed=505,
    ),
    "a person edits a record before the repeated request is refused because it exists": ChangePlay(
        "keyed",
        "trims text",
        3,
        ((0, "404, applied all"), (3, "429, applied all")),
        writer="edits",
        total=False,
        unique=True,
        kill=("after begin", 1),
        seed=132,
    ),
    "another client's record has the key of an unsent row, and the service alters the keys of all rows": ChangePlay(
        "keyed",
        "alters the unique attribute",
        answers=((3, "503, applied to the last rows"),),
        lists="5 s late",
        writer="rivals",
        unique=True,
        kill=("after begin", 2),
        seed=1528,
    ),
    "an undo is carried out in part, and then accepted without effect": ChangePlay(
        "undo",
        "lowers text",
        answers=((1, "no answer, applied half"), (2, "created, without effect")),
        writer="rivals",
        total=False,
        unique=True,
        kill=("after begin", 2),
        seed=1236,
        batch=1,
    ),
    "half a deletion is carried out and refused": ChangePlay("delete", answers=((1, "401, applied all"), (2, "no answer, applied half"))),
    "an undo reads an edit, and then a frozen list that hides it": ChangePlay(
        "undo", lists="each record late", total=False, unique=True, kill=("before settle", 2), resumes=False, seed=585, batch=1
    ),
    "a row in doubt and the only confirmed row have the keys of another client's records": ChangePlay(
        "keyed",
        "escapes text",
        answers=((9, "429, applied all"), (15, "no answer, applied half")),
        lists="each record late",
        writer="rivals",
        kill=("after begin", 1),
        seed=313,
        batch=1,
    ),
}


@pytest.mark.parametrize("told", rest_in_campaigns(PLAYS.values(), 6), ids=PLAYS.keys())
def test_what_a_play_once_showed(told: ChangePlay) -> None:
    outcome = play_change(told)
    assert outcome.is_right, outcome


@pytest.mark.parametrize("existing", [0, ROWS], ids=["created", "updated"])
def test_the_record_that_tests_the_lists_counts_as_undone_now(tmp_path: Path, existing: int) -> None:
    """The lists never show the first record undone, so crmctl collects the records again, one by one."""
    stage = Stage(ChangePlay("undo", lists="each record late"), tmp_path)
    for n in [*range(1, existing + 1), *range(1001, 1004)]:
        stage.service.create(PEOPLE, data_of(n), "person")
    stage.clock.advance(3600)
    rows = [data_of(n, 1) for n in range(1, ROWS + 1)]
    stage.bulk.import_records("people", rows, key="email", concurrency=1).raise_for_error()
    stage.clock.advance(3600)
    stage.service.frozen = stage.clock.now()
    stage.clock.advance(60)
    stage.begin()
    undone = stage.bulk.undo(stage.store.list()[0].id)
    undone.raise_for_error()
    document = undone.to_document()
    counts = {name: document[name] for name in ("found", "deleted", "restorable", "restored", "undoneBefore")}
    created, updated = ROWS - existing, existing
    assert counts == {"found": created, "deleted": created, "restorable": updated, "restored": updated, "undoneBefore": 0}
    assert len(stage.service.of()) == existing + 3


def test_a_service_that_never_updates_leaves_every_row_in_doubt_after_one_repetition(tmp_path: Path) -> None:
    """Each request is repeated once; a third one would have no effect either."""
    stage = Stage(ChangePlay("keyed"), tmp_path)
    for n in range(1, ROWS + 1):
        stage.service.create(PEOPLE, data_of(n), "person")
    stage.clock.advance(3600)
    stage.begin()
    stage.service.answers = dict.fromkeys(range(stage.service.writes, 99), ANSWERS["created, without effect"])
    result = stage.bulk.import_records("people", [data_of(n, 1) for n in range(1, ROWS + 1)], key="email", concurrency=1)
    assert isinstance(result.error, PartialError)
    counts = result.summary.counts
    assert (counts[RowState.IN_DOUBT], counts[RowState.UPDATED], stage.service.writes) == (ROWS, 0, 2)
    stage.service.answers.clear()
    resumed = stage.bulk.resume(result.job, concurrency=1)
    assert (resumed.error, resumed.summary.counts[RowState.UPDATED]) == (None, ROWS)


@pytest.mark.parametrize("lists", ["current", "5 s late", "each record late", "every second read late"])
@pytest.mark.parametrize("alteration", [None, *ALTERATIONS])
def test_an_update_is_not_doubted_because_the_service_alters_it_or_lists_it_late(
    tmp_path: Path, alteration: str | None, lists: str
) -> None:
    if alteration == "alters the unique attribute":
        return
    stage = Stage(ChangePlay("keyed", alteration, lists=lists), tmp_path)
    for n in range(1, ROWS + 1):
        stage.service.create(PEOPLE, data_of(n), "person")
    stage.clock.advance(3600)
    stage.begin()
    with small_batches():
        result = stage.bulk.import_records("people", [data_of(n, 1) for n in range(1, ROWS + 1)], key="email", concurrency=1)
    assert (result.error, result.summary.counts[RowState.UPDATED]) == (None, ROWS)


@pytest.mark.parametrize("total", [True, False], ids=["totals", "no totals"])
@pytest.mark.parametrize("lists", rest_in_campaigns(["5 s late", "each record late"]))
@pytest.mark.parametrize("step", [("after settle", 1), ("after begin", 4), ("before settle", 4), ("after settle", 5)])
def test_an_import_by_key_right_after_a_killed_one_finds_its_records(
    tmp_path: Path, step: tuple[str, int], lists: str, total: bool
) -> None:
    """The killed job never compared its rows with the lists, which do not show them yet."""
    stage = Stage(ChangePlay("keyed", lists=lists, total=total), tmp_path)
    for n in range(1001, 1004):
        stage.service.create(PEOPLE, data_of(n), "person")
    stage.clock.advance(3600)
    stage.begin()
    options = {"key": "email", "references": ["company=companies.name"], "on_missing_ref": "create", "concurrency": 1}
    for night in (1, 2):
        rows = [data_of(n, night) | {"company": f"Firm {n % 6}"} for n in range(1, ROWS + 1)]
        if night == 1:
            with small_batches(), killed_at(*step):
                stage.bulk.import_records("people", rows, **options)
        else:
            assert stage.bulk.import_records("people", rows, **options).error is None
    assert {*Counter(record.row for record in stage.service.of() if record.row in range(1, ROWS + 1)).values()} == {1}
    assert {*Counter(record.row for record in stage.service.of(COMPANIES)).values()} == {1}


@pytest.mark.parametrize("answers", [(), ((1, "no answer, applied half"),), ((0, "429, applied all"), (2, "403, applied all"))], ids=str)
@pytest.mark.parametrize("lists", ["current", "5 s late"])
def test_a_summary_counts_every_request_of_the_process(tmp_path: Path, lists: str, answers: tuple[tuple[int, str], ...]) -> None:
    """Attributes, look-ups, parents, batches, repetitions, reading back and the comparison at the end."""
    stage = Stage(ChangePlay("parents", answers=answers, lists=lists), tmp_path)
    stage.service.create(PEOPLE, data_of(1), "person")
    stage.clock.advance(3600)
    stage.begin()
    rows, sent, send = [data_of(n, 1) | {"company": f"Firm {n % 6}"} for n in range(1, ROWS + 1)], [], stage.service.send

    def counted(request: Request) -> Response:
        sent.append(request)
        return send(request)

    stage.service.send = counted  # type: ignore[method-assign]
    options = {"references": ["company=companies.name"], "on_missing_ref": "create", "concurrency": 1}
    with small_batches():
        result = stage.bulk.import_records("people", rows, key="email", **options)
    assert result.summary.requests == len(sent)
