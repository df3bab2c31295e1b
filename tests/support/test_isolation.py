"""The isolation of tests: without it every other test would depend on the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.isolation import FOLDERS
from tests.support.programs import REQUIRED, find_program, require_programs
from tests.support.sources import ROOT


def test_home_and_folders_belong_to_the_test() -> None:
    root = Path.cwd().parent
    assert all(Path(os.environ[name]).is_relative_to(root) for name in FOLDERS)
    assert Path.home() == root / "home"


def test_keys_proxies_and_profiles_of_the_shell_are_removed() -> None:
    ours = {name for name in os.environ if name.startswith("CRMCTL_")} - {REQUIRED}
    assert ours == {"CRMCTL_CONFIG_DIR", "CRMCTL_STATE_DIR", "CRMCTL_CACHE_DIR"}
    assert not [name for name in os.environ if name.lower().endswith("_proxy")]


def test_connections_to_other_machines_fail() -> None:
    with socket.socket() as outside, pytest.raises(RuntimeError, match="stay on this machine"):
        outside.connect(("192.0.2.1", 80))


def test_a_connection_to_this_machine_works() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


def test_children_notice_interrupts_even_in_background_runs() -> None:
    run = (
        "from tests.support import isolation; import subprocess, sys; isolation.heed_interrupts(); sys.exit(subprocess.call(sys.argv[1:]))"
    )
    child = [sys.executable, "-c", "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"]
    in_background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    assert subprocess.run([*in_background, *child], check=False).returncode == 1
    assert subprocess.run([*in_background, sys.executable, "-c", run, *child], cwd=ROOT, check=False).returncode == 0


@given(st.integers())
def test_property_tests_run_under_the_isolation(number: int) -> None:
    assert int(str(number)) == number


class _Marked:
    """A test item with one `needs` marker."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [getattr(pytest.mark, name)(*self.names).mark]


def test_a_missing_program_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="not installed: no-such-program"):
        require_programs(_Marked("sh", "no-such-program"))  # type: ignore[arg-type]


def test_a_missing_required_program_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="no-such-program"):
        require_programs(_Marked("no-such-program"))  # type: ignore[arg-type]


def test_a_test_with_its_programs_runs() -> None:
    assert find_program("sh") is not None
    require_programs(_Marked("sh"))  # type: ignore[arg-type]
