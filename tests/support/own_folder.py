"""Temporary folders that a process removes at its end, or the next process if it was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def own_folder(kind: str) -> Path:
    """Create a folder named after this process, and remove those of the same kind whose process is dead."""
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
