"""Measure time and size of every console page on a large database, or take pictures of the pages.

    python benchmarks/console_pages.py [RECORDS] [sqlite|postgresql]         (default 1000000 and sqlite)
    python benchmarks/console_pages.py --data FOLDER|postgresql://...        on an existing database; the benchmark adds to it
    python benchmarks/console_pages.py --data ... --only-large               only lists and logs, which slow down with more data
    python benchmarks/console_pages.py --screenshots FOLDER                  60 pictures: 15 pages in light and dark, wide and at 390 px

There are as many changes and requests as records, and a fifth as many activities, deliveries, runs and entries of the audit log. The bounds
are 150 ms (median of five) and 40 kB uncompressed, because the service does not compress. The median of the lists is at most 20 ms with up
to 20,000 records, else 60 ms. Times are processor time of this process, including its client, plus that of PostgreSQL (mean of five). Exits
with 1 if a page exceeds a bound.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.measuring import cluster_seconds
from benchmarks.million_records import ROW_IDS, SEED, multiply, settle
from benchmarks.service_store import fill_service
from tests.service.console.conftest import link_to
from tests.support.browser import NARROW, open_browser
from tests.support.consolepages import FurnishedPages, furnish
from tests.support.postgres import private_server
from tests.support.service import RunningService, make_client, running_service

from crmctl.service.store.tx import Tx, to_micros

REPEATS = 5
MOST_MS, MOST_BYTES = 150.0, 40_000
LIST_MS = {20_000: 20.0, 1_000_000: 60.0}
"""The bound of the median list by number of records."""
_STATE = "CASE WHEN i % 50 = 0 THEN 'failed' ELSE 'succeeded' END"
_ONE, _ENDPOINTS, _WORKFLOWS = "SELECT min(id) FROM api_key", "SELECT id FROM webhook_endpoint", "SELECT id FROM workflow"
CROWD = [
    (
        1.0,
        _ONE,
        "INSERT INTO request_log (at, request_id, key_id, method, route, status, micros, address) {n} SELECT {at}, 'r' || i, '{one}', "
        "'GET', '/api/v1/objects/{{objectId}}/records', CASE WHEN i % 5000 = 0 THEN 500 ELSE 200 END, 1800, '203.0.113.7' FROM n",
    ),
    (
        1.0,
        _ONE,
        "INSERT INTO change_log (at, type, object_number, subject, actor, waiting) SELECT created_at, 'record.created', {number}, id, "
        "'key:{one}', 0 FROM record_{number} LIMIT ?",
    ),
    (
        0.2,
        _ONE,
        "INSERT INTO audit_log (at, actor, action, subject, about) {n} SELECT {at}, 'key:{one}', 'object.created', {new}, '{{}}' FROM n",
    ),
    (
        0.2,
        _ONE,
        "INSERT INTO activity (id, title, summary, activity_date, linked_records, participants, created_by, created_at, updated_at) "
        "SELECT {new}, 'Call ' || id, '', created_at, '[{{\"objectId\": \"{people}\", \"recordId\": \"' || id || '\"}}]', '[]', "
        '\'{{"type": "system", "name": "x"}}\', created_at, created_at FROM record_{number} LIMIT ?',
    ),
    (0.2, _ONE, "INSERT INTO activity_link SELECT substr(title, 6), '{people}', number FROM activity WHERE summary = '' LIMIT ?"),
    (
        0.04,
        _ENDPOINTS,
        "INSERT INTO webhook_delivery (id, endpoint_id, event_id, event_type, state, attempts, lease_until, created_at, settled_at) "
        "{n} SELECT {new}, '{one}', {new}, 'record.created', {state}, 1, 0, {at}, {at} FROM n",
    ),
    (
        0.04,
        _WORKFLOWS,
        "INSERT INTO workflow_run (id, workflow_id, status, title, trigger_event, chain, actions, input, steps, step, is_calling, "
        "attempts, lease_until, started_at, completed_at, created_at) {n} "
        "SELECT {new}, '{one}', {state}, 'x', 'record.created', '[]', '[]', '{{}}', '[]', 0, 0, 0, 0, {at}, {at}, {at} FROM n",
    ),
]
"""Rows to add: number per record, owners, and the SQL."""
SEARCHES = (
    "where=job_title&op=contains&value=zebra",
    "where=job_title&op=contains&value=gineer+7",
    "where=job_title&op=notContains&value=gineer",
    "where=job_title&op=isEmpty",
    "where=name&op=startsWith&value=First5+Last5",
    "where=email&op=contains&value=person.77@",
    "where=email&op=contains&value=@",
    "where=email&op=notContains&value=person.77@",
    "where=status&op=equals&value=customer",
    "where=status&op=notEquals&value=customer",
    "where=score&op=greaterThan&value=100",
    "where=score&op=greaterThan&value=100&where=birthday&op=greaterThan&value=1960-01-01",
    "where=score&op=greaterThan&value=989&where=job_title&op=contains&value=gineer+7",
    "where=score&op=greaterThan&value=889&where=job_title&op=contains&value=gineer+7",
    "where=score&op=equals&value=7&where=birthday&op=greaterThan&value=1960-01-01",
    "",
)
"""Queries of a list of people: with and without an index, few, many and no matches, and several conditions."""
ORDERS = ("", "&sort=created_at", "&sort=-updated_at", "&page=30")
DESK = (1440, 900)
VIEWS = (("light", "light", DESK), ("dark", "dark", DESK), ("narrow", "light", NARROW), ("narrow-dark", "dark", NARROW))


PICTURED = (
    ("", 0),
    ("/records/{slug}", 0),
    ("/records/{slug}", 2),
    ("/records/{slug}/{recordId:uuid}", 0),
    ("/records/{slug}/{recordId:uuid}/edit", 0),
    ("/records/{slug}/import/columns", 0),
    ("/search", 1),
    ("/activities", 0),
    ("/reports/{id:uuid}/edit", 0),
    ("/reports/{id:uuid}/runs/{runId:uuid}", 0),
    ("/workflows/{id:uuid}", 0),
    ("/webhooks/{id:uuid}", 0),
    ("/objects/{objectId:uuid}/attributes/{id:uuid}", 0),
    ("/members", 0),
    ("/health", 0),
)
"""The pages to picture: one of each kind, by route and position among its addresses."""


def crowd(tx: Tx, name: str, count: int) -> None:
    """Fill the other tables as in a service with `count` records. Ids and times are made up."""
    [[people, table]] = tx.all("SELECT id, number FROM crm_object WHERE slug = 'people'")
    at = f"{to_micros(time.time())} - CAST(i AS BIGINT) * 500000"
    words = {"new": ROW_IDS[name], "at": at, "people": people, "number": table, "state": _STATE}
    for share, of, statement in CROWD:
        for [one] in tx.all(of):
            numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            tx.execute(statement.format(n=numbers, one=one, **words), (int(count * share),))


def large_pages(service: RunningService) -> list[str]:
    """Return addresses whose answers take longer with more data."""
    [(people, notes)] = service.engine.read(
        lambda tx: tx.all(
            "SELECT o.id, a.id FROM crm_object o JOIN attribute a ON a.object_id = o.id WHERE o.slug = 'people' AND a.slug = 'notes'"
        )
    )
    lists = [f"/records/people?{search}{order}" for search in SEARCHES for order in ORDERS]
    words = ("last5+first5", "person", "zebra", "muller")
    lists += [f"{path}?q={text}" for path in ("/search", "/records/people") for text in words] + [
        "/records/people?sort=job_title&where=score&op=equals&value=7"
    ]
    return [*lists, "/requests?id=nowhere", f"/requests?key={people}", f"/objects/{people}/attributes/{notes}/delete"]


def measure(service: RunningService, paths: list[str], records: int) -> int:
    """Return how many pages exceed a bound; the median list counts as one."""
    beyond, url, lists = 0, service.settings.database_url, list[float]()
    with make_client(service.base_url, None) as client:
        client.get(link_to(service))
        for path in paths:
            clock, processor = [], []
            client.get(f"/console{path}")
            server = cluster_seconds(url) if url else 0.0
            for _ in range(REPEATS):
                start, spent = time.perf_counter(), time.process_time()
                answer = client.get(f"/console{path}")
                clock.append((time.perf_counter() - start) * 1000)
                processor.append((time.process_time() - spent) * 1000)
            by_clock, by_processor = statistics.median(clock), statistics.median(processor)
            by_processor += (cluster_seconds(url) - server) * 1000 / REPEATS if url else 0.0
            size = len(answer.content)
            is_beyond = by_processor > MOST_MS or size > MOST_BYTES
            beyond += is_beyond
            lists += [by_processor] if path.startswith("/records/people?") else []
            name = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", path) or "/"
            mark = "   BEYOND" if is_beyond else ""
            print(f"{by_clock:7.1f} ms, processor {by_processor:7.1f} ms, {size:6,} bytes  {name}{mark}", flush=True)
    print(f"{len(paths)} pages, {beyond} beyond {MOST_MS:g} ms or {MOST_BYTES:,} bytes")
    median, bound = statistics.median(lists), LIST_MS[20_000 if records <= 25_000 else 1_000_000]
    print(f"{len(lists)} lists, median {median:.1f} ms of the processor, bound {bound:g} ms: {'kept' if median <= bound else 'MISSED'}")
    return beyond + (median > bound)


def photograph(service: RunningService, furnished: FurnishedPages, target: Path) -> None:
    """Take a picture of each page in each view, as high as the page."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        browser.get(link_to(service))
        for number, (route, place) in enumerate(PICTURED):
            path = furnished.paths[route][place]
            name = re.sub(r"[^a-z]+", "-", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "", path)).strip("-") or "overview"
            browser.get(f"{service.base_url}/console{path}")
            for view, scheme, size in VIEWS:
                browser.scheme(scheme)
                browser.size(size)
                height = browser.script("return document.documentElement.scrollHeight")
                browser.size((size[0], min(4000, max(size[1], height))))
                browser.driver.save_screenshot(str(target / f"{number:02}-{name[:50]}-{view}.png"))


