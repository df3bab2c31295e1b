"""Records to compare and the pairs that match, in a private temporary database: memory stays flat, however many records there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from crmctl.bulk.dedupe.blocks import LARGE, RuleBlocks, pairs_of
from crmctl.bulk.dedupe.match_rules import MatchRule
from crmctl.bulk.dedupe.similarity import Measure, measures
from crmctl.bulk.spill import Spill
from crmctl.models import jsontext

HELD = 50_000
"""So many records' normal forms are held in memory at a time."""

_TABLES = """
CREATE TABLE candidate (no INTEGER PRIMARY KEY, id TEXT NOT NULL, record TEXT NOT NULL, forms TEXT NOT NULL);
CREATE TABLE block (rule INTEGER NOT NULL, key INTEGER NOT NULL, no INTEGER NOT NULL);
CREATE TABLE pair (a INTEGER NOT NULL, b INTEGER NOT NULL, rule INTEGER NOT NULL, score REAL NOT NULL, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE crowd (rule INTEGER NOT NULL, size INTEGER NOT NULL, no INTEGER NOT NULL);
"""


class Pair(NamedTuple):
    """Two records that a rule holds for, and how alike they are: the least of its terms, 1 where all are equal."""

    a: int
    b: int
    rule: int
    score: float


class MatchCandidates(Spill):
    """Fill it with `add`, then `compare` once. `crowded`: how many values more records share than `most`; those are no duplicates of each
    other. `compared`: pairs that were looked at."""

    TABLES = _TABLES
    CACHE_KIB = 32_000

    def __init__(self, rules: Sequence[MatchRule], most: int) -> None:
        super().__init__()
        self.rules = rules
        self.most = most
        self.count = 0
        self.crowded = 0
        self.compared = 0
        terms = {term.source: term for rule in rules for term in rule.terms}
        self._keys = list(terms)
        self._readers = [term.read for term in terms.values()]
        self._by_rule = [RuleBlocks(rule, [self._keys.index(term.source) for term in rule.terms]) for rule in rules]
        self._held: dict[int, list[str | None]] = {}
        self._rows: list[tuple[int, str, str, str]] = []
        self._blocks: list[tuple[int, int, int]] = []

    def add(self, record_id: str, data: Mapping[str, Any], kept: Any = None) -> None:
        """Take a record in; `kept` is any JSON value that comes back with it."""
        number = self.count
        self.count += 1
        forms = [read(data) for read in self._readers]
        if number < HELD:
            self._held[number] = forms
        self._rows.append((number, record_id, jsontext.dumps(kept), jsontext.dumps(forms)))
        for at, blocks in enumerate(self._by_rule):
            self._blocks.extend([(at, hash(key), number) for key in blocks.keys(forms)])
        if len(self._rows) >= 2_000:
            self._flush()

    def compare(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Find all pairs that a rule holds for. Raises UsageError where a rule needs what is not installed."""
        self._flush()
        functions = measures() if any(term.least is not None for rule in self.rules for term in rule.terms) else {}
        tests = [_Test(rule, self._keys, functions) for rule in self.rules]
        found: list[Pair] = []
        for rule, members in self._each_block():
            test = tests[rule]
            if self.rules[rule].is_equality and len(members) > max(self.most, 2):
                self._set_apart(rule, members, test)
            else:
                self._compare_block(rule, members, test, found)
            progress(len(members))
            if len(found) >= 5_000:
                self._keep(found)
        self._keep(found)

    def pairs(self) -> Iterator[Pair]:
        """All pairs that match, each once, with the rule that fits best."""
        return (Pair(*row) for row in self._db.execute("SELECT a, b, rule, score FROM pair ORDER BY a, b"))

    def pairs_among(self, members: Sequence[int]) -> list[Pair]:
        """The pairs that match between these."""
        inside = set(members)
        rows = (row for member in members for row in self._db.execute("SELECT a, b, rule, score FROM pair WHERE a = ?", (member,)))
        return [Pair(*row) for row in rows if row[1] in inside]

    def record(self, number: int) -> tuple[str, Any]:
        """The id of a record, and what was kept of it."""
        row = self._db.execute("SELECT id, record FROM candidate WHERE no = ?", (number,)).fetchone()
        return row[0], jsontext.loads(row[1])

    def forms(self, number: int) -> list[str | None]:
        """Its normal forms."""
        held = self._held.get(number)
        if held is None:
            row = self._db.execute("SELECT forms FROM candidate WHERE no = ?", (number,)).fetchone()
            held = jsontext.loads(row[0])
            if len(self._held) >= HELD:
                self._held.clear()
            self._held[number] = held
        return held

    def _flush(self) -> None:
        self._db.executemany("INSERT INTO candidate VALUES (?, ?, ?, ?)", self._rows)
        self._db.executemany("INSERT INTO block VALUES (?, ?, ?)", self._blocks)
        self._rows.clear()
        self._blocks.clear()

    def _each_block(self) -> Iterator[tuple[int, list[int]]]:
        """Every block of two records or more; sorted on disk."""
        self._db.execute("CREATE INDEX block_key ON block (rule, key, no)")
        shared = "SELECT rule, key FROM block GROUP BY rule, key HAVING COUNT(*) > 1"
        ordered = f"SELECT rule, key, no FROM block JOIN ({shared}) USING (rule, key) ORDER BY rule, key, no"  # noqa: S608
        for (rule, _), rows in groupby(self._db.execute(ordered), key=itemgetter(0, 1)):
            yield rule, [row[2] for row in rows]

    def _set_apart(self, rule: int, members: Sequence[int], test: _Test) -> None:
        """A value that very many records share is a switchboard, or `info@`, and no sign that they are one."""
        self.crowded += 1

    def _compare_block(self, rule: int, members: Sequence[int], test: _Test, found: list[Pair]) -> None:
        look = {number: self.forms(number) for number in members}.__getitem__ if len(members) <= LARGE else self.forms
        score = test.score
        for a, b in pairs_of(members, lambda number: test.sort_key(self.forms(number))):
            self.compared += 1
            if (alike := score(look(a), look(b))) > 0.0:
                found.append(Pair(a, b, rule, alike) if a < b else Pair(b, a, rule, alike))

    def _keep(self, found: list[Pair]) -> None:
        self._db.executemany(
            "INSERT INTO pair VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET rule = excluded.rule, score = excluded.score "
            "WHERE excluded.score > score",
            found,
        )
        found.clear()


class _Test:
    """One rule, ready to be asked of many pairs: what is equal first, for it costs least."""

    def __init__(self, rule: MatchRule, keys: Sequence[str], functions: Mapping[str, Measure]) -> None:
        places = {key: at for at, key in enumerate(keys)}
        terms = [(places[term.source], term) for term in rule.terms]
        self._equal = [at for at, term in terms if term.least is None]
        self._alike = [(at, term.least, functions[term.form.measure]) for at, term in terms if term.least is not None]

    def score(self, a: Sequence[str | None], b: Sequence[str | None]) -> float:
        """0 where the rule does not hold."""
        for at in self._equal:
            if a[at] is None or a[at] != b[at]:
                return 0.0
        lowest = 1.0
        for at, least, measure in self._alike:
            one, other = a[at], b[at]
            if one is None or other is None:
                return 0.0
            if one != other:
                alike = measure(one, other, least)
                if alike < least:
                    return 0.0
                lowest = min(lowest, alike)
        return lowest

    def sort_key(self, forms: Sequence[str | None]) -> str:
        return " ".join(str(forms[at]) for at, _, _ in self._alike)
