"""Decide when a request may go, and learn the rate limit from answers. Pure: times in, decisions out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from crmctl.clock import http_date, retry_after
from crmctl.frozen import frozen

DEFAULT_LIMIT = 100
DEFAULT_WINDOW = 60.0
"""The specification's rate, assumed until the first answer and whenever the answers fit it."""

LONGEST_WINDOW = 3600.0
MILLISECONDS = 1e11
"""Least Reset in milliseconds: as seconds it would be thousands of years ahead."""

UNLIMITED = 1_000_000
"""Services without a limit advertise this many requests or more, or 0."""

SHARP = 0.15
"""Seconds within which the end of a window counts as known."""

ROUNDING = 1.25
"""Largest difference in seconds between two measurements of one window: Reset is rounded, and answers take time."""

LEAD = 1.0
"""Seconds a person can wait."""

STEADY = 0.12
STEADY_SECONDS = 1.0
"""Share of the limit that bulk work leaves to people throughout a window, and the least seconds between two such requests."""

FEW = 2
"""Requests that bulk work also leaves in a sliding window."""

TICK = 0.005
"""Seconds after the expected end of a window at which a request tries it."""

SOON = 0.01
"""Seconds until a request looks again if it can only go once another one is answered."""

SLOW = 0.2
"""Seconds before its answer by which a request reached the service: slow answers must not make a window seem longer."""

NEVER = math.inf


