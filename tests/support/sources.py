"""The repository's files, for the tests of its rules."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.cli import environment
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "crmctl"
GENERATED = (
    "src/crmctl/cli/completion_table.json",
    "docs/reference/",
    *(f"requirements/{name}.txt" for name in ("locked", "program", "image", "release")),
)


@cache
def repository_files() -> tuple[Path, ...]:
    """Return every file of the repository, tracked or new, that git does not ignore; without git, every file outside hidden folders and
    caches.
    """
    names = _names_by_git()
    if names is None:
        names = [str(path) for path in (found.relative_to(ROOT) for found in ROOT.rglob("*")) if not _is_by_product(path)]
    return tuple(path for path in (ROOT / name for name in names) if path.is_file())


def _names_by_git() -> list[str] | None:
    """Return None without git, or if git does not trust the folder as a checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return [name for name in listing.stdout.split("\0") if name]


def _is_by_product(path: Path) -> bool:
    return "__pycache__" in path.parts or any(part.startswith(".") and part != ".ci" for part in path.parts[:-1])


def text_files() -> list[tuple[str, str]]:
    """Return name and content of every text file of the repository."""
    texts = []
    for path in repository_files():
        content = path.read_bytes()
        if b"\0" not in content:
            texts.append((path.relative_to(ROOT).as_posix(), content.decode()))
    return texts


def python_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]


def package_files() -> list[Path]:
    return [path for path in python_files() if path.is_relative_to(PACKAGE)]


def imported_modules(program: Sequence[str | Path], env: Mapping[str, str | None] | None = None) -> set[str]:
    """Return every module that a fresh Python imports while it runs `program` (a script and its arguments); fail unless it ends with 0."""
    command = [sys.executable, "-v", *map(str, program)]  # -X importtime would leave out what importlib.import_module imports
    run = subprocess.run(command, env=environment(env), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert run.returncode == 0, f"{program} ended with {run.returncode}: {run.stderr[-2000:]}"
    return set(re.findall(r"^import '?([\w.]+)'? #", run.stderr, re.MULTILINE))
