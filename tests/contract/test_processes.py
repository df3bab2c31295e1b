"""Four services on one PostgreSQL under load, two of them killed: nothing acknowledged is lost and nothing happens twice."""

from __future__ import annotations

import csv
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import pytest

from crmctl.service.context import new_id
from crmctl.service.definitions.definitions_file import load_document, parse_document
from crmctl.service.store import webhooks
from crmctl.service.store.engine import Engine, open_engine
from crmctl.service.store.tx import Tx, required
from tests.contract.test_kill import Writer, stored, wait_until_settled
from tests.support.cli import run_crmctl
from tests.support.clock import FakeClock
from tests.support.patience import PATIENCE, wait_until
from tests.support.receiver import Received, Receiver
from tests.support.service import ServiceProcess, make_client, make_key, service_process

pytestmark = pytest.mark.needs("initdb", "postgres")

PROCESSES = 4
LIMIT, WINDOW = 20, 2
IMPORTED = 400
BATCH = 100
STEADY = 30
"""People who exist from the beginning and do not change."""
KILLED = (2, 3)
WRITES_BEFORE_A_KILL = 15


@dataclass
class Fleet:
    """The numbered processes and the things they share."""

    url: str
    engine: Engine
    services: list[ServiceProcess]
    people: str

    def key(self) -> str:
        return make_key(self.engine)


@pytest.fixture
def fleet(postgres: Any, postgres_template: str, tmp_path: Path) -> Iterator[Fleet]:
    url = postgres.create_database(postgres_template)
    options = ("--database-url", url, "--rate-limit", str(LIMIT), "--rate-window", str(WINDOW), "--dev")
    with ExitStack() as stack:
        stack.callback(postgres.drop_database, url)
        engine = open_engine(url)
        stack.callback(engine.close)
        with ThreadPoolExecutor(PROCESSES) as starting:
            services = list(starting.map(lambda number: service_process(tmp_path / f"service{number}", *options), range(PROCESSES)))
        for service in services:
            stack.enter_context(service)
        people = engine.read(lambda tx: tx.all("SELECT id FROM crm_object WHERE slug = 'people'"))[0][0]
        yield Fleet(url, engine, services, people)


@dataclass
class Overlaps:
    """A receiver's answer that takes a moment and detects concurrent attempts of one delivery."""

    under_way: Counter[str] = field(default_factory=Counter)
    seen: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Received, number: int) -> int:
        event = request.headers["webhook-id"]
        with self.lock:
            self.under_way[event] += 1
            if self.under_way[event] > 1:
                self.seen.append(event)
        threading.Event().wait(0.01)  # the moment
        with self.lock:
            self.under_way[event] -= 1
        return 200


