"""Charts as plain geometry for an SVG in the page: bars for groups, a line for groups in time. Pure; the table beside it says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import floor, log10
from typing import Any

MOST_BARS = 30
"""Further groups are in the table alone."""
WIDTH, ROW, LABELS, HEIGHT = 640, 26, 170, 240


@dataclass(frozen=True)
class ChartMark:
    """One group: its bar (or its point), and what is written beside it."""

    label: str
    text: str
    x: float
    y: float
    length: float


@dataclass(frozen=True)
class Chart:
    """`kind` is `bars` or `line`; `ticks` are (position, text) along the axis of values; `zero` is where that begins."""

    kind: str
    title: str
    marks: list[ChartMark]
    ticks: list[tuple[float, str]]
    zero: float
    height: float
    left_out: int

    @property
    def points(self) -> str:
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


def draw(title: str, groups: Sequence[tuple[str, Any, str]], *, is_time: bool) -> Chart | None:
    """`groups` are (label, number, number as text) in the order of the results; None where there is nothing to compare."""
    shown = [(label, float(value), text) for label, value, text in groups if _is_number(value)][: 400 if is_time else MOST_BARS]
    if len(shown) < 2:
        return None
    low, high = min(0.0, *(value for _, value, _ in shown)), max(0.0, *(value for _, value, _ in shown))
    if low == high:
        return None
    steps = _steps(low, high)
    left_out = len(groups) - len(shown)
    if is_time:
        return _line(title, sorted(shown), steps, left_out)
    scale = (WIDTH - LABELS - 90) / (steps[-1] - steps[0])

    def place(value: float) -> float:
        return LABELS + (value - steps[0]) * scale

    marks = [
        ChartMark(label, text, min(place(value), place(0)), 8 + index * ROW, max(1.0, abs(place(value) - place(0))))
        for index, (label, value, text) in enumerate(shown)
    ]
    return Chart("bars", title, marks, [(place(step), _short(step)) for step in steps], place(0), 8 + len(marks) * ROW + 24, left_out)


def _line(title: str, shown: Sequence[tuple[str, float, str]], steps: list[float], left_out: int) -> Chart:
    scale = (HEIGHT - 50) / (steps[-1] - steps[0])
    apart = (WIDTH - 100) / (len(shown) - 1)

    def place(value: float) -> float:
        return HEIGHT - 30 - (value - steps[0]) * scale

    marks = [ChartMark(label, text, 70 + index * apart, place(value), 0) for index, (label, value, text) in enumerate(shown)]
    return Chart("line", title, marks, [(place(step), _short(step)) for step in steps], place(0), HEIGHT, left_out)


def _steps(low: float, high: float) -> list[float]:
    """Round numbers that hold both ends: four to eight of them."""
    raw = (high - low) / 5
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = floor(low / step)
    count = 1
    while (first + count) * step < high:
        count += 1
    return [(first + index) * step for index in range(count + 1)]


def _short(value: float) -> str:
    for size, mark in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{mark}"
    return f"{value:.3g}"


def _is_number(value: Any) -> bool:
    """One that can be drawn."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and -(10**300) < value < 10**300
