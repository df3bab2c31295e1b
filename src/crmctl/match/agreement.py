"""Pair rows with records whose values the service altered: truncated, rounded, sorted, respelled."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from decimal import Decimal
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from crmctl.files.validation import Entry
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.resources import Record
from crmctl.values.equality import canonical, token_of
from crmctl.values.moments import micros_of

EXPLAINED = 0.7
"""An attribute with at least this agreement may be an altered form of the value sent."""

SIMILAR = 0.5
"""One attribute with at least this agreement may be altered beyond recognition, if two others that distinguish the row are unaltered."""

UNALTERED = 0.9
TELLING = 0.5
"""Weight of an attribute that at most two rows share."""

POSSIBLE = 0.34
"""A record with less agreement than this with every row belongs to another client."""

MARGIN, STRONG_MARGIN = 0.1, 0.03
"""Rows whose agreement with a record differs by less are equally good candidates."""

MOST_COMPARED = 20_000
"""With more pairs, crmctl compares only rows and records that share a value."""

COMMON = 20
"""A value shared by more records does not help to find candidates."""


@frozen
class Agreement:
    """Result of pairing.

    `found`: the altered record of a row, None if the row exists but its record is uncertain. `ids`: the records of these rows. `possible`:
    rows that may have become one of the records. `extra`: more records with the content of a found one.
    """

    found: Mapping[int, str | None] = field(default_factory=dict)
    possible: frozenset[int] = frozenset()
    extra: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()


@frozen
class _Candidate:
    """A row that may have become a record. `agreements`: by attribute."""

    ordinal: int
    score: float
    is_strong: bool
    agreements: Mapping[str, float]

    def beats(self, other: _Candidate) -> bool:
        """Whether this row agrees at least as well in each attribute, and clearly better in one."""
        gains = [self.agreements.get(slug, 0.0) - score for slug, score in other.agreements.items()]
        return bool(gains) and min(gains) >= 0 and max(gains) >= MARGIN


class Scale:
    """Weighs attributes by how well they distinguish these rows."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._frequency = Counter(token for entry in entries for token in tokens(entry.data))
        self._weighed: dict[int, list[tuple[str, Any, float]]] = {}

    def _weigh(self, row: Entry) -> list[tuple[str, Any, float]]:
        """Return the values of a row, with their slugs and weights. A row is compared with many records."""
        if (weighed := self._weighed.get(row.ordinal)) is None:
            data = row.data
            weighed = [(slug, data[slug], 1 / max(1, self._frequency[(slug, token)])) for slug, token in tokens(data)]
            self._weighed[row.ordinal] = weighed
        return weighed

    def compare(self, row: Entry, there: Mapping[str, Any]) -> _Candidate:
        """Compare a record with a row: the agreement from 0 to 1, and whether the record as a whole may be an altered form of the row."""
        weights = total = 0.0
        agreements: dict[str, float] = {}
        telling = 0
        for slug, value, weight in self._weigh(row):
            weights += weight
            if canonical(there.get(slug)) is None:
                continue  # dropped by the service: no evidence either way
            score = agreements[slug] = agreement(value, there.get(slug))
            total += weight * score
            telling += weight >= TELLING and score >= UNALTERED
        weak = [score for score in agreements.values() if score < EXPLAINED]
        is_explained = not weak or (len(weak) == 1 and weak[0] >= SIMILAR and telling >= 2)
        is_strong = is_explained and len(weak) < len(agreements) and total * 2 >= weights
        return _Candidate(row.ordinal, total / weights if weights else 0.0, is_strong, agreements)


def pair_altered(rows: Sequence[Entry], records: Sequence[Record], batch: Sequence[Entry], others: Iterable[Entry]) -> Agreement:
    """Pair missing rows of a batch with unexplained records (oldest first). `others`: the job's other rows.

    Rows that may have become the same records are judged together: they all exist if there are enough of these records.
    """
    scale = Scale(batch)
    content: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        content[jsontext.dumps(_plain(record.data))].append(record)
    rows_near = _indexed(rows) if len(rows) * len(content) > MOST_COMPARED else lambda _: rows
    near = {key: best for key, alike in content.items() if (best := _candidates(rows_near(alike[0]), alike[0], scale))}
    for key in _of_others({key: content[key][0] for key in near}, {key: best[0].score for key, best in near.items()}, scale, others):
        del near[key]
    agreed: dict[int, str | None] = {}
    extra: dict[int, list[str]] = {}
    possible: set[int] = set()
    ids: set[str] = set()
    strong = {key: candidates for key, candidates in near.items() if all(candidate.is_strong for candidate in candidates)}
    for group in _groups(strong):
        edges = sorted(((candidate, key) for key in group for candidate in strong[key]), key=lambda edge: -edge[0].score)
        unpaired = {key: [record.id for record in content[key]] for key in group}
        pairs: dict[int, tuple[str, str, float]] = {}
        for candidate, key in edges:
            if candidate.ordinal not in pairs and unpaired[key]:
                pairs[candidate.ordinal] = (key, unpaired[key].pop(0), candidate.score)
        if open_rows := {candidate.ordinal for candidate, _ in edges} - pairs.keys():
            possible |= open_rows | pairs.keys()
            continue
        ids.update(record_id for _, record_id, _ in pairs.values())
        for ordinal, (own, record_id, score) in pairs.items():
            rivals = (edge for edge in edges if (edge[0].ordinal == ordinal) is not (edge[1] == own))
            agreed[ordinal] = None if any(rival.score >= score for rival, _ in rivals) else record_id
            if unpaired[own]:
                extra[ordinal], unpaired[own] = unpaired[own], []
    possible.update(candidate.ordinal for key in near.keys() - strong.keys() for candidate in near[key])
    return Agreement(agreed, frozenset(possible - agreed.keys()), extra, frozenset(ids))


