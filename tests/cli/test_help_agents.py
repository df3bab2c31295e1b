"""`crmctl help agents`: the skill file and its copies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from crmctl import __version__
from crmctl.cli.commands.help import skill_file
from tests.cli.test_examples import EXAMPLES, NOT_RUN
from tests.support.inprocess import run_here


def test_every_command_of_the_skill_file_is_an_example_that_test_examples_runs() -> None:
    [block] = re.findall(r"```sh\n(.*?)```", skill_file(), re.DOTALL)
    commands = [line.rpartition("  # ")[0] for line in block.splitlines() if line]
    assert set(commands) <= {example for _, example in (param.values for param in EXAMPLES)} - NOT_RUN.keys()
    assert len(commands) > 50


def test_the_skill_file_is_short_and_names_only_options_that_exist() -> None:
    text = run_here("help", "agents").ok().out
    assert text == skill_file()
    assert len(text.splitlines()) <= 150
    assert f"# crmctl {__version__}" in text
    known = run_here("--help-all").ok().out + run_here("bulk", "import", "--help-all").ok().out + run_here("help", "--help").ok().out
    assert [name for name in re.findall(r"`(--[a-z-]+)", text) if name not in known] == []


def test_a_copy_is_written_and_an_outdated_one_is_reported_and_renewed(tmp_path: Path) -> None:
    folder = tmp_path / "skills" / "crmctl"
    command = ("help", "agents", "--install", str(folder), "-o", "json")
    assert run_here(*command).ok().json() == {"path": str(folder / "SKILL.md"), "state": "created"}
    assert run_here(*command).ok().json()["state"] == "current"
    (folder / "SKILL.md").write_text(skill_file().replace(__version__, "0.0.1"))
    assert run_here(*command).ok().json()["state"] == "updated"
    assert (folder / "SKILL.md").read_text() == skill_file()


@pytest.mark.parametrize("content", [b"# My own file\n", b"\xff\xfe"])
def test_a_file_of_others_is_left_alone(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_bytes(content)
    run_here("help", "agents", "--install", str(tmp_path)).exits(2)
    assert (tmp_path / "SKILL.md").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot write" in run_here("help", "agents", "--install", str(tmp_path / "file" / "skills")).exits(2).err


def test_only_the_topic_agents_is_installed(tmp_path: Path) -> None:
    assert "crmctl help agents" in run_here("help", "filters", "--install", str(tmp_path)).exits(2).err
