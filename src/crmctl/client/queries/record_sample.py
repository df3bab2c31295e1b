"""A few records at random: places of the list are drawn, and read with as few pages as hold them."""

from __future__ import annotations

import random

from crmctl.client.queries.record_filter import ListOrder
from crmctl.client.queries.record_query import RecordQuery
from crmctl.models.records import PAGE_LIMIT, Record


def sample(query: RecordQuery, count: int, seed: int | None) -> list[Record]:
    """`count` records, each as likely as any other, oldest first; with a seed the same ones as long as nothing changes.

    What the service decides alone takes at most one request more than records; else all that match are read, which is announced.
    """
    chance = random.Random(seed)
    query.order = ListOrder("created_at", "asc")
    if not query.wanted.is_plain:
        return _of_all(query, count, chance)
    first = query.fetch(PAGE_LIMIT, 0)
    total = first.total
    if total is None:
        return _of_all(query, count, chance)
    query.total = total
    places = sorted(chance.sample(range(total), min(count, total)))
    found = [first.items[place] for place in places if place < len(first.items)]
    rest = [place for place in places if place >= len(first.items)]
    while rest:
        start = rest[0]
        inside = [place for place in rest if place < start + PAGE_LIMIT]
        page = query.fetch(inside[-1] - start + 1, start)
        found += [page.items[place - start] for place in inside if place - start < len(page.items)]
        rest = rest[len(inside) :]
    return found


def _of_all(query: RecordQuery, count: int, chance: random.Random) -> list[Record]:
    kept: list[tuple[int, Record]] = []
    for number, record in enumerate(query.records()):
        if len(kept) < count:
            kept.append((number, record))
        elif (place := chance.randrange(number + 1)) < count:
            kept[place] = (number, record)
    return [record for _, record in sorted(kept, key=lambda pair: pair[0])]
