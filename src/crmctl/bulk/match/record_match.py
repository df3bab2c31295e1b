"""Whether a record is a row of ours: both are reduced to a key made of some of their attributes. Pure.

A key allows for what services do to values: outer blanks, case, the composition of letters, the form of numbers and dates.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

from crmctl.bulk.rows.batches import Entry
from crmctl.models import jsontext
from crmctl.models.attribute_types import Trait, types_with
from crmctl.models.attributes import AttributeType
from crmctl.models.numbers import canonical_number
from crmctl.models.records import Record
from crmctl.models.timestamps import micros_of, seconds_of

_FOLDED = types_with(Trait.FOLDED)
_MIDNIGHT = re.compile(r"(\d{4}-\d\d-\d\d)T00:00(:00(\.0+)?)?(Z|\+00:00)?")


class Twins(NamedTuple):
    """Other rows of the job that are just like some and may be in the service: the `ids` of the records that they are known to have become,
    and how many `unnamed` ones there are."""

    ids: frozenset[str] = frozenset()
    unnamed: int = 0


@dataclass(frozen=True)
class Known:
    """What was told before about records of the job, and stays so. `twins`: by key. `names`: by ordinal, the record that a row became.
    `further`: records that a row has beyond its own; they never stand for another row."""

    twins: Callable[[Collection[str]], Mapping[str, Twins]] = lambda _: {}
    names: Mapping[int, str] = field(default_factory=dict)
    further: Collection[str] = frozenset()


@dataclass(frozen=True)
class Recognition:
    """Records and rows are alike when these attributes are. `unique`: no two rows of a job are alike. `key_types`: the types of key
    attributes, in order, where rows and records are told apart as an import by key does it. `shared`: others may create records like them,
    which hold something else. Attributes that the service is known to show as they were written are `held`, the other ones `altered`.
    """

    slugs: frozenset[str]
    unique: bool
    key_types: tuple[tuple[str, str], ...] = ()
    shared: bool = False
    held: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()

    @classmethod
    def by_key(cls, slugs: Sequence[str], types: Sequence[str]) -> Recognition:
        return cls(frozenset(slugs), unique=True, key_types=tuple(zip(slugs, types, strict=True)), shared=True)

    def key(self, data: Mapping[str, Any]) -> str | None:
        """None when none of the attributes has a value; of key attributes all must have one."""
        if self.key_types:
            return key_of(data, self.key_types)
        values = {slug: value for slug in sorted(self.slugs) if (value := canonical(data.get(slug))) is not None}
        return jsontext.dumps(values) if values else None

    def keys(self, entries: Sequence[Entry]) -> dict[int, str | None]:
        return {entry.ordinal: self.key(entry.data) for entry in entries}


@dataclass(frozen=True)
class RecordMatch:
    """`found`: by ordinal, the id of its record (None when it is there and nobody can say which one it is). `extra`: the records that are
    too many, where there are more than rows, and were not known to be.

    `ambiguous`: rows that may be there, or other rows like them. `taken`: rows whose key is that of a record which holds something else;
    `by_key`: the key of the import. `strangers`: how many records are none of the rows asked for.
    """

    found: Mapping[int, str | None] = field(default_factory=dict)
    extra: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ambiguous: frozenset[int] = frozenset()
    taken: frozenset[int] = frozenset()
    by_key: bool = False
    strangers: int = 0


def by_content(entries: Sequence[Entry]) -> Recognition:
    """Recognition by everything that was sent."""
    return Recognition(frozenset(slug for entry in entries for slug in entry.data), unique=False)


def without_altered(recognition: Recognition, entries: Sequence[Entry], records: Sequence[Record]) -> Recognition:
    """The recognition without the attributes whose values the service does not return as they were sent."""

    def values(slug: str, every: Sequence[Mapping[str, Any]]) -> Counter[str]:
        one = Recognition(frozenset({slug}), unique=False)
        return Counter(key for data in every if (key := one.key(data)) is not None)

    sent, seen = [entry.data for entry in entries], [record.data for record in records]
    return Recognition(frozenset(slug for slug in recognition.slugs if values(slug, sent) <= values(slug, seen)), unique=False)


def match(entries: Sequence[Entry], records: Sequence[Record], recognition: Recognition, known: Known) -> RecordMatch:
    """Which rows are among the records (oldest first)."""
    wanted: dict[str, list[int]] = defaultdict(list)
    for ordinal, key in recognition.keys(entries).items():
        if key is not None:
            wanted[key].append(ordinal)
    alike = {key: there for key, there in _by_key(records, recognition).items() if key in wanted}
    theirs = _of_others(entries, records, recognition) if recognition.shared else frozenset[str]()
    ids = {key: [record.id for record in there if record.id not in theirs] for key, there in alike.items()}
    strangers = len(records) - sum(map(len, ids.values()))
    every_twin = {} if recognition.unique else known.twins(ids)
    found: dict[int, str | None] = {}
    extra: dict[int, Sequence[str]] = {}
    ambiguous: set[int] = set()
    for key, there in ids.items():
        twins = every_twin.get(key, Twins())
        named = {ordinal: name for ordinal in wanted[key] if (name := known.names.get(ordinal)) in there and name is not None}
        found.update(named)
        ordinals = [ordinal for ordinal in wanted[key] if ordinal not in named]
        taken = {*named.values(), *twins.ids, *known.further}
        free = [record_id for record_id in there if record_id not in taken]
        if twins.unnamed == 0:
            # Rows that are alike may stand for one another.
            found.update(zip(ordinals, free, strict=False))
        elif len(free) >= len(ordinals) + twins.unnamed:
            found.update((ordinal, None) for ordinal in ordinals)
        else:
            ambiguous.update(ordinals)
        if surplus := free[len(ordinals) + twins.unnamed :]:
            extra[wanted[key][-1]] = surplus
    foreign = frozenset(ordinal for key, there in ids.items() if not there for ordinal in wanted[key])
    return RecordMatch(found, extra, frozenset(ambiguous), foreign, bool(recognition.key_types), strangers)


def comparable(entries: Sequence[Entry], records: Sequence[Record], recognition: Recognition, *, least: int = 1) -> Recognition:
    """The recognition with what these rows show, where at least so many of them are there: an attribute is held when half of them have a
    record that holds it as it was written."""
    there = _by_key(records, recognition)
    rows = [(_telling(entry, recognition), found) for entry in entries if (found := there.get(recognition.key(entry.data) or ""))]
    given = Counter(slug for data, _ in rows for slug in data)
    same = Counter(slug for data, found in rows for slug in data if any(_resembles(data[slug], one.data.get(slug)) for one in found))
    held = recognition.held | {slug for slug, count in given.items() if 2 * same[slug] >= count}
    return replace(recognition, held=held, altered=recognition.altered | {slug for slug, count in given.items() if count >= least} - held)


def _of_others(entries: Sequence[Entry], records: Sequence[Record], recognition: Recognition) -> frozenset[str]:
    """Records with the key of a row that hold something else, and that nobody has changed since: somebody else created them."""
    altered = comparable(entries, records, recognition, least=3).altered
    there = _by_key(records, recognition)

    def holds(record: Record, data: Mapping[str, Any]) -> bool:
        return all(slug in altered or _resembles(value, record.data.get(slug)) for slug, value in data.items())

    rows = [(_telling(entry, recognition), there.get(recognition.key(entry.data) or "", ())) for entry in entries]
    return frozenset(record.id for data, found in rows for record in found if _is_untouched(record) and not holds(record, data))


def _by_key(records: Sequence[Record], recognition: Recognition) -> Mapping[str, Sequence[Record]]:
    there: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if (key := recognition.key(record.data)) is not None:
            there[key].append(record)
    return there


def _telling(entry: Entry, recognition: Recognition) -> dict[str, Any]:
    return {slug: value for slug, value in entry.data.items() if slug not in recognition.slugs and canonical(value) is not None}


def _is_untouched(record: Record) -> bool:
    """Whether it is as it was created; nobody changes a record within a second."""
    created, updated = seconds_of(record.created_at), seconds_of(record.updated_at)
    return created is None or updated is None or updated - created < 1


def _resembles(sent: Any, there: Any) -> bool:
    """Whether a value may be what became of one that was sent: with fewer digits, cut off, or written in another way. Of another type it
    may be."""
    if isinstance(sent, dict) and isinstance(there, dict):
        return all(_resembles(value, there.get(name)) for name, value in sent.items() if canonical(value) is not None)
    if all(isinstance(one, int | float | Decimal) and not isinstance(one, bool) for one in (sent, there)):
        one, other = (Decimal(str(number)) for number in (sent, there))
        return abs(one - other) <= max(Decimal("0.01"), abs(one) / 1_000_000)
    if isinstance(sent, str) and isinstance(there, str):
        if (moment := micros_of(sent)) is not None and moment == micros_of(there):
            return True
        short, long = sorted(("".join(filter(str.isalnum, str(canonical(text) or ""))).lstrip("0") for text in (sent, there)), key=len)
        return short == long or (short != "" and short in long)
    return canonical(there) is not None and (type(sent) is not type(there) or bool(canonical(sent) == canonical(there)))


def key_of(data: Mapping[str, Any], types: Iterable[tuple[str, str | None]]) -> str | None:
    """The normal form of a key, given its attributes with their types; None when a part of it is blank."""
    parts = [key_form(kind, data.get(slug)) for slug, kind in types]
    return None if None in parts else jsontext.dumps(parts)


def key_form(kind: str | None, value: Any) -> str | None:
    """What is the same for all spellings of one value: letters composed, outer blanks gone; e-mail addresses without case, of phone numbers
    the digits, numbers and dates in one form. None for a blank value."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if kind == AttributeType.PHONE_NUMBER:
        return _digits(value) or None
    if kind == AttributeType.REFERENCE and isinstance(value, dict):
        value = value.get("id")
    if kind == AttributeType.NUMBER and isinstance(value, int | float | Decimal):
        return canonical_number(value)
    if value is None or isinstance(value, dict | list):
        return None
    text = unicodedata.normalize("NFC", str(value).strip())
    if kind in _FOLDED:
        text = str(canonical(text) or "")
    return text or None


def _digits(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(_digits(item) for item in value.values() if isinstance(item, str))
    return "".join(letter for letter in str(value or "") if letter.isdigit())


def canonical(value: Any) -> Any:
    """A value without what services change about it; None for anything empty."""
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", value.strip().casefold())
        midnight = _MIDNIGHT.fullmatch(text.upper())
        return (midnight[1] if midnight else text) or None
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float | Decimal):
        return canonical_number(value)
    if isinstance(value, dict):
        return {name: item for name in sorted(value) if (item := canonical(value[name])) is not None} or None
    if isinstance(value, list):
        return [item for one in value if (item := canonical(one)) is not None] or None
    return value
