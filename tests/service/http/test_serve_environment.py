"""Options of `crmctl serve` from the environment: the flag wins, and an error names the source of a wrong value."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crmctl.cli.commands import serve
from crmctl.service.context import Kept, Quotas, ServiceSettings
from tests.support.inprocess import run_here
from tests.support.sources import ROOT

DAY, MB = 86400.0, 1024 * 1024


@dataclass(frozen=True)
class ServeOption:
    """Text of the variable, the setting it decides and its value; another text for the flag; texts that are refused."""

    text: str
    setting: str
    value: Any
    flag: str
    flag_value: Any
    wrong: tuple[str, ...] = ()


OPTIONS = {
    "data": ServeOption("there", "data_dir", Path("there"), "here", Path("here")),
    "database_url": ServeOption("sqlite:///a.db", "database_url", "sqlite:///a.db", "sqlite:///b.db", "sqlite:///b.db"),
    "host": ServeOption("0.0.0.0", "host", "0.0.0.0", "::1", "::1"),
    "port": ServeOption("0", "port", 0, "8080", 8080, ("x", "-1", "65536", "1.5")),
    "rate_limit": ServeOption("0", "rate_limit", 0, "7", 7, ("many", "-1")),
    "rate_window": ServeOption("10", "rate_window", 10, "20", 20, ("0", "a minute")),
    "public_url": ServeOption(
        "https://a.example/x", "public_url", "https://a.example/x", "http://b", "http://b", ("crm", "ftp://a", "https://", "https://a b")
    ),
    "ready_file": ServeOption("ready.json", "ready_file", Path("ready.json"), "other", Path("other")),
    "dev": ServeOption("1", "development", True, "", True, ("perhaps",)),
    "file_limit": ServeOption("5", "file_limit", 5 * MB, "6", 6 * MB, ("0", "5MB")),
    "files_s3": ServeOption("crm-", "files_s3.prefix", "crm-", "b-", "b-"),
    "files_s3_endpoint": ServeOption("https://s3.example", "files_s3.endpoint", "https://s3.example", "https://b", "https://b"),
    "files_s3_region": ServeOption("eu-1", "files_s3.region", "eu-1", "eu-2", "eu-2"),
    "log": ServeOption("none", "request_log", None, "none", None, ("xml",)),
    "metrics": ServeOption("off", "metrics", False, "on", True, ("perhaps", "127.0.0.1:9187")),
    "docs": ServeOption("off", "docs", False, "on", True, ("no", "true")),
    "keep": ServeOption(
        "history=30 requests=0", "kept", Kept(history=30 * DAY, requests=0), "audit=1", Kept(audit=DAY), ("history", "mail=3")
    ),
    "quota": ServeOption("files=1", "quotas", Quotas(files=MB), "results=2", Quotas(results=2 * MB), ("files=-1", "disk=3", "files=1GB")),
}

OF_A_TEST_DOUBLE = {"ephemeral", "fixture", "seed", "clock", "fault"}
"""A test double can only be requested on the command line: no variable may turn a real service into one."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The settings `serve` would have started with."""
    found: list[dict[str, Any]] = []

    def note(_runtime: object, settings: ServiceSettings, ready_file: Path | None) -> None:
        found.append({"settings": settings, "ready_file": ready_file})

    monkeypatch.setattr(serve, "_serve", note)
    monkeypatch.setenv("CRMCTL_SERVE_FILES_S3", "any-")
    return found


def setting_of(start: dict[str, Any], setting: str) -> Any:
    value = start["settings"]
    if setting == "ready_file":
        return start["ready_file"]
    for part in setting.split("."):
        value = getattr(value, part)
    return value


def test_every_option_is_tested_and_documented() -> None:
    options = set(inspect.signature(serve.run_service).parameters) - {"ctx"} - OF_A_TEST_DOUBLE
    assert options == OPTIONS.keys()
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert {name for name in options if f"`CRMCTL_SERVE_{name.upper()}`" not in page} == set()


@pytest.mark.parametrize("name", OPTIONS)
def test_options_come_from_the_environment_and_the_flag_wins(
    name: str, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    option = OPTIONS[name]
    monkeypatch.setenv(f"CRMCTL_SERVE_{name.upper()}", option.text)
    assert run_here("serve").code == 0
    assert setting_of(started[-1], option.setting) == option.value
    assert run_here("serve", f"--{name.replace('_', '-')}", *([option.flag] if option.flag else [])).code == 0
    assert setting_of(started[-1], option.setting) == option.flag_value
    # A template of environment variables leaves unused ones empty.
    monkeypatch.setenv(f"CRMCTL_SERVE_{name.upper()}", "")
    assert run_here("serve").code == 0
    monkeypatch.delenv(f"CRMCTL_SERVE_{name.upper()}")
    unset = run_here("serve")
    if name != "files_s3":
        assert setting_of(started[-1], option.setting) == setting_of(started[-2], option.setting)
    assert unset.err == ""


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, option in OPTIONS.items() for text in option.wrong])
def test_an_error_names_the_source_of_a_wrong_value(
    name: str, text: str, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, flag = f"CRMCTL_SERVE_{name.upper()}", f"--{name.replace('_', '-')}"
    monkeypatch.setenv(variable, text)
    error = run_here("serve").exits(2).error()
    assert variable in error["message"]
    assert text in error["message"]
    monkeypatch.delenv(variable)
    if name != "dev":
        message = run_here("serve", f"{flag}={text}").exits(2).error()["message"]
        assert flag in message
        assert variable not in message
    assert started == []


def test_a_misspelt_variable_is_named(started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRMCTL_SERVE_RATE_LIMITS", "5")
    warning = run_here("serve").err
    assert "CRMCTL_SERVE_RATE_LIMITS is no option of serve" in warning
    assert "did you mean CRMCTL_SERVE_RATE_LIMIT?" in warning
    assert setting_of(started[0], "rate_limit") == 100
