"""Pair rows with records whose values the service altered: truncated, rounded, sorted, respelled."""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any

from crmctl.files.validation import Entry
from crmctl.match.record_match import canonical
from crmctl.models import jsontext
from crmctl.models.resources import Record
from crmctl.values.moments import micros_of

EXPLAINED = 0.7
"""An attribute with at least this agreement may be an altered form of the value sent."""

POSSIBLE = 0.34
"""A record with less agreement than this with every row belongs to another client."""

MARGIN, STRONG_MARGIN = 0.1, 0.03
"""Rows whose agreement with a record differs by less are equally good candidates."""

MOST_COMPARED = 20_000
"""With more pairs, crmctl compares only rows and records that share a value."""

COMMON = 20
"""A value shared by more records does not help to find candidates."""


@dataclass(frozen=True)
class Agreement:
    """Result of pairing.

    `found`: the altered record of a row. `possible`: rows that may have become one of the records. `extra`: more records with the content
    of a found one. `strangers`: number of records that match no row.
    """

    found: Mapping[int, str] = field(default_factory=dict)
    possible: frozenset[int] = frozenset()
    extra: Mapping[int, Sequence[str]] = field(default_factory=dict)
    strangers: int = 0


@dataclass(frozen=True)
class _Candidate:
    ordinal: int
    score: float
    is_strong: bool


class Scale:
    """Weighs attributes by how well they distinguish these rows."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._frequency = Counter(token for entry in entries for token in tokens(entry.data))

    def compare(self, sent: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[float, bool]:
        """Return the agreement of a record with a row, 0 to 1, and whether the record as a whole may be an altered form of the row."""
        weights = total = 0.0
        is_strong, tells = True, False
        for slug, value in sent.items():
            if canonical(value) is None:
                continue
            weight = 1 / max(1, self._frequency[(slug, token_of(value))])
            weights += weight
            if canonical(there.get(slug)) is None:
                continue  # dropped by the service: no evidence either way
            score = agreement(value, there.get(slug))
            total += weight * score
            is_strong = is_strong and score >= EXPLAINED
            tells = tells or score >= EXPLAINED
        return (total / weights if weights else 0.0), is_strong and tells and total * 2 >= weights


def pair_altered(rows: Sequence[Entry], records: Sequence[Record], batch: Sequence[Entry], others: Iterable[Entry]) -> Agreement:
    """Pair missing rows of a batch with unexplained records (oldest first). `others`: the job's other rows."""
    scale = Scale(batch)
    content: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        content[jsontext.dumps(_plain(record.data))].append(record)
    nearby = _Nearby(rows, is_indexed=len(rows) * len(content) > MOST_COMPARED)
    candidates = {key: _candidates(nearby.rows(alike[0]), alike[0], scale) for key, alike in content.items()}
    ours = {key: best[0].score for key, best in candidates.items() if best}
    for key in _of_others({key: content[key][0] for key in ours}, ours, scale, others):
        candidates[key] = []
    found: dict[int, str] = {}
    extra: dict[int, list[str]] = {}
    possible: set[int] = set()
    strangers = sum(len(content[key]) for key, best in candidates.items() if not best)
    for key, best in sorted(candidates.items(), key=lambda item: -item[1][0].score if item[1] else 0.0):
        margin = STRONG_MARGIN if best and best[0].is_strong else MARGIN
        near = [candidate for candidate in best if candidate.score > best[0].score - margin]
        free = [candidate.ordinal for candidate in near if candidate.ordinal not in found]
        ids = [record.id for record in content[key]]
        if near and len({candidate.ordinal for candidate in near}) <= len(ids) and all(candidate.is_strong for candidate in near):
            found.update(zip(free, ids, strict=False))
            if (surplus := ids[len(free) :]) and near:
                extra.setdefault(near[-1].ordinal, []).extend(surplus)
        else:
            possible.update(candidate.ordinal for candidate in near)
    return Agreement(found, frozenset(possible - found.keys()), extra, strangers)


