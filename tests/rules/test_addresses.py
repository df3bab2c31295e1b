"""The repository names no folder of a development machine, no package index and no secret."""

from __future__ import annotations

import re

import pytest

from tests.support.sources import text_files

INDEX = ["py" + "pi.org", "python" + "hosted.org", "--index" + "-url", "--extra-index" + "-url", "UV_" + "INDEX", "PIP_" + "INDEX_URL"]
MACHINE = re.compile(
    r"(?<![\w.\-/])/(?:" + "|".join(["work", "root", "home/" + r"(?!ada\b)\w+", "Users/" + r"\w+", "opt/" + "wheels"]) + r")(?:/|\b)"
)
SECRET = re.compile("(?:" + "|".join(["AKIA" + "[0-9A-Z]{16}", "-----BEGIN " + "[A-Z ]*PRIVATE KEY", "gh[pousr]_" + r"\w{36}"]) + ")")


@pytest.mark.parametrize("address", INDEX)
def test_no_file_names_a_package_index(address: str) -> None:
    assert [name for name, text in text_files() if address in text and name != "requirements/compile.py"] == []


def test_no_file_names_a_folder_of_the_machine() -> None:
    found = {f"{name}: {match.group()}" for name, text in text_files() for match in MACHINE.finditer(text)}
    assert found == set()


def test_no_file_holds_a_secret() -> None:
    assert [name for name, text in text_files() if SECRET.search(text)] == []
