"""The walks that CONTRIBUTING describes are those that the program takes: the functions on the stack, no more and no fewer."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from crmctl.client.http.transport import HttpxTransport
from crmctl.client.queries.clauses import FilterReader
from crmctl.models.filters import Condition
from tests.support.inprocess import run_here
from tests.support.service import running_service

ROOT = Path(__file__).parents[2]
SOURCE = str(ROOT / "src" / "crmctl")
Step = tuple[str, str]

UNAWARE = ("src/crmctl/client/paging.py", "src/crmctl/client/directory.py", "src/crmctl/cli/list_window.py")
"""Passed on the way, with a call to make: they know of no condition."""


def documented(walk: int) -> list[Step]:
    """Each step names files, and after each file the functions of it that are passed."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Trace one command")[2].partition("\n## ")[0]
    steps: list[Step] = []
    file = ""
    for word in re.findall(r"`([\w./]+)`", section.split("`crmctl ")[walk + 1]):
        if word.startswith("src/"):
            file = word
        elif file and "/" not in word:
            steps.append((file, word.rpartition(".")[2]))
    return steps


def stack(frame: FrameType | None) -> list[Step]:
    """The functions of ours that led to a frame, from the command on; of a thread of ours, from its start on."""
    found: list[Step] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and not code.co_name.startswith("<"):
            found.append((Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_name))
        if "cli/commands/" in code.co_filename:
            break
        frame = frame.f_back
    return found[::-1]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with running_service(tmp_path_factory.mktemp("walks")) as service:
        yield {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}


def test_an_import_reaches_the_socket_in_twenty_functions_of_ten_files(address: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[list[Step]] = []
    exchange: Any = HttpxTransport._exchange

    def watched(transport: HttpxTransport, method: str, url: str, *rest: Any) -> Any:
        if method == "POST" and url.endswith("/records/bulk"):
            here = sys._getframe(1)
            above = stack(sys._current_frames()[threading.main_thread().ident or 0])
            pipeline = max(place for place, step in enumerate(above) if step[1] == "run")
            walks.append([*above[: pipeline + 1], *stack(here), (SOURCE_OF_EXCHANGE, "_exchange")])
        return exchange(transport, method, url, *rest)

    monkeypatch.setattr(HttpxTransport, "_exchange", watched)
    Path("people.csv").write_text("email\nada@acme.com\n")
    run_here("bulk", "import", "people", "people.csv", env=address).ok()
    steps = documented(0)
    begin = next(place for place, (file, _) in enumerate(steps) if "/cli/commands/" in file)
    assert walks == [steps[begin:]]
    files = [file for file, _ in walks[0]]
    assert len(files) <= 20
    assert len(set(files)) <= 10
    assert [file for place, file in enumerate(files) if place and file != files[place - 1] and file in files[:place]] == [], "a step back"


SOURCE_OF_EXCHANGE = "src/crmctl/client/http/transport.py"


def test_a_filter_reaches_the_wire_in_twelve_functions_of_six_files(address: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the condition in hand: as text, as a condition, as a parameter of the query."""
    passed: set[Step] = set()

    def watched(original: Callable[..., Any], name: Step) -> Callable[..., Any]:
        def watching(*given: Any, **named: Any) -> Any:
            passed.update([*stack(sys._getframe(1)), name])
            return original(*given, **named)

        return watching

    clauses, filters = "src/crmctl/client/queries/clauses.py", "src/crmctl/models/filters.py"
    import crmctl.client.queries.clauses as reader

    monkeypatch.setattr(reader, "parse_clause", watched(reader.parse_clause, (filters, "parse_clause")))
    monkeypatch.setattr(FilterReader, "_plain", watched(FilterReader._plain, (clauses, "_plain")))
    monkeypatch.setattr(Condition, "to_query", watched(Condition.to_query, (filters, "to_query")))
    run_here("records", "list", "people", "--filter", "email=ada@acme.com", env=address).ok()
    steps = documented(1)
    assert {step for step in passed if step[0] not in UNAWARE} == set(steps)
    assert len(steps) <= 12
    assert len({file for file, _ in steps}) <= 6
