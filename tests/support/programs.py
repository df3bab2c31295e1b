"""Programs of the machine that some tests need: where they are, and what happens when one is absent."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

REQUIRED = "CRMCTL_REQUIRE_PROGRAMS"
ELSEWHERE = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/bin", "/usr/local/bin", "/usr/sbin")
"""Folders that hold programs without being on everybody's PATH (Debian keeps PostgreSQL's server programs in the first)."""


def find_program(name: str) -> Path | None:
    """Where the program is; the newest version where several are installed side by side."""
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    found = [path for folder in ELSEWHERE for path in Path("/").glob(f"{folder[1:]}/{name}") if os.access(path, os.X_OK)]
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


def require_programs(item: pytest.Item) -> None:
    """Skip a test marked `needs(program, ...)` whose program is absent; fail it where the machine promised to have them all."""
    needed = [str(name) for marker in item.iter_markers("needs") for name in marker.args]
    absent = [name for name in needed if find_program(name) is None]
    if not absent:
        return
    reason = f"not installed: {', '.join(absent)}"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason} ({REQUIRED} is set)", pytrace=False)
    pytest.skip(reason)