def _groups(near: Mapping[str, Sequence[_Candidate]]) -> Iterator[set[str]]:
    """Yield the keys of records that share candidates, directly or through others."""
    by_row: dict[int, list[str]] = defaultdict(list)
    for key, candidates in near.items():
        for candidate in candidates:
            by_row[candidate.ordinal].append(key)
    seen: set[str] = set()
    for first in near:
        group, reached = set[str](), [first]
        while reached:
            if (key := reached.pop()) not in seen:
                seen.add(key)
                group.add(key)
                reached += (other for candidate in near[key] for other in by_row[candidate.ordinal])
        if group:
            yield group


def _indexed(rows: Sequence[Entry]) -> Callable[[Record], Sequence[Entry]]:
    """Return a function that finds the rows that share a value with a record."""
    index: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for row in rows:
        for token in tokens(row.data):
            index[token].append(row)

    def near(record: Record) -> Sequence[Entry]:
        alike = [index.get(token, ()) for token in tokens(record.data)]
        return list({row.ordinal: row for rows in alike if len(rows) <= COMMON for row in rows}.values())

    return near


def _candidates(rows: Iterable[Entry], record: Record, scale: Scale) -> list[_Candidate]:
    """Return the rows that may have become a record, best first, without those that agree clearly less than the best."""
    scored = (scale.compare(row, record.data) for row in rows)
    every = sorted(
        (candidate for candidate in scored if candidate.score >= POSSIBLE), key=lambda candidate: (-candidate.score, candidate.ordinal)
    )
    margin = STRONG_MARGIN if every and every[0].is_strong else MARGIN
    return [candidate for candidate in every if candidate.score > every[0].score - margin and not every[0].beats(candidate)]


def _of_others(records: Mapping[str, Record], ours: Mapping[str, float], scale: Scale, others: Iterable[Entry]) -> set[str]:
    """Return the keys of records that agree at least as well with another row of the job."""
    if not records:
        return set()
    index: dict[tuple[str, str], list[str]] = defaultdict(list)
    for key, record in records.items():
        for token in tokens(record.data):
            index[token].append(key)
    theirs: set[str] = set()
    for entry in others:
        near = {key for token in tokens(entry.data) if len(index.get(token, ())) <= COMMON for key in index.get(token, ())}
        for key in near - theirs:
            other = scale.compare(entry, records[key].data)
            if other.is_strong and other.score >= ours[key]:
                theirs.add(key)
    return theirs


def tokens(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(slug, token_of(value)) for slug, value in data.items() if canonical(value) is not None]


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    return {slug: data[slug] for slug in sorted(data) if data[slug] not in (None, "", [], {})}


def agreement(sent: Any, there: Any) -> float:
    """Return how likely a stored value is an altered form of a sent one: 1 for equal values, 0 for different ones."""
    if sent == there:
        return 1.0
    if type(sent) is int and type(there) is int:
        return _agree_numbers(Decimal(sent), Decimal(there))
    first, second = canonical(sent), canonical(there)
    if first == second:
        return 0.95 if _letters(str(sent)) == _letters(str(there)) else 0.75
    if isinstance(sent, dict) and isinstance(there, dict):
        parts = [agreement(value, there.get(name)) for name, value in sent.items() if canonical(value) is not None]
        return sum(parts) / len(parts) if parts else 0.0
    if isinstance(sent, list) and isinstance(there, list):
        ours, theirs = Counter(map(token_of, sent)), Counter(map(token_of, there))
        return 0.9 if set(ours) == set(theirs) else 0.7 * (ours & theirs).total() / max(ours.total(), theirs.total())
    if all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in (sent, there)):
        return _agree_numbers(Decimal(str(sent)), Decimal(str(there)))
    return _agree_texts(str(sent), str(there)) if first is not None and second is not None else 0.0


@lru_cache(maxsize=10_000)
def _agree_numbers(sent: Decimal, there: Decimal) -> float:
    """Return the agreement of two numbers. Rounding and cutting change a number by less than one unit of its last remaining digit."""
    difference = abs(sent - there)
    last = Decimal(1).scaleb(int(there.normalize().as_tuple().exponent)) if there.is_finite() and there else Decimal(1)
    if difference < min(last, Decimal(1)) or difference <= abs(sent) / 1_000_000:
        return 0.8
    return 0.0


@lru_cache(maxsize=10_000)
def _agree_texts(sent: str, there: str) -> float:
    if (moment := _moment(sent)) is not None and moment == _moment(there):
        return 0.9
    if (written := _letters(sent)) == _letters(there):
        return 0.9
    first, second = (text.casefold().lstrip("0") for text in (written, _letters(there)))
    if first == second:
        return 0.75
    short, long = sorted((first, second), key=len)
    if short and (long.startswith(short) or (len(short) >= 3 and short in long)):
        is_cut = _letters(there) in written or written in _letters(there)
        return 0.8 + 0.1 * len(short) / len(long) if is_cut else 0.7
    digits = sorted(("".join(filter(str.isdigit, text)) for text in (first, second)), key=len)
    if digits[0] and not digits[1].startswith(digits[0]):
        return 0.0
    ratio = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return 0.65 * ratio if ratio >= 0.6 else 0.0


_moment = lru_cache(maxsize=10_000)(micros_of)


@lru_cache(maxsize=10_000)
def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", html.unescape(text))
