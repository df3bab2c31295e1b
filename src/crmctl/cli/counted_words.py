"""Numbers in sentences: `1 record`, `12,345 records`."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A number and what it counts; the noun is given as it is for one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
