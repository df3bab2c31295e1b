"""An export in a process of its own, to be killed: `python -m tests.support.exportchild ORIGIN FILE [POINT [STATE]]`; prints its summary.

At POINT the process kills itself as a power cut would: `written` with the file in place and no manifest, `described` with both; with STATE,
which makes it an incremental export, `recalled` when it knows what is new, `remembered` when it has noted what it gave.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from crmctl.client.crm import Crm
from crmctl.client.session import Session
from crmctl.client.transport import HttpTransport
from crmctl.clock import SystemClock
from crmctl.config.credentials import Credential
from crmctl.files.export_formats import Layout, export_format
from crmctl.models.jsontext import dumps
from crmctl.plan import export as exporting
from crmctl.plan.export import Subject
from crmctl.read.export_passes import Increments
from tests.support.bulkcontext import QuietContext
from tests.support.bulkserver import OBJECT_ID
from tests.support.patience import PATIENCE


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def main(origin: str, file: str, point: str = "", state: str = "") -> None:
    if point == "written":
        exporting.describe = die
    elif point == "described":
        exporting.Export._summary = die  # type: ignore[method-assign]
    elif point == "recalled":
        exporting.write_file = die
    elif point == "remembered":
        Path.unlink = die  # type: ignore[method-assign]
    path = Path(file)
    crm = Crm(Session(origin, Credential("key", "test", origin), HttpTransport(), timeout=PATIENCE))
    increments = Increments(Path(state), {"file": file}) if state else None
    options = exporting.ExportOptions(Layout(export_format(path.name, None)), increments=increments)
    export = exporting.Export(QuietContext(crm, SystemClock()), Subject("people", OBJECT_ID, origin), options)
    sys.stdout.write(dumps(export.to_file(path, replace=True).to_document()))


if __name__ == "__main__":
    main(*sys.argv[1:])
