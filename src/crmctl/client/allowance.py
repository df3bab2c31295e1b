"""How many requests may go now, from what the service's answers have taught. Pure: times in, decisions out, nothing stored.

All times are seconds of the machine's monotonic clock, except where a name says `wall`. Read `free_at` first.
Why it is so: docs/decisions/0012-rate-budget.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from crmctl.client.retry import http_date, retry_after

DEFAULT_LIMIT = 100
DEFAULT_WINDOW = 60.0
"""The specification's rate: assumed until the first answer, and whenever what is seen fits it."""

LONGEST_WINDOW = 3600.0
UNLIMITED = 1_000_000
"""Services without a limit say so by a number like this, or by 0."""

SHARP = 0.15
"""Seconds within which the end of a window counts as known."""

LEAD = 0.5
"""Seconds before the first moment at which there may be more: from then on people need no reserve."""

TICK = 0.005
"""Seconds by which a request is later than the moment it wants to be behind."""

SOON = 0.01
"""Seconds until a request looks again that can only go when another one is answered."""

NEVER = math.inf


@dataclass(frozen=True)
class Learned:
    """What is known of the service's limit.

    `limit` 0 means unlimited or unknown: no pacing. `remaining`, `asked` and `heard` come from the newest answer: what it said was
    left, when its request was sent, when it was answered. `reset` is its X-RateLimit-Reset (the service's wall clock; 0: none), `shift`
    our wall clock minus the monotonic one, `offset_*` bound the service's clock minus ours. `longest` is the longest time seen from a
    request to its Reset. Where windows end at once: `bias_*` bound the seconds by which they end after Reset on our wall clock, as seen
    at `flips` ends. `opened`: the present window was first seen then. Where requests leave one by one (`drops` counts such sights):
    `gone` is the smallest age at which one had left. `foreign` is what others use of the limit. After a 429: nobody before
    `blocked_until`, then one (`probing` counts refused ones), evenly until `even_until`.
    """

    limit: int = DEFAULT_LIMIT
    told: int = 0
    remaining: int = -1
    asked: float = -1.0
    heard: float = -1.0
    reset: float = 0.0
    shift: float = 0.0
    offset_low: float = -NEVER
    offset_high: float = NEVER
    longest: float = 0.0
    bias_low: float = -NEVER
    bias_high: float = NEVER
    flips: int = 0
    opened: float = -1.0
    drops: int = 0
    gone: float = NEVER
    foreign: int = 0
    blocked_until: float = -1.0
    probing: int = 0
    even_until: float = -1.0

    @property
    def is_unlimited(self) -> bool:
        """Nobody has to wait, and nothing is to be learnt before an answer that `has_limit`."""
        return self.limit <= 0 and not self.probing

    @property
    def sliding(self) -> bool:
        """Requests leave one by one, at an age that fits Reset (in a token bucket it would not)."""
        return self.drops >= 2 and self.gone >= self.longest - 1.0

    @property
    def window(self) -> float:
        """Seconds after its answer at which a request counts no more, at the latest. Reset may be rounded either way."""
        if self.sliding:
            return self.gone
        if self.longest == 0.0 or abs(self.longest - DEFAULT_WINDOW) < 1.25:
            return DEFAULT_WINDOW
        rounding = min(1.0, max(0.0, self.bias_high)) if self.flips else 1.0
        return float(max(1, math.ceil(self.longest + rounding - 0.05)))

    @property
    def edge(self) -> float:
        """The moment that Reset names."""
        return self.reset - min(max(0.0, self.offset_low), self.offset_high) - self.shift if self.reset else NEVER

    @property
    def latest(self) -> float:
        """The last moment that Reset can mean: rounded down, and by the slowest clock that the service can have."""
        return self.reset + 1.0 - self.offset_low - self.shift if self.reset else NEVER

    @property
    def reserve(self) -> int:
        """Requests of a window that bulk work leaves: to people who wait, and for its end, where they tell when it is."""
        if self.limit < 10:
            return 0
        known = self.sliding or self.bias_high - self.bias_low <= SHARP
        return max(1 if known else 3, min(math.ceil(self.limit * 0.05), int(self.window / 12)))

    @property
    def steady(self) -> int:
        """Requests that bulk work leaves besides, and takes one by one as the window goes by: who asks again and again finds one."""
        return min(math.ceil(self.limit * 0.05), int(self.window / 12)) if self.limit >= 10 else 0


