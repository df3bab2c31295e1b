"""The import contracts of pyproject.toml hold; no import leads back to where it came from, those inside functions counted."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.support.sources import PACKAGE, ROOT, package_files

DEFERRED = {
    "crmctl": "the API is imported when it is used",
    "crmctl.main": "--version and completion need no command line",
    "crmctl.bulk.read.records_by_id": "few records are read without a scan",
    "crmctl.bulk.run.job_start": "most imports have no references",
    "crmctl.bulk.run.row_actions": "without keys nothing is looked up",
    "crmctl.bulk.run.job_hooks": "most jobs carry out no saved plan, and no row of theirs refers to another",
    "crmctl.bulk.sources.open_source": "a file is of one format",
    "crmctl.bulk.usecases.targets": "an import without a mirror or a key needs nothing of it",
    "crmctl.client.crm": "what a noun looks like is built when it is asked for",
    "crmctl.client.rate_limit.limiter": "the ledger and its model are there when a request is made",
    "crmctl.output.messages": "an error for a program is the only JSON on stderr",
    "crmctl.output.progress": "a bar needs rich",
    "crmctl.output.selection": "only --query needs its functions",
    "crmctl.service.context": "who administers a service needs no places for requests",
    "crmctl.service.store.engine": "SQLite needs no driver of PostgreSQL",
}
"""Modules outside `cli/` that import ours inside functions, with the reason: what costs time is not imported before it is needed."""

Import = tuple[str, bool]
"""A module of ours, and whether it is imported inside a function."""


def test_imports_go_down_only() -> None:
    checker = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([checker, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 broken" in run.stdout


def _modules() -> dict[str, Path]:
    names = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in package_files()}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def _imports(node: ast.AST, modules: dict[str, Path], is_deferred: bool = False) -> Iterator[Import]:
    """What is imported at run time; what only type checkers see is not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and (child.module or "").partition(".")[0] == "crmctl":
            for each in child.names:
                whole = f"{child.module}.{each.name}"
                yield (whole if whole in modules else str(child.module)), is_deferred
        yield from _imports(child, modules, is_deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def _graph() -> dict[str, set[Import]]:
    """What each module imports."""
    modules = _modules()
    return {name: set(_imports(ast.parse(path.read_text()), modules)) for name, path in modules.items()}


def test_no_import_leads_back_to_where_it_came_from() -> None:
    graph = {name: {target for target, _ in imported} for name, imported in _graph().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_outside_the_command_line_imports_inside_functions_have_a_reason() -> None:
    inside = {
        name
        for name, imported in _graph().items()
        if not name.startswith("crmctl.cli.") and any(is_deferred for _, is_deferred in imported)
    }
    assert inside == set(DEFERRED)
