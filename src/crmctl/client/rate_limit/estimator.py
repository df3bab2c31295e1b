"""What the service's answers teach about its limit. Pure: `model` says what follows from it.

All times are seconds of the machine's monotonic clock, except where a name says `wall`. Read `learn` first.
Why it is so: docs/decisions/0012-rate-budget.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from crmctl.client.http.retry import http_date, retry_after
from crmctl.client.rate_limit.model import LONGEST_WINDOW, NEVER, UNLIMITED, Learned

SLOW = 0.2
"""A request is taken to have reached the service no more seconds than this before its answer: a busy machine lengthens no window."""


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
    bulk: bool
    counted: int
    arrived: int
    since: int
    sent_before: Callable[[int], float | None]


def has_limit(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer says that there is a limit."""
    limit = _number(headers.get("x-ratelimit-limit"))
    return status == 429 or (limit is not None and 0 < limit < UNLIMITED)


def learn(learned: Learned, exchange: Exchange) -> Learned:
    """What an answer teaches."""
    if not exchange.bulk:
        learned = replace(learned, visited=exchange.sent)
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
    probing = learned.probing + 1 if again else 1
    learned = replace(learned, drops=0, gone=NEVER, refills=0, span=NEVER, ended=-1.0)
    return replace(learned, blocked_until=until, probing=probing, even_from=until)


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
    learned = _learn_flow(learned, exchange, left, is_same_window=reset == learned.reset)
    is_newer = learned.refilling and exchange.sent >= learned.heard
    if reset == learned.reset and 0 <= learned.remaining <= left and not is_newer:
        return learned  # within one window the smallest number is the newest: it counts every request answered with a larger one
    if reset is not None:
        learned = _learn_end(learned, exchange, reset, used)
    # Others are there when we cannot have used so much; how much they use is then taken at its highest.
    foreign = used - exchange.arrived if used > exchange.counted else 0
    return replace(learned, remaining=left, asked=exchange.sent, heard=exchange.done, foreign=foreign)


def _learn_flow(learned: Learned, exchange: Exchange, left: int, *, is_same_window: bool) -> Learned:
    """Some requests have left and some have not.

    Then the window slides and is no longer than the age of the youngest that left. Where that is too young for Reset, and as many left as
    a token bucket gains in the time, it is one.
    """
    used = learned.limit - left
    is_later = exchange.status != 429 and learned.remaining >= 0 and exchange.sent >= learned.heard
    have_some_left = used > exchange.since or (is_same_window and learned.is_small and left > learned.remaining)
    if not (is_later and left >= learned.remaining and have_some_left):
        return learned
    youngest = exchange.sent_before(used)
    if youngest is None:
        return learned
    age = exchange.done - youngest
    least, most = left - learned.remaining + 1, left - learned.remaining + exchange.since
    shortest, longest = exchange.sent - learned.heard, exchange.done - learned.asked
    is_even = least >= (1 if learned.is_small else 2) and shortest / learned.gap - 1 <= most and least <= longest / learned.gap + 1
    refills = learned.refills + (is_even and age < learned.youngest)
    return replace(learned, drops=learned.drops + 1, gone=min(learned.gone, age), refills=refills)


def _learn_end(learned: Learned, exchange: Exchange, reset: float, used: int) -> Learned:
    """A new Reset: perhaps the count began anew, which tells when the window of the old one ended."""
    reached = exchange.done >= learned.edge - 1.0 - (learned.offset_high - learned.offset_low)
    emptied = used <= exchange.since + learned.limit // 10
    if learned.reset and reset > learned.reset + 0.5 and reached and emptied and not learned.sliding:
        low, high = learned.asked + learned.shift - learned.reset, exchange.wall - learned.reset
        both_low, both_high = max(low, learned.bias_low), min(high, learned.bias_high)
        if learned.ended >= 0 and (spent := learned.limit - learned.remaining) > 0 and used <= exchange.since:
            # A bucket is full again when what was taken has come; other windows are no longer than this whatever was taken.
            length = (exchange.done - learned.ended) * learned.limit / spent
            learned = replace(learned, span=min(learned.span, length))
        learned = replace(learned, ended=learned.asked)
        if both_low <= both_high:
            learned = replace(learned, bias_low=both_low, bias_high=both_high, flips=learned.flips + 1)
        else:  # windows that begin with a request drift
            learned = replace(learned, bias_low=low, bias_high=high, flips=1, drifts=learned.drifts + 1)
        if used <= exchange.since and not learned.drops:
            learned = replace(learned, opened=exchange.done)
    elif learned.is_small and learned.reset and reset > learned.reset + 0.5 and used > exchange.since:
        learned = replace(learned, drifts=learned.drifts + 1)  # what was counted before still counts: Reset is no window's end
    learned = replace(learned, reset=reset)
    came = max(exchange.sent, exchange.done - SLOW)
    return replace(learned, longest=min(LONGEST_WINDOW, max(learned.longest, learned.edge - came)))


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
