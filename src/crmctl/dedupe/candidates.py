"""Find pairs of matching records, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, combinations, pairwise
from typing import Any, NamedTuple

from crmctl.dedupe.rules import MatchRule, NormalForm, TextMeasure, measures, sort_words
from crmctl.files.spills import Spill
from crmctl.models import jsontext

LARGE = 100
"""Size above which a block is sorted and each record is compared only with its next `NEAR` neighbours."""

NEAR = 12

HUGE = 20_000
"""Size above which a block is compared in parts of this many records, to limit memory."""

NUMBER_BITS = 28
"""Bits of a place that hold the record's number. The higher bits hold a hash of the block.

Blocks with the same hash are compared as one, which costs a little time and changes no result.
"""

_HASH = (1 << (60 - NUMBER_BITS)) - 1
_BLOCK = _HASH << NUMBER_BITS

EQUAL, ALONE, CROSSED = "equal", "alone", "crossed"
"""Kinds of schemes."""

SKELETON = 4
"""Number of letters in a word's skeleton."""

MOST_WORDS = 5
"""Most words of a value that make keys."""

MOST_BONES = 3

REMEMBERED = 100_000
"""Number of words whose skeletons are cached."""

_SOUNDS = str.maketrans("bfpvcgjkqsxzdtlmnr", "bbbbccccccccttlmmr")
_SOUNDED = {**_SOUNDS, **dict.fromkeys(map(ord, "aeiouyhw"))}


def skeleton(word: str) -> str:
    """Return the first letter and the next different consonants, treating consonants that sound alike as equal.

    Most typing errors leave a skeleton unchanged.
    """
    letters, last = word[:1], word[:1].translate(_SOUNDS)
    for sound in word[1:].translate(_SOUNDED):
        if sound != last:
            letters += sound
            if len(letters) == SKELETON:
                break
            last = sound
    return letters


def word_keys(text: str) -> tuple[str, ...]:
    """Return keys of words: the skeleton of one word and the first letter of another. A single word gives its skeleton and both ends."""
    words = sorted({word for word in text.split() if word}, key=lambda word: (-len(word), word))[:MOST_WORDS]
    if len(words) == 1:
        word = words[0]
        return (skeleton(word), f"<{word[:3]}", f"{word[-4:]}>")
    bones = [skeleton(word) for word in words]
    return tuple(f"{bones[i]} {words[j][0]}" for i in range(len(words)) for j in range(len(words)) if i != j)


def _block(key: object) -> int:
    return (hash(key) & _HASH) << NUMBER_BITS


@lru_cache(maxsize=REMEMBERED)
def _bone(word: str) -> int:
    return _block(skeleton(word))


def word_bones(text: str) -> tuple[int, ...]:
    words = text.split()
    if len(words) > MOST_BONES:
        words.sort(key=len)
        words = words[-MOST_BONES:]
    return tuple(set(map(_bone, words)))


