"""Records to compare and the pairs that match, in a private temporary database: memory stays flat, however many records there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, pairwise
from typing import Any, NamedTuple

from crmctl.bulk.dedupe.blocks import HUGE, LARGE, NUMBER_BITS, Scheme, neighbours, schemes_of
from crmctl.bulk.dedupe.match_rules import MatchRule, sort_words
from crmctl.bulk.dedupe.similarity import TextMeasure, measures
from crmctl.bulk.spill import Spill
from crmctl.models import jsontext

HELD = 50_000
"""So many records' normal forms are held in memory at a time."""

HELD_KEYS = 400_000
"""So many places of records in blocks are sorted in memory; more on disk."""

AT_ONCE = 200_000
"""So many different pairs are compared together."""

TOGETHER = 500
"""So many records are taken in together, term by term."""

_NUMBER = (1 << NUMBER_BITS) - 1
_APART = "\x1f"

_TABLES = """
CREATE TABLE candidate (no INTEGER PRIMARY KEY, id TEXT NOT NULL, record TEXT NOT NULL, forms TEXT NOT NULL);
CREATE TABLE place (scheme INTEGER NOT NULL, place INTEGER NOT NULL);
CREATE TABLE pair (a INTEGER NOT NULL, b INTEGER NOT NULL, rule INTEGER NOT NULL, score REAL NOT NULL, PRIMARY KEY (a, b)) WITHOUT ROWID;
"""


Forms = Sequence[str | None]
"""The normal forms of a record, one of each term."""


class Pair(NamedTuple):
    """Two records that a rule holds for, and how alike they are: the least of its terms, 1 where all are equal."""

    a: int
    b: int
    rule: int
    score: float


