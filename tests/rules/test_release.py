"""The release program, in a scratch repository with the files of this one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from crmctl import __version__
from tests.support.sources import ROOT, repository_files

pytestmark = pytest.mark.needs("git")
CHANGELOG = "# Changelog\n\nNewest first.\n\n## [Unreleased]\n\n### Added\n\n- Something new.\n\n## [0.0.1] - 2026-01-01\n\n- The first.\n"


def git(*words: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository of one commit in the working folder."""
    folder = tmp_path / "repository"
    for path in repository_files():
        if path.relative_to(ROOT).parts[0] in ("src", ".ci", "completions", "docs", "pyproject.toml", "README.md", "LICENSE", ".gitignore"):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    monkeypatch.chdir(folder)
    git("init", "--quiet", "--initial-branch=main")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.com")
    git("add", "--all")
    git("commit", "--quiet", "--message", "Everything")
    return folder


def release(version: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, ".ci/release.py", version], capture_output=True, text=True, env=os.environ, check=False)


def test_a_release_is_written_tagged_and_built_from_the_commit(repository: Path) -> None:
    (repository / ".gitignore").write_text((repository / ".gitignore").read_text() + "stray.py\n")
    git("commit", "--quiet", "--all", "--message", "Ignore")
    (repository / "src/crmctl/stray.py").write_text("STRAY = True\n")  # git ignores it, so no release contains it
    made = release("9.1.0")
    assert made.returncode == 0, made.stderr
    assert (git("status", "--porcelain"), git("log", "-1", "--format=%s"), git("describe")) == ("", "Release 9.1.0", "v9.1.0")
    text = Path("CHANGELOG.md").read_text()
    assert re.search(r"## \[Unreleased\]\n\n## \[9\.1\.0\] - \d{4}-\d\d-\d\d\n\n### Added\n\n- Something new\.", text)
    wheel, sdist = Path("dist/crmctl-9.1.0-py3-none-any.whl"), Path("dist/crmctl-9.1.0.tar.gz")
    lines = Path("dist/SHA256SUMS").read_text().splitlines()
    assert {tuple(line.split("  ")) for line in lines} == {
        (hashlib.sha256(path.read_bytes()).hexdigest(), path.name) for path in (wheel, sdist)
    }
    with zipfile.ZipFile(wheel) as files:
        assert '__version__ = "9.1.0"' in files.read("crmctl/version.py").decode()
        assert "crmctl/py.typed" in files.namelist()
        assert "crmctl/stray.py" not in files.namelist()
    with tarfile.open(sdist) as archive:
        assert "crmctl-9.1.0/CHANGELOG.md" in archive.getnames()
    assert "git push --follow-tags" in made.stdout


@pytest.mark.parametrize(
    ("version", "change", "problem"),
    [
        ("0.0.1", None, "0.0.1 is not newer than 0.0.1"),
        ("1.0", None, "1.0 is not MAJOR.MINOR.PATCH"),
        ("9.1.0", ("CHANGELOG.md", "- Something new.\n", ""), "CHANGELOG.md has no entry under [Unreleased]"),
        ("9.1.0", ("README.md", "#", "##"), "the checkout has changes"),
    ],
)
def test_an_impossible_release_is_refused_and_changes_nothing(
    repository: Path, version: str, change: tuple[str, str, str] | None, problem: str
) -> None:
    if change is not None:
        path = repository / change[0]
        path.write_text(path.read_text().replace(change[1], change[2], 1))
        if change[0] == "CHANGELOG.md":
            git("commit", "--quiet", "--all", "--message", "Change")
    before = (git("status", "--porcelain"), git("rev-parse", "HEAD"))
    refused = release(version)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(f"no release: {problem}")
    assert (git("status", "--porcelain"), git("rev-parse", "HEAD"), git("tag")) == (*before, "")


def test_the_changelog_fits_the_version() -> None:
    """New entries stand under [Unreleased]; below are the releases. The newest is the version of the source, or precedes it."""
    sections = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == "Unreleased"
    released = [tuple(map(int, name.split("."))) for name in sections[1:]]
    assert released == sorted(set(released), reverse=True)
    assert __version__ in (sections[1:2] or ["0.1.0"])


def test_the_workflow_of_a_release_runs_targets_of_the_makefile_and_keeps_no_secret() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make (\S+)", text)) == {"dist", "sbom"} <= targets
    assert "secrets." not in text
    assert all(re.search(r"@[0-9a-f]{40} # v\d", line) for line in text.splitlines() if "uses:" in line)
