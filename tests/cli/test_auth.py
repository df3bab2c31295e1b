"""Logging in and out, profiles, and the scopes of a key. No command prints a key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crmctl.models.scopes import SCOPES
from tests.cli.conftest import requests_of
from tests.support.cli import expect_exit, spawn
from tests.support.httpserver import Reply, ScriptedServer
from tests.support.inprocess import run_here
from tests.support.service import RunningService


def log_in(service: RunningService, *more: str, key: str | None = None) -> dict[str, str]:
    arguments = ("auth", "login", "--base-url", service.base_url, "--with-key", "--insecure-storage", *more)
    result: dict[str, str] = run_here(*arguments, input=f"{key or service.key}\n").ok().json()
    return result


def test_log_in_look_around_log_out(service: RunningService) -> None:
    assert run_here("auth", "status").exits(2).error()["hint"].startswith("run `crmctl auth login")
    result = log_in(service)
    assert (result["profile"], result["baseUrl"], result["isDefault"]) == ("default", service.base_url, True)
    stored = Path(result["keySource"])
    assert stored.stat().st_mode & 0o777 == 0o600
    status = run_here("auth", "status").ok()
    assert status.json()["origin"] == service.base_url
    assert service.key not in status.out
    assert status.json()["key"].endswith(service.key[-4:])
    assert run_here("records", "count", "people").ok().json() == {"count": 0}
    assert run_here("auth", "logout").ok().json() == {"profile": "default", "removed": [str(stored)]}
    assert run_here("records", "count", "people").exits(4).out == ""
    assert run_here("auth", "status").exits(4).out == ""


def test_a_second_profile_and_switching(service: RunningService) -> None:
    log_in(service)
    assert log_in(service, "--profile", "work")["isDefault"] is False
    profiles = {item["profile"]: item for item in run_here("auth", "list").ok().json()}
    assert (profiles["default"]["isDefault"], profiles["work"]["isDefault"]) == (True, False)
    assert run_here("auth", "switch", "work").ok().json()["profile"] == "work"
    assert run_here("auth", "status").ok().json()["profile"] == "work"
    assert "default, work" in run_here("auth", "switch", "home").exits(2).error()["hint"]


@pytest.mark.parametrize("key", ["crs_not_a_key_of_this_service_at_all", "", "two words"])
def test_a_bad_key_is_not_stored(service: RunningService, key: str) -> None:
    refused = run_here("auth", "login", "--base-url", service.base_url, "--with-key", "--insecure-storage", input=key)
    assert refused.code == (4 if key.startswith("crs_") else 2)
    assert not key or key not in refused.err
    assert list(Path(os.environ["CRMCTL_CONFIG_DIR"]).glob("*")) == []


def test_a_key_without_the_scope_to_read_objects_is_still_proven(service: RunningService) -> None:
    log_in(service, key=service.key_for(["members:read"]))
    run_here("members", "list").ok()


def test_without_a_keyring_the_way_out_is_named(service: RunningService) -> None:
    refused = run_here("auth", "login", "--base-url", service.base_url, "--with-key", input=service.key).exits(2)
    assert "--insecure-storage" in refused.error()["hint"]
    assert "CRMCTL_API_KEY" in refused.error()["hint"]


def test_without_a_keyring_no_key_is_asked_for(service: RunningService) -> None:
    code, printed = expect_exit(spawn("auth", "login", "--base-url", service.base_url))
    assert code == 2
    assert "API key for" not in printed
    assert "no working keyring: this machine offers no place" in printed
    assert "--insecure-storage" in printed


def test_a_key_of_another_origin_is_reported_even_without_a_keyring(service: RunningService) -> None:
    log_in(service)
    log_in(service, "--profile", "work")
    elsewhere = "http://127.0.0.1:9"
    for arguments, env in ((["--base-url", elsewhere], {}), (["-p", "work"], {"CRMCTL_BASE_URL": elsewhere})):
        error = run_here("objects", "list", *arguments, env=env).exits(4).error()
        profile = "work" if env else "default"
        assert error["message"] == f"no API key for profile '{profile}' at {elsewhere}: its key belongs to {service.base_url}"
        assert error["hint"].startswith(
            f"leave {'CRMCTL_BASE_URL' if env else '--base-url'} out, run `crmctl auth login --profile {profile}"
        )
    assert requests_of(service) == [("GET", "/api/v1/objects")] * 2, "the two that proved the keys"


def test_the_key_is_typed_unseen(service: RunningService) -> None:
    with_prompt = spawn("auth", "login", "--base-url", service.base_url, "--insecure-storage")
    with_prompt.expect("API key for")
    with_prompt.sendline(service.key)
    code, printed = expect_exit(with_prompt)
    assert code == 0, printed
    assert service.key not in printed
    assert "logged in" in printed


def test_without_a_terminal_login_does_not_prompt(service: RunningService) -> None:
    refused = run_here("auth", "login", "--base-url", service.base_url).exits(2)
    assert "--with-key" in refused.error()["hint"]


class TestScopes:
    @pytest.fixture
    def narrow(self, service: RunningService, monkeypatch: pytest.MonkeyPatch) -> RunningService:
        monkeypatch.setenv("CRMCTL_BASE_URL", service.base_url)
        monkeypatch.setenv("CRMCTL_API_KEY", service.key_for(["records:read", "objects:write", "members:read"]))
        return service

    @pytest.mark.parametrize(
        ("scope", "answer"),
        [
            ("records:read", "yes"), ("records:write", "no"), ("objects:read", "no"), ("objects:write", "yes"), ("attributes:read", "no"),
            ("attributes:write", "no"), ("members:read", "yes"),
        ],
    )  # fmt: skip
    def test_yes_or_no(self, narrow: RunningService, scope: str, answer: str) -> None:
        asked = run_here("auth", "can-i", scope).exits(0 if answer == "yes" else 4)
        assert asked.out == f"{answer}\n"
        assert asked.err == ""

    def test_as_json(self, narrow: RunningService) -> None:
        assert run_here("auth", "can-i", "records:write", "-o", "json").exits(4).json() == {
            "scope": "records:write", "allowed": False, "answer": "no"
        }  # fmt: skip

    def test_an_unknown_scope_is_a_usage_error_with_the_list(self, narrow: RunningService) -> None:
        refused = run_here("auth", "can-i", "records:wriet").exits(2)
        assert refused.error()["hint"].startswith("did you mean records:write? valid scopes: objects:read")
        assert all(scope in refused.error()["hint"] for scope in SCOPES)
        assert requests_of(narrow) == []

    def test_status_lists_them_and_changes_nothing(self, narrow: RunningService) -> None:
        status = run_here("auth", "status", "--scopes").ok().json()
        assert {"records:read", "objects:write", "members:read"} <= set(status["scopes"])
        assert {"records:write", "objects:read", "attributes:read", "attributes:write"} <= set(status["missingScopes"])
        assert sorted(status["scopes"] + status["missingScopes"] + status["unknownScopes"]) == sorted(SCOPES)
        assert narrow.outbox() == []

    def test_a_failing_service_leaves_a_scope_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with ScriptedServer(Reply(500)) as server:
            monkeypatch.setenv("CRMCTL_BASE_URL", server.origin)
            monkeypatch.setenv("CRMCTL_API_KEY", "crs_any")
            assert run_here("auth", "can-i", "files:write").exits(7).error()["code"] == "cannot_tell"

    @pytest.mark.parametrize("status", [200, 403, 404, 405])
    @pytest.mark.parametrize("scope", ["objects:read", "records:write"])
    def test_a_web_page_leaves_a_scope_unknown(self, status: int, scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with ScriptedServer(Reply(status, text="<html>Welcome</html>", content_type="text/html")) as server:
            monkeypatch.setenv("CRMCTL_BASE_URL", server.origin)
            monkeypatch.setenv("CRMCTL_API_KEY", "k")
            error = run_here("auth", "can-i", scope).exits(7).error()
        assert (error["code"], "<html>Welcome" in error["message"]) == ("cannot_tell", True)
        assert error["hint"] == "this looks like a web page, perhaps a proxy's or a login page: check the base URL"

    def test_a_plain_404_leaves_a_scope_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with ScriptedServer(Reply(404, text="404 page not found", content_type="text/plain")) as server:
            monkeypatch.setenv("CRMCTL_BASE_URL", server.origin)
            monkeypatch.setenv("CRMCTL_API_KEY", "crs_any")
            error = run_here("auth", "can-i", "records:write").exits(7).error()
        assert error["message"] == "cannot tell whether the key has records:write: 404 page not found"
        assert error["hint"].endswith("check the base URL")

    def test_a_key_that_is_no_key_has_no_scopes(self, narrow: RunningService) -> None:
        assert run_here("auth", "can-i", "records:read", env={"CRMCTL_API_KEY": "crs_wrong"}).exits(4).error()["status"] == 401
