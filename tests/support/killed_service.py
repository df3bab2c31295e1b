"""A service process that kills itself with SIGKILL at one step of a delivery.

`python -m tests.support.killed_service STEP DATABASE_URL FOLDER`, STEP being one of STEPS.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

STEPS = ("before the event is handed over", "before the claim", "after the claim", "after the send", "after the settlement")


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit("not killed")


def main(step: str, database_url: str, folder: str) -> None:
    from crmctl.service.background import Deliveries
    from crmctl.service.context import ServiceSettings
    from crmctl.service.outbound.caller import Caller
    from crmctl.service.server import Server
    from crmctl.service.store import change_log, webhooks

    server = Server(ServiceSettings(data_dir=Path(folder), database_url=database_url, port=0, development=True))
    if step == "before the event is handed over":
        replace_in(change_log, "take_waiting", lambda real: die)
    elif step == "before the claim":
        replace_in(webhooks, "claim", lambda real: die)
    elif step == "after the claim":
        replace_in(Caller, "send", lambda real: die)
    elif step == "after the send":
        replace_in(webhooks, "settle", lambda real: die)
    elif step == "after the settlement":
        replace_in(Deliveries, "work", lambda real: lambda *given: (real(*given), die()))
    server.run(lambda _: None)


def replace_in(owner: Any, name: str, replacement: Callable[[Any], Any]) -> None:
    setattr(owner, name, replacement(getattr(owner, name)))


if __name__ == "__main__":
    main(*sys.argv[1:])
