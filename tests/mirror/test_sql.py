"""SQL queries only read: none writes, opens another file or runs for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from crmctl.clock import SystemClock
from crmctl.errors import CrmctlError, PendingError
from crmctl.mirror.place import mirror_path
from crmctl.mirror.sql import ask
from crmctl.mirror.sync import SyncRequest, sync_mirror
from tests.support.historyservice import HistoryService
from tests.support.mirrorhistories import MirrorContext


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a mirror of twelve people."""
    service = HistoryService(1)
    service.create(12)
    context = MirrorContext(service, tmp_path_factory.mktemp("mirror"), service.clock)
    sync_mirror(context, SyncRequest())  # type: ignore[arg-type]
    return mirror_path(context.state, context.origin, context.key)


@pytest.mark.parametrize(
    ("statement", "code"),
    [("DELETE FROM people", "not_a_select"), ("ATTACH 'other.db' AS other", "not_a_select"), ("PRAGMA user_version = 3", "not_a_select"),
     ("SELECT load_extension('x')", "not_a_select"), ("CREATE TEMP TABLE t (a)", "not_a_select"), ("SELECT nope FROM people", "bad_sql"),
     ("SELECT 1; DROP TABLE people", "bad_sql"), ("INSERT INTO _search_people (_search_people) VALUES ('optimize')", "not_a_select"),
     ("VACUUM INTO 'stolen.db'", "not_a_select"), ("", "not_a_select"), ("BEGIN", "not_a_select"), ("SELECT 'open", "bad_sql"),
     ("WITH gone AS (SELECT 1) DELETE FROM people", "not_a_select"), ("EXPLAIN SELECT 1; SELECT 2", "bad_sql"),
     ("SELECT zeroblob(2000000000)", "bad_sql"), ("SELECT :missing", "bad_sql")],
)  # fmt: skip
def test_nothing_but_a_question_is_answered(statement: str, code: str, mirror: Path) -> None:
    before = mirror.read_bytes()
    with pytest.raises(CrmctlError) as caught:
        list(ask(mirror, statement, {}, SystemClock(), 10))
    assert caught.value.code == code, caught.value.message
    assert mirror.read_bytes() == before
    assert list(Path.cwd().iterdir()) == []


def test_a_question_ends_in_time(mirror: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    with pytest.raises(PendingError):
        list(ask(mirror, endless, {}, SystemClock(), 0.05))


def test_rows_are_streamed_and_may_be_left_unread(mirror: Path) -> None:
    many = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 20000) SELECT x FROM c"
    assert [row["x"] for row in ask(mirror, many, {}, SystemClock(), None)] == list(range(1, 20001))
    endless = ask(mirror, many.replace(" LIMIT 20000", ""), {}, SystemClock(), 60)
    assert next(endless) == {"x": 1}
    endless.close()


def test_values_and_names_of_an_answer(mirror: Path) -> None:
    statement = "SELECT 1 AS id, 2 AS id, 9e999 AS big, x'00ff' AS raw, NULL AS none, :text AS text"
    [row] = ask(mirror, statement, {"text": "'; --"}, SystemClock(), 10)
    assert row == {"id": 1, "id:2": 2, "big": "inf", "raw": "00ff", "none": None, "text": "'; --"}
    by_word = "SELECT count(*) AS n FROM _search_people WHERE _search_people MATCH 'n3'"
    assert list(ask(mirror, by_word, {}, SystemClock(), 10)) == [{"n": 1}]


def test_json_functions_answer_as_tables(mirror: Path) -> None:
    statement = "SELECT each.key, count(*) AS n FROM people, json_each(people._data, '$.data') AS each GROUP BY each.key ORDER BY 1"
    assert {row["n"] for row in ask(mirror, statement, {}, SystemClock(), 10)} == {12}
    assert list(ask(mirror, "SELECT value FROM json_tree('[7]') WHERE type = 'integer'", {}, SystemClock(), 10)) == [{"value": 7}]
