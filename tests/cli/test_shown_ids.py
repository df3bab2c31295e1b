"""Short ids: a table on a terminal shows endings, and commands accept them."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from crmctl.cli.shown_ids import KEPT, ShownIds
from crmctl.errors import NotFoundError, RejectedError
from tests.support.cli import expect_exit, run_crmctl, spawn
from tests.support.service import RunningService


def create(crm: RunningService, name: str) -> str:
    body = {"data": {"name": name, "email": f"{name}@example.com"}}
    return str(crm.client.post(f"/api/v1/objects/{crm.object_id('people')}/records", json=body).json()["id"])


def test_an_ending_from_a_table_names_the_record(crm: RunningService) -> None:
    ada = create(crm, "ada")
    run_crmctl("records", "get", "people", ada[-8:]).exits(3)
    code, shown = expect_exit(spawn("records", "list", "people", "--limit", "1"))
    assert (code, ada in shown, ada[-8:] in shown) == (0, False, True)
    assert run_crmctl("records", "get", "people", ada[-6:].upper()).ok().json()["id"] == ada
    run_crmctl("records", "update", "people", ada[-8:], "--set", "score=3").ok()
    run_crmctl("activities", "create", "--title", "call", "--link", f"people:{ada[-8:]}").ok()
    assert run_crmctl("activities", "list", "--record", ada[-8:]).ok().json()[0]["linkedRecords"][0]["recordId"] == ada
    run_crmctl("records", "delete", "people", ada[-8:], "--yes").ok()
    unknown = "0" * 12
    error = run_crmctl("records", "get", "people", unknown).exits(3).error()
    assert "shown no id ending in" in error["message"]
    assert error["hint"] == "give the whole id"


@pytest.mark.parametrize("words", [("--wide",), ("--fields", "id,name"), ("-o", "csv")])
def test_whole_ids_on_a_terminal_on_request(crm: RunningService, words: tuple[str, ...]) -> None:
    ada = create(crm, "ada")
    code, shown = expect_exit(spawn("records", "list", "people", *words))
    assert (code, ada in shown) == (0, True)


def test_a_table_in_a_pipe_has_whole_ids(crm: RunningService) -> None:
    ada = create(crm, "ada")
    assert ada in run_crmctl("records", "list", "people", "-o", "table").ok().out


def test_an_ending_of_several_ids_is_refused_with_all_of_them(tmp_path: Path) -> None:
    shown = ShownIds(tmp_path / "cache")
    ids = ["01a20a00-a06a-750e-9ebc-d3780000beef", "01a20a00-a06a-750e-9ebc-d3790000beef"]
    shown.remember([*ids, *ids])
    assert shown.whole("90000beef") == ids[1]
    with pytest.raises(RejectedError) as caught:
        shown.whole("0000beef")
    assert caught.value.details == {"ids": ids}


def test_only_endings_of_ids_are_looked_up(tmp_path: Path) -> None:
    shown = ShownIds(tmp_path)
    assert shown.whole("abcdef01") == "abcdef01"
    shown.remember(["01a20a00-a06a-750e-9ebc-d3780000beef"])
    for text in ("people", "0beef", "beef-0000", "01a20a00-a06a-750e-9ebc-d3780000beef", "d3780000beef0"):
        assert shown.whole(text) == text
    with pytest.raises(NotFoundError):
        shown.whole("abcdef01")


def test_the_latest_ids_stay(tmp_path: Path) -> None:
    shown = ShownIds(tmp_path)
    ids = [str(uuid.UUID(int=number)) for number in range(2 * KEPT + 1)]
    shown.remember(ids[:-1])
    shown.remember(ids[-1:])
    assert shown.whole(ids[-1][-12:]) == ids[-1]
    assert shown.whole(ids[KEPT + 1][-12:]) == ids[KEPT + 1]
    with pytest.raises(NotFoundError):
        shown.whole(ids[1][-12:])


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "shown-ids").mkdir()
    shown = ShownIds(tmp_path)
    shown.remember(["01a20a00-a06a-750e-9ebc-d3780000beef"])
    assert shown.whole("0000beef") == "0000beef"