class Hammer(threading.Thread):
    """A client that requests filtered lists from one process as fast as allowed, until it is stopped or the process dies, and checks each
    answer.

    All hammers share a key. The unchanged people are always listed in full; imports add people in whole requests only.
    """

    def __init__(self, base_url: str, key: str, path: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.target = (base_url, key, path, stop)
        self.accepted: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.strange: list[str] = []
        self.imported = 0

    def run(self) -> None:
        base_url, key, path, stop = self.target
        with make_client(base_url, key) as client:
            for query, is_right in cycle([(STEADY_QUERY, self.is_steady), (IMPORTED_QUERY, self.is_growing)]):
                if stop.is_set():
                    return
                try:
                    answer = client.get(path, params=query)
                except httpx.TransportError:
                    return
                if answer.status_code == 200:
                    self.accepted[answer.headers["x-ratelimit-reset"]] += 1
                elif answer.status_code == 429:
                    self.refused[answer.headers["x-ratelimit-reset"]] += 1
                    stop.wait(0.1)  # leaves some of the machine to the others
                    continue
                if answer.status_code != 200 or not is_right(answer.json()):
                    self.strange.append(answer.text)

    def is_steady(self, page: Any) -> bool:
        scores = [record["data"]["score"] for record in page["records"]]
        return scores == list(range(10, STEADY)) and page["pagination"]["total"] == len(scores)

    def is_growing(self, page: Any) -> bool:
        total, before = page["pagination"]["total"], self.imported
        self.imported = total
        right = all(record["data"]["email"].startswith("import") for record in page["records"])
        return right and total >= before and total % BATCH == 0 and len(page["records"]) == min(total, 5)


STEADY_QUERY = {
    "filter[email][endsWith]": "@steady.example",
    "filter[score][greaterThanOrEqual]": "10",
    "sort": "created_at",
    "order": "asc",
    "limit": "100",
}
IMPORTED_QUERY = {"filter[notes][equals]": "imported", "limit": "5"}


def add_steady_people(fleet: Fleet) -> None:
    people = [{"data": {"email": f"p{number}@steady.example", "score": number}} for number in range(STEADY)]
    with make_client(fleet.services[0].base_url, fleet.key()) as client:
        made = client.post(f"/api/v1/objects/{fleet.people}/records/bulk", json={"records": people}).json()
    assert made["created"] == STEADY


def import_people(fleet: Fleet, number: int, key: str) -> dict[str, Any]:
    """Run `crmctl bulk import` through one process. Return its summary."""
    file = Path(f"people{number}.csv").absolute()
    with file.open("w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["email", "notes"])
        rows.writerows([f"import{number}-{row}@example.com", "imported"] for row in range(IMPORTED))
    env = {"CRMCTL_BASE_URL": fleet.services[number].base_url, "CRMCTL_API_KEY": key}
    env |= {f"CRMCTL_{kind}_DIR": str(Path(f"crmctl{number}").absolute() / kind) for kind in ("CONFIG", "STATE", "CACHE")}
    summary: dict[str, Any] = run_crmctl("bulk", "import", "people", file, env=env, timeout=PATIENCE).ok().json()
    return summary


def add_schedule(fleet: Fleet) -> None:
    text = """
    workflows: [{name: Tick, object: people, trigger: schedule, cron: "* * * * *", enabled: true,
      actions: [{type: createActivity, title: "Tick"}]}]
    """
    load_document(fleet.engine, parse_document(text), clock=FakeClock(time.time()), ids=new_id)


def make_due(fleet: Fleet) -> None:
    """Make the schedule due again for every process."""
    fleet.engine.write(lambda tx: tx.execute("UPDATE workflow SET next_due_at = 0"))


def end_schedule(fleet: Fleet) -> None:
    """Disable the schedule: a minute may begin at any moment of the test. A process that finds it due locks its row until the run is
    stored.
    """
    fleet.engine.write(lambda tx: tx.execute("UPDATE workflow SET enabled = 0"))


def open_work(tx: Tx) -> dict[str, int]:
    """Return the number of unfinished items of each kind."""
    kinds = ("change_log WHERE waiting = 1", "webhook_delivery WHERE state = 'pending'", "workflow_run WHERE completed_at IS NULL")
    counts = {kind: required(tx.one(f"SELECT count(*) FROM {kind}"))[0] for kind in kinds}
    return {kind: count for kind, count in counts.items() if count}


def attempts(tx: Tx) -> list[tuple[Any, ...]]:
    """Return how the attempts of deliveries ended."""
    return tx.all("SELECT status, error, count(*) FROM webhook_attempt GROUP BY status, error")


def wait_until_done(fleet: Fleet) -> None:
    """Wait until all work is done. A killed process delays its work by the length of its lease at most."""
    read = fleet.engine.read
    wait_until(lambda: not read(open_work), lambda: f"unfinished: {read(open_work)}, {read(attempts)}")


def wait_until_imports_are_seen(hammers: list[Hammer]) -> None:
    """Wait until every process lists imported people, which shows that the load is there."""
    wait_until(lambda: all(hammer.imported for hammer in hammers), lambda: "no imported people are listed")


def wait_until_used_up(hammers: list[Hammer]) -> None:
    """Wait for a whole window in which requests were refused."""
    wait_until(lambda: len({window for hammer in hammers for window in list(hammer.refused)}) >= 2, lambda: "the limit was never reached")


def check_rates(hammers: list[Hammer]) -> None:
    """Check the rate limit. The service may have counted a request that a killed process never answered."""
    assert not [text for hammer in hammers for text in hammer.strange]
    accepted: Counter[str] = sum((hammer.accepted for hammer in hammers), Counter())
    refused: Counter[str] = sum((hammer.refused for hammer in hammers), Counter())
    missing = [LIMIT - accepted[window] for window in refused]
    assert max(accepted.values()) <= LIMIT
    assert sum(missing) <= len(KILLED)


def check_deliveries(fleet: Fleet, arrived: Counter[str]) -> None:
    """Check that every created record was delivered."""
    made = fleet.engine.read(lambda tx: tx.all("SELECT event_id FROM change_log WHERE type = 'record.created'"))
    assert len(made) > 2 * IMPORTED
    assert arrived.keys() == {event for (event,) in made}
    states = fleet.engine.read(lambda tx: tx.all("SELECT state, count(*) FROM webhook_delivery GROUP BY state"))
    assert states == [("succeeded", len(arrived))]


def check_schedule(fleet: Fleet) -> None:
    """Check that each minute has one run and each run one activity, however often processes found the schedule due."""
    runs = fleet.engine.read(lambda tx: tx.all("SELECT due_at, status FROM workflow_run"))
    assert runs
    assert all(due_at % 60_000_000 == 0 for due_at, _ in runs)
    assert len({due_at for due_at, _ in runs}) == len(runs)
    assert {status for _, status in runs} == {"completed"}
    assert fleet.engine.read(lambda tx: tx.all("SELECT count(*) FROM activity WHERE title = 'Tick'")) == [(len(runs),)]


@pytest.mark.campaign
@pytest.mark.long
def test_killing_two_of_four_processes_loses_and_repeats_nothing(fleet: Fleet) -> None:
    overlaps, stop = Overlaps(), threading.Event()
    path = f"/api/v1/objects/{fleet.people}/records"
    shared = fleet.key()
    add_schedule(fleet)
    with Receiver(overlaps) as receiver, ThreadPoolExecutor(2) as importing:
        fleet.engine.write(
            lambda tx: webhooks.create_endpoint(tx, url=receiver.url, event_types=["record.created"], ids=new_id, now=time.time())
        )
        add_steady_people(fleet)
        hammers = [Hammer(service.base_url, shared, path, stop) for service in fleet.services]
        acknowledged = threading.Semaphore(0)
        writers = [Writer(number, number) for number in KILLED]
        for writer in writers:
            writer.begin(fleet.services[writer.number].base_url, fleet.key(), fleet.people, acknowledged)
        imports = [importing.submit(import_people, fleet, number, fleet.key()) for number in (0, 1)]
        for thread in (*hammers, *writers):
            thread.start()
        for _ in range(WRITES_BEFORE_A_KILL):
            assert acknowledged.acquire(timeout=PATIENCE), "the services stopped answering"
            make_due(fleet)
        wait_until_imports_are_seen(hammers)
        for writer in writers:
            fleet.services[writer.number].kill()
        for writer in writers:
            writer.join(timeout=PATIENCE)
            assert not writer.is_alive()
        for job in imports:
            assert job.result()["created"] == IMPORTED
        wait_until_used_up(hammers)
        stop.set()
        for hammer in hammers:
            hammer.join(timeout=PATIENCE)
        wait_until_settled(fleet.url)
        end_schedule(fleet)
        wait_until_done(fleet)
        arrived = Counter(request.headers["webhook-id"] for request in receiver.received)

    found = stored(replace(fleet.services[0], key=fleet.key()), fleet.people)
    for writer in writers:
        writer.settle(found)
    assert len([email for email in found if email.startswith("import")]) == 2 * IMPORTED
    assert not overlaps.seen
    check_deliveries(fleet, arrived)
    check_rates(hammers)
    check_schedule(fleet)
    assert not any(service.stderr for service in fleet.services)
