"""Which records are compared at all: those that share a block. Never all pairs; on disk, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from crmctl.bulk.dedupe.match_rules import MatchRule
from crmctl.bulk.dedupe.normal_forms import NormalForm

LARGE = 100
"""A block of more records is not compared pair by pair: sorted, each record meets its next `NEAR` neighbours only."""

NEAR = 12

HUGE = 20_000
"""A block of more records is taken in parts of so many: memory stays flat."""

NUMBER_BITS = 28
"""Of a place in a block the last bits are the record's number, those before them a hash of the block: blocks that share one by chance are
compared as one, which costs a little time and changes nothing."""

_HASH = (1 << (62 - NUMBER_BITS)) - 1

EQUAL, ALONE, CROSSED = "equal", "alone", "crossed"
"""Kinds of schemes."""

SKELETON = 4
"""Letters of a word's skeleton."""

MOST_WORDS = 5
"""So many words of a value make keys."""

MOST_BONES = 3

_SOUNDS = str.maketrans("bfpvcgjkqsxzdtlmnr", "bbbbccccccccttlmmr")
_SOUNDED = {**_SOUNDS, **dict.fromkeys(map(ord, "aeiouyhw"))}


@lru_cache(maxsize=100_000)
def skeleton(word: str) -> str:
    """The first letter and the next different consonants, those that sound alike as one: what typing errors mostly leave as it is."""
    found, last = word[:1], word[:1].translate(_SOUNDS)
    for sound in word[1:].translate(_SOUNDED):
        if sound != last:
            found += sound
            if len(found) == SKELETON:
                break
            last = sound
    return found


def word_keys(text: str) -> tuple[str, ...]:
    """Of two words at least the skeleton of one and the first letter of the other; of one word its skeleton and its two ends."""
    words = sorted({word for word in text.split() if word}, key=lambda word: (-len(word), word))[:MOST_WORDS]
    if len(words) == 1:
        word = words[0]
        return (skeleton(word), f"<{word[:3]}", f"{word[-4:]}>")
    bones = [skeleton(word) for word in words]
    return tuple(f"{bones[i]} {words[j][0]}" for i in range(len(words)) for j in range(len(words)) if i != j)


def word_bones(text: str) -> tuple[int, ...]:
    """The skeletons of the longest words."""
    words = text.split()
    if len(words) > MOST_BONES:
        words.sort(key=len)
        words = words[-MOST_BONES:]
    return tuple({_bone(word) for word in words})


@lru_cache(maxsize=100_000)
def _bone(word: str) -> int:
    return hash(skeleton(word))


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


def _hashes(keys: Callable[[str], tuple[str, ...]]) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple([hash(key) for key in keys(text)])


BONES: Mapping[str, Callable[[str], tuple[int, ...]]] = {"words": word_bones, "code": _hashes(code_keys), "email": _hashes(email_keys)}
"""What makes blocks together with as much of another value, hashed."""


class Scheme:
    """One way of making blocks, and the rules whose pairs it finds: what has to be equal makes one block a record, else one word of the
    first term makes one with each word of the others, and a term that is alone has keys of its own. `places`: where the values are among
    the normal forms of a record."""

    def __init__(self, number: int, kind: str, places: Sequence[int], forms: Sequence[NormalForm]) -> None:
        self.number = number
        self.kind = kind
        self.places = tuple(places)
        self.rules: list[int] = []
        self._makers = [_hashes(KEYS[form.keys]) if kind == ALONE else BONES[form.keys] for form in forms]

    @property
    def is_equality(self) -> bool:
        return self.kind == EQUAL

    def record_places(self, number: int, forms: Sequence[str | None], known: dict[int, tuple[int, ...]]) -> list[int]:
        """The places of a record in its blocks, none when a value is blank. `known` remembers what its values are made of."""
        for at in self.places:
            if forms[at] is None:
                return []
        if self.kind == EQUAL:
            return [(hash(tuple([forms[at] for at in self.places])) & _HASH) << NUMBER_BITS | number]
        if self.kind == ALONE:
            return [(one & _HASH) << NUMBER_BITS | number for one in self._makers[0](forms[self.places[0]] or "")]
        for at, make in zip(self.places, self._makers, strict=True):
            if at not in known:
                known[at] = make(forms[at] or "")
        first = known[self.places[0]]
        return [
            ((one ^ 3 * (other + at)) & _HASH) << NUMBER_BITS | number for at in self.places[1:] for other in known[at] for one in first
        ]


def schemes_of(rules: Sequence[MatchRule], readings: Sequence[str]) -> list[Scheme]:
    """The ways of making blocks for these rules; rules with the same way share it. `readings`: the normal forms of a record."""
    found: dict[tuple[str, tuple[int, ...]], Scheme] = {}
    for number, rule in enumerate(rules):
        equal = [term for term in rule.terms if term.least is None]
        terms = equal or rule.terms
        kind = EQUAL if equal else ALONE if len(terms) == 1 else CROSSED
        places = tuple(readings.index(term.reading) for term in terms)
        scheme = found.setdefault((kind, places), Scheme(len(found), kind, places, [term.form for term in terms]))
        scheme.rules.append(number)
    return list(found.values())


def neighbours(members: Sequence[int], sort_key: Callable[[int], str]) -> Iterator[tuple[int, int]]:
    """The pairs of a large block that are compared: each record with those that come next when it is sorted."""
    ordered = sorted(members, key=sort_key)
    for at, first in enumerate(ordered):
        for second in ordered[at + 1 : at + 1 + NEAR]:
            yield first, second
