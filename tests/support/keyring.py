"""A private Secret Service: gnome-keyring on a separate D-Bus session. Tests that use it are marked NEEDS_KEYRING."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.patience import PATIENCE

NEEDS_KEYRING = pytest.mark.needs("dbus-run-session", "gnome-keyring-daemon")

_NAME = "org.freedesktop.secrets"

# The daemon reads the password of the login keyring from its input: an empty line makes that keyring and leaves it unlocked. It goes
# to the background; `cat` then keeps the session alive until its input is closed.
_SESSION = """
echo | gnome-keyring-daemon --unlock --components=secrets >/dev/null 2>&1
echo "$DBUS_SESSION_BUS_ADDRESS"
exec cat >/dev/null
"""


@dataclass(frozen=True)
class SecretService:
    """A running service. `environment` lets a program find it: `run_crmctl(..., env=service.environment)`."""

    environment: Mapping[str, str]
    daemon: int

    def freeze(self) -> None:
        """Leave every call unanswered from now on, like a service that waits for an invisible dialog."""
        os.kill(self.daemon, signal.SIGSTOP)


@contextmanager
def secret_service() -> Iterator[SecretService]:
    """Start an unlocked service in the home of the test; stop all its processes at the end."""
    command = ["dbus-run-session", "--", "sh", "-c", _SESSION]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as session:
        assert session.stdout is not None
        daemon = 0
        try:
            address = session.stdout.readline().strip()
            daemon = _daemon_on(address)
            yield SecretService(
                {"DBUS_SESSION_BUS_ADDRESS": address, "PYTHON_KEYRING_BACKEND": "keyring.backends.SecretService.Keyring"}, daemon
            )
        finally:
            for number in (signal.SIGCONT, signal.SIGTERM):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(daemon or session.pid, number)
            assert session.stdin is not None
            session.stdin.close()
            session.wait(PATIENCE)


def _daemon_on(address: str) -> int:
    """Return the process that owns the Secret Service's name. Polls, because calling the service itself would start a second one."""
    from jeepney.bus_messages import message_bus  # installed where there is a D-Bus
    from jeepney.io.blocking import open_dbus_connection

    deadline = time.monotonic() + PATIENCE
    with open_dbus_connection(bus=address) as bus:
        while time.monotonic() < deadline:
            if bus.send_and_get_reply(message_bus.NameHasOwner(_NAME)).body[0]:
                return int(bus.send_and_get_reply(message_bus.GetConnectionUnixProcessID(_NAME)).body[0])
    raise AssertionError("gnome-keyring-daemon did not appear on its bus")
