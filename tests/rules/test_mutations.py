"""The mutations that are written by hand: each finds its place in the source as it is, and names a test that there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.mutations import MUTATIONS, Mutation

from tests.support.sources import ROOT


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_source(mutation: Mutation) -> None:
    compile(mutation.mutated(), mutation.file, "exec")
    file, _, function = mutation.test.partition("::")
    assert (f"def {function}(" if function else "") in (ROOT / file).read_text()


def test_a_mutation_names_only_what_there_is(tmp_path: Path) -> None:
    """A name that the source has given up would be noticed by any test."""
    for number, mutation in enumerate(MUTATIONS):
        (tmp_path / f"mutation_{number}.py").write_text(mutation.mutated())
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--no-cache", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
