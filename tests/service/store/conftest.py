"""A real database in a file, and the store's calls as a route makes them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from crmctl.service.store import members, objects, records
from crmctl.service.store.condition_sql import read_condition
from crmctl.service.store.engine import Engine, Tx, open_engine
from crmctl.values.filters import Condition
from tests.support.clock import FakeClock
from tests.support.databases import ENGINES, fresh_database
from tests.support.service import listen

T = TypeVar("T")


def new_id() -> str:
    return str(uuid.uuid4())


@dataclass
class Store:
    """An engine that fills in the clock and the ids."""

    engine: Engine
    clock: FakeClock = field(default_factory=FakeClock)

    def read(self, fn: Callable[[Tx], T]) -> T:
        return self.engine.read(fn)

    def write(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return self.engine.write(lambda tx: fn(tx, *args, **named, ids=new_id, now=self.clock.now()))

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.engine.read(lambda tx: tx.all(sql, params))

    def listen(self) -> None:
        """Ask for all events from here on: events without a receiver have no body."""
        listen(self.engine)

    def object(self, slug: str = "things", *definitions: dict[str, Any]) -> str:
        """Create a custom object with these attributes and return its id."""
        made = self.write(objects.create_object, objects.NewObject(plural_name=slug, slug=slug))["id"]
        for definition in definitions:
            self.write(objects.create_attribute, made, objects.NewAttribute(**{"name": definition.get("slug", "field")} | definition))
        return str(made)

    def attribute(self, object_id: str, slug: str) -> dict[str, Any]:
        found = self.read(lambda tx: objects.list_attributes(tx, object_id))
        return next(attribute for attribute in found if attribute["slug"] == slug)

    def standard(self, slug: str) -> str:
        found = self.read(lambda tx: objects.find_object_by_slug(tx, slug))
        assert found is not None
        return str(found["id"])

    def create(self, object_id: str, **data: Any) -> dict[str, Any]:
        return self.write(records.create_record, object_id, data)

    def find(self, object_id: str, *conditions: tuple[str, str, Any], **paging: Any) -> list[dict[str, Any]]:
        """Return the data of the matching records, by default oldest first."""
        read: list[Condition] = [read_condition(*condition) for condition in conditions]
        found, total = self.read(
            lambda tx: records.list_records(tx, object_id, read, records.Paging(**{"order": "asc", "limit": 10_000} | paging))
        )
        if not paging:
            assert total == len(found)
        return found

    def total(self, object_id: str, *conditions: tuple[str, str, Any]) -> int:
        return self.read(lambda tx: records.count_records(tx, object_id, [read_condition(*condition) for condition in conditions]))


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a fresh database of each engine."""
    with fresh_database(request, tmp_path) as url:
        yield url


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with opened(database) as made:
        yield made


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    return tmp_path / "crm.db"


@pytest.fixture
def sqlite_store(sqlite_path: Path) -> Iterator[Store]:
    """For tests of SQLite and its file."""
    with opened(str(sqlite_path)) as made:
        yield made


@contextlib.contextmanager
def opened(url: str) -> Iterator[Store]:
    """Open a store with its organisation set up."""
    made = Store(open_engine(url))
    try:
        made.write(members.initialise)
        made.listen()
        yield made
    finally:
        made.engine.close()