class MatchCandidates(Spill):
    """Fill it with `add`, then `compare` once. `crowded`: how many values more records share than `most`; those are no duplicates of each
    other. `compared`: pairs that were looked at. `windowed`: records in blocks too large to compare each with each."""

    TABLES = _TABLES
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
        self._held_places = 0
        self._settled: set[int] = set()

    def add(self, record_id: str, data: Mapping[str, Any], kept: Any = None) -> None:
        """Take a record in; `kept` is any JSON value that comes back with it."""
        self.count += 1
        self._waiting.append((record_id, data, kept))
        if len(self._waiting) == TOGETHER:
            self._take()

    def _take(self) -> None:
        """The records that wait get their normal forms and their places in blocks."""
        ids, records, kept = zip(*self._waiting, strict=True) if self._waiting else ((), (), ())
        self._waiting.clear()
        first = self.count - len(ids)
        columns = self._columns(records)
        forms = list(zip(*columns, strict=True))
        held = max(0, HELD - first)
        self._first += forms[:held]
        told = chain([""] * min(held, len(forms)), (_APART.join([form or "" for form in row]) for row in forms[held:]))
        documents = ("null" if one is None else jsontext.dumps(one) for one in kept)
        rows = zip(range(first, self.count), ids, documents, told, strict=True)
        self._db.executemany("INSERT INTO candidate VALUES (?, ?, ?, ?)", rows)
        known: dict[int, list[tuple[int, ...]]] = {}
        for scheme, places in zip(self._schemes, self._places, strict=True):
            places += scheme.record_places(first, columns, known)
        if sum(map(len, self._places)) > HELD_KEYS:
            self._spill_places()

    def _columns(self, records: Sequence[Mapping[str, Any]]) -> list[list[str | None]]:
        """The normal forms of records, term by term."""
        read: dict[str, list[str | None]] = {}
        for term in self._terms.values():
            if term.source not in read:
                read[term.source] = term.read(records)
        return [list(map(sort_words, read[term.source])) if term.sorts else read[term.source] for term in self._terms.values()]

    def compare(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Find all pairs that a rule holds for; `progress` is told of pairs compared. Raises UsageError where a rule needs what is not
        installed."""
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
        """All pairs that match, each once, with the rule that fits best."""
        return map(Pair._make, self._db.execute("SELECT a, b, rule, score FROM pair ORDER BY a, b"))

    def pairs_among(self, members: Sequence[int]) -> list[Pair]:
        """The pairs that match between these."""
        inside = set(members)
        rows = (row for member in members for row in self._db.execute("SELECT a, b, rule, score FROM pair WHERE a = ?", (member,)))
        return [Pair(*row) for row in rows if row[1] in inside]

    def record(self, number: int) -> tuple[str, Any]:
        """The id of a record, and what was kept of it."""
        row = self._db.execute("SELECT id, record FROM candidate WHERE no = ?", (number,)).fetchone()
        return row[0], jsontext.loads(row[1])

    def forms(self, number: int) -> Forms:
        """Its normal forms."""
        if number < HELD:
            return self._first[number]
        forms = self._cached.get(number)
        if forms is None:
            told = self._db.execute("SELECT forms FROM candidate WHERE no = ?", (number,)).fetchone()[0]
            forms = tuple([form or None for form in told.split(_APART)])
            if len(self._cached) >= HELD:
                self._cached.clear()
            self._cached[number] = forms
        return forms

    def _spill_places(self) -> None:
        for scheme, places in zip(self._schemes, self._places, strict=True):
            self._db.executemany(f"INSERT INTO place VALUES ({scheme.number}, ?)", ((place,) for place in places))  # noqa: S608
            self._held_places += len(places)
            places.clear()

    def _sorted_places(self, scheme: Scheme) -> Iterable[int]:
        """The places of a scheme, those of one block together; sorted on disk where they are many."""
        places = self._places[scheme.number]
        if not self._held_places:
            places.sort()
            return places
        self._db.executemany("INSERT INTO place VALUES (?, ?)", ((scheme.number, place) for place in places))
        places.clear()
        ordered = self._db.execute("SELECT place FROM place WHERE scheme = ? ORDER BY place", (scheme.number,))
        return (row[0] for row in ordered)

    def _each_block(self, scheme: Scheme) -> Iterator[list[int]]:
        """Every block of two records or more, the first records first; of a huge one parts that share a record."""
        members: list[int] = []
        for one, other in pairwise(self._sorted_places(scheme)):
            if one ^ other > _NUMBER:
                if len(members) > 1:
                    yield members
                members = []
            elif members:
                members.append(other & _NUMBER)
                if len(members) == HUGE:
                    yield members
                    members = members[-1:]
            else:
                members = [one & _NUMBER, other & _NUMBER]
        if len(members) > 1:
            yield members

    def _pairs_of(self, scheme: Scheme, members: Sequence[int], tests: Sequence[_Test]) -> Iterator[int]:
        """The pairs of a block of several that are compared."""
        if scheme.is_equality and len(members) > max(self.most, 2) and any(test.is_equality for test in tests):
            # A value that very many records share is a switchboard, or `info@`, and no sign that they are one.
            self.crowded += 1
            tests = [test for test in tests if not test.is_equality]
        if not tests:
            return
        if len(members) <= LARGE:
            yield from (a << NUMBER_BITS | b for a, b in combinations(members, 2))
            return
        self.windowed += len(members)
        for test in tests:
            for a, b in neighbours(members, lambda number: test.sort_key(self.forms(number))):  # noqa: B023
                yield min(a, b) << NUMBER_BITS | max(a, b)

    def _compare_pairs(self, pairs: set[int], tests: Sequence[_Test]) -> int:
        """How many pairs were compared: not those that a rule before has settled."""
        pairs -= self._settled
        forms = self._first.__getitem__ if self.count <= HELD else self.forms
        found = []
        scores = [(test.rule, test.score) for test in tests]
        for pair in sorted(pairs) if self.count > HELD else pairs:
            a, b = pair >> NUMBER_BITS, pair & _NUMBER
            one, other = forms(a), forms(b)
            best, fits = 0.0, -1
            for rule, score in scores:
                if (alike := score(one, other)) > best:
                    best, fits = alike, rule
                    if alike == 1.0:
                        # The first rule of its blocks comes before all rules of later blocks, of which none can fit better.
                        if rule == tests[0].rule and len(self._settled) < AT_ONCE:
                            self._settled.add(pair)
                        break
            if best:
                found.append((a, b, fits, best))
        self.compared += len(pairs)
        self._db.executemany(
            "INSERT INTO pair VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET rule = excluded.rule, score = excluded.score "
            "WHERE excluded.score > score OR (excluded.score = score AND excluded.rule < rule)",
            found,
        )
        return len(pairs)


class _Test:
    """One rule, ready to be asked of many pairs: what is equal first, for it costs least."""

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
        """0 where the rule does not hold."""
        for at in self._equal:
            if a[at] is None or a[at] != b[at]:
                return 0.0
        for at in self._not_unequal:
            if a[at] != b[at] and a[at] is not None and b[at] is not None:
                return 0.0
        lowest = 1.0
        for at, measure, is_optional in self._alike:
            # Of two texts that are less alike than they have to be, and of None, a measure gives 0.
            if not (alike := measure(a[at], b[at])):
                if is_optional and (a[at] is None or b[at] is None):
                    continue
                return 0.0
            if alike < lowest:
                lowest = alike
        return lowest

    def sort_key(self, forms: Forms) -> str:
        return " ".join([str(forms[at]) for at, *_ in self._alike])
