"""Keys that a service issues: logins of devices and exchanges of tokens at services that answer oddly or not at the moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crmctl.client.issued_keys import OidcKeys, log_in_on_device
from crmctl.config.settings import Paths, Settings, load_settings
from crmctl.errors import DeniedError, RateLimitedError, ServiceError
from tests.support.cli import run_crmctl
from tests.support.clock import FakeClock
from tests.support.httpserver import Reply, ScriptedServer

START = {"device_code": "d", "user_code": "BCDF-GHJK", "verification_uri": "http://127.0.0.1/device"}
KEY = Reply(json={"access_token": "crs_key", "expires_in": 900})
PENDING = Reply(400, json={"error": "authorization_pending"})


def settings_at(server: ScriptedServer, folder: Path) -> Settings:
    return load_settings({"CRMCTL_BASE_URL": server.origin}, {}, Paths(folder, folder, folder))


def log_in(folder: Path, start: dict[str, Any], *replies: Reply) -> tuple[str, float]:
    """The key, and the seconds that the login took."""
    clock = FakeClock()
    began = clock.monotonic()
    with ScriptedServer(Reply(json=START | start), *replies) as server:
        key = log_in_on_device(settings_at(server, folder), {}, clock, lambda *_: None)
    return key, clock.monotonic() - began


@pytest.mark.parametrize("interval", ["soon", [1], {}, None, -1, 1e300])
def test_an_interval_that_is_no_number_of_seconds_is_the_usual_one(tmp_path: Path, interval: Any) -> None:
    assert log_in(tmp_path, {"interval": interval, "expires_in": interval}, PENDING, KEY) == ("crs_key", 10)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_poll_of_a_busy_service_is_repeated_later(tmp_path: Path, status: int) -> None:
    busy = Reply(status, json={"error": "unavailable", "message": "the storage does not answer"})
    assert log_in(tmp_path, {"interval": 1}, busy, PENDING, KEY) == ("crs_key", 5)


def test_a_service_that_starts_no_login_now_says_why(tmp_path: Path) -> None:
    refused = Reply(429, json={"error": "rate_limited", "message": "too many logins were started from this address; try again in 9 s"})
    with ScriptedServer(refused) as server, pytest.raises(RateLimitedError, match=r"too many logins .* try again in 9 s") as raised:
        log_in_on_device(settings_at(server, tmp_path), {}, FakeClock(), lambda *_: None)
    assert (raised.value.status, raised.value.retryable) == (429, True)


@pytest.mark.parametrize("error", [None, {"a": 1}, 5])
def test_a_refusal_with_an_odd_error_ends_the_login(tmp_path: Path, error: Any) -> None:
    with pytest.raises(DeniedError, match=r"the login failed \((rejected|5)\)"):
        log_in(tmp_path, {}, Reply(400, json={"error": error}))


@pytest.mark.parametrize("status", [429, 503])
def test_a_service_that_cannot_exchange_now_has_not_refused_the_token(tmp_path: Path, status: int) -> None:
    paths = Paths(tmp_path, tmp_path, tmp_path)
    with ScriptedServer(Reply(status, json={"error": "unavailable"}), KEY) as server:
        keys = OidcKeys(settings_at(server, tmp_path), {"CRMCTL_ID_TOKEN": "a.b.c"}, paths, FakeClock())
        with pytest.raises(RateLimitedError if status == 429 else ServiceError, match="unavailable") as refused:
            keys.current()
        assert (refused.value.retryable, keys.current().key) == (True, "crs_key")


@pytest.mark.parametrize("trust", [{}, {"name": "a", "issuer": "i", "claims": [], "scopes": [], "ttl": 1, "development": False}])
def test_claims_are_shown_where_trusts_have_another_shape(trust: dict[str, Any]) -> None:
    environ = {"CRMCTL_ID_TOKEN": "e30.e30.x", "CRMCTL_API_KEY": "crs_key"}
    with ScriptedServer(Reply(json={"trusts": [trust]})) as server:
        shown = run_crmctl("auth", "explain", "--base-url", server.origin, "-o", "json", env=environ).ok().json()
    assert shown == {"source": "CRMCTL_ID_TOKEN", "audience": server.origin, "claims": {}}
