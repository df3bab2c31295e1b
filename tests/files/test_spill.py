"""Data too large for memory is spilled to a database that is private and disappears when closed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import crmctl
from crmctl.files.payloads import Seen
from crmctl.files.spills import Spill
from crmctl.match.keys import KeyIndex
from crmctl.plan.undo_updates import Updates
from crmctl.read.records import KnownRecords
from crmctl.read.stable_pages import SeenIds


def test_a_spill_leaves_no_file_and_is_gone_when_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with SeenIds() as ids:
        assert ids.add("a")
        assert not ids.add("a")
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(sqlite3.ProgrammingError):
        ids.add("b")


def test_only_equal_values_of_a_file_count_as_seen() -> None:
    with Seen() as seen:
        assert seen.first_line("name", "2026-01-31", 1) is None
        assert seen.first_line("name", "2026-01-31T00:00:00Z", 2) is None
        assert seen.first_line("name", {"city": "Paris"}, 3) is None
        assert seen.first_line("name", {"city": "PARIS"}, 4) is None
        assert seen.first_line("name", " cafe\N{COMBINING ACUTE ACCENT}", 5) is None
        assert seen.first_line("name", "CAF\N{LATIN CAPITAL LETTER E WITH ACUTE}", 6) == 5
        assert seen.first_line("name", 1.50, 7) is None
        assert seen.first_line("name", "1.5", 8) == 7


def test_an_abandoned_spill_is_closed_by_whichever_thread_collects_it() -> None:
    def numbers() -> Iterator[int]:
        with SeenIds() as ids:
            for number in range(2):
                ids.add(str(number))
                yield number

    abandoned = numbers()
    assert next(abandoned) == 0
    with ThreadPoolExecutor(1) as pool:
        pool.submit(abandoned.close).result()


def test_nothing_else_of_bulk_work_opens_a_temporary_database() -> None:
    assert all(issubclass(each, Spill) for each in (KeyIndex, KnownRecords, Seen, SeenIds, Updates))
    root = Path(crmctl.__file__).parent
    files = [path for path in root.rglob("*.py") if not path.is_relative_to(root / "service")]
    assert [path.name for path in files if 'sqlite3.connect("' in path.read_text()] == ["spills.py"]
