"""How many requests may go now, from what the service's answers have taught. Pure: times in, decisions out, nothing stored.

All times are seconds of the machine's monotonic clock, except where a name says `wall`. Why it is so: docs/decisions/0012-rate-budget.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from crmctl.client.retry import http_date, retry_after

DEFAULT_LIMIT = 100
DEFAULT_WINDOW = 60.0
"""The specification's rate, assumed until the first answer."""

LONGEST_WINDOW = 3600.0
SHARP = 0.15
"""Seconds within which an edge counts as known."""

NEVER = math.inf


@dataclass(frozen=True)
class Learned:
    """What is known of the service's limit. `limit` 0 means unlimited or unknown: no pacing.

    `remaining` and `asked` come from the newest answer: what it said was left, and when its request was sent. `reset` is
    its X-RateLimit-Reset (the service's wall clock), `edge` that moment here if it is exact, `latest` the last it can be. `shift` is our
    wall clock minus the monotonic one. `offset_*` bound the service's clock minus ours, `bias_*` the seconds by which windows really end
    after `reset`, as seen at `flips` edges. `moving`: `reset` runs ahead and is no window's end. `foreign` is what others use of the limit.
    """

    limit: int = DEFAULT_LIMIT
    window: float = DEFAULT_WINDOW
    told: int = 0
    remaining: int = -1
    asked: float = -1.0
    reset: float = 0.0
    edge: float = NEVER
    latest: float = NEVER
    shift: float = 0.0
    offset_low: float = -NEVER
    offset_high: float = NEVER
    bias_low: float = -NEVER
    bias_high: float = NEVER
    flips: int = 0
    moving: int = 0
    foreign: int = 0
    blocked_until: float = -1.0
    probing: int = 0

    @property
    def reserve(self) -> int:
        """Requests that bulk work leaves: to people who wait, and at the end of a window to find its edge."""
        return 0 if self.limit < 10 else max(2, min(10, math.ceil(self.limit * 0.05)))


@dataclass(frozen=True)
class Exchange:
    """One answered request: when it was sent and answered, and the wall clock then; how many of ours the service may have counted, and how
    many of these came after `Learned.asked`.
    """

    sent: float
    done: float
    wall: float
    status: int
    headers: Mapping[str, str]
    counted: int
    since: int


@dataclass(frozen=True)
class Usage:
    """Our own log: requests that count, those since `Learned.asked`, those under way since `Learned.latest`, and the oldest's answer."""

    counting: int
    since: int
    probes: int
    oldest: float


def room(learned: Learned, usage: Usage) -> int:
    """Requests that can go without a refusal: by our own log, or by what the service said was left, whichever allows more."""
    by_log = learned.limit - learned.foreign - usage.counting
    by_answer = learned.remaining - usage.since if learned.remaining >= 0 else by_log
    return max(by_log, by_answer)


def floor(learned: Learned, usage: Usage, now: float, *, bulk: bool) -> int:
    """How much of the room must stay. Near the end of a window it sinks step by step, so that each step's request may find the edge."""
    return sum(moment > now for moment in probe_times(learned, usage)) if bulk else 0


def probe_times(learned: Learned, usage: Usage) -> list[float]:
    """When bulk work may spend each request of the reserve: around the moment from which there will be more."""
    count = learned.reserve
    before = min(1.0, learned.window * 0.05)
    if count == 0:
        return []
    if learned.moving or learned.edge == NEVER:
        end = usage.oldest + learned.window
        return [end - before * (count - step) / count for step in range(count)]
    if learned.flips:
        # Where the edge lies is known to within two moments: one request between them halves the rest, one after them finds it.
        here = learned.reset - learned.shift
        first, last = here + learned.bias_low, here + learned.bias_high
        tries = [last + 0.005] if last - first <= SHARP else [(first + last) / 2, last + 0.005]
        early = count - len(tries)
        return [first - before * (early - step) / count for step in range(early)] + tries
    return [learned.edge - 0.5] + [learned.edge + 0.02 + step / (count - 1) for step in range(count - 1)]


def learn(learned: Learned, exchange: Exchange) -> Learned:
    """What an answer teaches."""
    if exchange.status == 429:
        learned = _block(_read(learned, exchange), exchange)
    else:
        learned = _read(learned, exchange)
        if learned.probing and exchange.sent >= learned.blocked_until:
            learned = replace(learned, probing=0)
    return learned


