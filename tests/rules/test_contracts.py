"""The import contracts of pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.sources import ROOT


def test_imports_go_down_only() -> None:
    checker = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([checker, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " 0 broken" in run.stdout
