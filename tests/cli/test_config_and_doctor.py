"""Settings from the command line, and the doctor that diagnoses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.inprocess import run_here
from tests.support.service import RunningService


def settings_of(*arguments: str, env: dict[str, str] | None = None) -> dict[str, tuple[object, str]]:
    return {row["key"]: (row["value"], row["source"]) for row in run_here("config", "list", *arguments, env=env).ok().json()}


def test_set_get_unset_and_where_values_come_from() -> None:
    run_here("config", "set", "base_url", "https://crm.example.com/").ok()
    run_here("config", "set", "timeout", "12").ok()
    run_here("config", "set", "timeout", "60", "--global").ok()
    run_here("config", "set", "base_url", "https://work.example.com", "-p", "work").ok()
    run_here("config", "set", "output", "yaml", "-p", "work").ok()
    assert settings_of()["timeout"] == (12, "[profiles.default]")
    assert settings_of("-p", "work", "-o", "json")["timeout"] == (60, "config.toml")
    assert settings_of(env={"CRMCTL_TIMEOUT": "7"})["timeout"] == (7, "CRMCTL_TIMEOUT")
    assert settings_of("--timeout", "3")["timeout"] == (3, "--timeout")
    assert run_here("config", "get", "base-url").ok().json() == {
        "key": "base_url", "value": "https://crm.example.com", "source": "[profiles.default]"
    }  # fmt: skip
    assert run_here("config", "get", "base_url", "-o", "table").ok().out == "https://crm.example.com\n"
    run_here("config", "unset", "timeout").ok()
    assert settings_of()["timeout"] == (60, "config.toml")
    run_here("config", "set", "default_profile", "work").ok()
    assert settings_of("-o", "json")["profile"] == ("work", "config.toml")
    assert str(Path(os.environ["CRMCTL_CONFIG_DIR"]) / "config.toml") == run_here("config", "path", "-o", "json").ok().json()["config"]


def test_a_typing_mistake_makes_no_profile() -> None:
    run_here("config", "set", "protected", "true", "--profile", "first").ok()
    run_here("config", "set", "base_url", "https://crm.example.com", "--profile", "work").ok()
    file = Path(os.environ["CRMCTL_CONFIG_DIR"]) / "config.toml"
    before = file.read_bytes()
    slips = (
        ["set", "protected", "true", "--profile", "wrok"],
        ["unset", "protected", "--profile", "wrok"],
        ["set", "default_profile", "wrok"],
    )
    for arguments, env in (*((slip, None) for slip in slips), (["set", "timeout", "5"], {"CRMCTL_PROFILE": "wrok"})):
        refused = run_here("config", *arguments, env=env).exits(2).error()
        assert (refused["code"], refused["message"].split(" (")[0]) == ("unknown_profile", "there is no profile 'wrok'")
        assert refused["hint"].startswith("known profiles: first, work; crmctl config set base_url URL --profile wrok")
    assert file.read_bytes() == before
    run_here("config", "set", "timeout", "5").ok()


def test_a_setting_is_named_by_its_key_and_the_settings_file_by_its_path() -> None:
    run_here("config", "set", "timeout", "12").ok()
    assert run_here("config", "get", "timeout", "-o", "ids").ok().out == "timeout\n"
    assert run_here("config", "list", "-o", "ids").ok().out.split()[:3] == ["profile", "base_url", "output"]
    assert run_here("config", "path", "-o", "ids").ok().out == run_here("config", "path", "-o", "table").ok().out
    assert run_here("auth", "list", "-o", "ids").ok().out == "default\n"


@pytest.mark.parametrize(("key", "value"), [("colour", "never"), ("timeout", "soon"), ("output", "xml"), ("base_url", "crm.example.com")])
def test_bad_settings_are_refused_and_nothing_is_written(key: str, value: str) -> None:
    assert run_here("config", "set", key, value).exits(2).out == ""
    assert not (Path(os.environ["CRMCTL_CONFIG_DIR"]) / "config.toml").exists()


@pytest.mark.parametrize("words", ["help", "help exit-codes", "completion bash", "commands", "config path -o json", "doctor"])
def test_help_works_with_a_broken_file(words: str) -> None:
    path = Path(run_here("config", "path", "-o", "json").ok().json()["config"])
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = run_here(*words.split()).out
    path.write_bytes(b"\xff broken")
    shown = run_here(*words.split())
    assert (shown.out == whole or words == "doctor", shown.code) == (True, 2 if words == "doctor" else 0), shown.err


def test_a_broken_file_stops_commands_but_not_the_doctor() -> None:
    file = Path(run_here("config", "path", "-o", "table").ok().out.strip())
    file.parent.mkdir(parents=True)
    file.write_text("default_profile = [", encoding="utf-8")
    assert "not valid TOML" in run_here("config", "list").exits(2).error()["message"]
    found = {check["check"]: check for check in run_here("doctor", "-o", "json").exits(2).json()}
    assert found["settings file"]["status"] == "failed"
    assert str(file) in found["settings file"]["detail"]
    assert run_here("config", "path", "-o", "table").ok().out.strip() == str(file)


def test_the_doctor_of_a_machine_in_order(crm: RunningService) -> None:
    checks = run_here("doctor", "--network").ok().json()
    assert {check["status"] for check in checks} <= {"ok", "warning"}
    assert {"python", "profile", "api key", "connection", "key accepted", "clock", "rate limit"} <= {check["check"] for check in checks}
    assert crm.key not in str(checks)
    assert "name of the service  127.0.0.1 is " in run_here("doctor", "--network", "-o", "table").ok().out


def test_the_first_failure_decides_the_exit_code(crm: RunningService) -> None:
    assert run_here("doctor", env={"CRMCTL_BASE_URL": None, "CRMCTL_API_KEY": None}).exits(2).json()
    refused = run_here("doctor", "--network", env={"CRMCTL_API_KEY": "crs_wrong"}).exits(4).json()
    assert [check["check"] for check in refused if check["status"] == "failed"] == ["key accepted"]
    crm.stop()
    gone = run_here("doctor", "--network", "--max-wait", "0").exits(6).json()
    assert [check["check"] for check in gone if check["status"] == "failed"] == ["connection"]
