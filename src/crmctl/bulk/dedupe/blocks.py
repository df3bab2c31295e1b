"""Which records are compared at all: those that share a block. Never all pairs; on disk, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from crmctl.bulk.dedupe.match_rules import MatchRule

LARGE = 100
"""A block of more records is not compared pair by pair: sorted, each record meets its next `NEAR` neighbours only."""

NEAR = 12

SKELETON = 4
"""Letters of a word's skeleton."""

MOST_WORDS = 5
"""So many words of a value make keys."""

MOST_BONES = 4

_SOUNDS = str.maketrans("bfpvcgjkqsxzdtlmnr", "bbbbcccccccctddmmr".replace("d", "t"))
_SILENT = frozenset("aeiouyhw")


@lru_cache(maxsize=100_000)
def skeleton(word: str) -> str:
    """The first letter and the next different consonants, those that sound alike as one: what typing errors mostly leave as it is."""
    found = word[:1]
    last = found.translate(_SOUNDS)
    for letter in word[1:]:
        if letter in _SILENT:
            continue
        sound = letter.translate(_SOUNDS)
        if sound != last:
            found += sound
            last = sound
            if len(found) == SKELETON:
                break
    return found


def word_keys(text: str) -> tuple[str, ...]:
    """Of two words at least the skeleton of one and the first letter of the other; of one word its skeleton and its two ends."""
    words = sorted({word for word in text.split() if word}, key=lambda word: (-len(word), word))[:MOST_WORDS]
    if len(words) == 1:
        word = words[0]
        return (skeleton(word), f"<{word[:3]}", f"{word[-4:]}>")
    bones = [skeleton(word) for word in words]
    return tuple(f"{bones[i]} {words[j][0]}" for i in range(len(words)) for j in range(len(words)) if i != j)


def word_bones(text: str) -> tuple[str, ...]:
    """The skeletons of the longest words."""
    words = text.split()
    if len(words) > MOST_BONES:
        words = sorted(words, key=len)[-MOST_BONES:]
    return tuple({skeleton(word) for word in words})


def code_keys(text: str) -> tuple[str, ...]:
    """The first and the last half: one wrong sign leaves one of them whole."""
    half = max(2, len(text) // 2)
    return (f"<{text[:half]}", f"{text[-half:]}>")


def email_keys(text: str) -> tuple[str, ...]:
    """The part before the @ whole, and its two ends with the beginning of the rest."""
    local, _, host = text.partition("@")
    return (f"={local}", f"<{local[:4]}@{host[:3]}", f"{local[-4:]}@{host[:3]}>")


KEYS: Mapping[str, Callable[[str], tuple[str, ...]]] = {"words": word_keys, "code": code_keys, "email": email_keys}
"""The blocks of a value that is alone in its rule."""

BONES: Mapping[str, Callable[[str], tuple[str, ...]]] = {"words": word_bones, "code": code_keys, "email": email_keys}
"""What makes blocks together with as much of another value."""


class RuleBlocks:
    """The blocks of records for one rule; `places` says where each of its terms is among a record's normal forms."""

    def __init__(self, rule: MatchRule, places: Sequence[int]) -> None:
        terms = list(zip(places, rule.terms, strict=True))
        self._places = places
        self._equal = [at for at, term in terms if term.least is None]
        self._single = [(at, KEYS[term.form.keys]) for at, term in terms]
        self._bones = [(at, BONES[term.form.keys]) for at, term in terms]

    def keys(self, forms: Sequence[str | None]) -> list[str]:
        """None when a term is blank. What has to be equal makes one block; where nothing has to be, one word of the first term makes one
        with each word of the others, and a term that is alone has keys of its own."""
        for at in self._places:
            if forms[at] is None:
                return []
        if self._equal:
            return ["\0".join([forms[at] or "" for at in self._equal])]
        if len(self._single) == 1:
            at, make = self._single[0]
            return list(make(forms[at] or ""))
        mine, others = self._bones[0], self._bones[1:]
        first = mine[1](forms[mine[0]] or "")
        return [f"{at}\0{one}\0{other}" for at, make in others for other in make(forms[at] or "") for one in first]


def pairs_of(members: Sequence[int], sort_key: Callable[[int], str]) -> Iterator[tuple[int, int]]:
    """The pairs of one block that are compared."""
    if len(members) <= LARGE:
        yield from combinations(members, 2)
        return
    ordered = sorted(members, key=sort_key)
    for at, first in enumerate(ordered):
        for second in ordered[at + 1 : at + 1 + NEAR]:
            yield first, second
