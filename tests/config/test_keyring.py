"""Keys in a real Secret Service: stored, found, bound to their origin; a service that does not answer blocks nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support.keyring import NEEDS_KEYRING, secret_service
from tests.support.patience import PATIENCE

KEY = "crs_0123456789abcdefghijklmnop"

SETUP = """
import os
from crmctl.config import credentials
from crmctl.config.settings import Paths
from crmctl.config.settings import load_settings
from crmctl.errors import CrmctlError
paths = Paths.from_environment(os.environ)
def settings(url, profile="default"):
    return load_settings({**os.environ, "CRMCTL_PROFILE": profile}, {"base_url": url}, paths)
def find(url, profile="default"):
    found = credentials.find_credential(settings(url, profile), os.environ, paths)
    return found and (found.key, found.source, found.origin)
"""


def python(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in its own process, like a command: the state of the keyring and its threads belong to the process."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SETUP + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@NEEDS_KEYRING
def test_a_key_is_found_again_only_for_its_profile_and_origin() -> None:
    with secret_service() as service:
        stored = python(f"print(credentials.store_credential('default', 'https://crm.test', {KEY!r}, paths).source)", service.environment)
        assert (stored.stdout, stored.stderr) == ("keyring\n", "")
        asked = python(
            "print(find('HTTPS://CRM.test:443/base'))\n"
            "print(find('https://crm.test:8443'), find('http://crm.test'), find('https://evil.test'), find('https://crm.test', 'work'))",
            service.environment,
        )
        assert asked.stdout.splitlines() == [str((KEY, "keyring", "https://crm.test")), "None None None None"], asked.stderr
        removal = "print(credentials.remove_credential('default', 'https://crm.test', paths))\n"
        removed = python(removal + removal + "print(find('https://crm.test'))", service.environment)
        assert removed.stdout.splitlines() == ["['keyring']", "[]", "None"], removed.stderr


@NEEDS_KEYRING
def test_a_service_that_does_not_answer_ends_in_an_error_and_lets_the_process_go() -> None:
    with secret_service() as service:
        service.freeze()
        code = (
            "credentials.TIME_LIMIT = 0.5\n"
            "try: credentials.require_credential(settings('https://crm.test'), os.environ, paths)\n"
            "except CrmctlError as error: print(int(error.exit_code), error.message, error.hint)"
        )
        asked = python(code, service.environment)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("4 the system keyring did not answer within 0.5 seconds")
    assert "CRMCTL_API_KEY" in asked.stdout
    assert "crmctl auth login --insecure-storage" in asked.stdout


@pytest.mark.parametrize("backend", ["keyring.backends.null.Keyring", "keyring.backends.fail.Keyring", "no.such.Backend"])
def test_a_machine_without_a_keyring_gets_a_way_out(backend: str) -> None:
    code = (
        "store = lambda: credentials.store_credential('p', 'https://crm.test', 'k', paths)\n"
        "for call, code in ((lambda: find('https://crm.test'), 4), (store, 2)):\n"
        "    try: print(call())\n"
        "    except CrmctlError as error: print(int(error.exit_code) == code, error.code, error.message, error.hint)"
    )
    asked = python(code, {"PYTHON_KEYRING_BACKEND": backend})
    assert asked.returncode == 0, asked.stderr
    for line in asked.stdout.splitlines():
        assert line.startswith("True keyring_unavailable no working keyring"), line
        assert "CRMCTL_API_KEY" in line
        assert "--insecure-storage" in line
    assert len(asked.stdout.splitlines()) == 2


def test_the_variable_wins_and_imports_no_keyring() -> None:
    code = "import sys\nprint(find('https://crm.test'), 'keyring' in sys.modules)"
    asked = python(code, {"CRMCTL_API_KEY": f" {KEY}\n"})
    assert asked.stdout == f"{(KEY, 'CRMCTL_API_KEY', 'https://crm.test')} False\n", asked.stderr
