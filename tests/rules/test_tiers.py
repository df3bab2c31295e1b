"""`make test` and `make campaigns` together run every test once, and `.ci/run` runs all of them."""

from __future__ import annotations

import re
import shlex
import tomllib

from tests.support.sources import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SELECTING = ("-m", "-k", "--ignore", "--ignore-glob", "--deselect", "--last-failed")


def pytest_arguments(target: str) -> list[str]:
    recipe = re.search(rf"^{target}:.*\n\t\$\(BIN\)/python -m pytest (.*)$", MAKEFILE, re.MULTILINE)
    assert recipe, target
    return shlex.split(recipe[1])


def test_each_test_belongs_to_one_of_two_targets() -> None:
    """The targets differ in one condition and its opposite, and no other option leaves a test out."""
    ordinary, campaigns = pytest_arguments("test"), pytest_arguments("campaigns")
    assert (ordinary[:2], campaigns[:2]) == (["-m", "not campaign"], ["-m", "campaign"])
    assert ordinary[2:] == campaigns[2:] == ["--numprocesses=auto", "--dist=worksteal", "$(ARGS)"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert settings["testpaths"] == ["tests"]
    assert [option for option in settings["addopts"] if option.split("=")[0] in SELECTING] == []


def test_the_complete_check_runs_every_test() -> None:
    """The last condition counts, and an empty one selects every test."""
    commands = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert [line for line in commands if line.startswith("make ")] == ["""make test ARGS="-m ''" || failed+=(tests)"""]
