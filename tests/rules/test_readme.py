"""The tour of the README works, every command of it, in the order and in the shell a reader would type it in."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.support.cli import CRMCTL, environment
from tests.support.sources import ROOT

README = (ROOT / "README.md").read_text()
PORT = "8787"
TOUR = [
    line[2:] for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL) for line in block.splitlines() if line.startswith("$ ")
]
PROMPT = "tour> "


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[pexpect.spawn]:
    """An interactive bash in an empty folder, with `crmctl` on its PATH."""
    env = environment({"PATH": f"{CRMCTL.parent}:/usr/bin:/bin", "PS1": PROMPT, "COLUMNS": None, "LINES": None})
    started = pexpect.spawn(
        "bash", ["--norc", "--noprofile"], cwd=str(tmp_path), env=env, dimensions=(50, 120), timeout=60, encoding="utf-8", echo=False
    )
    started.expect_exact(PROMPT)
    started.sendline("bind 'set enable-bracketed-paste off'")
    started.expect_exact(PROMPT)
    yield started
    started.sendline("kill %1")
    started.close(force=True)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


@pytest.mark.needs("bash")
def test_every_command_of_the_tour_works(shell: pexpect.spawn, tmp_path: Path) -> None:
    port = free_port()
    printed = {line: follow(shell, line.replace(PORT, port).replace("serve ", f"serve --port {port} ")) for line in TOUR}
    said = "\n".join(printed.values())
    assert "Ada Lovelace" in printed[next(line for line in TOUR if "endsWith" in line)]
    assert len((tmp_path / "people.jsonl").read_text().splitlines()) == 3
    assert "Traceback" not in said
    assert "error" not in said.lower().replace("on-error", "")


def follow(shell: pexpect.spawn, line: str) -> str:
    """Type one line and wait for it; what it printed. Fails unless it ended with 0."""
    shell.sendline(line)
    shell.expect_exact(PROMPT)
    if line.endswith("&"):
        shell.expect('"baseUrl"')
        return str(shell.after)
    printed = str(shell.before)
    shell.sendline("echo code=$?=")
    shell.expect(r"code=(\d+)=")
    assert shell.match.group(1) == "0", f"{line}\n{printed}"
    shell.expect_exact(PROMPT)
    return printed


def test_the_tour_is_all_of_the_console_blocks_and_long_enough() -> None:
    assert len(TOUR) > 12
    assert sum("crmctl bulk import" in line for line in TOUR) == 2


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert named == ["demo", "test"]
    assert set(named) <= set(targets)
