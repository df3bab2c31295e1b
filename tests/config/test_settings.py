"""Precedence with sources, and errors about bad values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crmctl.config.settings import Paths, Settings, is_loopback, load_settings, origin_of, parse_base_url
from crmctl.errors import ConfigError, UsageError

FILE = """
default_profile = "work"
timeout = 5
output = "yaml"
[profiles.work]
base_url = "https://crm.example.com/base/"
timeout = 6
protected = true
[profiles.bare]
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "config.toml").write_text(FILE)
    return Paths(tmp_path, tmp_path, tmp_path)


def sources(settings: Settings) -> dict[str, tuple[object, str]]:
    return {name: (sourced.value, sourced.source) for name, sourced in settings.items()}


def test_nothing_is_forbidden_and_prompts_appear_by_default(tmp_path: Path) -> None:
    found = sources(load_settings({}, {}, Paths(tmp_path, tmp_path, tmp_path)))
    assert {name: found[name] for name in ("timeout", "max_wait", "color", "no_input", "read_only", "protected")} == {
        "timeout": (30.0, "default"),
        "max_wait": (300.0, "default"),
        "color": ("auto", "default"),
        "no_input": (False, "default"),
        "read_only": (False, "default"),
        "protected": (False, "default"),
    }


def test_every_value_carries_its_source(paths: Paths) -> None:
    found = sources(load_settings({"CRMCTL_OUTPUT": "ids", "CRMCTL_NO_INPUT": "1"}, {"max_wait": 0, "color": "ALWAYS"}, paths))
    assert found == {
        "profile": ("work", "config.toml"),
        "base_url": ("https://crm.example.com/base", "[profiles.work]"),
        "output": ("ids", "CRMCTL_OUTPUT"),
        "timeout": (6.0, "[profiles.work]"),
        "max_wait": (0.0, "--max-wait"),
        "color": ("always", "--color"),
        "ca_bundle": (None, "default"),
        "no_input": (True, "CRMCTL_NO_INPUT"),
        "read_only": (False, "default"),
        "protected": (True, "[profiles.work]"),
        "pager": (None, "default"),
        "auth": ("key", "default"),
        "key_command": (None, "default"),
    }


@pytest.mark.parametrize(
    ("flag", "variable", "profile", "expected"),
    [
        (9, "8", "work", (9.0, "--timeout")),
        (None, "8", "work", (8.0, "CRMCTL_TIMEOUT")),
        (None, "", "work", (6.0, "[profiles.work]")),
        (None, "", "bare", (5.0, "config.toml")),
    ],
)
def test_precedence(paths: Paths, flag: float | None, variable: str, profile: str, expected: tuple[float, str]) -> None:
    settings = load_settings({"CRMCTL_TIMEOUT": variable}, {"timeout": flag, "profile": profile}, paths)
    assert (settings.timeout.value, settings.timeout.source) == expected


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = load_settings({}, {}, Paths(tmp_path, tmp_path, tmp_path))
    assert (settings.profile.value, settings.timeout.value, settings.output.value) == ("default", 30.0, None)
    with pytest.raises(ConfigError, match="no service is configured") as caught:
        settings.require_base_url()
    assert "CRMCTL_BASE_URL" in (caught.value.hint or "")


@pytest.mark.parametrize(("environ", "flag"), [({}, "play"), ({"CRMCTL_PROFILE": "play"}, None)])
def test_an_unknown_profile_is_an_error_only_when_its_address_is_needed(paths: Paths, environ: dict[str, str], flag: str | None) -> None:
    settings = load_settings(environ, {"profile": flag}, paths)
    with pytest.raises(ConfigError, match="there is no profile 'play'") as caught:
        settings.require_base_url()
    assert "known profiles: bare, work" in (caught.value.hint or "")


def test_a_service_from_the_environment_needs_no_profile_but_a_named_profile_must_exist(paths: Paths) -> None:
    environ = {"CRMCTL_BASE_URL": "https://other.test"}
    for given in (
        load_settings({**environ, "CRMCTL_PROFILE": "play"}, {}, paths),
        load_settings(environ, {"profile": "bare"}, paths),
    ):
        assert given.require_base_url() == "https://other.test"
    with pytest.raises(ConfigError, match="there is no profile 'play'") as caught:
        load_settings(environ, {"profile": "play"}, paths).require_base_url()
    assert "leave --profile out" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("environ", "flags", "says"),
    [
        ({"CRMCTL_TIMEOUT": "soon"}, {}, "timeout must be a number of seconds above 0, not 'soon' (from CRMCTL_TIMEOUT)"),
        ({"CRMCTL_TIMEOUT": "nan"}, {}, "(from CRMCTL_TIMEOUT)"),
        ({"CRMCTL_OUTPUT": "xml"}, {}, "one of table, json, jsonl, csv, tsv, yaml, ids, not 'xml' (from CRMCTL_OUTPUT)"),
        ({"CRMCTL_READ_ONLY": "maybe"}, {}, "read_only must be true or false"),
        ({"CRMCTL_PROFILE": "a/b"}, {}, "(from CRMCTL_PROFILE)"),
        ({"CRMCTL_BASE_URL": "https://u:secret@crm.test"}, {}, "must not carry a user name"),
        ({}, {"timeout": 0}, "(from --timeout)"),
        ({}, {"max_wait": -1}, "(from --max-wait)"),
    ],
)
def test_a_bad_value_names_its_source(paths: Paths, environ: dict[str, str], flags: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError if environ else UsageError) as caught:
        load_settings(environ, flags, paths)
    assert says in caught.value.message
    assert "secret" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("given", "clean"),
    [
        ("https://crm.test", "https://crm.test"),
        (" HTTPS://CRM.Test:443/ ", "https://crm.test"),
        ("http://127.0.0.1:8000/base//", "http://127.0.0.1:8000/base"),
        ("https://crm.test/api/v1/", "https://crm.test"),
        ("http://[::1]:80/", "http://[::1]"),
        ("https://bücher.test", "https://xn--bcher-kva.test"),
    ],
)
def test_base_urls_are_normalised(given: str, clean: str) -> None:
    assert parse_base_url(given) == clean
    assert parse_base_url(clean) == clean


@pytest.mark.parametrize(
    "given",
    [
        "",
        "crm.test",
        "ftp://crm.test",
        "https://",
        "https:///x",
        "https://a b",
        "https://[::1",
        "https://crm.test/?",
        "https://crm.test/#x",
        "https://crm.test:0",
        "https://crm.test:99999",
        "https://@crm.test",
        "https://crm.test\n.evil",
        "https://crm.test\\@evil.test",
    ],
)
def test_an_invalid_base_url_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"must|is not"):
        parse_base_url(given)


def test_origins_compare_by_scheme_host_and_port() -> None:
    assert origin_of("HTTPS://CRM.test:443/a?b#c") == origin_of("https://crm.test") == "https://crm.test"
    assert len({origin_of(url) for url in ("http://a", "https://a", "https://a:8443", "https://b", "http://a:443")}) == 5


@pytest.mark.parametrize(
    ("url", "warned"),
    [("https://crm.test", 0), ("http://crm.test", 1), ("http://localhost:1", 0), ("http://127.3.2.1", 0), ("http://[::1]", 0)],
)
def test_unencrypted_addresses_off_this_machine_warn(paths: Paths, url: str, warned: int) -> None:
    assert len(load_settings({}, {"base_url": url}, paths).warnings) == warned
    assert is_loopback(url) is (not warned and not url.startswith("https"))
