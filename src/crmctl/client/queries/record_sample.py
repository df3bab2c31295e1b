"""A few records at random: places of the list are drawn, and read with as few pages as hold them."""

from __future__ import annotations

import random

from crmctl.client.queries.query_context import ReadingCost
from crmctl.client.queries.record_filter import ListOrder
from crmctl.client.queries.record_query import MANY_LISTS, RecordQuery
from crmctl.models.records import PAGE_LIMIT, Record


def sample(query: RecordQuery, count: int, seed: int | None) -> list[Record]:
    """`count` records, each as likely as any other, oldest first; with a seed the same ones as long as nothing changes.

    What the service decides alone takes at most one request more than records; else all that match are read. Many are announced.
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
    parts = _together([place for place in places if place >= len(first.items)])
    cost = ReadingCost(len(parts), f"reading {count:,} of {total:,} records of {query.object_name}", query.object_name)
    if len(parts) > MANY_LISTS and not query.is_mirrored and query.agree(cost):
        return sample(query, count, seed)
    for inside in parts:
        while inside:
            page = query.fetch(inside[-1] - inside[0] + 1, inside[0])
            found += [page.items[place - inside[0]] for place in inside if place - inside[0] < len(page.items)]
            # A page may be shorter than was asked for.
            inside = [place for place in inside if place - inside[0] >= len(page.items)] if page.items else []
    return found


def _together(places: list[int]) -> list[list[int]]:
    """Sorted places in parts that a page can hold."""
    parts: list[list[int]] = []
    for place in places:
        if parts and place < parts[-1][0] + PAGE_LIMIT:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def _of_all(query: RecordQuery, count: int, chance: random.Random) -> list[Record]:
    kept: list[tuple[int, Record]] = []
    for number, record in enumerate(query.records()):
        if len(kept) < count:
            kept.append((number, record))
        elif (place := chance.randrange(number + 1)) < count:
            kept[place] = (number, record)
    return [record for _, record in sorted(kept, key=lambda pair: pair[0])]
