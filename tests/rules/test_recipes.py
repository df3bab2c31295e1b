"""Carry out the recipes of CONTRIBUTING.md on a copy of the source, and drive their results from the command line to the console."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import environment
from tests.support.databases import ENGINES, fresh_database
from tests.support.patience import PATIENCE
from tests.support.warm_program import CRMCTL, WarmProgram

ROOT = Path(__file__).parents[2]
LAST_ROWS = {
    "src/crmctl/values/attribute_types.py": "}\n\nUNKNOWN =",
    "src/crmctl/values/operators.py": "\n    def __new__",
    "src/crmctl/config/output_formats.py": "}\n",
}
"""The text after the last row of each table."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the source and add the row of each recipe."""
    copy = tmp_path_factory.mktemp("copy")
    # With compiled files, except those another process is writing.
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.pyc.*"))
    recipes = re.findall(
        r"^## Add an? (?:attribute type|filter operator|output format)\n.*?`(src/[\w/.]+)`.*?```python\n(.*?)```",
        (ROOT / "CONTRIBUTING.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert [path for path, _ in recipes] == list(LAST_ROWS)
    for path, row in recipes:
        before, anchor, after = (copy / path).read_text().rpartition(LAST_ROWS[path])
        assert anchor
        (copy / path).write_text(before + row + anchor + after)
    return copy / "src"


@pytest.fixture(scope="module")
def warm(source: Path) -> WarmProgram:
    """Start a process that has imported the copy and ends with this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(source))
        return WarmProgram(CRMCTL, "service")


class Program:
    """Run the program of the copy."""

    def __init__(self, warm: WarmProgram, home: Path) -> None:
        self.warm = warm
        self.environment = environment({"CRMCTL_NO_INPUT": "1"})
        self.home = home

    def run(self, *arguments: str) -> str:
        done = self.warm.run(arguments, self.environment, self.home, b"", PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json"))

    def emails(self, condition: str, *arguments: str) -> list[str]:
        return sorted(record["data"]["email"] for record in self.json("records", "list", "people", "--filter", condition, *arguments))

    @contextmanager
    def service(self, url: str) -> Iterator[str]:
        """Serve a database, and name the service to the program."""
        words = ["serve", "--port", "0", "--data", str(self.home / "data"), "--database-url", url]
        with self.warm.open(words, self.environment, self.home, stdin=subprocess.DEVNULL, stderr=2) as process:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            self.environment |= {"CRMCTL_BASE_URL": ready["baseUrl"], "CRMCTL_API_KEY": ready["apiKey"]}
            try:
                yield ready["baseUrl"]
            finally:
                process.send_signal(signal.SIGTERM)


@pytest.fixture(params=ENGINES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_database(request, tmp_path, is_empty=True) as url:
        yield url


def test_a_row_of_each_table_works_everywhere(warm: WarmProgram, database_url: str, tmp_path: Path) -> None:
    program = Program(warm, tmp_path)
    with program.service(database_url) as base_url:
        program.run("attributes", "create", "people", "--name", "Discount", "--type", "percent")
        (tmp_path / "people.csv").write_text("email,discount\nada@x.org,12.5 %\nbo@x.org,7%\ncy@x.org,\n")
        program.run("bulk", "import", "people", str(tmp_path / "people.csv"))

        _filters_and_formats(program)
        program.run("mirror", "sync", "people")
        assert "ada@x.org" in program.run("mirror", "sql", "SELECT email FROM people WHERE discount = 12.5")
        assert program.emails("email sameLength bb@y.com", "--sort", "discount") == ["bo@x.org", "cy@x.org"]
        _console(program, base_url, database_url)


def _filters_and_formats(program: Program) -> None:
    assert program.emails("discount>7") == ["ada@x.org"]
    assert program.emails("discount isEmpty") == ["cy@x.org"]
    assert program.emails("email sameLength bb@y.com") == ["bo@x.org", "cy@x.org"]
    # crmctl, not the service, compares parts of values.
    program.run("records", "update", "people", "email=ada@x.org", "--set", "name.first=Ada")
    assert program.emails("name.first sameLength Bob") == ["ada@x.org"]
    lines = program.run("records", "list", "people", "--fields", "email,discount", "--sort", "discount", "-o", "psv").splitlines()
    assert lines == ["email|discount", "bo@x.org|7", "ada@x.org|12.5", "cy@x.org|"]
    assert "sameLength: has as many characters" in program.run("help", "filters")
    assert "like csv, with | between the cells" in program.run("help", "output")
    assert "sameLength " in program.run("__complete", "records", "list", "people", "--filter", "'email same")


def _console(program: Program, base_url: str, url: str) -> None:
    link = program.json("service", "console", "--data", str(program.home / "data"), "--database-url", url)["consoleUrl"]
    with httpx.Client(base_url=base_url, follow_redirects=True, timeout=PATIENCE, trust_env=False) as browser:
        assert browser.get(link).is_success
        question = {"where": "email", "op": "sameLength", "value": "bb@y.com"}
        page = browser.get("/console/records/people", params=question).text
        assert "is as long as" in page
        assert "bo@x.org" in page
        assert "ada@x.org" not in page
        assert 'name="f:discount"' in browser.get("/console/records/people/new").text
