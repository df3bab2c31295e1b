"""Identifiers: what an id of the service looks like. Whether it belongs to anything is for the service to say."""

from __future__ import annotations

import re

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID in its usual spelling, in letters of either case."""
    return _UUID.fullmatch(text) is not None
