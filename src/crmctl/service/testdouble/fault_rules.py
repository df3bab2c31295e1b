"""Fault rules: `POST /api/v1/objects/*/records/bulk [nth=3] -> status=503 after`."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from crmctl.models.ids import suggestion
from crmctl.service.faults import BadRequest

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "*")
FORM = "METHOD PATH [nth=3] -> status=503 after"

_RULE = re.compile(r"\s*(\S+)\s+(/\S*?)\s*(?:\[([^\]]*)\]\s*)?->(.*)", re.DOTALL)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s|m|)", text, re.ASCII)
    if match is None:
        raise ValueError(f"must be a duration such as 2s or 500ms, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def _probability(text: str) -> float:
    if not re.fullmatch(r"[01]|[01]?\.[0-9]{1,9}", text, re.ASCII) or not 0 < float(text) <= 1:
        raise ValueError(f"must be a probability above 0 and up to 1, not {text!r}")
    return float(text)


def _moment(text: str) -> str:
    if text not in ("before", "after"):
        raise ValueError(f"must be before or after, not {text!r}")
    return text


Values = Mapping[str, Callable[[str], Any] | None]
"""Words of a rule with the reader of their value; None for a word without one."""

CONDITIONS: Values = {"nth": _whole(1, 10**9), "p": _probability, "times": _whole(1, 10**9)}
EFFECTS: Values = {
    "status": _whole(200, 599), "retry-after": _whole(0, 86400), "after": None, "drop": _moment, "delay": _seconds,
    "cut": _whole(0, 10**9), "stale": _seconds, "twice": None,
}  # fmt: skip
EXCLUSIVE = ("status", "drop", "cut", "stale", "twice")
"""Effects of which a rule has at most one."""


@dataclass
class FaultRule:
    """A fault and its conditions: the `nth` matching request only, each with the probability `p`, at most `times`.

    Durations in seconds; `cut` in bytes of the body. `matched` and `fired` count the requests so far.
    """

    text: str
    method: str = "*"
    path: str = "*"
    nth: int | None = None
    p: float = 1.0
    times: int | None = None
    status: int | None = None
    retry_after: int | None = None
    after: bool = False
    drop: str | None = None
    delay: float = 0.0
    cut: int | None = None
    stale: float | None = None
    twice: bool = False
    matched: int = 0
    fired: int = 0

    @property
    def is_applied(self) -> bool:
        """Whether the service carries the request out."""
        return self.drop != "before" and (self.status is None or self.after)

    def fires(self, chance: Callable[[], float]) -> bool:
        """Whether the conditions hold for the request that was just counted."""
        return self.nth in (None, self.matched) and (self.times is None or self.fired < self.times) and (self.p >= 1 or chance() < self.p)


class FaultPlan:
    """The rules of one service; thread-safe. Equal seeds give equal faults."""

    def __init__(self, rules: Sequence[str], seed: int | None) -> None:
        self._texts = rules
        self._seed = seed
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Return to the rules and the random numbers of the start."""
        with self._lock:
            self._rules = [parse_rule(text) for text in self._texts]
            self._random = random.Random(self._seed)

    def add(self, text: str) -> None:
        rule = parse_rule(text)
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> list[dict[str, str | int]]:
        with self._lock:
            self._rules = []
        return self.wire()

    def wire(self) -> list[dict[str, str | int]]:
        with self._lock:
            return [{"rule": rule.text, "matched": rule.matched, "fired": rule.fired} for rule in self._rules]

    @property
    def has_stale(self) -> bool:
        with self._lock:
            return any(rule.stale is not None for rule in self._rules)

    def take(self, method: str, path: str) -> FaultRule | None:
        """Count a request and return the first rule whose conditions hold."""
        with self._lock:
            taken = None
            for rule in self._rules:
                if rule.method in ("*", method) and fnmatchcase(path, rule.path):
                    rule.matched += 1
                    if taken is None and rule.fires(self._random.random):
                        rule.fired += 1
                        taken = rule
            return taken


def parse_rule(text: str) -> FaultRule:
    """Parse `METHOD PATH [CONDITION ...] -> EFFECT ...`. Raises BadRequest naming the wrong word."""
    try:
        match = _RULE.fullmatch(text)
        if match is None:
            raise ValueError(f"must be {FORM}")
        method, path, conditions, effects = match[1].upper(), match[2], match[3] or "", match[4]
        if method not in METHODS:
            raise ValueError(f"unknown method {match[1]!r}; the methods are: {', '.join(METHODS)}")
        limits, done = _read_words(conditions, CONDITIONS, "condition"), _read_words(effects, EFFECTS, "effect")
        if "status" not in done and (alone := next((name for name in ("retry-after", "after") if name in done), None)):
            raise ValueError(f"{alone} needs status=CODE")
        chosen = done.keys() & {*EXCLUSIVE}
        if len(chosen) > 1 or not (chosen or "delay" in done):
            raise ValueError(f"needs one effect of: {', '.join(EXCLUSIVE)}, delay")
        if "stale" in done and method not in ("GET", "HEAD", "POST", "*"):
            raise ValueError("stale is for requests that read")
    except ValueError as error:
        raise BadRequest(f"fault rule {text.strip()!r}: {error}", {"field": "rule"}) from None
    return FaultRule(text.strip(), method, path, **{name.replace("-", "_"): value for name, value in (limits | done).items()})


def _read_words(text: str, values: Values, kind: str) -> dict[str, Any]:
    """Return the values of words such as `nth=3`; True for a word without a value. Raises ValueError."""
    words: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in values:
            raise ValueError(f"unknown {kind} {word!r}; {suggestion(name, values, f'{kind}s: ' + ', '.join(values))}")
        if name in words:
            raise ValueError(f"{name} is given twice")
        read = values[name]
        if bool(value) == (read is None):
            raise ValueError(f"{name} takes no value" if value else f"{name} needs a value: {name}=VALUE")
        try:
            words[name] = True if read is None else read(value)
        except ValueError as error:
            raise ValueError(f"{name} {error}") from None
    return words
