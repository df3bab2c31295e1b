"""The path of a mirror. Commands without a mirror import only this."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

FOLDER = "mirror"


def mirror_path(state: Path, origin: str, key: str) -> Path:
    """Return the mirror of a service for the organization of a key. The name does not reveal the key."""
    digest = hmac.new(key.encode(), origin.encode(), hashlib.sha256).hexdigest()[:12]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", origin.partition("://")[2])[:60].strip("-")
    return state / FOLDER / f"{readable}-{digest}.sqlite"
