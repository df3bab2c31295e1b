"""Isolate tests from the machine: a separate home, a known environment, only loopback sockets."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KNOWN = {
    "TZ": "UTC",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TERM": "xterm-256color",
    "COLUMNS": "80",
    "LINES": "24",
    "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
}
FOLDERS = {
    "HOME": "home",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
    "XDG_CACHE_HOME": "home/.cache",
    "CRMCTL_CONFIG_DIR": "crmctl/config",
    "CRMCTL_STATE_DIR": "crmctl/state",
    "CRMCTL_CACHE_DIR": "crmctl/cache",
}
REMOVED = {
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "PAGER",
    "GITHUB_ACTIONS",
    "CI",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSL_CERT_FILE",
    # It would recompile crmctl for each of the thousands of processes that the tests start.
    "PYTHONDONTWRITEBYTECODE",
}
KEPT = "CRMCTL_REQUIRE_PROGRAMS"
MEMORY = Path("/dev/shm")
LEAST_MEMORY = 4 << 30


def use_memory() -> None:
    """Put temporary files into memory unless TMPDIR is set: they need not outlive the run, and a disk would slow every commit."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_MEMORY:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def clean_environment(patch: pytest.MonkeyPatch) -> None:
    """Remove what the developer's shell set (keys, profiles, colour, proxies), and set the variables that output depends on."""
    for name in list(os.environ):
        ours = name.startswith("CRMCTL_") and name != KEPT
        if ours or name in REMOVED or name.lower().endswith("_proxy"):
            patch.delenv(name)
    for name, value in KNOWN.items():
        patch.setenv(name, value)
    time.tzset()


def private_folders(patch: pytest.MonkeyPatch, root: Path) -> None:
    """Use a home, configuration, state and cache below `root`; only the home exists yet."""
    (root / "home").mkdir(exist_ok=True)
    for name, folder in FOLDERS.items():
        patch.setenv(name, str(root / folder))


def heed_interrupts() -> None:
    """Let children notice Ctrl-C even if this process ignores it (`nohup`, `&` in a script), which they would inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: None)


def only_loopback(patch: pytest.MonkeyPatch) -> None:
    """Make every connection of this process to another machine fail at once."""
    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guard(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise RuntimeError(f"a test tried to connect to {address[0]}: tests stay on this machine")
        return connect(self, address)

    return guard


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
