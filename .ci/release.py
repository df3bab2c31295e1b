"""Make a release: version, changelog, commit, tag, and a reproducible wheel and sdist. Nothing leaves the machine.

`make release VERSION=1.2.3`. Before it changes anything, it refuses a version that is not newer, a changelog without entries, and a
checkout with changes. The last lines name the steps left to a person.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path

VERSION_FILE = Path("src/crmctl/version.py")
CHANGELOG = Path("CHANGELOG.md")
DIST = Path("dist")
UNRELEASED = "## [Unreleased]\n"
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class NotARelease(Exception):
    """The reason for refusing a release. Nothing was changed."""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()


def numbers(version: str) -> tuple[int, ...]:
    if _VERSION.fullmatch(version) is None:
        raise NotARelease(f"{version} is not MAJOR.MINOR.PATCH")
    return tuple(map(int, version.split(".")))


def versions() -> tuple[str, list[str]]:
    """Return the version of the source, and those of the changelog, newest first."""
    found = re.search(r'__version__ = "([^"]+)"', VERSION_FILE.read_text(encoding="utf-8"))
    assert found is not None
    return found[1], re.findall(r"^## \[(\d[^\]]*)\]", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)


def check(version: str) -> None:
    """Raise NotARelease if the checkout cannot be released."""
    now, released = versions()
    if numbers(version) < numbers(now) or version in released:
        raise NotARelease(f"{version} is not newer than {released[0] if released else now}")
    if changes := git("status", "--porcelain"):
        raise NotARelease(f"the checkout has changes:\n{changes}")
    if git("tag", "--list", f"v{version}"):
        raise NotARelease(f"there is a tag v{version}")
    entries = CHANGELOG.read_text(encoding="utf-8").partition(UNRELEASED)[2].partition("\n## [")[0]
    if not re.search(r"^- ", entries, re.MULTILINE):
        raise NotARelease(f"{CHANGELOG} has no entry under [Unreleased]")


def write(version: str, day: str) -> None:
    """Write the version into the source and above the entries of the changelog."""
    source = VERSION_FILE.read_text(encoding="utf-8")
    VERSION_FILE.write_text(re.sub(r'__version__ = "[^"]+"', f'__version__ = "{version}"', source), encoding="utf-8")
    text = CHANGELOG.read_text(encoding="utf-8")
    CHANGELOG.write_text(text.replace(UNRELEASED, f"{UNRELEASED}\n## [{version}] - {day}\n", 1), encoding="utf-8")


def build(into: Path) -> None:
    """Build the committed files with the time of the commit."""
    source = into / "source"
    archive = subprocess.run(["git", "archive", "--format=tar", "HEAD"], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        # Missing before Python 3.11.4; the archive is ours.
        files.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        files.extractall(source)
    env = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(into)], cwd=source, env=env, capture_output=True, check=True)
    shutil.rmtree(source)


def sums(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def main(version: str) -> int:
    """Check, write, commit, tag, build twice, compare."""
    try:
        check(version)
    except NotARelease as problem:
        print(f"no release: {problem}", file=sys.stderr)
        return 1
    write(version, datetime.now(UTC).date().isoformat())
    git("commit", "--quiet", "--all", "--message", f"Release {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"crmctl {version}")
    with tempfile.TemporaryDirectory() as scratch:
        builds = [Path(scratch, name) for name in ("first", "again")]
        for each in builds:
            each.mkdir()
            build(each)
        found = sums(builds[0])
        if found != sums(builds[1]):
            print(f"two builds of v{version} differ: {found}, {sums(builds[1])}", file=sys.stderr)
            return 1
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(builds[0], DIST)
    (DIST / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()), encoding="utf-8")
    print(*(f"{digest}  {DIST / name}" for name, digest in found.items()), sep="\n")
    print(f"v{version} is committed, tagged and built. Look at it; then: git push --follow-tags, and upload the files of {DIST}/")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make release VERSION=1.2.3")
    sys.exit(main(sys.argv[1]))