def _block(learned: Learned, exchange: Exchange) -> Learned:
    """After a 429 nobody sends before the service said, and then one request goes first."""
    asked = retry_after(exchange.headers, exchange.wall)
    wait = asked if asked is not None else 1.0
    if not learned.moving and exchange.done < learned.edge < NEVER:
        wait = max(wait, learned.edge - exchange.done)
    return replace(learned, blocked_until=max(learned.blocked_until, exchange.done + wait), probing=1)


def _read(learned: Learned, exchange: Exchange) -> Learned:
    limit = _number(exchange.headers.get("x-ratelimit-limit"))
    if limit is None:
        return learned if learned.told else replace(learned, limit=0)
    if limit <= 0:
        return replace(learned, limit=0, told=1, remaining=-1, edge=NEVER, latest=NEVER)
    if int(limit) != learned.limit:
        learned = replace(Learned(), limit=int(limit), blocked_until=learned.blocked_until, probing=learned.probing)
    remaining = _number(exchange.headers.get("x-ratelimit-remaining"))
    learned, reset = _place_reset(replace(learned, told=1), exchange)
    older = exchange.sent < learned.asked if reset is None else reset < learned.reset
    if remaining is None or older:
        return learned
    if reset == learned.reset and 0 <= learned.remaining <= remaining:
        return learned  # within one window the smallest number is the newest: it counts every request answered with a larger one
    if reset is not None:
        learned = _learn_edge(learned, exchange, reset, int(remaining))
    used = learned.limit - int(remaining)
    return replace(
        learned,
        remaining=max(0, int(remaining)),
        asked=exchange.sent,
        foreign=max(0, min(used, used - exchange.counted)),
    )


def _place_reset(learned: Learned, exchange: Exchange) -> tuple[Learned, float | None]:
    """The service's clock against ours, and X-RateLimit-Reset as Unix seconds of the service; None when it is missing or cannot be true."""
    reset = _number(exchange.headers.get("x-ratelimit-reset"))
    date = http_date(exchange.headers.get("date", ""))
    shift = exchange.wall - exchange.done
    if date is None:
        low, high = 0.0, 0.0
    else:
        low, high = date - exchange.wall, date + 1.0 - (exchange.sent + shift)
        if max(low, learned.offset_low) <= min(high, learned.offset_high):
            low, high = max(low, learned.offset_low), min(high, learned.offset_high)
    learned = replace(learned, offset_low=low, offset_high=high, shift=shift)
    if reset is None:
        return learned, None
    clock_difference = min(max(0.0, low), high)
    if reset < 1e7:
        reset += exchange.wall + clock_difference  # seconds to go, as some services say it
    elif reset > 1e11:
        reset /= 1000.0
    ahead = reset - clock_difference - exchange.wall
    return learned, reset if -2.0 <= ahead <= LONGEST_WINDOW + 1.0 else None


def _learn_edge(learned: Learned, exchange: Exchange, reset: float, remaining: int) -> Learned:
    difference = min(max(0.0, learned.offset_low), learned.offset_high)
    edge = reset - difference - learned.shift
    # A request stops counting, at the latest, when the window it fell into ends: this much after it was sent. Reset may be rounded down.
    end = reset - learned.shift + learned.bias_high if learned.flips else edge + 1.0
    window = max(1.0, float(math.ceil(end - exchange.sent - 0.05)), learned.window if learned.edge < NEVER else 0.0)
    if learned.edge < NEVER and reset > learned.reset + 0.5:
        early = exchange.done < learned.edge - 1.0 - (learned.offset_high - learned.offset_low)
        emptied = remaining >= learned.limit - exchange.since - learned.limit // 10
        if not early and emptied:
            learned = _learn_bias(learned, learned.asked + learned.shift - learned.reset, exchange.wall - learned.reset)
        # Where Reset moves on before it was reached, or without the count starting anew, it is not the end of a window.
        learned = replace(learned, moving=0 if emptied and not early else 1)
    latest = reset + 1.0 - learned.offset_low - learned.shift
    return replace(learned, reset=reset, edge=edge, latest=latest, window=min(window, LONGEST_WINDOW))


def _learn_bias(learned: Learned, low: float, high: float) -> Learned:
    """A window ended between two requests; services round Reset differently, and some windows do not end on whole seconds."""
    both_low, both_high = max(low, learned.bias_low), min(high, learned.bias_high)
    if both_low <= both_high:
        return replace(learned, bias_low=both_low, bias_high=both_high, flips=learned.flips + 1)
    return replace(learned, bias_low=low, bias_high=high, flips=1)


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
