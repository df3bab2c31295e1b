"""Many processes that open a new file at the same moment: none is refused."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from crmctl.client.rate_limit.ledger import Ledger
from crmctl.write_ahead_log import begin_log


class Refusing:
    """A connection that SQLite refuses several times."""

    def __init__(self, times: int, code: int = sqlite3.SQLITE_BUSY) -> None:
        self.left = times
        self.code = code

    def execute(self, sql: str) -> None:
        assert sql == "PRAGMA journal_mode = WAL"
        if self.left:
            self.left -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error


def begin(database: Any, patience: float) -> None:
    begin_log(cast(sqlite3.Connection, database), patience)


def test_who_is_refused_at_once_tries_again() -> None:
    database = Refusing(3)
    begin(database, 60.0)
    assert database.left == 0


@pytest.mark.parametrize(("code", "patience"), [(sqlite3.SQLITE_BUSY, 0.0), (sqlite3.SQLITE_CORRUPT, 60.0)])
def test_what_stays_wrong_is_raised(code: int, patience: float) -> None:
    database = Refusing(2, code)
    with pytest.raises(sqlite3.OperationalError):
        begin(database, patience)
    assert database.left == 1


def test_processes_that_begin_together_share_one_ledger(tmp_path: Path) -> None:
    refused: list[Exception] = []

    def start(path: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            Ledger(path).close()
        except Exception as error:
            refused.append(error)

    for turn in range(40):
        together = threading.Barrier(6)
        threads = [threading.Thread(target=start, args=(tmp_path / f"{turn}.sqlite", together)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not refused
