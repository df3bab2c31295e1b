"""When a request may go, by what the service's answers have taught (`estimator`). Pure: times in, decisions out, nothing stored.

All times are seconds of the machine's monotonic clock, except where a name says `wall`. Read `free_at` first.
Why it is so: docs/decisions/0012-rate-budget.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DEFAULT_LIMIT = 100
DEFAULT_WINDOW = 60.0
"""The specification's rate: assumed until the first answer, and whenever what is seen fits it."""

LONGEST_WINDOW = 3600.0
SHORTEST_WINDOW = 0.95
"""A second, as well as it can be seen."""

UNLIMITED = 1_000_000
"""Services without a limit say so by a number like this, or by 0."""

SHARP = 0.15
"""Seconds within which the end of a window counts as known."""

ROUNDING = 1.25
"""Seconds by which two lengths of a window may differ: Reset is rounded, and answers take time."""

LEAD = 1.0
"""Seconds that people can wait."""

OFTEN = 0.12
SELDOM = 0.06
"""Shares of the limit that bulk work leaves people all the time: with somebody there, and when nobody has asked for two windows."""

OFTEN_SECONDS = 1.0
SELDOM_SECONDS = 10.0
"""No more than one in so many seconds."""

SMALL = 20
"""A limit of a second or two that few requests use up."""

FEW = 2
"""Requests that bulk work leaves besides, where more come one by one."""

TICK = 0.005
"""Seconds by which a request is later than the moment it wants to be behind."""

SOON = 0.01
"""Seconds until a request looks again that can only go when another one is answered."""

NEVER = math.inf


@dataclass(frozen=True)
class Learned:
    """What is known of the service's limit.

    `limit` 0 means unlimited or unknown: no pacing. `remaining`, `asked` and `heard` come from the newest answer: what it said was left,
    when its request was sent, when it was answered. `reset` is its X-RateLimit-Reset (the service's wall clock; 0: none), `shift` our wall
    clock minus the monotonic one, `offset_*` bound the service's clock minus ours. `longest` is the longest time seen from a request to its
    Reset. Where windows end at once: `bias_*` bound the seconds by which they end after Reset on our wall clock, as seen at `flips` ends;
    `drifts` counts how often those bounds did not hold, or Reset moved within a window: windows then begin with a request. `opened`: the
    present window was first seen then; `ended`: the last one was still seen then; `span`: no window is longer, by ends one after another.
    Where requests leave one by one (`drops` counts such sights): `gone` is the smallest age at which one had left; `refills` counts the
    sights of as many as a token bucket gains, at a smaller age than Reset names. `foreign` is what others use of the limit. `visited`: a
    person asked then. After a 429: nobody before `blocked_until`, then one (`probing` counts refused ones), evenly for a window from
    `even_from` on.
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
    drifts: int = 0
    ended: float = -1.0
    span: float = NEVER
    drops: int = 0
    gone: float = NEVER
    refills: int = 0
    foreign: int = 0
    visited: float = -NEVER
    blocked_until: float = -1.0
    probing: int = 0
    even_from: float = -NEVER

    @property
    def is_unlimited(self) -> bool:
        """Nobody has to wait, and nothing is to be learnt before an answer that `has_limit`."""
        return self.limit <= 0 and not self.probing

    @property
    def sliding(self) -> bool:
        """Requests leave one by one, at about the age that Reset names."""
        return self.drops >= (1 if self.is_small else 2) and self.youngest <= self.gone <= self.longest * 1.5

    @property
    def youngest(self) -> float:
        """The smallest age at which a request can leave a window that slides: it is a second long or more, and what Reset names."""
        return SHORTEST_WINDOW if self.is_small else self.longest - ROUNDING

    @property
    def is_small(self) -> bool:
        """Few requests in a second or two: to see more than once that some have left would take long."""
        return self.limit <= SMALL and self.longest < 2 * ROUNDING

    @property
    def refilling(self) -> bool:
        """A token bucket: what is left grows evenly, whatever Reset names."""
        return self.refills >= (1 if self.is_small else 2)

    @property
    def gap(self) -> float:
        """Seconds from one request to the next when a window is used evenly."""
        return self.window / self.limit

    @property
    def window(self) -> float:
        """Seconds after its answer at which a request counts no more, at the latest. Reset may be rounded either way."""
        is_told = self.longest > 0.0 or (self.flips > 0 and self.offset_low < self.offset_high)  # Reset may never lie ahead, rounded down
        if not is_told or abs(self.longest - DEFAULT_WINDOW) < ROUNDING:
            return DEFAULT_WINDOW
        if self.sliding:
            return self.gone
        rounding = min(1.0, max(0.0, self.bias_high)) if self.flips else 1.0
        whole = float(max(1, math.ceil(self.longest + rounding - 0.05)))
        return min(whole, max(SHORTEST_WINDOW, self.span)) if self.is_small else whole

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
        known = self.sliding or (self.is_small and self.drifts > 0) or self.bias_high - self.bias_low <= SHARP
        return min(self.limit // 3, max(1 if known else 3, min(math.ceil(self.limit * 0.05), int(self.window / 12))))

    @property
    def lead(self) -> float:
        """Seconds before there is more from which on bulk work leaves people nothing: so long they can wait."""
        return min(LEAD, self.window * 0.1)

    def spacing(self, now: float) -> float:
        """Seconds between two requests that bulk work leaves to people besides: who asks again and again finds one."""
        if self.visited > now - 2 * self.window:
            return max(OFTEN_SECONDS, self.gap / OFTEN)
        return max(SELDOM_SECONDS, self.gap / SELDOM)


@dataclass(frozen=True)
class Usage:
    """Our own log.

    `counting`: requests that count; `since`: those that `remaining` does not know of; `probes`: those under way since the end of a 429;
    `under_way`: all without an answer; `oldest`: the oldest answer that counts and belongs to the present window; `newest`: the last
    sending; `answers(skip, count)`: when those that count were answered, the oldest first; requests under way are not there.
    """

    counting: int
    since: int
    probes: int
    under_way: int
    oldest: float
    newest: float
    answers: Callable[[int, int], Sequence[float]]


def free_at(learned: Learned, usage: Usage, now: float, *, bulk: bool) -> float:
    """When a request may go by what is known; not after `now`: it may go at once."""
    if learned.blocked_until > now:
        return learned.blocked_until
    if learned.probing:
        return now + SOON if usage.probes else now
    if learned.limit <= 0:
        return now
    if bulk and learned.even_from + learned.window > now and usage.newest + learned.gap > now:
        return usage.newest + learned.gap
    by_log = learned.limit - learned.foreign - usage.counting
    by_answer = learned.remaining - usage.since if learned.remaining >= 0 else by_log
    if learned.sliding or learned.refilling:
        return _free_in_flow(learned, usage, by_log, by_answer, now, bulk=bulk)
    room = max(by_log, by_answer)
    ahead = [moment for moment in probe_times(learned, usage, now) if moment > now] if bulk else []
    if room > len(ahead):
        return now
    moments = []
    if room > 0:
        moments.append(ahead[-room])  # once this has passed, fewer than `room` are ahead
    moments.extend(answer + learned.window + 0.001 for answer in usage.answers(len(ahead) - by_log, 1))
    if learned.latest < NEVER and by_answer >= 0:
        moments.append(learned.latest)  # the window has certainly ended: one request more goes and tells what there is
    return min(moments, default=now + SOON)


def time_for(learned: Learned, usage: Usage, requests: int, now: float) -> float:
    """Seconds until so many requests may have gone: those that are left at once, the rest at the limit's rate."""
    if learned.limit <= 0:
        return 0.0
    if learned.remaining >= 0 and now < min(learned.edge, learned.heard + learned.window):
        room = learned.remaining - usage.since
    else:
        room = learned.limit - learned.foreign - usage.counting
    return max(0, requests - max(0, room)) * learned.gap


