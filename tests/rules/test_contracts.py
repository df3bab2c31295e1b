"""The import contracts of pyproject.toml hold, and imports form no cycle, not even through imports inside functions."""

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
    "crmctl.api": "bulk work takes three quarters of the import of Client, which programs use for single records too",
    "crmctl": "the Python API is imported on first use",
    "crmctl.pytest_plugin": "every run of pytest loads it",
    "crmctl.main": "--version and completion need no command line",
    "crmctl.read": "a few records need no full scan",
    "crmctl.plan": "most imports have no references, keys, mirror or saved plan",
    "crmctl.files": "a file has one format",
    "crmctl.client": "resources and the rate ledger are built when a request needs them",
    "crmctl.output": "rich, --query and charts are needed by few commands",
    "crmctl.service": "administration needs no HTTP server, SQLite needs no PostgreSQL driver",
    "crmctl.mirror": "most commands use no mirror",
    "crmctl.write": "most jobs have nothing to reconcile",
}
"""Packages outside `cli/` that may import our modules inside functions, each with the reason."""

Import = tuple[str, bool]
"""The imported module, and whether the import is inside a function."""


def test_imports_go_down_only() -> None:
    checker = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([checker, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 broken" in run.stdout


def _modules() -> dict[str, Path]:
    names = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in package_files()}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def _imports(node: ast.AST, modules: dict[str, Path], is_deferred: bool = False) -> Iterator[Import]:
    """Yield the imports that run; skip those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.ImportFrom) and (child.module or "").partition(".")[0] == "crmctl":
            for alias in child.names:
                whole = f"{child.module}.{alias.name}"
                yield (whole if whole in modules else str(child.module)), is_deferred
        yield from _imports(child, modules, is_deferred or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def _graph() -> dict[str, set[Import]]:
    """Return the imports of each module."""
    modules = _modules()
    return {name: set(_imports(ast.parse(path.read_text()), modules)) for name, path in modules.items()}


def test_imports_form_no_cycle() -> None:
    graph = {name: {target for target, _ in imported} for name, imported in _graph().items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_imports_inside_functions_have_a_reason() -> None:
    inside = {
        name
        for name, imported in _graph().items()
        if not name.startswith("crmctl.cli.") and any(is_deferred for _, is_deferred in imported)
    }
    packages = {".".join(name.split(".")[:2]) for name in inside}
    assert packages - DEFERRED.keys() == set()
