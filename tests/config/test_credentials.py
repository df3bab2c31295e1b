"""Keys in the environment and in the private file; test_keyring.py tests the keyring."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from crmctl.config import credentials
from crmctl.config.credentials import Credential, check_key, mask_key
from crmctl.config.settings import Paths, Settings, load_settings
from crmctl.errors import ConfigError, CrmctlError, DeniedError, UsageError

KEY = "crs_0123456789abcdefghijklmnop"
ORIGIN = "https://crm.test"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "config", tmp_path, tmp_path)


def at(url: str, paths: Paths, profile: str = "default") -> Settings:
    return load_settings({"CRMCTL_PROFILE": profile}, {"base_url": url}, paths)


def test_a_file_key_is_private_bound_and_removable(paths: Paths) -> None:
    stored = credentials.store_credential("default", ORIGIN, f" {KEY}\n", paths, insecure=True)
    assert stored == Credential(KEY, str(paths.credentials_file), ORIGIN)
    assert stat.S_IMODE(paths.credentials_file.stat().st_mode) == 0o600
    assert credentials.find_credential(at(ORIGIN, paths), {}, paths) == stored
    for url, profile in (("https://evil.test", "default"), ("http://crm.test", "default"), (ORIGIN, "work")):
        with pytest.raises(DeniedError):  # the null keyring of the tests is no keyring
            credentials.find_credential(at(url, paths, profile), {}, paths)
    assert credentials.remove_credential("default", ORIGIN, paths) == [str(paths.credentials_file)]
    assert not paths.credentials_file.exists()


def test_the_variable_wins_over_the_file(paths: Paths) -> None:
    credentials.store_credential("default", ORIGIN, KEY, paths, insecure=True)
    found = credentials.require_credential(at(ORIGIN, paths), {"CRMCTL_API_KEY": "other-key"}, paths)
    assert (found.key, found.source) == ("other-key", "CRMCTL_API_KEY")


def test_a_file_others_may_read_is_refused(paths: Paths) -> None:
    credentials.store_credential("default", ORIGIN, KEY, paths, insecure=True)
    paths.credentials_file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users") as caught:
        credentials.find_credential(at(ORIGIN, paths), {}, paths)
    assert caught.value.hint == f"chmod 600 {paths.credentials_file}"


def test_a_damaged_file_gets_a_way_out(paths: Paths) -> None:
    credentials.store_credential("default", ORIGIN, KEY, paths, insecure=True)
    paths.credentials_file.write_text(f'{{"{KEY}')
    with pytest.raises(ConfigError, match="damaged") as caught:
        credentials.find_credential(at(ORIGIN, paths), {}, paths)
    assert KEY not in f"{caught.value.message}{caught.value.hint}"


@pytest.mark.parametrize("bad", ["", "  \n", "two words", "line\nbreak", "käse", "nul\x00", "tab\there", "\x7f"])
def test_a_key_that_cannot_be_a_header_is_refused_without_being_shown(paths: Paths, bad: str) -> None:
    calls = [lambda: check_key(bad), lambda: credentials.store_credential("default", ORIGIN, bad, paths, insecure=True)]
    if bad.strip():
        calls.append(lambda: credentials.find_credential(at(ORIGIN, paths), {"CRMCTL_API_KEY": bad}, paths))
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert not bad.strip() or bad not in f"{caught.value.message}{caught.value.hint}"
    assert not paths.credentials_file.exists()


def test_keys_are_shown_masked() -> None:
    assert mask_key(KEY) == "crs_…mnop"
    assert mask_key("0123456789abcdefghijklmnop") == "…mnop"
    for short in ("", "abc", "crs_0123456789abcde"):
        assert mask_key(short) == "••••••••"
    assert KEY not in repr(Credential(KEY, "keyring", ORIGIN))


def test_no_key_is_exit_4_and_says_how_to_get_one(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crmctl.config.credentials.get", lambda name: None)
    with pytest.raises(CrmctlError) as caught:
        credentials.require_credential(at(ORIGIN, paths), {}, paths)
    assert (caught.value.exit_code, caught.value.code) == (4, "no_api_key")
    assert f"crmctl auth login --profile default --base-url {ORIGIN}" in (caught.value.hint or "")
    assert "CRMCTL_API_KEY" in (caught.value.hint or "")