@contextlib.contextmanager
def filled(count: int, engine: str) -> Iterator[tuple[Path, str | None]]:
    """Return a data directory and the address of its database, with that many people."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if engine == "postgresql":
            url = stack.enter_context(private_server(autovacuum="on")).create_database()
        database = fill_service(url or f"sqlite:///{folder / 'service.db'}", min(count, SEED))[0]
        if count > SEED:
            database.write(lambda tx: multiply(tx, engine, count))
        database.close()
        yield folder, url


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--screenshots"]:
        with tempfile.TemporaryDirectory() as folder, running_service(Path(folder), development=True, background=False) as service:
            photograph(service, furnish(service), Path(arguments[1]))
        return 0
    only_large = "--only-large" in arguments
    arguments = [each for each in arguments if each != "--only-large"]
    with contextlib.ExitStack() as stack:
        if arguments[:1] == ["--data"]:
            url = arguments[1] if "://" in arguments[1] else None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if url else arguments[1])
        else:
            folder, url = stack.enter_context(filled(int((arguments or ["1000000"])[0]), (*arguments, "", "sqlite")[1] or "sqlite"))
        service = stack.enter_context(running_service(folder, database_url=url, background=False, development=True))
        count, logged = service.engine.read(
            lambda tx: tx.all("SELECT max(total), (SELECT max(sequence) FROM request_log) FROM record_total")
        )[0]
        pages = [] if only_large else furnish(service).console()
        if (logged or 0) < count:
            service.engine.write(lambda tx: crowd(tx, "postgresql" if url else "sqlite", count))
            settle("postgresql" if url else "sqlite", url or "")
        return 1 if measure(service, pages + large_pages(service), count) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
