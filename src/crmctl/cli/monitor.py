"""`--ping URL`: tell a healthchecks-style monitor that a command starts, and how it ends."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from crmctl.config.settings import is_web_address
from crmctl.errors import CrmctlError, UsageError

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

SECONDS = 10.0


def start_ping(runtime: Runtime, url: str) -> None:
    """Tell the monitor that the command starts; `run` tells it the exit code, also after SIGTERM. Raises UsageError for a bad URL."""
    if not is_web_address(url):
        raise UsageError(f"--ping {url!r} is no web address", hint="for example --ping https://hc.example.com/ping/UUID")
    runtime.ping_url = url.rstrip("/")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    send_ping(runtime, "start")


def send_ping(runtime: Runtime, word: str) -> None:
    """Request URL/WORD. A monitor that cannot be reached gets a warning and changes nothing."""
    if runtime.ping_url is None:
        return
    from crmctl.client.transport import Request, send_once

    request = Request("GET", f"{runtime.ping_url}/{word}", timeout=SECONDS)
    try:
        status = send_once(request, ca_bundle=runtime.settings.ca_bundle.value).status
        if status >= 400:
            runtime.messages.warn(f"the monitor answered --ping with status {status}")
    except CrmctlError as error:
        runtime.messages.warn(f"the monitor did not get --ping {word}: {error.message}")
