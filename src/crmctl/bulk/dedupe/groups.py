"""Pairs become groups: connected components, cut where a chain of likenesses joins records that are not alike themselves. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from crmctl.bulk.dedupe.candidates import MatchCandidates, Pair

COMPARED_WHOLE = 2_000
"""A component of more records is cut without looking: so many cannot be one."""


@dataclass(frozen=True)
class MatchGroup:
    """Records that are taken for one: `members` by number, `pairs` that say why, best first. `score`: how sure, from 0 to 1: the weakest
    likeness that holds it together, less where some of its pairs do not match."""

    members: tuple[int, ...]
    pairs: tuple[Pair, ...]
    score: float


@dataclass
class GroupCounts:
    """`cut`: likenesses that would have joined what is not alike; `too_large`: components with more members than a group may have."""

    cut: int = 0
    too_large: int = 0


def components(count: int, pairs: Iterable[Pair]) -> Iterator[list[int]]:
    """The connected components of two records or more; eight bytes of memory a record."""
    parent = array("q", range(count))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    linked = bytearray(count)
    for pair in pairs:
        linked[pair.a] = linked[pair.b] = 1
        a, b = root(pair.a), root(pair.b)
        if a != b:
            parent[max(a, b)] = min(a, b)
    found: dict[int, list[int]] = {}
    for number in range(count):
        if linked[number]:
            found.setdefault(root(number), []).append(number)
    yield from found.values()


def find_groups(candidates: MatchCandidates, counts: GroupCounts, most: int) -> Iterator[MatchGroup]:
    """The groups among compared candidates, in the order of their first record; none has more than `most` members."""
    following = candidates.pairs()
    for members in components(candidates.count, candidates.pairs()):
        if len(members) == 2:
            # Components come in the order of their first record, as pairs do.
            pair = next(pair for pair in following if pair.a == members[0])
            yield MatchGroup((pair.a, pair.b), (pair,), round(pair.score, 4))
        elif len(members) > COMPARED_WHOLE:
            counts.too_large += 1
        else:
            for group in clusters(members, candidates.pairs_among(members), counts):
                if len(group.members) > most:
                    counts.too_large += 1
                else:
                    yield group


def clusters(members: Sequence[int], pairs: Sequence[Pair], counts: GroupCounts) -> Iterator[MatchGroup]:
    """The groups of one component. Best pairs first, two clusters become one where at least half of the pairs between them match: that A is
    like B, B like C and C like D does not make A and D one."""
    known = {(pair.a, pair.b) for pair in pairs}
    home = {member: {member} for member in members}
    ordered = sorted(pairs, key=lambda pair: (-pair.score, pair.a, pair.b))
    for pair in ordered:
        one, other = home[pair.a], home[pair.b]
        if one is other:
            continue
        matching = sum((min(a, b), max(a, b)) in known for a in one for b in other)
        if 2 * matching < len(one) * len(other):
            counts.cut += 1
            continue
        one |= other
        home.update(dict.fromkeys(other, one))
    done: set[int] = set()
    for member in members:
        cluster = home[member]
        if member in done or len(cluster) < 2:
            continue
        done |= cluster
        inside = [pair for pair in ordered if pair.a in cluster and pair.b in cluster]
        yield MatchGroup(tuple(sorted(cluster)), tuple(inside), _certainty(len(cluster), inside))


def _certainty(size: int, pairs: Sequence[Pair]) -> float:
    """The weakest likeness of the strongest tree, times the root of the share of pairs that match."""
    parent: dict[int, int] = {}

    def root(number: int) -> int:
        while parent.setdefault(number, number) != number:
            number = parent[number]
        return number

    weakest = 1.0
    for pair in sorted(pairs, key=itemgetter(3), reverse=True):
        a, b = root(pair.a), root(pair.b)
        if a != b:
            parent[a] = b
            weakest = min(weakest, pair.score)
    share = len(pairs) / (size * (size - 1) / 2)
    return round(weakest * float(share**0.5), 4)