@frozen
class Learned:
    """Facts about the service's limit.

    `limit` 0 means unlimited or unknown: no pacing. `remaining`, `asked` and `heard` come from the newest answer: its Remaining, and when
    its request was sent and answered. `reset` is its X-RateLimit-Reset (0: none) by the service's clock, `shift` our wall clock minus the
    monotonic clock, `offset_*` bound the service's clock minus ours. `longest` is the longest time observed from a request to its Reset.
    Fixed windows: `bias_*` bound the seconds between Reset and the real end, as observed at `flips` ends; `opened` is when the present
    window was first observed. Sliding windows: `drops` counts observations of single requests leaving the window, `gone` is the smallest
    age at which one left. `foreign` is the use by other clients. After a 429, requests stop until `blocked_until`; then one goes first
    (`probing` counts its refusals), and bulk work spreads its requests evenly for one window after `even_from`.
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
    even_from: float = -NEVER

    @property
    def is_unlimited(self) -> bool:
        return self.limit <= 0 and not self.probing

    @property
    def sliding(self) -> bool:
        """Whether requests leave the window one by one, at about the age that Reset names."""
        return self.drops >= 2 and self.longest - ROUNDING <= self.gone <= self.longest * 1.5

    @property
    def gap(self) -> float:
        """Seconds between requests that use a window evenly."""
        return self.window / self.limit

    @property
    def window(self) -> float:
        """Seconds after its answer at which a request stops counting, at the latest. Reset may be rounded either way."""
        is_told = self.longest > 0.0 or (self.flips > 0 and self.offset_low < self.offset_high)
        if not is_told or abs(self.longest - DEFAULT_WINDOW) < ROUNDING:
            return DEFAULT_WINDOW
        if self.sliding:
            return self.gone
        rounding = min(1.0, max(0.0, self.bias_high)) if self.flips else 1.0
        return float(max(1, math.ceil(self.longest + rounding - 0.05)))

    @property
    def edge(self) -> float:
        """The moment that Reset names."""
        return self.reset - min(max(0.0, self.offset_low), self.offset_high) - self.shift if self.reset else NEVER

    @property
    def latest(self) -> float:
        """The last moment that Reset can mean: rounded down, by the slowest clock the service can have."""
        return self.reset + 1.0 - self.offset_low - self.shift if self.reset else NEVER

    @property
    def reserve(self) -> int:
        """Requests of a window that bulk work leaves to people, and spends to find the end of the window."""
        is_known = self.sliding or self.bias_high - self.bias_low <= SHARP
        return min(self.limit // 3, max(1 if is_known else 3, min(math.ceil(self.limit * 0.05), int(self.window / 12))))

    @property
    def lead(self) -> float:
        """Seconds before new room in which bulk work leaves people nothing."""
        return min(LEAD, self.window * 0.1)

    @property
    def spacing(self) -> float:
        """Seconds between two requests that bulk work leaves to people throughout a window."""
        return max(STEADY_SECONDS, self.gap / STEADY)


@frozen
class Usage:
    """The log of our own requests.

    `counting`: requests that count; `since`: those that `remaining` does not include; `probes`: requests under way that were sent after a
    429; `under_way`: all unanswered requests; `oldest`: the oldest counting answer of the present window; `newest`: when the last request
    was sent; `answers(skip, count)`: answer times of counting requests, oldest first.
    """

    counting: int
    since: int
    probes: int
    under_way: int
    oldest: float
    newest: float
    answers: Callable[[int, int], Sequence[float]]


def free_at(learned: Learned, usage: Usage, now: float, *, bulk: bool) -> float:
    """Return when a request may go; a moment that is not after `now` means at once."""
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
    if learned.sliding:
        return _free_in_sliding_window(learned, usage, by_log, by_answer, now, bulk=bulk)
    room = max(by_log, by_answer)
    ahead = [moment for moment in probe_times(learned, usage) if moment > now] if bulk else []
    if room > len(ahead):
        return now
    moments = []
    if room > 0:
        moments.append(ahead[-room])  # after this moment fewer than `room` are ahead
    moments.extend(answer + learned.window + 0.001 for answer in usage.answers(len(ahead) - by_log, 1))
    if learned.latest < NEVER and by_answer >= 0:
        moments.append(learned.latest)  # the window has certainly ended; one more request learns how much is free
    return min(moments, default=now + SOON)


def time_for(learned: Learned, usage: Usage, requests: int, now: float, waits: float = 0.0, *, bulk: bool = False) -> float:
    """Return the seconds until so many requests may have gone, or, if bulk work has to wait so many seconds, from then on in windows
    without the reserve. Bulk work spends the requests that it leaves to people last, one by one."""
    if learned.limit <= 0:
        return 0.0
    if waits > 0.0:
        return waiting_time(requests, max(1, int(learned.limit - learned.reserve)), learned.window, waits)
    until_reset = 0.0
    if learned.remaining >= 0 and now < min(learned.edge, learned.heard + learned.window):
        room = learned.remaining - usage.since
        until_reset = 0.0 if learned.sliding else learned.edge - now
    else:
        room = learned.limit - learned.foreign - usage.counting
    window = learned.window if learned.flips or learned.sliding else max(learned.window, DEFAULT_WINDOW)
    if not bulk or learned.sliding:
        return waiting_time(requests - max(0, room), learned.limit, window, until_reset)
    if requests <= room:
        return _moment_of(learned, usage, requests, room, now) - now
    windows, before = divmod(requests - max(0, room) - 1, learned.limit)
    start = now + until_reset
    later = replace(learned, reset=learned.reset + window if learned.reset else 0.0, longest=window)
    return windows * window + _moment_of(later, replace(usage, oldest=start), before + 1, learned.limit, start) - now


def _moment_of(learned: Learned, usage: Usage, number: int, room: int, start: float) -> float:
    """Return when bulk work sends its request of this number if so many are free from `start` to the end of the window."""
    kept = [moment for moment in probe_times(learned, usage) if moment > start]
    return kept[number - room - 1] if number > room - len(kept) else start


def waiting_time(requests: int, limit: int, window: float, until_reset: float) -> float:
    """Return the seconds until so many requests may have gone that exceed the free ones: evenly or in windows, whichever is later."""
    return max(requests * window / limit, until_reset + (requests - 1) // limit * window) if requests > 0 else 0.0


def _free_in_sliding_window(learned: Learned, usage: Usage, by_log: int, by_answer: int, now: float, *, bulk: bool) -> float:
    """Return when a request may go if requests come free one by one.

    Bulk work goes only if, at each coming free moment, a few requests are left for people, and one more for each `spacing` until then.
    """
    few, window, lead, spacing = min(FEW, learned.reserve), learned.window, learned.lead, learned.spacing
    most = few + int(window / spacing) + 1
    coming = [answer + window + 0.001 for answer in usage.answers(0, max(0, most - by_log))]
    free = now if max(by_log, by_answer) > 0 else coming[-by_log] if -by_log < len(coming) else now + SOON
    if not bulk:
        return free
    coming.append(now + window)
    spare = enumerate(coming, by_log - few)
    return max(free, *(moment - max(lead, room * spacing) for room, moment in spare))


def probe_times(learned: Learned, usage: Usage) -> list[float]:
    """Return when bulk work may spend each request it leaves: some evenly, the reserve just before and at the possible ends."""
    window, lead, spacing, reserve = learned.window, learned.lead, learned.spacing, learned.reserve
    sure = min(learned.latest, usage.oldest + window)
    ends = _possible_ends(learned, usage, sure) if learned.reset else []
    tries = sorted(moment + TICK for moment in ends[:reserve])
    first = tries[0] if tries else sure
    early, start = reserve - len(tries), first - lead
    steady = [start - spacing * step for step in range(int(window / spacing), 0, -1)]
    return steady + [first - lead * (early - step) / early for step in range(early)] + tries


def _possible_ends(learned: Learned, usage: Usage, sure: float) -> list[float]:
    """Return moments before `sure` at which the window may end, latest first.

    It may end a whole number of seconds after the oldest request, at Reset, or between two bounds: a try in their middle halves the rest.
    """
    ends = [usage.oldest + max(1, math.floor(learned.longest)), usage.oldest + math.ceil(learned.longest)]
    if not learned.flips:
        ends.append(learned.edge)
    else:
        first, last = (learned.reset - learned.shift + bias for bias in (learned.bias_low, learned.bias_high))
        ends += [last] if last - first <= SHARP else [last, (first + last) / 2]
    return sorted((moment for moment in ends if moment < sure), reverse=True)


@frozen
class Exchange:
    """One answered request: when it was sent and answered, and the wall clock at its answer.

    `counted` requests of ours may count at the service, `arrived` certainly do, `since` of the former came after `Learned.asked`.
    `sent_before(n)` returns when the n-th newest of the requests answered before this one was sent had been sent itself.
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


