"""Places and names of files."""

from __future__ import annotations

import ast
import re
import tomllib

import pytest
import yaml

from tests.support.sources import PACKAGE, ROOT, package_files, python_files, repository_files

EMPTY_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common", "tools", "stuff"}
LOCK_FILES = {"uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock"}


def test_init_files_are_empty_except_for_the_version_and_the_python_api() -> None:
    filled = [path for path in python_files() if path.name == "__init__.py" and path.read_text().strip()]
    assert filled == [PACKAGE / "__init__.py"]
    body = ast.parse(filled[0].read_text()).body
    named = [node.targets[0].id for node in body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    assert named == ["__all__", "TYPE_CHECKING"]
    assert [node.name for node in body if isinstance(node, ast.FunctionDef)] == ["__getattr__"]
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imports] == ["from crmctl.version import __version__"], "nothing else is imported early"


def test_every_module_has_a_short_docstring() -> None:
    missing = []
    for path in (path for path in python_files() if path.name != "__init__.py"):
        text = re.match(r'(?:#!.*\n)?"""(.+?)"""\n', path.read_text(), re.DOTALL)
        if not text or (path.is_relative_to(PACKAGE) and len(text[1].splitlines()) > 5):
            missing.append(path.relative_to(ROOT).as_posix())
    assert missing == [], "each module opens with a docstring: one to four lines in the package"


def test_no_module_has_an_empty_name() -> None:
    names = {part for path in python_files() for part in (*path.relative_to(ROOT).parent.parts, path.stem)}
    assert names & EMPTY_NAMES == set()


def test_every_package_folder_is_a_package() -> None:
    folders = {path.parent for path in package_files()}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_no_lock_file_that_names_an_index() -> None:
    assert [path for path in repository_files() if path.name in LOCK_FILES or path.name.startswith("pylock")] == []


@pytest.mark.parametrize("document", ["README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs"])
def test_every_relative_link_in_the_documents_resolves(document: str) -> None:
    pages = [path for path in repository_files() if path.suffix == ".md" and path.is_relative_to(ROOT / document)]
    broken = []
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", prose):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)} -> {target}")
    assert pages
    assert broken == []


def test_paths_in_contributing_exist() -> None:
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|\.ci)/[\w./-]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(paths) > 15
    assert [name for name in paths if not (ROOT / name).exists()] == []


def test_the_hooks_before_a_commit_are_targets_of_the_makefile() -> None:
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = [hook["entry"] for repository in repositories for hook in repository["hooks"]]
    assert {repository["repo"] for repository in repositories} == {"local"}
    assert entries == ["make lint", "make types"]


def test_the_console_script_is_the_process_edge() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"] == {"crmctl": "crmctl.main:main"}
