"""A mirror belongs to an organization of a service, so to an origin and a key, not to the name of a profile."""

from __future__ import annotations

import pytest

from tests.support.cli import run_crmctl
from tests.support.service import RunningService


def test_profiles_of_one_key_share_a_mirror_and_another_key_has_none(crm: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    run_crmctl("records", "create", "companies", "--set", "name=Acme").ok()
    for profile in ("first", "second"):
        run_crmctl("config", "set", "base_url", crm.base_url, "--profile", profile).ok()
    monkeypatch.delenv("CRMCTL_BASE_URL")
    run_crmctl("mirror", "sync", "companies", "--profile", "first").ok()
    path = run_crmctl("mirror", "path", "--profile", "first").ok().out
    assert run_crmctl("mirror", "path", "--profile", "second").ok().out == path
    query = ("mirror", "sql", "SELECT name FROM companies", "--profile", "second", "-o", "csv")
    assert run_crmctl(*query).ok().out == "name\nAcme\n"
    assert crm.key not in path
    monkeypatch.setenv("CRMCTL_API_KEY", crm.key_for())
    assert run_crmctl("mirror", "path", "--profile", "first").exits(3).error()["code"] == "no_mirror"
