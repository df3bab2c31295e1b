"""Match records with rows of a job.

Both are reduced to a key of some attributes. Keys ignore what services change about values: outer blanks, case, the composition of letters,
the form of numbers and dates. The module sends no requests.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from crmctl.files.validation import Entry
from crmctl.frozen import frozen
from crmctl.match.agreement import EXPLAINED, agreement
from crmctl.models import jsontext
from crmctl.models.resources import Record
from crmctl.values.equality import as_written, canonical, key_of
from crmctl.values.moments import seconds_of

LEAST_JUDGED = 3
"""Fewest rows that show what the service does to an attribute."""


class Twins(NamedTuple):
    """Other rows of the job that equal a row of the batch and may be in the service.

    `ids` are their records, as far as crmctl knows them; `unnamed` counts the rows without a known record.
    """

    ids: frozenset[str] = frozenset()
    unnamed: int = 0


@frozen
class Known:
    """Earlier findings about records of the job, which remain valid.

    `twins`: by key and by form. `names`: the record of a row, by ordinal. `further`: surplus records of rows; they never match another row.
    """

    twins: Callable[[Collection[str]], Mapping[str, Mapping[str, Twins]]] = lambda _: {}
    names: Mapping[int, str] = field(default_factory=dict)
    further: Collection[str] = frozenset()


@frozen
class Recognition:
    """The attributes that decide whether a record matches a row.

    `unique`: no two rows of a job match each other, but other clients may create matching records with different values. `key_types`: the
    types of key attributes, in order, to compare rows and records as an import by key does. `altered`: attributes that the service changes,
    `spelled`: more attributes in which rows with one key may differ.
    """

    slugs: frozenset[str]
    unique: bool
    key_types: tuple[tuple[str, str], ...] = ()
    altered: frozenset[str] = frozenset()
    spelled: frozenset[str] = frozenset()

    @classmethod
    def by_key(cls, slugs: Sequence[str], types: Sequence[str]) -> Recognition:
        return cls(frozenset(slugs), unique=True, key_types=tuple(zip(slugs, types, strict=True)))

    def key(self, data: Mapping[str, Any]) -> str | None:
        """Return the key of a record or row. None if all attributes are empty, or any of the key attributes."""
        if self.key_types:
            return key_of(data, self.key_types)
        values = {slug: value for slug in sorted(self.slugs) if (value := canonical(data.get(slug))) is not None}
        return jsontext.dumps(values) if values else None

    def form(self, data: Mapping[str, Any]) -> str:
        """Return the values of these attributes as written: rows with one key may differ in capitals or outer blanks."""
        return jsontext.dumps([as_written(data.get(slug)) for slug in sorted(self.slugs | self.spelled)])

    def keys(self, entries: Sequence[Entry]) -> dict[int, str | None]:
        return {entry.ordinal: self.key(entry.data) for entry in entries}


@frozen
class RecordMatch:
    """Result of matching rows with records.

    `found`: the record id by ordinal, None if the row exists but its record is uncertain. `extra`: surplus records, if there are more
    records than rows, except those already known. `ambiguous`: rows that may exist, or only rows equal to them. `taken`: rows whose key
    belongs to a record with different values. `by_key`: the import's key decided.
    """

    found: Mapping[int, str | None] = field(default_factory=dict)
    extra: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ambiguous: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    by_key: bool = False


def by_content(entries: Sequence[Entry]) -> Recognition:
    """Return the recognition by all attributes sent."""
    return Recognition(frozenset(slug for entry in entries for slug in entry.data), unique=False)


def match(entries: Sequence[Entry], records: Sequence[Record], recognition: Recognition, known: Known) -> RecordMatch:
    """Match rows with records (oldest first).

    If rows with one key differ as written, they are matched separately, provided the service stores the difference.
    """
    rows: dict[str, dict[int, str]] = defaultdict(dict)
    for entry in entries:
        if (key := recognition.key(entry.data)) is not None:
            rows[key][entry.ordinal] = recognition.form(entry.data)
    theirs = _of_others(entries, records, recognition) if recognition.unique or recognition.spelled else frozenset[str]()
    forms_by_key: dict[str, dict[str, str]] = {}
    for key, alike in _by_key(records, recognition).items():
        if key in rows:
            forms_by_key[key] = {record.id: recognition.form(record.data) for record in alike if record.id not in theirs}
    every_twin = {} if recognition.unique else known.twins(forms_by_key)

    def explains(spell: Spell) -> bool:
        """Whether every record has the values of a row."""
        return all(
            {*map(spell, ids.values())} <= _room(rows[key], every_twin.get(key, {}), spell).keys() for key, ids in forms_by_key.items()
        )

    spell_of_all = next((spell for spell in (_as_written, _without_blanks) if explains(spell)), None)
    kept = _kept(rows, forms_by_key) if spell_of_all is None else frozenset[int]()
    pairs: dict[int, str | None] = {}
    extra: dict[int, Sequence[str]] = {}
    ambiguous: set[int] = set()
    for key, ids in forms_by_key.items():
        twins = every_twin.get(key, {})
        sent = {*rows[key].values(), *twins}
        spell: Spell | None = spell_of_all
        if spell is None and (kept or {*ids.values()} <= sent):
            spell = _as_written if {*ids.values()} <= sent else _spell_by(sent, ids.values(), kept)
        if spell is not None:
            counts, room = Counter(map(spell, ids.values())), _room(rows[key], twins, spell)
            if len(room) > 1 and counts - room and room - counts:
                # Copies of one spelling, or records of another one that only this time was altered.
                ambiguous.update(ordinal for ordinal, form in rows[key].items() if counts[spell(form)] < room[spell(form)])
                ids = dict(_at_most(ids, room, spell))
        for group in _groups(rows[key], ids, twins, spell):
            _match_group(group, known, pairs, extra, ambiguous)
    foreign = frozenset(ordinal for key, ids in forms_by_key.items() if not ids for ordinal in rows[key])
    return RecordMatch(pairs, extra, frozenset(ambiguous), foreign, bool(recognition.key_types))


class _Group(NamedTuple):
    """Rows and records that may match each other, each with its form. `is_mixed`: the rows or their twins have several forms."""

    rows: Mapping[int, str]
    records: Mapping[str, str]
    twins: Twins
    is_mixed: bool = False


Spell = Callable[[str], str]
"""Returns a form without the details that the service changes."""


def _room(rows: Mapping[int, str], twins: Mapping[str, Twins], spell: Spell) -> Counter[str]:
    """Return the number of rows of each form, in the batch and outside it."""
    room = Counter(map(spell, rows.values()))
    for form, twin in twins.items():
        room[spell(form)] += len(twin.ids) + twin.unnamed
    return room


def _at_most(records: Mapping[str, str], room: Counter[str], spell: Spell) -> Iterator[tuple[str, str]]:
    """Yield the first records of each form, as many as there are rows."""
    room_left = Counter(room)
    for record_id, form in records.items():
        if room_left[spell(form)] > 0:
            room_left[spell(form)] -= 1
            yield record_id, form


def _kept(rows: Mapping[str, Mapping[int, str]], there: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """Return the places of attributes in forms in which records of one key differ as its rows do: the service keeps these differences."""
    return frozenset().union(*(_differing(rows[key].values()) & _differing(ids.values()) for key, ids in there.items()))


def _differing(forms: Iterable[str]) -> frozenset[int]:
    values = zip(*(_values(form) for form in forms), strict=True)
    return frozenset(place for place, values_there in enumerate(values) if len({*values_there}) > 1)


def _values(form: str) -> list[str]:
    return [jsontext.dumps(value) for value in jsontext.loads(form)]


def _spell_by(sent: Iterable[str], there: Collection[str], places: frozenset[int]) -> Spell | None:
    """Return a spelling by the attributes at some places of a form; None if some record may have become of several rows, or of none."""

    def values_at(form: str) -> str:
        values = _values(form)
        return "".join(values[place] for place in sorted(places))

    spelled = spellings(map(values_at, sent), map(values_at, there))
    return (lambda form: spelled[values_at(form)]) if all(values_at(form) in spelled for form in there) else None


def _groups(rows: Mapping[int, str], records: Mapping[str, str], twins: Mapping[str, Twins], spell: Spell | None) -> Iterable[_Group]:
    """Return one group per form. Return a single group if the service must have altered some values, or if all forms are equal."""
    room = _room(rows, twins, spell or _as_written)
    if spell is None or len(room) < 2:
        return [_Group(rows, records, _joined(twins.values()), len({*rows.values(), *twins}) > 1)]
    return [
        _Group(
            {ordinal: form for ordinal, form in rows.items() if spell(form) == spelling},
            {record_id: form for record_id, form in records.items() if spell(form) == spelling},
            _joined(twin for form, twin in twins.items() if spell(form) == spelling),
        )
        for spelling in room
        if spelling in map(spell, rows.values())
    ]


def _joined(twins: Iterable[Twins]) -> Twins:
    every = [*twins]
    return Twins(frozenset(record_id for twin in every for record_id in twin.ids), sum(twin.unnamed for twin in every))


def _match_group(group: _Group, known: Known, matched: dict[int, str | None], extra: dict[int, Sequence[str]], ambiguous: set[int]) -> None:
    rows, records, twins, is_mixed = group
    named = {ordinal: name for ordinal in rows if (name := known.names.get(ordinal)) is not None and name in records}
    matched.update(named)
    taken = {*named.values(), *twins.ids, *known.further}
    ordinals = [ordinal for ordinal in rows if ordinal not in named]
    free = [record_id for record_id in records if record_id not in taken]
    if twins.unnamed == 0:
        pairs = pair_forms({ordinal: rows[ordinal] for ordinal in ordinals}, {record_id: records[record_id] for record_id in free})
        matched.update(pairs)
        ambiguous.update(ordinals if len(free) > len(pairs) < len(ordinals) else ())
        surplus = [record_id for record_id in free if record_id not in pairs.values()] if len(pairs) == len(ordinals) else []
    else:
        if len(free) >= len(ordinals) + twins.unnamed:
            matched.update((ordinal, None) for ordinal in ordinals)
        else:
            ambiguous.update(ordinals)
        surplus = free[len(ordinals) + twins.unnamed :] if not is_mixed else []
    owners = {records[name]: ordinal for ordinal in rows if (name := matched.get(ordinal)) is not None}
    for record_id in surplus:
        form = records[record_id]
        ordinal = owners[form] if form in owners else max(reversed([*rows]), key=lambda row: _likeness(rows[row], form))
        extra[ordinal] = [*extra.get(ordinal, ()), record_id]


def pair_forms(rows: Mapping[int, str], records: Mapping[str, str]) -> dict[int, str]:
    """Pair rows with records of the same form, then of the same form without blanks, then with the most similar record.

    Rows that differ are not paired with altered records if there are fewer records than rows.
    """
    pairs = pair_equal(rows, records)
    taken = {*pairs.values()}
    others = {ordinal: form for ordinal, form in rows.items() if ordinal not in pairs}
    pairs |= pair_but_for_blanks(others, {record_id: form for record_id, form in records.items() if record_id not in taken})
    open_rows = [ordinal for ordinal in rows if ordinal not in pairs]
    taken = set(pairs.values())
    rest = [record_id for record_id in records if record_id not in taken]
    if len({rows[ordinal] for ordinal in open_rows}) == 1 or not rest:
        pairs.update(zip(open_rows, rest, strict=False))
    elif len(rest) >= len(open_rows):
        for ordinal in open_rows:
            nearest = max(rest, key=lambda record_id: _likeness(rows[ordinal], records[record_id]))
            pairs[ordinal] = nearest
            rest.remove(nearest)
    return pairs


def pair_equal(rows: Mapping[int, str], records: Mapping[str, str]) -> dict[int, str]:
    """Pair rows with records of the same form, in order."""
    ids: dict[str, list[str]] = defaultdict(list)
    for record_id in reversed([*records]):
        ids[records[record_id]].append(record_id)
    return {ordinal: ids[form].pop() for ordinal, form in rows.items() if ids.get(form)}


def pair_but_for_blanks(rows: Mapping[int, str], records: Mapping[str, str]) -> dict[int, str]:
    """Pair rows with records of the same form without its blanks, in order."""
    bare = {record_id: _without_blanks(form) for record_id, form in records.items()}
    return pair_equal({ordinal: _without_blanks(form) for ordinal, form in rows.items()}, bare)


def spellings(sent: Iterable[str], there: Iterable[str]) -> dict[str, str]:
    """Return the form sent, by stored form. If the service cuts text, or adds to it, one of the two forms contains the other. A stored form
    that fits no form sent, or several, is left out."""
    rows = {*sent}
    origins = {form: [row for row in rows if _contains(row, form) or _contains(form, row)] for form in {*there} - rows}
    return {row: row for row in rows} | {form: fitting[0] for form, fitting in origins.items() if len(fitting) == 1}


def possible_rows(content: Recognition, rows: Mapping[int, Mapping[str, Any]], stored: Mapping[str, Any]) -> list[int]:
    """Return the only row that the service can have changed into these stored values; all rows if none or several fit."""
    sent, form = {row: content.form(data) for row, data in rows.items()}, content.form(stored)
    origin = spellings(sent.values(), [form]).get(form)
    return [row for row in rows if origin in (None, sent[row])]


def _contains(text: str, part: str) -> bool:
    """Whether a text has all letters of another one, in order."""
    letters = iter(text)
    return all(letter in letters for letter in part)


def _likeness(sent: str, there: str) -> float:
    return 2.0 if sent == there else SequenceMatcher(None, sent, there, autojunk=False).ratio()


def _as_written(form: str) -> str:
    return form


def _without_blanks(form: str) -> str:
    return re.sub(r"\s+", "", form)


def comparable(entries: Sequence[Entry], records: Sequence[Record], recognition: Recognition) -> Recognition:
    """Return the recognition with the attributes that the service alters, judged by rows that have records.

    An attribute is altered if fewer than half of those rows have a record with the written value. Few rows prove nothing: the records may
    be other clients'.
    """
    by_key = _by_key(records, recognition)
    rows = [
        (_telling(entry.data, recognition), candidates)
        for entry in entries
        if (candidates := by_key.get(recognition.key(entry.data) or ""))
    ]
    sent = Counter(slug for data, _ in rows for slug in data)
    same = Counter(
        slug for data, candidates in rows for slug in data if any(_resembles(data[slug], record.data.get(slug)) for record in candidates)
    )
    altered = {slug for slug, count in sent.items() if count >= LEAST_JUDGED and 2 * same[slug] < count}
    return replace(recognition, altered=recognition.altered | altered)


def _of_others(entries: Sequence[Entry], records: Sequence[Record], recognition: Recognition) -> frozenset[str]:
    """Return records that have the key of a row but cannot have become of it: another client created them."""
    by_key = _by_key(records, recognition)
    pairs = [(record, entry) for entry in entries for record in by_key.get(recognition.key(entry.data) or "", ())]
    own = {record.id for record, entry in pairs if may_be_row(record, entry.data, recognition)}
    return frozenset(record.id for record, _ in pairs) - own


def holds_most(record: Record, entry: Entry) -> bool:
    """Whether a record has more than half of the values sent."""
    same = [slug for slug, value in entry.data.items() if canonical(value) == canonical(record.data.get(slug))]
    return 2 * len(same) > len(entry.data)


def may_be_row(record: Record, data: Mapping[str, Any], recognition: Recognition) -> bool:
    """Whether a record with the key of a row may be that row: it has changed since its creation, or has values like those sent."""
    return not is_untouched(record) or all(
        slug in recognition.altered
        or _resembles(value, stored := record.data.get(slug))
        or (stored is None and slug in recognition.spelled)
        for slug, value in _telling(data, recognition).items()
    )


def _by_key(records: Sequence[Record], recognition: Recognition) -> Mapping[str, Sequence[Record]]:
    by_key: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if (key := recognition.key(record.data)) is not None:
            by_key[key].append(record)
    return by_key


def _telling(data: Mapping[str, Any], recognition: Recognition) -> dict[str, Any]:
    return {slug: value for slug, value in data.items() if slug not in recognition.slugs and canonical(value) is not None}


def is_untouched(record: Record) -> bool:
    """Whether a record is unchanged since its creation. A change within a second is ruled out."""
    created, updated = seconds_of(record.created_at), seconds_of(record.updated_at)
    return created is None or updated is None or updated - created < 1


def _resembles(sent: Any, there: Any) -> bool:
    """Whether a stored value may be an altered form of the sent one. A value of another type may be."""
    types = {type(sent), type(there)}
    is_other_type = canonical(there) is not None and len(types) > 1 and not types <= {int, float, Decimal}
    return is_other_type or agreement(sent, there) >= EXPLAINED
