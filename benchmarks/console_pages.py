"""Every page of the console on a large database: how long each takes and how many bytes it has; or how they look.

    python benchmarks/console_pages.py [RECORDS] [sqlite|postgresql]         (default 1000000 and sqlite)
    python benchmarks/console_pages.py --data FOLDER                         on an SQLite database that is there; it is added to
    python benchmarks/console_pages.py --screenshots FOLDER                  light, dark and 390 px of each, on little data

The bounds are 150 ms, the median of five, and 40 kB. Ends with 1 where a page is beyond one of them.
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

from benchmarks.service_store import fill_service
from tests.service.console.conftest import link_to
from tests.support.browser import NARROW, WIDE, open_browser
from tests.support.consolepages import FurnishedPages, furnish
from tests.support.postgres import private_server
from tests.support.service import RunningService, make_client, running_service

REPEATS = 5
MOST_MS, MOST_BYTES = 150.0, 40_000
VIEWS = (("light", "light", WIDE), ("dark", "dark", WIDE), ("narrow", "light", NARROW))


def measure(service: RunningService, furnished: FurnishedPages) -> int:
    """How many pages are beyond a bound."""
    beyond = 0
    with make_client(service.base_url, None) as client:
        client.get(link_to(service))
        for path in furnished.console():
            times = []
            for _ in range(REPEATS):
                start = time.perf_counter()
                answer = client.get(f"/console{path}")
                times.append((time.perf_counter() - start) * 1000)
            median, size = statistics.median(times), len(answer.content)
            is_beyond = median > MOST_MS or size > MOST_BYTES
            beyond += is_beyond
            name = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID", path) or "/"
            print(f"{median:7.1f} ms (worst {max(times):7.1f})  {size:6,} bytes  {name}{'   BEYOND' if is_beyond else ''}", flush=True)
    print(f"{len(furnished.console())} pages, {beyond} beyond {MOST_MS:g} ms or {MOST_BYTES:,} bytes")
    return beyond


def photograph(service: RunningService, furnished: FurnishedPages, target: Path) -> None:
    """A picture of each page in each view, as high as the page is."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        for visit, paths in (("", furnished.console()), ("out", furnished.signed_out)):
            browser.driver.delete_all_cookies()
            browser.get(link_to(service) if not visit else f"{service.base_url}/console/sign-in")
            for number, path in enumerate(paths):
                name = re.sub(r"[^a-z]+", "-", re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "", path)).strip("-") or "overview"
                browser.get(f"{service.base_url}/console{path}")
                for view, scheme, size in VIEWS:
                    browser.scheme(scheme)
                    browser.size(size)
                    height = browser.script("return document.documentElement.scrollHeight")
                    browser.size((size[0], min(4000, max(size[1], height))))
                    browser.driver.save_screenshot(str(target / f"{visit}{number:02}-{name[:50]}-{view}.png"))


@contextlib.contextmanager
def filled(count: int, engine: str) -> Iterator[tuple[Path, str | None]]:
    """A data directory and the address of its database, with that many people in it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if engine == "postgresql":
            url = stack.enter_context(private_server(autovacuum="on")).create_database()
        fill_service(url or f"sqlite:///{folder / 'service.db'}", count)[0].close()
        yield folder, url


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--screenshots"]:
        with tempfile.TemporaryDirectory() as folder, running_service(Path(folder), development=True, background=False) as service:
            photograph(service, furnish(service), Path(arguments[1]))
        return 0
    with contextlib.ExitStack() as stack:
        if arguments[:1] == ["--data"]:
            folder, url = Path(arguments[1]), None
        else:
            folder, url = stack.enter_context(filled(int((arguments or ["1000000"])[0]), (*arguments, "", "sqlite")[1] or "sqlite"))
        service = stack.enter_context(running_service(folder, database_url=url, background=False, development=True))
        return 1 if measure(service, furnish(service)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