@dataclass(frozen=True)
class Usage:
    """Our own log.

    `counting`: requests that count; `since`: those that `remaining` does not know of; `probes`: those under way since the end of a 429;
    `under_way`: all without an answer; `oldest`: the oldest answer that counts and belongs to the present window; `newest`: the last
    sending; `answer_of(n)`: when the n-th oldest that counts was answered (from 1; None: under way or not there).
    """

    counting: int
    since: int
    probes: int
    under_way: int
    oldest: float
    newest: float
    answer_of: Callable[[int], float | None]


@dataclass(frozen=True)
class Exchange:
    """One answered request: when it was sent and answered, and the wall clock then.

    How many of ours the service may have counted (`counted`) or must have (`arrived`), and how many of the former came after
    `Learned.asked` (`since`). `sent_before(n)`: of those answered before this one was sent, when the n-th newest was sent itself.
    """

    sent: float
    done: float
    wall: float
    status: int
    headers: Mapping[str, str]
    counted: int
    arrived: int
    since: int
    sent_before: Callable[[int], float | None]


def free_at(learned: Learned, usage: Usage, now: float, *, bulk: bool) -> float:
    """When a request may go by what is known; not after `now`: it may go at once."""
    if learned.blocked_until > now:
        return learned.blocked_until
    if learned.probing:
        return now + SOON if usage.probes else now
    if learned.limit <= 0:
        return now
    gap = learned.window / learned.limit
    if bulk and learned.even_until > now and usage.newest + gap > now:
        return usage.newest + gap
    by_log = learned.limit - learned.foreign - usage.counting
    by_answer = learned.remaining - usage.since if learned.remaining >= 0 else by_log
    room = max(by_log, by_answer)
    ahead = [moment for moment in probe_times(learned, usage) if moment > now] if bulk else []
    if room > len(ahead):
        return now
    moments = []
    if room > 0:
        moments.append(ahead[-room])  # once this has passed, fewer than `room` are ahead
    answer = usage.answer_of(len(ahead) + 1 - by_log)
    if answer is not None:
        moments.append(answer + learned.window + 0.001)
    if learned.latest < NEVER and not learned.sliding and by_answer >= 0:
        moments.append(learned.latest)  # the window has certainly ended: one request more goes and tells what there is
    return min(moments, default=now + SOON)


def probe_times(learned: Learned, usage: Usage) -> list[float]:
    """When bulk work may spend each request it leaves: some evenly, the reserve where there may be more room already or just before."""
    sure = min(learned.latest, usage.oldest + learned.window) if not learned.sliding else usage.oldest + learned.window
    tries: list[float] = []
    if not learned.sliding and learned.reset:
        tries = [*_likely_ends(learned), usage.oldest + math.floor(learned.longest), usage.oldest + math.ceil(learned.longest)]
    tries = sorted(moment + TICK for moment in tries if moment < sure)
    tries = tries[max(0, len(tries) - learned.reserve) :]
    first = tries[0] if tries else sure
    early = learned.reserve - len(tries)
    lead = min(LEAD, learned.window * 0.1)
    spread = [first - learned.window * step / (learned.steady + 1) for step in range(learned.steady, 0, -1)]
    return spread + [first - lead * (early - step) / early for step in range(early)] + tries


def _likely_ends(learned: Learned) -> list[float]:
    """Where Reset puts the end of the window: on it, or between two moments; then one try between them halves the rest."""
    if not learned.flips:
        return [learned.edge]
    first, last = (learned.reset - learned.shift + bias for bias in (learned.bias_low, learned.bias_high))
    return [last] if last - first <= SHARP else [(first + last) / 2, last]


