"""Which records are compared at all: those that share a block. Never all pairs; on disk, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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

_HASH = (1 << (60 - NUMBER_BITS)) - 1
_BLOCK = _HASH << NUMBER_BITS

EQUAL, ALONE, CROSSED = "equal", "alone", "crossed"
"""Kinds of schemes."""

SKELETON = 4
"""Letters of a word's skeleton."""

MOST_WORDS = 5
"""So many words of a value make keys."""

MOST_BONES = 3

REMEMBERED = 100_000
"""Of so many words the skeletons are remembered."""

_SOUNDS = str.maketrans("bfpvcgjkqsxzdtlmnr", "bbbbccccccccttlmmr")
_SOUNDED = {**_SOUNDS, **dict.fromkeys(map(ord, "aeiouyhw"))}


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


class _Bones(dict[str, int]):
    """The blocks of words by their skeletons, remembered."""

    def __missing__(self, word: str) -> int:
        if len(self) >= REMEMBERED:
            self.clear()
        block = self[word] = _block(skeleton(word))
        return block


def _block(key: object) -> int:
    return (hash(key) & _HASH) << NUMBER_BITS


_bones = _Bones()


def word_bones(text: str) -> tuple[int, ...]:
    """The skeletons of the longest words, as blocks."""
    words = text.split()
    if len(words) > MOST_BONES:
        words.sort(key=len)
        words = words[-MOST_BONES:]
    return tuple(set(map(_bones.__getitem__, words)))


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


def _blocks(keys: Callable[[str], tuple[str, ...]]) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple(map(_block, keys(text)))


BONES: Mapping[str, Callable[[str], tuple[int, ...]]] = {"words": word_bones, "code": _blocks(code_keys), "email": _blocks(email_keys)}
"""What makes blocks together with as much of another value."""

Column = Sequence[str | None]
"""The normal forms of one term, of many records."""


class Scheme:
    """One way of making blocks, and the rules whose pairs it finds: what has to be equal makes one block a record, else one word of the
    first term makes one with each word of the others, and a term that is alone has keys of its own. `places`: where the values are among
    the normal forms of a record."""

    def __init__(self, number: int, kind: str, places: Sequence[int], forms: Sequence[NormalForm]) -> None:
        self.number = number
        self.kind = kind
        self.places = tuple(places)
        self.rules: list[int] = []
        self._makers = [_blocks(KEYS[form.keys]) if kind == ALONE else BONES[form.keys] for form in forms]

    @property
    def is_equality(self) -> bool:
        return self.kind == EQUAL

    def record_places(self, first: int, columns: Sequence[Column], known: dict[int, list[tuple[int, ...]]]) -> list[int]:
        """The places in their blocks of the records from number `first` on, none of a record with a blank value. `known` remembers what
        values are made of."""
        used = [columns[at] for at in self.places]
        if self.kind == EQUAL:
            return [_block(forms) | number for number, forms in enumerate(zip(*used, strict=True), first) if None not in forms]
        if self.kind == ALONE:
            make = self._makers[0]
            return [block | number for number, text in enumerate(used[0], first) if text is not None for block in make(text)]
        for at, column, make in zip(self.places, used, self._makers, strict=True):
            if at not in known:
                known[at] = [make(text) if text is not None else () for text in column]
        found, (one, *others) = [], self.places
        for other in others:
            # Not as they are: a word that is in both would make one block of all records with such a word.
            numbered = [
                [3 * (block + (other << NUMBER_BITS)) & _BLOCK | number for block in blocks]
                for number, blocks in enumerate(known[other], first)
            ]
            found += [a ^ b for blocks, more in zip(known[one], numbered, strict=True) for b in more for a in blocks]
        return found


def schemes_of(rules: Sequence[MatchRule], readings: Sequence[str]) -> list[Scheme]:
    """The ways of making blocks for these rules; rules with the same way share it. `readings`: the normal forms of a record."""
    found: dict[tuple[str, tuple[int, ...]], Scheme] = {}
    for number, rule in enumerate(rules):
        needed = [term for term in rule.terms if not term.optional]
        equal = [term for term in needed if term.least is None]
        terms = equal or needed
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
