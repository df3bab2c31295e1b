"""kill -9 during writes: acknowledged writes survive, and each write under way happened completely or never began, including its events."""

from __future__ import annotations

import json
import random
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from crmctl.service.store import objects
from crmctl.service.store.engine import open_engine
from crmctl.service.store.record_tables import load_schema
from crmctl.service.store.tx import Tx
from tests.support.patience import PATIENCE
from tests.support.service import ServiceProcess, listen, make_client, service_process

KILLS = 4
WRITERS = 2
Contents = dict[str, dict[str, Any]]


class Writer(threading.Thread):
    """A client that writes through HTTP, one request at a time, until the service dies, and knows the expected contents.

    `known` maps the unique email addresses of its records to their data. `doubtful` is `known` after the request that got no answer.
    """

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self.number = number
        self.random = random.Random(seed)
        self.known: Contents = {}
        self.doubtful: Contents | None = None
        self.ids: dict[str, str] = {}
        self.count = 0

    def begin(self, base_url: str, key: str, people: str, acknowledged: threading.Semaphore) -> None:
        self.base_url, self.key, self.path, self.acknowledged = base_url, key, f"/api/v1/objects/{people}/records", acknowledged

    def run(self) -> None:
        with make_client(self.base_url, self.key) as client:
            try:
                while True:
                    action = self.random.choice([self.create, self.bulk, self.bulk, self.update, self.delete])
                    action(client)
                    self.acknowledged.release()
            except httpx.TransportError:
                return

    def fresh(self) -> dict[str, Any]:
        self.count += 1
        return {"email": f"{self.number}-{self.count}@example.com", "notes": "x" * self.random.randrange(2000)}

    def attempt(self, after: Contents, client: httpx.Client, method: str, path: str, body: Any = None) -> Any:
        self.doubtful = after
        while (answer := client.request(method, path, json=body)).status_code == 429:
            threading.Event().wait(0.1)
        assert answer.status_code in (200, 201), answer.text
        self.known, self.doubtful = after, None
        return answer.json()

    def create(self, client: httpx.Client) -> None:
        data = self.fresh()
        made = self.attempt({**self.known, data["email"]: data}, client, "POST", self.path, {"data": data})
        self.ids[data["email"]] = made["id"]

    def bulk(self, client: httpx.Client) -> None:
        several = [self.fresh() for _ in range(10)]
        after = {**self.known, **{data["email"]: data for data in several}}
        self.attempt(after, client, "POST", f"{self.path}/bulk", {"records": [{"data": data} for data in several]})

    def update(self, client: httpx.Client) -> None:
        if email := self.own():
            data = {**self.known[email], "notes": f"changed {self.count}"}
            self.attempt({**self.known, email: data}, client, "PATCH", f"{self.path}/{self.ids[email]}", {"data": {"notes": data["notes"]}})

    def delete(self, client: httpx.Client) -> None:
        if email := self.own():
            after = {other: data for other, data in self.known.items() if other != email}
            self.attempt(after, client, "DELETE", f"{self.path}/{self.ids[email]}")

    def own(self) -> str | None:
        return self.random.choice(sorted(self.ids.keys() & self.known.keys()) or [None])

    def settle(self, found: Contents) -> None:
        """Compare with the contents of a restarted service and accept them as known."""
        mine = {email: data for email, data in found.items() if email.startswith(f"{self.number}-")}
        assert mine in (self.known, self.doubtful), describe(mine, self.known, self.doubtful)
        self.known, self.doubtful = mine, None

    def successor(self) -> Writer:
        other = Writer(self.number, self.random.randrange(2**32))
        other.known, other.ids, other.count = self.known, self.ids, self.count
        return other


def describe(mine: Contents, known: Contents, doubtful: Contents | None) -> str:
    lost, extra = known.keys() - mine.keys(), mine.keys() - known.keys() - (doubtful or {}).keys()
    return f"lost {sorted(lost)}, unexpected {sorted(extra)}, contents match neither before nor after the doubtful request"


def stored(service: ServiceProcess, people: str) -> Contents:
    found: Contents = {}
    with service.client() as client:
        while True:
            params = {"limit": 100, "offset": len(found), "order": "asc"}
            if (answer := client.get(f"/api/v1/objects/{people}/records", params=params)).status_code == 429:
                threading.Event().wait(0.1)
                continue
            page = answer.json()
            found |= {record["data"]["email"]: record["data"] for record in page["records"]}
            if not page["records"]:
                assert len(found) == page["pagination"]["total"]
                return found


def replayed(database: str) -> Contents:
    """Return the records as the events alone describe them."""
    state: dict[str, dict[str, Any]] = {}
    with closing(open_engine(database)) as engine:
        for kind, payload in engine.read(lambda tx: tx.all("SELECT type, payload FROM change_log ORDER BY sequence")):
            event = json.loads(payload)
            if kind == "record.deleted":
                del state[event["recordId"]]
            else:
                state[event["recordId"]] = event["data"]
    return {data["email"]: data for data in state.values()}


def wait_until_settled(database: str) -> None:
    """Wait for transactions the database still had in hand when its client was killed. Check the file of SQLite."""

    def hold(tx: Tx) -> None:
        people = objects.find_object_by_slug(tx, "people")
        assert people is not None
        load_schema(tx, people["id"], tx.dialect.own_object)
        if tx.dialect.engine == "sqlite":
            assert tx.all("PRAGMA integrity_check") == [("ok",)]

    with closing(open_engine(database)) as engine:
        engine.write(hold)


@pytest.mark.campaign
def test_kills_lose_no_acknowledged_write_and_leave_none_half_done(tmp_path: Path, database: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown only when the test fails
    chance = random.Random(seed)
    data_dir = tmp_path / "data"
    writers = [Writer(number, chance.randrange(2**32)) for number in range(WRITERS)]
    service = service_process(data_dir, "--database-url", database, "--rate-limit", "0")
    key = service.key
    with closing(open_engine(database)) as engine:
        listen(engine)
    with service.client() as client:
        people = next(crm_object["id"] for crm_object in client.get("/api/v1/objects").json()["objects"] if crm_object["slug"] == "people")
    for _ in range(KILLS):
        acknowledged = threading.Semaphore(0)
        for writer in writers:
            writer.begin(service.base_url, key, people, acknowledged)
            writer.start()
        for _ in range(chance.randrange(5, 60)):
            assert acknowledged.acquire(timeout=PATIENCE), "the service stopped answering"
        service.kill()
        for writer in writers:
            writer.join(timeout=PATIENCE)
            assert not writer.is_alive()
        wait_until_settled(database)
        service = service_process(data_dir, "--database-url", database, "--rate-limit", "0", key=key)
        found = stored(service, people)
        for writer in writers:
            writer.settle(found)
        assert replayed(database) == found
        writers = [writer.successor() for writer in writers]
    assert service.stop() == 0
    assert sum(writer.count for writer in writers) > 0
