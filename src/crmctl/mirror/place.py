"""The path of a mirror. Commands without a mirror import only this."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FOLDER = "mirror"


def mirror_path(state: Path, profile: str, origin: str) -> Path:
    digest = hashlib.sha256(f"{profile} {origin}".encode()).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", f"{profile} {origin.partition('://')[2]}")[:60].strip("-")
    return state / FOLDER / f"{readable}-{digest}.sqlite"
