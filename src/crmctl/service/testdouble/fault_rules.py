"""Fault rules: `POST /api/v1/objects/*/records/bulk [nth=3] -> status=503 after`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest, Body, check_shape

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "*")
FORM = "METHOD PATH [nth=3] -> status=503 after"
CONDITIONS = ("nth", "p", "times")
EFFECTS = ("status", "retry-after", "after", "drop", "delay", "cut", "stale", "twice")
FLAGS = ("after", "twice")
"""Effects without a value."""
EXCLUSIVE = ("status", "drop", "cut", "stale", "twice")
"""Effects of which a rule has at most one."""

_RULE = re.compile(r"\s*(\S+)\s+(/\S*?)\s*(?:\[([^\]]*)\]\s*)?->(.*)", re.DOTALL)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "": 1.0}


def _seconds(value: object) -> object:
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(ms|s|m|)", str(value), re.ASCII)
    if match is None:
        raise ValueError(f"must be a duration such as 2s or 500ms, not {value!r}")
    return float(match[1]) * _UNITS[match[2]]


Count = Annotated[int, Field(ge=1, le=10**9)]
Duration = Annotated[float, BeforeValidator(_seconds)]


class FaultRule(Body, strict=False, alias_generator=lambda name: name.replace("_", "-")):
    """A fault and its conditions: the `nth` matching request only, each with the probability `p`, at most `times`.

    Durations in seconds; `cut` in bytes of the body. `matched` and `fired` count the requests so far.
    """

    text: str = ""
    method: str = "*"
    path: str = "*"
    nth: Count | None = None
    p: Annotated[float, Field(gt=0, le=1)] = 1.0
    times: Count | None = None
    status: Annotated[int, Field(ge=200, le=599)] | None = None
    retry_after: Annotated[int, Field(ge=0, le=86400)] | None = None
    after: bool = False
    drop: Literal["before", "after"] | None = None
    delay: Duration = 0.0
    cut: Annotated[int, Field(ge=0, le=10**9)] | None = None
    stale: Duration | None = None
    twice: bool = False
    matched: int = 0
    fired: int = 0

    @property
    def runs(self) -> int:
        """How often the service carries the request out."""
        is_refused = self.drop == "before" or (self.status is not None and not self.after)
        return 0 if is_refused else 1 + self.twice

    def fires(self, chance: Callable[[], float]) -> bool:
        """Whether the conditions hold for the request that was just counted."""
        return self.nth in (None, self.matched) and (self.times is None or self.fired < self.times) and (self.p >= 1 or chance() < self.p)


class FaultPlan:
    """The `rules` of one service. Equal seeds give equal faults."""

    def __init__(self, texts: Sequence[str], seed: int | None) -> None:
        self._texts = texts
        self._seed = seed
        self.reset()

    def reset(self) -> None:
        """Return to the rules and the random numbers of the start."""
        self.rules = [parse_rule(text) for text in self._texts]
        self._random = random.Random(self._seed)

    def wire(self) -> list[Json]:
        return [{"rule": rule.text, "matched": rule.matched, "fired": rule.fired} for rule in self.rules]

    def take(self, method: str, path: str) -> FaultRule | None:
        """Count a request and return the first rule whose conditions hold."""
        matching = [rule for rule in self.rules if rule.method in ("*", method) and fnmatchcase(path, rule.path)]
        for rule in matching:
            rule.matched += 1
        taken = next((rule for rule in matching if rule.fires(self._random.random)), None)
        if taken is not None:
            taken.fired += 1
        return taken


def parse_rule(text: str) -> FaultRule:
    """Parse `METHOD PATH [CONDITION ...] -> EFFECT ...`. Raises BadRequest naming the wrong word."""
    try:
        match = _RULE.fullmatch(text)
        if match is None:
            raise ValueError(f"must be {FORM}")
        method = match[1].upper()
        if method not in METHODS:
            raise ValueError(f"unknown method {match[1]!r}; the methods are: {', '.join(METHODS)}")
        limits, done = _words(match[3] or "", CONDITIONS, "condition"), _words(match[4], EFFECTS, "effect")
        if "status" not in done and (alone := next((name for name in ("retry-after", "after") if name in done), None)):
            raise ValueError(f"{alone} needs status=CODE")
        chosen = done.keys() & {*EXCLUSIVE}
        if len(chosen) > 1 or not (chosen or "delay" in done):
            raise ValueError(f"needs one effect of: {', '.join(EXCLUSIVE)}, delay")
        if "stale" in done and method not in ("GET", "HEAD", "POST", "*"):
            raise ValueError("stale is for requests that read")
        return check_shape(FaultRule, {"text": text.strip(), "method": method, "path": match[2], **limits, **done})
    except (ValueError, BadRequest) as error:
        raise BadRequest(f"fault rule {text.strip()!r}: {error}", {"field": "rule"}) from None


def _words(text: str, names: Sequence[str], kind: str) -> dict[str, str | bool]:
    """Return the values of words such as `nth=3`; True for a word without a value. Raises ValueError."""
    words: dict[str, str | bool] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        if name not in names:
            raise ValueError(f"unknown {kind} {word!r}; {suggestion(name, names, f'{kind}s: ' + ', '.join(names))}")
        if name in words:
            raise ValueError(f"{name} is given twice")
        if bool(value) == (name in FLAGS):
            raise ValueError(f"{name} takes no value" if value else f"{name} needs a value: {name}=VALUE")
        words[name] = value or True
    return words