def _free_in_flow(learned: Learned, usage: Usage, by_log: int, by_answer: int, now: float, *, bulk: bool) -> float:
    """The same where requests come free one by one. Until each of them bulk work leaves people a few, and one for each `spacing`."""
    few, spacing = min(FEW, learned.reserve), learned.spacing(now)
    most = few + int(learned.window / spacing) + 1
    if learned.refilling:
        gained = max(0, int((now - learned.heard) / learned.gap))
        room, lead = by_answer + gained, 0.0  # what is left in a bucket is not lost
        coming = [learned.heard + (gained + number) * learned.gap for number in range(1, most - room + 1)]
    else:
        room, lead = by_log, learned.lead
        coming = [answer + learned.window + 0.001 for answer in usage.answers(0, max(0, most - room))]
    free = now if max(room, by_answer) > 0 else coming[-room] if -room < len(coming) else now + SOON
    if not bulk:
        return free
    coming.append(now + learned.window)
    return max(free, *(moment - max(lead, (room - few + before) * spacing) for before, moment in enumerate(coming)))


def probe_times(learned: Learned, usage: Usage, now: float) -> list[float]:
    """When bulk work may spend each request it leaves: some evenly, the reserve where there may be more room already or just before."""
    sure = min(learned.latest, usage.oldest + learned.window)
    ends = _ends_to_try(learned, usage, sure) if learned.reset else []
    tries = sorted(moment + TICK for moment in ends[: learned.reserve])
    first = tries[0] if tries else sure
    early, start = learned.reserve - len(tries), first - learned.lead
    spacing = learned.spacing(now)
    steady = [start - spacing * step for step in range(int(learned.window / spacing), 0, -1)]
    return steady + [first - learned.lead * (early - step) / early for step in range(early)] + tries


def _ends_to_try(learned: Learned, usage: Usage, sure: float) -> list[float]:
    """Where the window may end before it surely has, in the order of trying: the latest first, of a small limit the likeliest, each once.

    Where Reset puts it, or between two moments (one try between them halves the rest); a number of whole seconds after the oldest request.
    """
    length = learned.longest - (SHARP if learned.is_small else 0.0)  # seen from the sending, and so a little too long
    ends = [usage.oldest + max(1, math.floor(length)), usage.oldest + math.ceil(length)]
    if not learned.flips:
        ends = [learned.edge, *ends]
    elif not (learned.is_small and learned.drifts):
        first, last = (learned.reset - learned.shift + bias for bias in (learned.bias_low, learned.bias_high))
        ends = [last, *ends] if last - first <= SHARP else [last, (first + last) / 2, *ends]
    ends = [moment for moment in ends if moment < sure]
    if not learned.is_small:
        return sorted(ends, reverse=True)
    close = [[other for other in ends if abs(other - moment) <= SHARP / 2] for moment in ends]
    return list(dict.fromkeys(max(each) for each in close))  # of those that lie together the latest is behind all
