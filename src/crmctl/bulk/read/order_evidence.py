"""Whether a service gives records of one timestamp in the same order every time, as far as repeated pages show it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

SURE = 30.0
"""Bits of evidence after which an order is trusted: by chance, it comes about once in 2^30 times."""

Sighting = tuple[str, str | None]
"""An id and when its record was changed last. A record that was changed may have moved: what it holds now is read with the changes."""


def weigh(earlier: Sequence[Sighting], later: Sequence[Sighting]) -> float:
    """Evidence, in bits, that two readings of a group came in one order; minus infinity where they did not."""
    places = {sighting: place for place, sighting in enumerate(earlier)}
    common = [places[sighting] for sighting in later if sighting in places]
    return math.lgamma(len(common) + 1) / math.log(2) if common == sorted(common) else -math.inf
