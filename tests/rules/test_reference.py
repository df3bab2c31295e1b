"""docs/reference/ matches the help of the commands."""

from __future__ import annotations

import importlib.util

from tests.support.sources import ROOT


def test_the_reference_is_current() -> None:
    specification = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs" / "generate_reference.py")
    assert specification is not None
    assert specification.loader is not None
    generator = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(generator)
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert kept == generator.pages(), "out of date: run `make generated`"
    assert "Default: `120`." in kept["bulk.md"]
