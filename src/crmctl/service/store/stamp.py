"""Where new ids come from and what time it is: what store functions take besides that make or change things."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict


class Stamp(TypedDict):
    """`ids` makes a new UUIDv4 as text; `now` is Unix seconds. Taken as keywords: `**stamp: Unpack[Stamp]`."""

    ids: Callable[[], str]
    now: float
