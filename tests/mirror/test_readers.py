"""The mirror's file as docs/mirror.md describes it, read by sqlite3, datasette and DuckDB."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models.resources import Attribute
from tests.support.historyservice import OBJECT_ID, HistoryService
from tests.support.mirrorhistories import MirrorContext

# Datasette leaves the connections of its threads open.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")

TYPES = {
    "title": "text", "email": "email", "status": "select", "born": "date", "score": "number", "exact": "number", "is_open": "checkbox",
    "boss": "reference", "full": "name", "place": "address", "price": "currency", "phone": "phone_number", "tags": "list",
    'odd "]name': "text",
}  # fmt: skip

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a mirror of three people with every type of attribute; the second one is the boss of the first."""
    service = HistoryService(3)
    service.attributes = [
        Attribute.parse({
            "id": f"a{number}", "slug": slug, "type": kind, "displayOrder": number,
            "config": {"allowed_object_id": OBJECT_ID} if kind == "reference" else {},
        })
        for number, (slug, kind) in enumerate(TYPES.items())
    ]  # fmt: skip
    service.create(3)
    first, second, third = service.rows
    whole = {
        "title": "Engineer; DROP TABLE people", "email": "ada@acme.com", "status": "new", "born": "1815-12-10", "score": 2.5, "exact": 1,
        "is_open": True, "boss": second, "full": {"firstName": "Ada", "lastName": "King"}, "tags": ["a", "b"], 'odd "]name': "'); --",
        "place": {"line1": "1 High St", "city": "London", "country": "UK"}, "price": {"amount": 19.99, "currency": "EUR"},
        "phone": {"primaryPhoneNumber": "+44201"},
    }  # fmt: skip
    service.overwrite(first, whole)
    service.overwrite(second, {"score": 4, "exact": 12345678901234567890, "is_open": False, "full": {"firstName": "Charles"}})
    service.overwrite(third, {})
    context = MirrorContext(service, tmp_path_factory.mktemp("mirror"), service.clock)
    return sync_mirror(context, SyncRequest()).path  # type: ignore[arg-type]


def by_sqlite3(mirror: Path) -> Ask:
    def ask(statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{mirror.as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(statement).fetchall()

    return ask


def by_datasette(mirror: Path) -> Ask:
    app = pytest.importorskip("datasette.app")
    site = app.Datasette([str(mirror)])
    address = site.urls.database(mirror.stem, format="json")

    def ask(statement: str) -> list[tuple[Any, ...]]:
        answer = asyncio.run(site.client.get(address, params={"sql": statement, "_shape": "arrays"}))
        assert answer.status_code == 200, answer.text
        return [tuple(row) for row in answer.json()["rows"]]

    return ask


def by_duckdb(mirror: Path) -> Ask:
    duckdb, reader = pytest.importorskip("duckdb"), pytest.importorskip("duckdb_extension_sqlite_scanner")
    db = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    [extension] = Path(reader.__file__).parent.glob("extensions/*/*.duckdb_extension")
    db.load_extension(str(extension))
    db.execute(f"ATTACH '{mirror}' AS crm (TYPE sqlite, READ_ONLY)")
    db.execute("USE crm")
    return lambda statement: db.execute(statement).fetchall()


@pytest.fixture(scope="module", params=[by_sqlite3, by_datasette, by_duckdb], ids=["sqlite3", "datasette", "duckdb"])
def ask(request: pytest.FixtureRequest, mirror: Path) -> Iterator[Ask]:
    if request.param is by_duckdb and sys.platform != "linux":
        pytest.skip("the part of DuckDB that reads SQLite is pinned for Linux only")
    yield request.param(mirror)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_types_and_parts_are_columns(ask: Ask) -> None:
    plain = "SELECT title, email, status, born, score, is_open, phone, tags FROM people"
    assert sorted(ask(plain), key=str) == [
        ("Engineer; DROP TABLE people", "ada@acme.com", "new", "1815-12-10", 2.5, 1, "+44201", '["a","b"]'),
        (None, None, None, None, 4, 0, None, None),
        (None,) * 8,
    ]
    parts = 'SELECT "full", full_first, full_last, place, place_city, price, price_currency FROM people WHERE is_open = 1'
    [row] = ask(parts)
    assert row == ("Ada King", "Ada", "King", row[3], "London", 19.99, "EUR")
    assert row[3].startswith("1 High St")
    assert ask("SELECT avg(score) FROM people") == [(3.25,)]


def test_a_number_that_is_not_held_exactly_is_text_to_all(ask: Ask) -> None:
    assert ask("SELECT CAST(exact AS VARCHAR) FROM people WHERE is_open = 0") == [("12345678901234567890",)]


def test_a_reference_joins(ask: Ask) -> None:
    joined = "SELECT p.title, b.full_first FROM people p JOIN people b ON b.id = p.boss"
    assert ask(joined) == [("Engineer; DROP TABLE people", "Charles")]


def test_a_slug_is_quoted_and_never_renamed(ask: Ask) -> None:
    assert ask('SELECT "odd ""]name" FROM people WHERE "odd ""]name" IS NOT NULL') == [("'); --",)]
    assert ask("""SELECT slug, column_name FROM attributes WHERE slug LIKE 'odd%'""") == [('odd "]name', 'odd "]name')]


def test_the_other_tables_describe_the_objects(ask: Ask) -> None:
    assert ask("SELECT slug, table_name FROM objects") == [("people", "people")]
    [(records, proven, how)] = ask("SELECT records, proven, how FROM _sync WHERE slug = 'people'")
    assert (records, proven, how) == (3, 1, "everything")
    assert ask("SELECT count(*) FROM members") == ask("SELECT count(*) FROM activities") == [(0,)]
    assert ask("SELECT count(*) FROM people WHERE _data LIKE '%12345678901234567890%' AND created_at LIKE '2025-10-09T%Z'") == [(1,)]
