"""A process imports only modules that its command needs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crmctl.cli import app
from tests.support.cli import CRMCTL
from tests.support.patience import PATIENCE
from tests.support.service import running_service
from tests.support.sources import imported_modules

HEAVY = [
    "httpx",
    "httpcore",
    "rich",
    "keyring",
    "pydantic",
    "starlette",
    "sqlalchemy",
    "yaml",
    "jmespath",
    "tomlkit",
    "importlib.metadata",
    "asyncio",
    "decimal",
    "json",
]
OWN_MODULES_OF_A_LIST = 52
OWN_MODULES_OF_AN_IMPORT = 109
"""The present numbers. A new module needs a reason why every list, or every import, should load it."""


@pytest.fixture
def bare(tmp_path: Path) -> set[str]:
    """Return the modules Python imports for a script like pip's console script, without crmctl."""
    script = tmp_path / "bare.py"
    script.write_text("import re, sys\n")
    return imported_modules([script])


def families(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_version_imports_nothing_but_crmctl(bare: set[str]) -> None:
    added = imported_modules([CRMCTL, "--version"]) - bare
    assert added == {"crmctl", "crmctl.version", "crmctl.main"}


def test_importing_the_package_imports_nothing_else(tmp_path: Path, bare: set[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text("import crmctl\n")
    assert imported_modules([script]) - bare == {"crmctl", "crmctl.version"}


def test_importing_the_client_imports_no_bulk_work_and_no_other_library(tmp_path: Path, bare: set[str]) -> None:
    script = tmp_path / "program.py"
    script.write_text("from crmctl import Client\n")
    modules = imported_modules([script]) - bare
    assert [name for name in modules if name.startswith(("crmctl.plan", "crmctl.write", "crmctl.files", "crmctl.match"))] == []
    assert families(modules) & {"pydantic", "httpcore", "sqlite3", "keyring", "yaml", "jmespath"} == set()


def test_help_imports_no_command_and_nothing_heavy() -> None:
    modules = imported_modules([CRMCTL, "--help"])
    assert "crmctl.cli.app" in modules
    assert [name for name in modules if name.startswith("crmctl.cli.commands.")] == []
    assert [name for name in HEAVY if name in modules] == []


def test_help_of_a_group_imports_the_modules_of_that_group_only() -> None:
    modules = imported_modules([CRMCTL, "commands", "--help"])
    assert [name for name in modules if name.startswith("crmctl.cli.commands.")] == ["crmctl.cli.commands.command_tree"]
    assert {"httpcore", "rich", "keyring", "starlette", "sqlalchemy"} & families(modules) == set()


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of commands that call a service."""
    with running_service(tmp_path_factory.mktemp("data")) as service:
        yield {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": service.key}


def test_a_list_as_json_pays_for_no_colour_no_keyring_and_no_service(connected: dict[str, str]) -> None:
    modules = imported_modules([CRMCTL, "records", "list", "people", "-o", "json"], connected)
    assert "httpx" in modules
    unpaid = "pydantic rich keyring starlette uvicorn sqlalchemy yaml jmespath tomlkit pygments click"
    assert set(unpaid.split()) & families(modules) == set()
    unasked = ("bulk_context", "plan.", "write.", "files.", "read", "match", "service", "mirror", "client.query", "values.filters")
    assert [name for name in modules if name.startswith(tuple(f"crmctl.{each}" for each in unasked))] == []
    assert len([name for name in modules if name.startswith("crmctl.")]) <= OWN_MODULES_OF_A_LIST


def test_an_import_of_a_csv_pays_for_no_plan_no_dry_run_no_other_format_and_no_mirror(connected: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("name\nImported Once\n")
    modules = imported_modules([CRMCTL, "bulk", "import", "people", str(tmp_path / "people.csv"), "--quiet"], connected)
    unasked = ("dedupe", "files.json_files", "files.sheets", "files.export_formats", "read.export", "schema", "service")
    unasked += ("plan.merge_", "plan.undo", "plan.unmerge", "plan.relations", "plan.mirrored_records")
    assert [name for name in modules if name.startswith(tuple(f"crmctl.{each}" for each in unasked))] == []
    assert {"rich", "xml"} & families(modules) == set()
    assert {name for name in modules if name.startswith("crmctl.mirror.")} == {"crmctl.mirror.place"}
    assert len([name for name in modules if name.startswith("crmctl.")]) <= OWN_MODULES_OF_AN_IMPORT


def test_a_command_is_built_without_the_others_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str | None] = []
    build = app.Command.__init__

    def building(command: app.Command, name: str, *settings: Any, **named: Any) -> None:
        built.append(name)
        build(command, name, *settings, **named)

    monkeypatch.setattr(app.Command, "__init__", building)
    assert "bulk import" in (app.command_help(["bulk", "import"], 80) or "")
    assert built == ["import"]


def test_the_first_search_for_garbage_goes_through_nothing_that_is_loaded() -> None:
    script = (
        "import gc; from crmctl import main; gc.disable(); gc.collect(); gc.callbacks.append(main._keep_what_is_loaded); gc.collect();"
        "print(sum(gc.get_count()) < gc.get_freeze_count() > 1000, gc.get_threshold()[0] == main.COLLECT_AFTER, gc.callbacks)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    assert said == "True True []\n"


def test_the_listing_shows_the_imports_of_a_process(tmp_path: Path) -> None:
    script = tmp_path / "loads.py"
    script.write_text("import colorsys\n")
    assert "colorsys" in imported_modules([script])
    assert "colorsys" not in imported_modules([Path(sys.executable).with_name("crmctl"), "--version"])
