"""Find programs of the machine that some tests need, and skip those tests without them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

REQUIRED = "CRMCTL_REQUIRE_PROGRAMS"
ELSEWHERE = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/bin", "/usr/local/bin", "/usr/sbin")
"""Folders of programs that are not on every PATH (Debian keeps PostgreSQL's server programs in the first)."""


def find_program(name: str) -> Path | None:
    """Return the path of the program, of its newest version if several are installed."""
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    found = [path for folder in ELSEWHERE for path in Path("/").glob(f"{folder[1:]}/{name}") if os.access(path, os.X_OK)]
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


def require_programs(item: pytest.Item) -> None:
    """Skip a test marked `needs(program, ...)` whose program is missing; fail it if the machine promised to have them all."""
    needed = [str(name) for marker in item.iter_markers("needs") for name in marker.args]
    absent = [name for name in needed if find_program(name) is None]
    if not absent:
        return
    reason = f"not installed: {', '.join(absent)}"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason} ({REQUIRED} is set)", pytrace=False)
    pytest.skip(reason)