def has_limit(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer shows that the service has a limit."""
    limit = _number(headers.get("x-ratelimit-limit"))
    return status == 429 or (limit is not None and 0 < limit < UNLIMITED)


def learn(learned: Learned, exchange: Exchange) -> Learned:
    """Return the facts after an answer."""
    learned = _read(learned, exchange)
    if exchange.status == 429:
        return _block(learned, exchange)
    return replace(learned, probing=0) if learned.probing and exchange.sent >= learned.blocked_until else learned


def _block(learned: Learned, exchange: Exchange) -> Learned:
    """Stop all requests until the service's moment, then let one go first. Forget that the window slides."""
    seconds = retry_after(exchange.headers, exchange.wall)
    wait = seconds if seconds is not None else 1.0
    again = learned.probing > 0 and exchange.sent >= learned.blocked_until
    spent = not (_number(exchange.headers.get("x-ratelimit-remaining")) or 0) > 0
    # With requests left, another limit than this window refused: its end does not matter.
    if spent and learned.edge < NEVER and (seconds is None or again or not learned.drops):
        wait = max(wait, learned.edge - exchange.done)
    until = max(learned.blocked_until, exchange.done + wait)
    return replace(learned, drops=0, gone=NEVER, blocked_until=until, probing=learned.probing + 1 if again else 1, even_from=until)


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
    requests = max(0, int(remaining))
    used = learned.limit - requests
    learned = _learn_drops(learned, exchange, requests, used)
    if reset == learned.reset and 0 <= learned.remaining <= requests:
        return learned  # within one window the smallest number is the newest
    if reset is not None:
        learned = _learn_end(learned, exchange, reset, used)
    # Other clients used what we cannot have used; their use is taken at its highest.
    foreign = used - exchange.arrived if used > exchange.counted else 0
    return replace(learned, remaining=requests, asked=exchange.sent, heard=exchange.done, foreign=foreign)


def _learn_drops(learned: Learned, exchange: Exchange, requests: int, used: int) -> Learned:
    """Recognise a sliding window: some requests have left it and some have not. It is no longer than the age of the youngest that left."""
    is_later = exchange.status != 429 and learned.remaining >= 0 and exchange.sent >= learned.heard
    youngest = exchange.sent_before(used) if is_later and requests >= learned.remaining and used > exchange.since else None
    if youngest is None:
        return learned
    return replace(learned, drops=learned.drops + 1, gone=min(learned.gone, exchange.done - youngest))


def _learn_end(learned: Learned, exchange: Exchange, reset: float, used: int) -> Learned:
    """Take a new Reset. If the count started anew, narrow the bounds of where windows end."""
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
    came = max(exchange.sent, exchange.done - SLOW)
    return replace(learned, longest=min(LONGEST_WINDOW, max(learned.longest, learned.edge - came)))


def _place_reset(learned: Learned, exchange: Exchange) -> tuple[Learned, float | None]:
    """Compare the service's clock with ours and return X-RateLimit-Reset in Unix seconds of the service; None if missing or impossible."""
    date = http_date(exchange.headers.get("date", ""))
    shift = exchange.wall - exchange.done
    if date is None:
        low, high = 0.0, 0.0
    else:
        low, high = date - exchange.wall, date + 1.0 - (exchange.sent + shift)
        if max(low, learned.offset_low) <= min(high, learned.offset_high):
            low, high = max(low, learned.offset_low), min(high, learned.offset_high)
    learned = replace(learned, offset_low=low, offset_high=high, shift=shift)
    now = exchange.wall + min(max(0.0, low), high)
    reset = _moment(exchange.headers.get("x-ratelimit-reset"), now, learned.reset)
    return learned, reset if reset is not None and -2.0 <= reset - now <= LONGEST_WINDOW + 1.0 else None


def _moment(text: str | None, now: float, before: float) -> float | None:
    """Return a Reset in Unix seconds: services also send milliseconds, a date, or the seconds to wait.

    Seconds to wait are rounded and arrive late, so a moment near the one `before` is the same.
    """
    number = _number(text)
    if number is None:
        return http_date(text or "")
    if 0 < number <= LONGEST_WINDOW:
        return before if abs(now + number - before) < ROUNDING else now + number
    return number / 1000 if number > MILLISECONDS else number


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
