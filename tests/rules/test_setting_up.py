"""A machine without the right Python gets instructions before any installation."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.sources import ROOT


def find_python(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/python with this shell script as the only Python."""
    python = folder / "python3"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    env = {"PATH": "/bin:/usr/bin", "PYTHON": str(python)}
    return subprocess.run(["sh", ".ci/python"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_python_that_can_make_environments_is_named(tmp_path: Path) -> None:
    found = find_python(tmp_path, "echo 3.12")
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{tmp_path / 'python3'}\n", "")


@pytest.mark.parametrize(
    ("script", "advice"),
    [
        ('case "$2" in *ensurepip*) exit 1;; *) echo 3.12;; esac', "apt install python3.12-venv"),
        ("exit 1", "apt install python3 python3-venv"),
    ],
    ids=["without-venv", "too-old-or-absent"],
)
def test_a_missing_program_is_named_with_its_package(tmp_path: Path, script: str, advice: str) -> None:
    found = find_python(tmp_path, script)
    assert (found.returncode, found.stdout) == (1, "")
    assert advice in found.stderr
    assert "make PYTHON=" in found.stderr