def code_keys(text: str) -> tuple[str, ...]:
    """Return both halves of a code. A single wrong character leaves one of them intact."""
    half = max(2, len(text) // 2)
    return (f"<{text[:half]}", f"{text[-half:]}>")


def email_keys(text: str) -> tuple[str, ...]:
    """Return the part before the @, and each end of it with the start of the host."""
    local, _, host = text.partition("@")
    return (f"={local}", f"<{local[:4]}@{host[:3]}", f"{local[-4:]}@{host[:3]}>")


KEYS: Mapping[str, Callable[[str], tuple[str, ...]]] = {"words": word_keys, "code": code_keys, "email": email_keys}
"""Functions that return the blocks of a value whose rule has no other term."""


def _blocks(keys: Callable[[str], tuple[str, ...]]) -> Callable[[str], tuple[int, ...]]:
    return lambda text: tuple(map(_block, keys(text)))


BONES: Mapping[str, Callable[[str], tuple[int, ...]]] = {"words": word_bones, "code": _blocks(code_keys), "email": _blocks(email_keys)}
"""Functions that make blocks from a value, to be combined with another value."""

Column = Sequence[str | None]
"""The normal forms of one term for many records."""


class Scheme:
    """A way of making blocks, and the rules whose pairs it finds.

    Equal terms make one block per record. Otherwise, each word of the first term makes a block with each word of the others, and a single
    term uses its own keys. `places`: positions of the values among a record's normal forms.
    """

    def __init__(self, number: int, kind: str, places: Sequence[int], forms: Sequence[NormalForm]) -> None:
        self.number = number
        self.kind = kind
        self.places = tuple(places)
        self.rules: list[int] = []
        self._makers = [_blocks(KEYS[form.keys]) if kind == ALONE else BONES[form.keys] for form in forms]

    def record_places(self, first: int, columns: Sequence[Column], places_by_record: dict[int, list[tuple[int, ...]]]) -> list[int]:
        """Return the block places of the records from number `first` on, none for blank values. `known` caches the blocks of values."""
        used = [columns[at] for at in self.places]
        if self.kind == EQUAL:
            return [_block(forms) | number for number, forms in enumerate(zip(*used, strict=True), first) if None not in forms]
        if self.kind == ALONE:
            make = self._makers[0]
            return [block | number for number, text in enumerate(used[0], first) if text is not None for block in make(text)]
        for at, column, make in zip(self.places, used, self._makers, strict=True):
            if at not in places_by_record:
                places_by_record[at] = [make(text) if text is not None else () for text in column]
        places, (first_place, *others) = [], self.places
        for other in others:
            # add a prefix, because a word in both terms would put all its records into one block
            numbered = [
                [3 * (block + (other << NUMBER_BITS)) & _BLOCK | number for block in blocks]
                for number, blocks in enumerate(places_by_record[other], first)
            ]
            places += [a ^ b for blocks, more in zip(places_by_record[first_place], numbered, strict=True) for b in more for a in blocks]
        return places


def schemes_of(rules: Sequence[MatchRule], readings: Sequence[str]) -> list[Scheme]:
    """Return the schemes for these rules. Rules with equal schemes share one. `readings`: the normal forms of a record."""
    schemes: dict[tuple[str, tuple[int, ...]], Scheme] = {}
    for number, rule in enumerate(rules):
        needed = [term for term in rule.terms if not term.optional]
        equal = [term for term in needed if term.least is None]
        terms = equal or needed
        kind = EQUAL if equal else ALONE if len(terms) == 1 else CROSSED
        places = tuple(readings.index(term.reading) for term in terms)
        scheme = schemes.setdefault((kind, places), Scheme(len(schemes), kind, places, [term.form for term in terms]))
        scheme.rules.append(number)
    return list(schemes.values())


HELD = 50_000
"""Number of records whose normal forms stay in memory."""

HELD_KEYS = 400_000
"""Number of block places sorted in memory. More are sorted on disk."""

AT_ONCE = 200_000
"""Number of different pairs compared together."""

TOGETHER = 500
"""Number of records added together, term by term."""

_NUMBER = (1 << NUMBER_BITS) - 1
_APART = "\x1f"


Forms = Sequence[str | None]
"""The normal forms of a record, one per term."""


class Pair(NamedTuple):
    """A pair of records that matches a rule, and its likeness: that of its least similar term, or 1 if all terms are equal."""

    a: int
    b: int
    rule: int
    score: float


class MatchCandidates(Spill):
    """Collects records with `add`. Call `compare` once afterwards.

    `crowded`: number of values that more than `most` records share, which are no signs of duplicates. `compared`: number of compared pairs.
    `windowed`: number of records in blocks too large to compare completely.
    """

    TABLES = """
    CREATE TABLE candidate (no INTEGER PRIMARY KEY, id TEXT NOT NULL, record TEXT NOT NULL, forms TEXT NOT NULL);
    CREATE TABLE place (scheme INTEGER NOT NULL, place INTEGER NOT NULL);
    CREATE TABLE pair (
        a INTEGER NOT NULL, b INTEGER NOT NULL, rule INTEGER NOT NULL, score REAL NOT NULL, PRIMARY KEY (a, b)
    ) WITHOUT ROWID;
    """
    CACHE_KIB = 32_000

    def __init__(self, rules: Sequence[MatchRule], most: int) -> None:
        super().__init__()
        self.rules = rules
        self.most = most
        self.count = 0
        self.crowded = 0
        self.compared = 0
        self.windowed = 0
        self._terms = {term.reading: term for rule in rules for term in rule.terms}
        self._readings = list(self._terms)
        self._schemes = schemes_of(rules, self._readings)
        self._first: list[Forms] = []
        self._cached: dict[int, Forms] = {}
        self._waiting: list[tuple[str, Mapping[str, Any], Any]] = []
        self._places: list[list[int]] = [[] for _ in self._schemes]
        self._has_spilled = False
        self._settled: set[int] = set()

    def add(self, record_id: str, data: Mapping[str, Any], kept: Any = None) -> None:
        """Add a record. `kept` is any JSON value to return with it."""
        self.count += 1
        self._waiting.append((record_id, data, kept))
        if len(self._waiting) == TOGETHER:
            self._take()

    def _take(self) -> None:
        ids, records, kept = zip(*self._waiting, strict=True) if self._waiting else ((), (), ())
        self._waiting.clear()
        first = self.count - len(ids)
        columns = self._columns(records)
        forms = list(zip(*columns, strict=True))
        held = max(0, HELD - first)
        self._first += forms[:held]
        texts = chain([""] * min(held, len(forms)), (_APART.join([form or "" for form in row]) for row in forms[held:]))
        documents = ("null" if value is None else jsontext.dumps(value) for value in kept)
        rows = zip(range(first, self.count), ids, documents, texts, strict=True)
        self._db.executemany("INSERT INTO candidate VALUES (?, ?, ?, ?)", rows)
        known_places: dict[int, list[tuple[int, ...]]] = {}
        for scheme, places in zip(self._schemes, self._places, strict=True):
            places += scheme.record_places(first, columns, known_places)
        if sum(map(len, self._places)) > HELD_KEYS:
            for scheme, places in zip(self._schemes, self._places, strict=True):
                self._spill(scheme, places)

    def _columns(self, records: Sequence[Mapping[str, Any]]) -> list[list[str | None]]:
        read: dict[str, list[str | None]] = {}
        for term in self._terms.values():
            if term.source not in read:
                read[term.source] = term.read(records)
        return [list(map(sort_words, read[term.source])) if term.sorts else read[term.source] for term in self._terms.values()]

    def compare(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Find all matching pairs. `progress` receives the number of compared pairs. Raises UsageError if a library is missing."""
        self._take()
        functions = measures() if any(term.least is not None for rule in self.rules for term in rule.terms) else {}
        for scheme in self._schemes:
            tests = [_Test(number, self.rules[number], self._readings, functions) for number in scheme.rules]
            pairs: set[int] = set()
            for members in self._each_block(scheme):
                size = len(members)
                if size == 2:
                    pairs.add(members[0] << NUMBER_BITS | members[1])
                else:
                    pairs.update(self._pairs_of(scheme, members, tests))
                if len(pairs) > AT_ONCE:
                    progress(self._compare_pairs(pairs, tests))
                    pairs.clear()
            progress(self._compare_pairs(pairs, tests))

    def pairs(self) -> Iterator[Pair]:
        """Yield each matching pair once, with the rule that fits best."""
        return map(Pair._make, self._db.execute("SELECT a, b, rule, score FROM pair ORDER BY a, b"))

    def pairs_among(self, members: Sequence[int]) -> list[Pair]:
        inside = set(members)
        rows = (row for member in members for row in self._db.execute("SELECT a, b, rule, score FROM pair WHERE a = ?", (member,)))
        return [Pair(*row) for row in rows if row[1] in inside]

    def record(self, number: int) -> tuple[str, Any]:
        row = self._db.execute("SELECT id, record FROM candidate WHERE no = ?", (number,)).fetchone()
        return row[0], jsontext.loads(row[1])

    def forms(self, number: int) -> Forms:
        if number < HELD:
            return self._first[number]
        forms = self._cached.get(number)
        if forms is None:
            joined = self._db.execute("SELECT forms FROM candidate WHERE no = ?", (number,)).fetchone()[0]
            forms = tuple([form or None for form in joined.split(_APART)])
            if len(self._cached) >= HELD:
                self._cached.clear()
            self._cached[number] = forms
        return forms

    def _spill(self, scheme: Scheme, places: list[int]) -> None:
        self._db.executemany("INSERT INTO place VALUES (?, ?)", ((scheme.number, place) for place in places))
        self._has_spilled = True
        places.clear()

    def _sorted_places(self, scheme: Scheme) -> Iterable[int]:
        """Return the block places of a scheme, grouped by block. Many places are sorted on disk."""
        places = self._places[scheme.number]
        if not self._has_spilled:
            places.sort()
            return places
        self._spill(scheme, places)
        ordered = self._db.execute("SELECT place FROM place WHERE scheme = ? ORDER BY place", (scheme.number,))
        return (row[0] for row in ordered)

    def _each_block(self, scheme: Scheme) -> Iterator[list[int]]:
        """Yield every block with at least two records. Parts of a huge block overlap by one record."""
        members: list[int] = []
        for place, other in pairwise(self._sorted_places(scheme)):
            if place ^ other > _NUMBER:
                if len(members) > 1:
                    yield members
                members = []
            elif members:
                members.append(other & _NUMBER)
                if len(members) == HUGE:
                    yield members
                    members = members[-1:]
            else:
                members = [place & _NUMBER, other & _NUMBER]
        if len(members) > 1:
            yield members

    def _pairs_of(self, scheme: Scheme, members: Sequence[int], tests: Sequence[_Test]) -> Iterator[int]:
        if scheme.kind == EQUAL and len(members) > max(self.most, 2) and any(test.is_equality for test in tests):
            # A value shared by very many records, such as a switchboard or `info@`, is no sign of a duplicate.
            self.crowded += 1
            tests = [test for test in tests if not test.is_equality]
        if not tests:
            return
        if len(members) <= LARGE:
            yield from (a << NUMBER_BITS | b for a, b in combinations(members, 2))
            return
        self.windowed += len(members)
        for test in tests:
            ordered = sorted(members, key=lambda number: test.sort_key(self.forms(number)))
            for at, a in enumerate(ordered):
                yield from (min(a, b) << NUMBER_BITS | max(a, b) for b in ordered[at + 1 : at + 1 + NEAR])

    def _compare_pairs(self, pairs: set[int], tests: Sequence[_Test]) -> int:
        """Return the number of compared pairs, without those settled by an earlier rule."""
        pairs -= self._settled
        forms = self._first.__getitem__ if self.count <= HELD else self.forms
        matches = []
        scores = [(test.rule, test.score) for test in tests]
        for pair in sorted(pairs) if self.count > HELD else pairs:
            a, b = pair >> NUMBER_BITS, pair & _NUMBER
            first_forms, second_forms = forms(a), forms(b)
            best, fits = 0.0, -1
            for rule, score in scores:
                if (alike := score(first_forms, second_forms)) > best:
                    best, fits = alike, rule
                    if alike == 1.0:
                        # This rule precedes all rules of later blocks, so none of them can fit better.
                        if rule == tests[0].rule and len(self._settled) < AT_ONCE:
                            self._settled.add(pair)
                        break
            if best:
                matches.append((a, b, fits, best))
        self.compared += len(pairs)
        self._db.executemany(
            "INSERT INTO pair VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET rule = excluded.rule, score = excluded.score "
            "WHERE excluded.score > score OR (excluded.score = score AND excluded.rule < rule)",
            matches,
        )
        return len(pairs)


class _Test:
    """A rule prepared for many pairs. It compares equal terms first because they are cheapest."""

    def __init__(self, number: int, rule: MatchRule, readings: Sequence[str], functions: Mapping[str, TextMeasure]) -> None:
        self.rule = number
        self.is_equality = rule.is_equality
        terms = [(readings.index(term.reading), term) for term in rule.terms]
        self._equal = [at for at, term in terms if term.least is None and not term.optional]
        self._not_unequal = [at for at, term in terms if term.least is None and term.optional]
        self._alike = [
            (at, partial(functions[term.form.measure], score_cutoff=term.least), term.optional)
            for at, term in terms
            if term.least is not None
        ]

    def score(self, a: Forms, b: Forms) -> float:
        """Return the likeness of a pair; 0 if the rule does not match."""
        for at in self._equal:
            if a[at] is None or a[at] != b[at]:
                return 0.0
        for at in self._not_unequal:
            if a[at] != b[at] and a[at] is not None and b[at] is not None:
                return 0.0
        lowest = 1.0
        for at, measure, is_optional in self._alike:
            # A measure returns 0 below its cutoff and for None.
            if not (alike := measure(a[at], b[at])):
                if is_optional and (a[at] is None or b[at] is None):
                    continue
                return 0.0
            if alike < lowest:
                lowest = alike
        return lowest

    def sort_key(self, forms: Forms) -> str:
        return " ".join([str(forms[at]) for at, *_ in self._alike])
