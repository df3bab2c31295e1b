"""Commands announce how many requests they will send, and keep to it; one row for each everyday task of an admin."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.output.messages import Messages
from tests.cli.test_everyday_questions import ShiftedClock, add, person
from tests.support.cli import Result
from tests.support.inprocess import run_here
from tests.support.service import RunningService, running_service

PEOPLE = 1200
SAID = re.compile(r"(\d+) (?:more )?requests?")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a service with companies and people, to copy."""
    clock = ShiftedClock()
    clock.ago = 86_400
    with running_service(tmp_path_factory.mktemp("priced"), clock=clock) as running:
        companies = add(running, "companies", [{"name": f"Company {one}", "domain": f"c{one}.com"} for one in range(30)])
        for start in range(0, PEOPLE, 100):
            clock.ago -= 60  # a filter for very recent changes matches few records
            add(running, "people", [person(number, companies) for number in range(start, start + 100)])
        return running.data_dir


@pytest.fixture
def service(template: Path, tmp_path: Path) -> Iterator[RunningService]:
    shutil.copytree(template, tmp_path / "service")
    with running_service(tmp_path / "service") as running:
        yield running


@pytest.fixture(autouse=True)
def _environment(service: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
    monkeypatch.setenv("CRMCTL_API_KEY", service.key)
    monkeypatch.setenv("CRMCTL_OUTPUT", "table")
    monkeypatch.chdir(tmp_path)


class Hearing:
    """Return the announcements, each with the number of reads before it."""

    def __init__(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
        self._service = service
        self.said: list[tuple[int, int]] = []
        say = Messages._say

        def hears(messages: Messages, text: str) -> None:
            self.said += [(int(one.replace(",", "")), self.made) for one in SAID.findall(text.replace(",", ""))]
            say(messages, text)

        monkeypatch.setattr(Messages, "_say", hears)

    @property
    def made(self) -> int:
        """Count the reads without the one that follows each write: it belongs to the write."""
        reads = sum(
            entry["method"] == "GET" and (str(entry["path"]).endswith("/activities") or "/records" in str(entry["path"]))
            for entry in self._service.log
        )
        return reads - sum(entry["method"] == "POST" for entry in self._service.log)

    def run(self, *arguments: str, **given: Any) -> Result:
        self._service.log.clear()
        self.said.clear()
        return run_here(*arguments, **given)


@pytest.fixture
def hearing(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> Hearing:
    return Hearing(service, monkeypatch)


def keys(count: int, offset: int = 0) -> str:
    return "email,score\n" + "".join(f"p{number}@acme.com,5\n" for number in range(offset, offset + count))


def ids(service: RunningService, count: int) -> str:
    path = f"/api/v1/objects/{service.object_id('people')}/records"
    pages = [service.client.get(path, params={"limit": 100, "offset": offset, "order": "asc"}).json() for offset in range(0, count, 100)]
    return "".join(f"{one['id']}\n" for page in pages for one in page["records"])


FILES: dict[str, Callable[[RunningService], str]] = {
    "many.csv": lambda _: keys(PEOPLE // 2),
    "few.csv": lambda _: keys(6),
    "refs.csv": lambda _: "name,contact\n" + "".join(f"Deal {number},p{number}@acme.com\n" for number in range(6)),
    "ids.txt": lambda service: ids(service, 500),
    "few.txt": lambda service: "\n".join(ids(service, 100).split()[:6]),
}

PRICED = [
    ("records list people --sort score --limit 3 --fields email", 1, 12),
    ("records count people --by address.city", 1, 12),
    ("records count people --by status --avg score", 1, 12),
    ("bulk update people --filter score>=0 --set notes=x --dry-run", 2, 12),
    ("bulk update people --filter address.city=Rome --set address.country=IT --dry-run", 4, 8),
    ("bulk update people --ids ids.txt --set notes=x --dry-run", 3, 15),
    ("bulk update people --ids few.txt --set notes=x --dry-run", 3, 7),
    ("bulk delete people --filter score>=0 --dry-run", 2, 12),
    ("bulk delete people --ids ids.txt --dry-run", 2, 15),
    ("bulk import people many.csv --mode update --key email --dry-run", 2, 18),
    ("bulk import people few.csv --mode update --key email --dry-run", 2, 15),
    ("bulk import people many.csv --mode update --key email", 2, 18),
    ("bulk import deals refs.csv --ref contact=people.email --dry-run", 2, 15),
    ("bulk update people --filter address.city=Rome --set notes=x --yes", 4, 12),
]
"""The command; the requests after which it must announce more at the latest; the greatest number of those."""


@pytest.mark.parametrize(("command", "first", "most"), PRICED, ids=lambda value: value if isinstance(value, str) else "")
def test_expensive_commands_announce_their_requests(
    service: RunningService, hearing: Hearing, command: str, first: int, most: int, tmp_path: Path
) -> None:
    for name, content in FILES.items():
        if name in command:
            (tmp_path / name).write_text(content(service))
    hearing.run(*command.split()).ok()
    said, at = hearing.said[0]
    made = hearing.made - at
    assert (at <= first, made <= said <= most, made > 0) == (True, True, True), (at, said, made)


def test_an_undo_announces_the_search_for_references(service: RunningService, hearing: Hearing, tmp_path: Path) -> None:
    """Let deals and people refer to companies; activities may name them."""
    (tmp_path / "ids.txt").write_text(FILES["few.txt"](service))
    hearing.run("bulk", "delete", "people", "--ids", "ids.txt", "--yes").ok()
    said = int(SAID.findall(hearing.run("bulk", "undo", "last", "--dry-run").ok().out)[0])
    hearing.run("bulk", "undo", "last", "--yes").ok()
    assert said / 2 <= hearing.made <= said + 4, (said, hearing.made)


@pytest.mark.parametrize(
    ("command", "most"),
    [
        ("records get people email=p7@acme.com --fields email", 1),
        ("records edit people email=p7@acme.com", 3),
        ("records update people email=p7@acme.com --set address.city=Bari --fields email", 2),
        ("records list people --sample 10 --fields email", 10),
        ("records search people grace --fields email", 8),
        ("api GET objects/{people}/records --paginate -q []", 13),
        ("api GET objects/{people}/records -f limit=100 --paginate -q []", 12),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cheap_commands_send_few_requests(service: RunningService, hearing: Hearing, command: str, most: int) -> None:
    hearing.run(*command.split(), env={"EDITOR": "sed -i s/7@acme/7@acme/", "VISUAL": ""}).ok()
    assert hearing.made <= most
