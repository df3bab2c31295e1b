"""Every command of the README's tour works, in order, in a reader's shell."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from tests.support.pages import Command, follow, open_shell, read_page
from tests.support.sources import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = read_page("README.md")
PORT = "8787"


@pytest.mark.long
@pytest.mark.needs("bash", "python3")
def test_every_command_of_the_tour_works(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    with open_shell(tmp_path) as shell:
        printed = follow(shell, TOUR, lambda line: line.replace(PORT, port).replace("serve ", f"serve --port {port} "))
    assert "Ada Lovelace" in next(said for line, said in printed.items() if "endsWith" in line)
    assert len((tmp_path / "people.jsonl").read_text().splitlines()) == 3
    assert "error" not in "\n".join(printed.values()).lower().replace("on-error", "")


def test_the_tour_is_long_enough_and_imports_twice() -> None:
    lines = [step.line for step in TOUR if isinstance(step, Command)]
    assert len(lines) > 12
    assert sum("crmctl bulk import" in line for line in lines) == 2


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert named == ["demo", "test"]
    assert set(named) <= set(targets)
