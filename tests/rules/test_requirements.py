"""requirements/ pins the requirements of pyproject.toml exactly, with hashes and without addresses."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.sources import ROOT, package_files

Pins = dict[str, tuple[str, str]]
FOLDER = ROOT / "requirements"
FILES = sorted(path.name for path in FOLDER.glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
CHOSEN = {
    "locked.txt": [extra for extra in EXTRAS if extra != "release"],
    "program.txt": ["service"],
    "image.txt": ["service", "postgres", "s3"],
    "release.txt": ["release"],
}
"""The extras that each file pins."""


def pins(name: str) -> Pins:
    """Return version and hashes by package."""
    found = re.findall(r"^([\w.\-]+)==(\S+)([^\n]*\\\n(?:    --hash=[^\n]+\n?)+)", (FOLDER / name).read_text(), re.MULTILINE)
    return {canonicalize_name(package): (version, hashes) for package, version, hashes in found}


def wanted() -> list[tuple[str, str]]:
    """Pair every file with every line of pyproject.toml that it must pin."""
    always = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    lines = [(name, line) for name, extras in CHOSEN.items() for line in [*always, *(line for extra in extras for line in EXTRAS[extra])]]
    return [(name, line) for name, line in lines if not line.startswith("crmctl")]


def test_every_file_is_known() -> None:
    assert sorted(CHOSEN) == FILES


@pytest.mark.parametrize(("name", "line"), wanted())
def test_every_requirement_is_pinned_to_a_fitting_version(name: str, line: str) -> None:
    requirement = Requirement(line)
    version, _ = pins(name)[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version, prereleases=True)


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_exact_and_hashed(name: str) -> None:
    requirements = [line for line in (FOLDER / name).read_text().splitlines() if line and not line.startswith((" ", "#"))]
    # A package may have one version for older and one for newer Pythons, distinguished by a marker.
    pinned = {(Requirement(line.rstrip(" \\")).name, str(Requirement(line.rstrip(" \\")).marker)) for line in requirements}
    assert len(requirements) == len(pinned) >= len(pins(name)) > 40
    assert all("--hash=sha256:" in hashes for _, hashes in pins(name).values())


@pytest.mark.parametrize("name", FILES)
def test_no_address_and_no_local_path(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert "://" not in text
    assert " @ " not in text
    assert "--find-links" not in text
    assert "--index" not in text


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_the_same_versions(name: str) -> None:
    chosen, everything = pins(name), pins("locked.txt")
    common = chosen.keys() & everything.keys()
    assert {package: chosen[package][0] for package in common} == {package: everything[package][0] for package in common}


def test_the_demo_needs_no_requirements_of_the_tests() -> None:
    program, everything = pins("program.txt"), pins("locked.txt")
    assert program.keys() <= everything.keys()
    assert not {"pytest", "ruff", "mypy", "boto3", "pyarrow", "moto", "selenium"} & set(program)


def runtime_names() -> list[str]:
    return [Requirement(line).name for line in [*PROJECT["project"]["dependencies"], *EXTRAS["service"]]]


@pytest.mark.parametrize("name", runtime_names())
def test_every_dependency_is_used_and_explained(name: str) -> None:
    module = {
        "argon2-cffi": "argon2",
        "pyyaml": "yaml",
        "prometheus-client": "prometheus_client",
        "charset-normalizer": "charset_normalizer",
        "phonenumberslite": "phonenumbers",
        "pyjwt": "jwt",
        "uvloop": "uvicorn",  # which loads it
    }.get(name, name)
    imports = re.compile(rf"^\s*(?:import|from) {module}\b|require_files_extra\(\"{module}\"\)", re.MULTILINE)
    assert any(imports.search(path.read_text()) for path in package_files())
    table = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    assert re.search(rf"^\|[^|]*\b{name}\b", table, re.MULTILINE)
