"""A temporary folder that this process removes when it ends; where one was killed, the next process that makes one of its kind does."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def own_folder(kind: str) -> Path:
    """A new folder whose name says whose it is; those of the kind whose process is gone are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"crmctl-{kind}-[0-9]*-*"):
        if not _is_running(left.name.split("-")[2]):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"crmctl-{kind}-{os.getpid()}-"))


def _is_running(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError):
        pass
    return True
