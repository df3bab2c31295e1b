"""The two tiers of the tests: `make test` leaves out what is marked `campaign`, and `make campaigns` runs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_in_campaigns(rows: Iterable[Any], ordinary: int = 1) -> list[Any]:
    """Return rows for `parametrize`: `make test` runs the first `ordinary` ones, `make campaigns` the others.

    A row is a value, or a tuple of the values of several parameters.
    """
    return [
        row if number < ordinary else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.campaign)
        for number, row in enumerate(rows)
    ]