def has_limit(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer says that there is a limit."""
    limit = _number(headers.get("x-ratelimit-limit"))
    return status == 429 or (limit is not None and 0 < limit < UNLIMITED)


def learn(learned: Learned, exchange: Exchange) -> Learned:
    """What an answer teaches."""
    if exchange.status == 429:
        return _block(_read(learned, exchange), exchange)
    learned = _read(learned, exchange)
    return replace(learned, probing=0) if learned.probing and exchange.sent >= learned.blocked_until else learned


def _block(learned: Learned, exchange: Exchange) -> Learned:
    """After a 429 nobody sends before the service said, and then one request goes first; what was believed of its window was wrong."""
    asked = retry_after(exchange.headers, exchange.wall)
    wait = asked if asked is not None else 1.0
    again = learned.probing > 0 and exchange.sent >= learned.blocked_until
    spent = not (_number(exchange.headers.get("x-ratelimit-remaining")) or 0) > 0
    # Where requests are left, it was not this window that refused: its end is nothing to wait for.
    if spent and (asked is None or again or not learned.drops):
        wait = max(wait, learned.edge - exchange.done if learned.edge < NEVER else 0.0)
    until = max(learned.blocked_until, exchange.done + wait)
    return replace(
        learned, blocked_until=until, probing=learned.probing + 1 if again else 1, even_until=until + learned.window, drops=0, gone=NEVER
    )


def _read(learned: Learned, exchange: Exchange) -> Learned:
    limit = _number(exchange.headers.get("x-ratelimit-limit"))
    if limit is None:
        return learned if learned.told else replace(learned, limit=0)
    if not 0 < limit < UNLIMITED:
        return replace(learned, limit=0, told=1, remaining=-1, reset=0.0)
    if int(limit) != learned.limit:
        learned = replace(Learned(), limit=int(limit), blocked_until=learned.blocked_until, probing=learned.probing)
    remaining = _number(exchange.headers.get("x-ratelimit-remaining"))
    learned, reset = _place_reset(replace(learned, told=1), exchange)
    older = exchange.sent < learned.asked if reset is None else reset < learned.reset
    if remaining is None or older:
        return learned
    left = max(0, int(remaining))
    used = learned.limit - left
    learned = _learn_drop(learned, exchange, used)
    if reset == learned.reset and 0 <= learned.remaining <= left:
        return learned  # within one window the smallest number is the newest: it counts every request answered with a larger one
    if reset is not None:
        learned = _learn_end(learned, exchange, reset, used)
    # Others are there when we cannot have used so much; how much they use is then taken at its highest.
    foreign = used - exchange.arrived if used > exchange.counted else 0
    return replace(learned, remaining=left, asked=exchange.sent, heard=exchange.done, foreign=foreign)


def _learn_drop(learned: Learned, exchange: Exchange, used: int) -> Learned:
    """Some requests have left and some have not: then the window slides, and it is no longer than the age of the youngest that left."""
    before = learned.limit - learned.remaining
    if exchange.status == 429 or learned.remaining < 0 or exchange.sent < learned.heard or not exchange.since < used <= before:
        return learned
    left = exchange.sent_before(used)
    return learned if left is None else replace(learned, drops=learned.drops + 1, gone=min(learned.gone, exchange.done - left))


def _learn_end(learned: Learned, exchange: Exchange, reset: float, used: int) -> Learned:
    """A new Reset: perhaps the count began anew, which tells when the window of the old one ended."""
    reached = exchange.done >= learned.edge - 1.0 - (learned.offset_high - learned.offset_low)
    emptied = used <= exchange.since + learned.limit // 10
    if learned.reset and reset > learned.reset + 0.5 and reached and emptied and not learned.sliding:
        low, high = learned.asked + learned.shift - learned.reset, exchange.wall - learned.reset
        both_low, both_high = max(low, learned.bias_low), min(high, learned.bias_high)
        if both_low <= both_high:
            learned = replace(learned, bias_low=both_low, bias_high=both_high, flips=learned.flips + 1)
        else:  # windows that begin with a request drift
            learned = replace(learned, bias_low=low, bias_high=high, flips=1)
        if used <= exchange.since and not learned.drops:
            learned = replace(learned, opened=exchange.done)
    learned = replace(learned, reset=reset)
    return replace(learned, longest=min(LONGEST_WINDOW, max(learned.longest, learned.edge - exchange.sent)))


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


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
