"""Fault rules: `POST /api/v1/objects/*/records/bulk [nth=3] -> status=503 after`."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from crmctl.models.ids import suggestion
from crmctl.service.faults import BadRequest

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "*")
CONDITIONS = ("nth", "p", "times")
EFFECTS = ("status", "retry-after", "after", "drop", "delay", "cut", "stale", "twice")
EXCLUSIVE = ("status", "drop", "cut", "stale", "twice")
"""Effects of which a rule has at most one."""

FORM = "METHOD PATH [nth=3] -> status=503 after; see crmctl serve --help"

_RULE = re.compile(r"\s*(\S+)\s+(/\S*)\s*(?:\[([^\]]*)\]\s*)?->(.*)", re.DOTALL)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


@dataclass
class FaultRule:
    """A fault and its conditions: the `nth` matching request only, each with a `probability`, at most `times`.

    Durations in seconds; `cut` in bytes of the body. `matched` and `fired` count the requests so far.
    """

    text: str
    method: str = "*"
    path: str = "*"
    nth: int | None = None
    probability: float = 1.0
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
        return (
            (self.nth is None or self.matched == self.nth)
            and (self.times is None or self.fired < self.times)
            and (self.probability >= 1 or chance() < self.probability)
        )


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
    match = _RULE.fullmatch(text)
    if match is None:
        raise _wrong(text, f"must be {FORM}")
    method, path, conditions, effects = match.groups()
    if method.upper() not in METHODS:
        raise _wrong(text, f"unknown method {method!r}; the methods are: {', '.join(METHODS)}")
    met = _words(text, conditions or "", CONDITIONS, "condition")
    done = _words(text, effects, EFFECTS, "effect")
    chosen = [name for name in EXCLUSIVE if name in done]
    if "status" not in done and (alone := next((name for name in ("retry-after", "after") if name in done), None)):
        raise _wrong(text, f"{alone} needs status=CODE")
    if not done or len(chosen) > 1 or not (chosen or "delay" in done):
        raise _wrong(text, f"needs one effect of: {', '.join(EXCLUSIVE)}, delay")
    if "drop" in done and done["drop"] not in ("before", "after"):
        raise _wrong(text, "drop must be drop=before or drop=after")
    if "stale" in done and method.upper() not in ("GET", "HEAD", "POST", "*"):
        raise _wrong(text, "stale is for requests that read")
    return FaultRule(
        text.strip(),
        method.upper(),
        path,
        nth=_number(text, met, "nth", 1, 10**9),
        probability=_probability(text, met),
        times=_number(text, met, "times", 1, 10**9),
        status=_number(text, done, "status", 100, 599),
        retry_after=_number(text, done, "retry-after", 0, 86400),
        after="after" in done,
        drop=done.get("drop"),
        delay=_seconds(text, done, "delay") or 0.0,
        cut=_number(text, done, "cut", 0, 10**9),
        stale=_seconds(text, done, "stale"),
        twice="twice" in done,
    )


def _words(rule: str, text: str, names: Sequence[str], kind: str) -> dict[str, str]:
    """Return the words `name=value` as a dictionary; a word without a value has an empty one."""
    words: dict[str, str] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in names:
            raise _wrong(rule, f"unknown {kind} {word!r}; {suggestion(name, names, f'{kind}s: ' + ', '.join(names))}")
        if name in words:
            raise _wrong(rule, f"{name} is given twice")
        if bool(value) == (name in ("after", "twice")):
            raise _wrong(rule, f"{name} takes no value" if value else f"{name} needs a value: {name}=VALUE")
        words[name] = value
    return words


def _number(rule: str, words: dict[str, str], name: str, least: int, most: int) -> int | None:
    if name not in words:
        return None
    value = words[name]
    if not re.fullmatch("[0-9]{1,10}", value, re.ASCII) or not least <= int(value) <= most:
        raise _wrong(rule, f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return int(value)


def _seconds(rule: str, words: dict[str, str], name: str) -> float | None:
    if name not in words:
        return None
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s|m|)", words[name], re.ASCII)
    if match is None:
        raise _wrong(rule, f"{name} must be a duration such as 2s or 500ms, not {words[name]!r}")
    return float(match[1]) * _UNITS[match[2]]


def _probability(rule: str, words: dict[str, str]) -> float:
    value = words.get("p", "1")
    if not re.fullmatch(r"[01]|[01]?\.[0-9]{1,9}", value, re.ASCII) or not 0 < float(value) <= 1:
        raise _wrong(rule, f"p must be a probability above 0 and up to 1, not {value!r}")
    return float(value)


def _wrong(rule: str, problem: str) -> BadRequest:
    return BadRequest(f"fault rule {rule.strip()!r}: {problem}", {"field": "rule"})
