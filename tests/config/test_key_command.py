"""`key_command`: a key from any password store, never in an error, only for the profile's own service."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crmctl.config.credentials import run_key_command
from crmctl.errors import DeniedError
from tests.support.cli import Result, run_crmctl
from tests.support.service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("command") / "service") as running:
        yield running


def use(service: RunningService, *command: str) -> None:
    run_crmctl("config", "set", "base_url", service.base_url, "--profile", "work").ok()
    run_crmctl("config", "set", "key_command", json.dumps(command), "--profile", "work").ok()


def count(*options: str) -> Result:
    return run_crmctl("records", "count", "people", "--profile", "work", "-o", "json", *options)


def script(text: str) -> tuple[str, str, str]:
    return (sys.executable, "-c", text)


def test_its_key_is_used_and_shown_nowhere(service: RunningService) -> None:
    Path("key.txt").write_text(f"{service.key}\n")
    use(service, *script("print(open('key.txt').read(), end='')"))
    assert count().ok().json() == {"count": 0}
    said = run_crmctl("auth", "status", "--profile", "work", "-o", "json", "--debug").ok()
    assert said.json()["keySource"] == "key_command"
    assert service.key not in said.out + said.err + count("--debug").err
    assert service.key not in run_crmctl("config", "list", "--profile", "work", "-o", "json").ok().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; print('crs_secret'); sys.exit(3)", "ended with exit code 3"),
        ("print('crs_secret'); print('crs_secret')", "printed no key, or more than a key"),
        ("print('crs_secret crs_secret')", "printed no key, or more than a key"),
        ("pass", "printed no key, or more than a key"),
        ("while True: print('crs_secret' * 1000)", "printed no key, or more than a key"),
        ("print('crs_secret' * 10_000)", "printed no key, or more than a key"),
    ],
)
def test_a_command_that_fails_has_one_error_without_its_output(service: RunningService, text: str, said: str) -> None:
    use(service, *script(text))
    before = len(service.log)
    refused = count().exits(4)
    assert refused.error()["message"] == f"key_command {sys.executable} {said}"
    assert ("crs_secret" in refused.err, refused.out, len(service.log)) == (False, "", before)


def test_an_absent_program(service: RunningService) -> None:
    use(service, "absent-program", "crs_secret")
    refused = count().exits(4)
    assert refused.error()["message"] == "key_command absent-program cannot be run: no such file or directory"
    assert "crs_secret" not in refused.err


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    children = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(1000)'])"
    with pytest.raises(DeniedError, match=r"did not end within 0\.2 seconds"):
        run_key_command(script(children), seconds=0.2)


def test_another_address_does_not_get_the_key(service: RunningService) -> None:
    use(service, *script("open('called', 'w'); print('crs_secret')"))
    refused = count("--base-url", "http://127.0.0.1:9").exits(4)
    assert refused.error()["code"] in ("no_api_key", "keyring_unavailable")
    assert not Path("called").exists()


def test_a_profile_without_an_address_is_named(service: RunningService) -> None:
    command = [*script("open('called', 'w'); print('crs_secret')")]
    run_crmctl("config", "set", "key_command", json.dumps(command), "--global").ok()
    refused = run_crmctl("records", "count", "people", env={"CRMCTL_BASE_URL": service.base_url}).exits(4).error()
    assert (refused["code"], refused["hint"]) == ("no_api_key", f"crmctl config set base_url {service.base_url}")
    assert refused["message"] == "key_command is not run: profile 'default' has no base_url that its key belongs to"
    assert not Path("called").exists()


def test_a_refused_key_has_a_hint_at_its_source(service: RunningService) -> None:
    use(service, *script("print('crs_secret')"))
    assert count().exits(4).error()["hint"] == "the key comes from key_command"
    env = {"CRMCTL_BASE_URL": service.base_url, "CRMCTL_API_KEY": "crs_secret"}
    assert run_crmctl("records", "count", "people", env=env).exits(4).error()["hint"] == "the key comes from CRMCTL_API_KEY"


@pytest.mark.parametrize("value", ["[]", '["op", 1]', "'unclosed", '[""]'])
def test_a_malformed_command_is_refused(value: str) -> None:
    refused = run_crmctl("config", "set", "key_command", value, "--profile", "work", "-o", "json")
    assert refused.code == 2
    assert "must be a list of words such as" in refused.error()["message"]
