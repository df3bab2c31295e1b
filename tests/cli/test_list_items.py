"""`--set tags+=vip`, `--set tags-=old` and columns of these names add and remove items of a list; the others stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService


@pytest.fixture
def ada(crm: RunningService) -> str:
    """Create a person with two tags; return the id."""
    done = run_here("records", "create", "people", "--set", "email=ada@acme.com", "--set", "tags+=old;vip").ok()
    assert done.json()["data"]["tags"] == ["old", "vip"]
    return str(done.json()["id"])


def tags(record_id: str) -> Any:
    return run_here("records", "get", "people", record_id).ok().json()["data"].get("tags")


def test_an_update_adds_and_removes_items(ada: str) -> None:
    done = run_here("records", "update", "people", ada, "--set", "tags-=old", "--set", "tags+=new;vip", "--set", "tags+=last").ok()
    assert done.json()["data"]["tags"] == ["vip", "new", "last"]
    run_here("records", "update", "people", ada, "--set", "tags-=vip;new;last;unknown").ok()
    assert not tags(ada)
    run_here("records", "update", "people", ada, "--set", 'tags+:=["a, b"]').ok()
    assert tags(ada) == ["a, b"]


def test_a_bulk_update_changes_items_and_undo_restores_them(ada: str) -> None:
    change = ("bulk", "update", "people", "--filter", "email=ada@acme.com", "--yes")
    done = run_here(*change, "--set", "tags+=new", "--set", "tags-=old").ok().json()
    assert (done["updated"], tags(ada)) == (1, ["vip", "new"])
    assert run_here(*change, "--set", "tags+=new").ok().json()["unchanged"] == 1
    run_here("bulk", "undo", done["job"], "--yes").ok()
    assert tags(ada) == ["old", "vip"]


@pytest.mark.parametrize(("column", "result"), [("tags+", ["old", "vip", "new"]), ("tags-", ["vip"]), ("Tags +", ["old", "vip", "new"])])
def test_a_column_changes_items(ada: str, tmp_path: Path, column: str, result: list[str]) -> None:
    file = tmp_path / "people.csv"
    cell = "old" if "-" in column else "new"
    file.write_text(f"email,{column}\nada@acme.com,{cell}\ngrace@acme.com,\n")
    assert run_here("bulk", "import", "people", str(file), "--key", "email").ok().json()["updated"] == 1
    assert tags(ada) == result


def test_an_import_adds_a_constant_item_to_new_and_existing_records(ada: str, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("email\nada@acme.com\ngrace@acme.com\n")
    run_here("bulk", "import", "people", str(file), "--key", "email", "--set", "tags+=imported").ok()
    assert tags(ada) == ["old", "vip", "imported"]
    assert tags("email=grace@acme.com") == ["imported"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "score+=3"), "holds one value"),
        (("--set", "tags=a", "--set", "tags+=b"), "set twice"),
        (("--set", "tags+=a", "--set", "tags=b"), "set twice"),
        (("--set", "tags+="), "names no items"),
        (("--set", "tgas+=a"), "no attribute tgas"),
    ],
)
def test_a_mistaken_change_of_items_is_refused(ada: str, options: tuple[str, ...], said: str) -> None:
    assert said in run_here("records", "update", "people", ada, *options).exits(2).error()["message"]
    assert tags(ada) == ["old", "vip"]


def test_a_feed_refuses_columns_of_items(ada: str, tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("email,tags+\nada@acme.com,new\n")
    refused = run_here("bulk", "import", "people", str(file), "--key", "email", "--feed", "erp").exits(2).error()
    assert "a feed compares whole lists" in refused["message"]
