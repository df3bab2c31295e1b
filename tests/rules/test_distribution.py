"""The content of the wheel. `.ci/try-wheel` installs it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from crmctl.cli.commands.completion import SCRIPTS
from crmctl.cli.registry import BY_NAME
from crmctl.errors import INSTALLERS, install_command
from tests.support.programs import find_program
from tests.support.sources import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def shared(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    """Return the data files by their paths below `share`."""
    return {name.partition(".data/data/share/")[2]: wheel.read(name) for name in wheel.namelist() if ".data/data/share/" in name}


def test_the_metadata_are_complete(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Metadata.from_email(wheel.read(name), validate=True)
    assert (metadata.license_expression, metadata.description_content_type) == ("Apache-2.0", "text/markdown")
    assert str(metadata.requires_python) == ">=3.11"
    assert metadata.summary
    assert metadata.keywords
    assert "Programming Language :: Python :: 3.11" in (metadata.classifiers or [])
    assert "Two commands" in (metadata.description or "")


def test_completions_are_data_files_and_the_programs_own(wheel: zipfile.ZipFile) -> None:
    for path, script in {
        "bash-completion/completions/crmctl": "crmctl.bash",
        "zsh/site-functions/_crmctl": "_crmctl",
        "fish/vendor_completions.d/crmctl.fish": "crmctl.fish",
    }.items():
        assert shared(wheel)[path] == (ROOT / "completions" / script).read_bytes()
    assert {f"crmctl/cli/completions/{script}" for script in SCRIPTS.values()} <= set(wheel.namelist())


@pytest.mark.needs("man")
def test_every_command_has_a_man_page_that_renders_without_a_warning(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    pages = {Path(path).name: text for path, text in shared(wheel).items() if path.startswith("man/man1/")}
    assert set(pages) == {"crmctl.1", *(f"crmctl-{name}.1" for name in BY_NAME)}
    env = {**os.environ, "MANWIDTH": "80", "LC_ALL": "C.UTF-8"}
    for name, text in {**pages, "broken.1": b".TH X 1\n.NO such request\n"}.items():
        (tmp_path / name).write_bytes(text)
        command = [str(find_program("man")), "--warnings=w", "-l", name]
        run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
        shown = run.stdout.decode()
        assert (run.returncode, run.stderr == b"") == (0, name != "broken.1"), run.stderr.decode()
        assert name == "broken.1" or "\\" not in shown.replace("\\u", "")
        if name == "crmctl-records.1":
            assert "crmctl records list OBJECT [options]" in shown
            assert "--filter CONDITION" in shown


@pytest.mark.parametrize(("file", "installer"), [*INSTALLERS.items(), ("no such file", "pip install")])
def test_an_extra_is_added_by_the_program_that_installed_crmctl(
    file: str, installer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert install_command("service") == f"{installer} 'crmctl[service]'"
