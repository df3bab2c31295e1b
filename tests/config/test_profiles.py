"""config.toml: errors about a broken file, and changes that lose nothing."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crmctl.config.settings import ConfigFile, Paths, write_private
from crmctl.errors import ConfigError

WRITTEN_BY_HAND = """\
# my services
default_profile = "work"   # the usual one

[profiles.work]
# production
base_url = "https://crm.example.com"
output = "table"

[profiles.play]
base_url = "http://127.0.0.1:8000"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "config.toml"
    path.parent.mkdir()
    path.write_text(WRITTEN_BY_HAND)
    return path


def test_changing_a_value_keeps_comments_order_and_the_rest(file: Path) -> None:
    changed = (
        ConfigFile.load(file).set_value("output", "json", "work").set_value("timeout", "12.5", "play").set_value("color", "never", None)
    )
    assert file.read_text() == WRITTEN_BY_HAND.replace('output = "table"', 'output = "json"').replace(
        '8000"\n', '8000"\ntimeout = 12.5\n'
    ).replace("# the usual one\n", '# the usual one\ncolor = "never"\n')
    assert changed == ConfigFile.load(file)
    assert changed.unset_value("color", None).unset_value("timeout", "play").set_value("output", "table", "work").path == file
    assert file.read_text() == WRITTEN_BY_HAND


def test_the_first_value_makes_the_file_private_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.toml"
    ConfigFile.load(path).set_value("base_url", "https://crm.test/", "default")
    assert path.read_text() == '[profiles.default]\nbase_url = "https://crm.test"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["config.toml"]


def test_a_linked_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    ConfigFile.load(link).set_value("output", "yaml", None)
    assert link.is_symlink()
    assert 'output = "yaml"' in file.read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[profiles.a\n", "line 1"),
        ('output = "json"\nbas_url = "x"\n', "unknown key 'bas_url'"),
        ('[profiles.a]\nbase_ulr = "https://x"\n', "unknown key 'base_ulr' at [profiles.a]"),
        ('[profiles.a]\ndefault_profile = "a"\n', "unknown key 'default_profile'"),
        ('[profiles.a]\ntimeout = "soon"\n', "timeout at [profiles.a] must be a number of seconds above 0, not 'soon'"),
        ("timeout = 2020-01-01\n", "timeout at the top level must be a number of seconds above 0, not 2020-01-01"),
        ('[profiles."a b"]\n', "profile name 'a b' must be letters"),
        ("profiles = 3\n", "profiles must be tables"),
        ("output = [1]\n", "output at the top level must be one of table"),
        ("read_only = 2\n", "read_only at the top level must be true or false"),
    ],
)
def test_a_file_that_is_not_in_order_is_refused_with_the_place(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        ConfigFile.load(file)
    assert says in caught.value.message
    assert str(file) in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot read"):
        ConfigFile.load(file)


@pytest.mark.parametrize(("key", "value"), [("timeout", "0"), ("outptu", "json"), ("base_url", "crm.test"), ("color", "pink")])
def test_a_refused_value_leaves_the_file_alone(file: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError):
        ConfigFile.load(file).set_value(key, value, "work")
    assert file.read_text() == WRITTEN_BY_HAND


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file")
    with pytest.raises(ConfigError, match="cannot write") as caught:
        write_private(tmp_path / "config" / "sub" / "config.toml", "")
    assert "CRMCTL_CONFIG_DIR" in (caught.value.hint or "")


def test_reading_imports_no_toml_writer() -> None:
    code = "import sys, crmctl.config.settings, crmctl.config.credentials; print({'tomlkit', 'keyring', 'platformdirs'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_paths_follow_the_environment_and_the_home(tmp_path: Path) -> None:
    given = {f"CRMCTL_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "STATE", "CACHE")}
    paths = Paths.from_environment(given)
    assert (paths.config, paths.state, paths.cache) == (tmp_path / "CONFIG", tmp_path / "STATE", tmp_path / "CACHE")
    assert paths.config_file == tmp_path / "CONFIG" / "config.toml"
    elsewhere = Paths.from_environment({"CRMCTL_CONFIG_DIR": "~/x"})
    assert elsewhere.config == Path.home() / "x"
    assert elsewhere.state != elsewhere.cache
    assert not list(tmp_path.iterdir())
