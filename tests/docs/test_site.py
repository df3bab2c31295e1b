"""The documentation site: its navigation, its list of pages and its check of links. `make site` builds it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.sources import ROOT

GENERATED = {"docs/demo.md", "docs/python-api.md", "docs/decisions/README.md"}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    specification = importlib.util.spec_from_file_location("generate_site", ROOT / "docs" / "generate_site.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_navigation_names_every_guide_once(generator: ModuleType) -> None:
    named = [name for names in generator.navigation().values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) >= {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/guides").glob("*.md")}
    assert [name for name in named if name not in GENERATED and not (ROOT / name).is_file()] == []
    assert all(any(Path(name).is_relative_to(source) for source in generator.SOURCES) for name in named)


def test_the_classes_of_the_python_api_exist(generator: ModuleType) -> None:
    for name in (name for names in generator.API.values() for name in names):
        module, _, attribute = f"crmctl.{name}".rpartition(".")
        assert hasattr(importlib.import_module(module), attribute)


def test_links_that_lead_nowhere_are_found(generator: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides/index.html").write_text('<h2 id="first-step">First step</h2><img src="../picture.svg">')
    (tmp_path / "picture.svg").touch()
    (tmp_path / "index.html").write_text(
        '<a href="guides/">a</a> <a href="guides/index.html#first-step">b</a> <a href="https://example.com/no">c</a> <a href="#">d</a>'
        '<a href="guides/index.html#no">e</a> <a href="no.html">f</a> <img src="no.svg"> <a href="#no">g</a>'
    )
    broken = ["index.html -> #no", "index.html -> guides/index.html#no", "index.html -> no.html", "index.html -> no.svg"]
    assert generator.broken_links(tmp_path) == broken
