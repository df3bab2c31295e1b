"""requirements/locked.txt pins everything pyproject.toml asks for, exactly and with hashes, and names no address."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.sources import ROOT, package_files

LOCKED = (ROOT / "requirements" / "locked.txt").read_text()
PINS = {
    canonicalize_name(name): (version, hashes)
    for name, version, hashes in re.findall(r"^([\w.\-]+)==(\S+)([^\n]*\\\n(?:    --hash=[^\n]+\n?)+)", LOCKED, re.MULTILINE)
}


def wanted() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    named = [*project["build-system"]["requires"], *project["project"]["dependencies"], *(name for extra in extras for name in extra)]
    return [name for name in named if not name.startswith("crmctl")]


@pytest.mark.parametrize("line", wanted())
def test_what_the_project_asks_for_is_pinned_to_a_version_that_fits(line: str) -> None:
    requirement = Requirement(line)
    version, _ = PINS[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True)


def test_every_requirement_is_exact_and_hashed() -> None:
    requirements = [line for line in LOCKED.splitlines() if line and not line.startswith((" ", "#"))]
    # A package may have one version for older Pythons and one for newer ones, told apart by a marker.
    pinned = {(Requirement(line.rstrip(" \\")).name, str(Requirement(line.rstrip(" \\")).marker)) for line in requirements}
    assert len(requirements) == len(pinned) >= len(PINS) > 40
    assert all("--hash=sha256:" in hashes for _, hashes in PINS.values())


def test_no_address_and_no_local_path() -> None:
    assert "://" not in LOCKED
    assert " @ " not in LOCKED
    assert "--find-links" not in LOCKED
    assert "--index" not in LOCKED


def runtime_names() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line).name for line in [*project["dependencies"], *project["optional-dependencies"]["service"]]]


@pytest.mark.parametrize("name", runtime_names())
def test_every_dependency_is_used_and_explained(name: str) -> None:
    module = {
        "pyyaml": "yaml",
        "prometheus-client": "prometheus_client",
        "charset-normalizer": "charset_normalizer",
        "phonenumberslite": "phonenumbers",
    }.get(name, name)
    imports = re.compile(rf"^\s*(?:import|from) {module}\b", re.MULTILINE)
    assert any(imports.search(path.read_text()) for path in package_files())
    table = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    assert re.search(rf"^\|[^|]*\b{name}\b", table, re.MULTILINE)