class _Nearby:
    """Finds the rows that share a value with a record."""

    def __init__(self, rows: Sequence[Entry], *, is_indexed: bool) -> None:
        self._rows = rows
        self._is_indexed = is_indexed
        self._index: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        if is_indexed:
            for row in rows:
                for token in tokens(row.data):
                    self._index[token].append(row)

    def rows(self, record: Record) -> Sequence[Entry]:
        if not self._is_indexed:
            return self._rows
        found = [self._index.get(token, ()) for token in tokens(record.data)]
        return list({row.ordinal: row for rows in found if len(rows) <= COMMON for row in rows}.values())


def _candidates(rows: Iterable[Entry], record: Record, scale: Scale) -> list[_Candidate]:
    """Return the rows that may have become a record, best first."""
    scored = (_Candidate(row.ordinal, *scale.compare(row.data, record.data)) for row in rows)
    return sorted((candidate for candidate in scored if candidate.score >= POSSIBLE), key=lambda one: (-one.score, one.ordinal))


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
            score, is_strong = scale.compare(entry.data, records[key].data)
            if is_strong and score >= ours[key]:
                theirs.add(key)
    return theirs


def altered_in(rows: Mapping[int, Entry], records: Mapping[int, Record]) -> frozenset[str]:
    """Return the attributes whose values differ between rows and their records."""
    return frozenset(
        slug
        for ordinal, record in records.items()
        for slug, value in rows[ordinal].data.items()
        if canonical(value) != canonical(record.data.get(slug))
    )


def tokens(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(slug, token_of(value)) for slug, value in data.items() if canonical(value) is not None]


def token_of(value: Any) -> str:
    value = canonical(value)
    return value if isinstance(value, str) else jsontext.dumps(value)


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    return {slug: data[slug] for slug in sorted(data) if data[slug] not in (None, "", [], {})}


def agreement(sent: Any, there: Any) -> float:
    """Return how likely a stored value is an altered form of a sent one: 1 for equal values, 0 for different ones."""
    if sent == there:
        return 1.0
    first, second = canonical(sent), canonical(there)
    if first == second:
        return 0.95 if _letters(sent) == _letters(there) else 0.75
    if isinstance(sent, dict) and isinstance(there, dict):
        parts = [agreement(value, there.get(name)) for name, value in sent.items() if canonical(value) is not None]
        return sum(parts) / len(parts) if parts else 0.0
    if isinstance(sent, list) and isinstance(there, list):
        return _agree_lists(sent, there)
    if all(isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in (sent, there)):
        return _agree_numbers(Decimal(str(sent)), Decimal(str(there)))
    return _agree_texts(str(sent), str(there)) if first is not None and second is not None else 0.0


def _agree_lists(sent: Sequence[Any], there: Sequence[Any]) -> float:
    first, second = Counter(map(token_of, sent)), Counter(map(token_of, there))
    if first == second or set(first) == set(second):
        return 0.9
    common = sum((first & second).values())
    return 0.7 * common / max(first.total(), second.total())


def _agree_numbers(sent: Decimal, there: Decimal) -> float:
    """Return the agreement of two numbers. Rounding and cutting change a number by less than one unit of its last remaining digit."""
    difference = abs(sent - there)
    last = Decimal(1).scaleb(int(there.normalize().as_tuple().exponent)) if there.is_finite() and there else Decimal(1)
    if difference < min(last, Decimal(1)) or difference <= abs(sent) / 1_000_000:
        return 0.8
    return 0.0


def _agree_texts(sent: str, there: str) -> float:
    if (moment := micros_of(sent)) is not None and moment == micros_of(there):
        return 0.9
    if (written := _letters(sent)) == _letters(there):
        return 0.9
    first, second = written.casefold(), _letters(there).casefold()
    if first == second:
        return 0.75
    short, long = sorted((first, second), key=len)
    if short and (long.startswith(short) or (len(short) >= 3 and short in long)):
        is_cut = _letters(there) in written or written in _letters(there)
        return 0.7 + (0.2 * len(short) / len(long) if is_cut else 0)
    digits = sorted(("".join(filter(str.isdigit, text)) for text in (first, second)), key=len)
    if digits[0] and not digits[1].startswith(digits[0]):
        return 0.0
    ratio = SequenceMatcher(None, first, second, autojunk=False).ratio()
    return 0.65 * ratio if ratio >= 0.6 else 0.0


def _letters(value: Any) -> str:
    return re.sub(r"[\W_]+", "", html.unescape(str(value)))
