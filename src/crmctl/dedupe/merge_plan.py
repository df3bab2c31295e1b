"""Groups of duplicates, their survivors, and the plan file."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crmctl.dedupe.candidates import MatchCandidates, Pair
from crmctl.dedupe.rules import said
from crmctl.errors import UsageError, json_words, reason
from crmctl.files.sources import is_stream
from crmctl.files.whole_files import whole_bytes
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType, document_of
from crmctl.values.equality import as_sent
from crmctl.values.moments import micros_of

OLDEST = "oldest"
MOST_ACTIVITIES = "most-activities"
SURVIVOR_RULES: Mapping[str, str] = {
    OLDEST: "the one created first",
    "newest": "the one created last",
    "most-complete": "the one with most attributes that hold something; of several the oldest",
    MOST_ACTIVITIES: "the one that most activities are linked to; of several the oldest",
}
"""Rules that choose the survivor."""

OF_SURVIVOR = "survivor"
UNION = "union"
VALUE_RULES: Mapping[str, str] = {
    OF_SURVIVOR: "the survivor's; where that is empty, of the record changed last",
    "newest": "of the record changed last",
    "oldest": "of the record created first",
    "longest": "the longest text",
    UNION: "all values of all records, the survivor's first; for lists",
}
"""Rules that choose the record that provides an attribute's value."""

HINT = f"--keep {'|'.join(SURVIVOR_RULES)}, and by attribute --keep 'phone=newest,name=longest,tags=union'"


@frozen
class MergeRecord:
    """A record of a group as read. `activities`: number of its linked activities, if counted."""

    id: str
    data: Mapping[str, Any]
    created_at: str | None = None
    updated_at: str | None = None
    activities: int | None = None


@frozen
class MergedValue:
    """A value for the survivor, its source records, and the rule that chose it."""

    value: Any
    sources: tuple[str, ...]
    rule: str


@frozen
class KeepRules:
    """Rules for survivors and values. `survivor` is a name in SURVIVOR_RULES; `values` maps slugs to names in VALUE_RULES."""

    survivor: str = OLDEST
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def said(self) -> list[str]:
        return [self.survivor, *(f"{slug}={rule}" for slug, rule in self.values.items())]


def parse_keep(texts: Sequence[str], attributes: Sequence[Attribute]) -> KeepRules:
    """Parse `--keep`. Raises UsageError for an unknown rule or attribute."""
    by_slug = {attribute.slug: attribute for attribute in attributes if attribute.is_active is not False}
    survivor: str | None = None
    values: dict[str, str] = {}
    for word in (part.strip() for text in texts for part in text.split(",")):
        slug, sign, rule = (part.strip() for part in word.partition("="))
        if not sign and slug in SURVIVOR_RULES and survivor in (None, slug):
            survivor = slug
        elif not sign and slug in SURVIVOR_RULES:
            raise UsageError(f"--keep: {survivor} and {slug} exclude each other", hint=HINT, code="malformed_rule")
        elif not sign or rule not in VALUE_RULES:
            raise UsageError(f"--keep: {word!r} is no rule", hint=HINT, code="malformed_rule")
        elif slug not in by_slug:
            hint = f"the attributes are: {', '.join(by_slug)}"
            raise UsageError(f"--keep: there is no attribute {slug}", hint=hint, code="unknown_attribute")
        elif rule == UNION and not by_slug[slug].holds_items:
            raise UsageError(f"--keep: {slug} holds one value, of which there is no union", hint=HINT, code="malformed_rule")
        else:
            values[slug] = rule
    return KeepRules(survivor or OLDEST, values)


def is_empty(value: Any) -> bool:
    """Whether a value is blank, or all its parts are."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, Mapping):
        return all(map(is_empty, value.values()))
    if isinstance(value, list):
        return all(map(is_empty, value))
    return value is None


def choose_survivor(records: Sequence[MergeRecord], rule: str) -> MergeRecord:
    """Return the survivor. Records created at the same moment keep the order of `records`."""

    def age(record: MergeRecord) -> int:
        return micros_of(record.created_at) or 0

    if rule == "newest":
        return max(reversed(records), key=age)
    if rule == "most-complete":
        return min(records, key=lambda record: (-sum(not is_empty(value) for value in record.data.values()), age(record)))
    if rule == MOST_ACTIVITIES:
        return min(records, key=lambda record: (-(record.activities or 0), age(record)))
    return min(records, key=age)


def merge_values(records: Sequence[MergeRecord], survivor: str, keep: KeepRules, attributes: Sequence[Attribute]) -> dict[str, MergedValue]:
    """Return the value of every attribute that any record fills, in display order."""
    merged = {}
    for attribute in attributes:
        if attribute.is_active is False:
            continue
        values = values_of(attribute, records)
        rule = keep.values.get(attribute.slug, OF_SURVIVOR)
        if any(not is_empty(as_sent(attribute, record.data.get(attribute.slug))) for record in records):
            merged[attribute.slug] = merge_value(records, survivor, values, rule)
    return merged


def values_of(attribute: Attribute, records: Sequence[MergeRecord]) -> Json:
    """Return the records' values, without references among the records: the survivor would then refer to itself."""
    values = {record.id: as_sent(attribute, record.data.get(attribute.slug)) for record in records}
    if attribute.type == AttributeType.REFERENCE:
        members = {record.id.lower() for record in records}
        return {record_id: _outside(value, members) for record_id, value in values.items()}
    return values


def merge_value(records: Sequence[MergeRecord], survivor: str, values: Mapping[str, Any], rule: str) -> MergedValue:
    filled = [record for record in records if not is_empty(values[record.id])]
    if not filled:
        return MergedValue(None, (survivor,), rule)
    if rule == UNION:
        ordered = sorted(filled, key=lambda record: (record.id != survivor, micros_of(record.created_at) or 0, record.id))
        every: Json = {}
        for record in ordered:
            value = values[record.id]
            for item in value if isinstance(value, list) else [value]:
                if not is_empty(item):
                    every.setdefault(jsontext.dumps(item, sort_keys=True), item)
        return MergedValue(list(every.values()), tuple(record.id for record in ordered), rule)
    if rule == OF_SURVIVOR and any(record.id == survivor for record in filled):
        chosen = survivor
    else:
        chosen = max(filled, key=lambda record: (*_RANKS[rule](record, values[record.id]), record.id == survivor, record.id)).id
    return MergedValue(values[chosen], (chosen,), rule)


def _changed(record: MergeRecord, _: Any) -> tuple[int, ...]:
    return (micros_of(record.updated_at) or 0,)


_RANKS: Mapping[str, Callable[[MergeRecord, Any], tuple[int, ...]]] = {
    OF_SURVIVOR: _changed,
    "newest": _changed,
    "oldest": lambda record, _: (-(micros_of(record.created_at) or 0),),
    "longest": lambda record, value: (len(said(value)), micros_of(record.updated_at) or 0),
}


def _outside(value: Any, members: set[str]) -> Any:
    if isinstance(value, list):
        return [item for item in value if str(item).lower() not in members]
    return None if isinstance(value, str) and value.lower() in members else value


FORMAT = 1
KIND = "crmctl merge plan"
EDITABLE = "edit only survivor, losers and values; records show what was compared"

MAKES_ONE = "crmctl bulk dedupe OBJECT --match EXPR --plan FILE makes one"


@frozen
class MergePlanHeader:
    """The facts shared by all groups. `as_of`: time of reading the records."""

    object: str
    object_id: str
    origin: str
    version: str
    created_at: str
    match: Sequence[str]
    keep: Sequence[str]
    as_of: str | None = None

    def to_document(self) -> Json:
        names = "version created_at origin object object_id match keep as_of"
        return {"kind": KIND, "format": FORMAT, **document_of(self, names, match=list(self.match), keep=list(self.keep))}


@frozen
class MatchReason:
    """Two records of a group, the rule they match, and their likeness."""

    records: tuple[str, str]
    rule: str
    score: float


@frozen
class PlannedMerge:
    """One group: `survivor` absorbs the records of `losers` and then has `values`. `line`: its line in the file."""

    group: int
    score: float
    why: tuple[MatchReason, ...]
    survivor: str
    losers: tuple[str, ...]
    values: Mapping[str, MergedValue]
    records: tuple[MergeRecord, ...]
    line: int = 0

    def record(self, record_id: str) -> MergeRecord:
        return next(record for record in self.records if record.id == record_id)

    def to_document(self) -> Json:
        return {
            "group": self.group,
            "score": self.score,
            "why": [
                {"rule": match_reason.rule, "score": round(match_reason.score, 4), "records": list(match_reason.records)}
                for match_reason in self.why
            ],
            "survivor": self.survivor,
            "proposed": self.survivor,
            "losers": list(self.losers),
            "values": {slug: _value_document(value) for slug, value in self.values.items()},
            "records": {record.id: _record_document(record) for record in self.records},
        }


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return a digest of a record's data that ignores empty values and the order of attributes."""
    return hashlib.sha256(jsontext.dumps(held(data), sort_keys=True).encode()).hexdigest()[:24]


def held(data: Mapping[str, Any]) -> Json:
    return {slug: value for slug, value in data.items() if not is_empty(value)}


def write_merge_plan(path: Path, header: MergePlanHeader, merges: Iterable[PlannedMerge]) -> None:
    """Write a plan (0600), completely or not at all. Raises UsageError if that fails."""
    with whole_bytes(path, mode=0o600) as file:
        file.write(jsontext.dumps(header.to_document()).encode() + b"\n")
        for merge in merges:
            file.write(jsontext.dumps(merge.to_document()).encode() + b"\n")


class MergePlanFile:
    """A plan file. Every read returns the same groups while the file is unchanged."""

    def __init__(self, path: Path) -> None:
        """Open a plan. Raises UsageError for an unreadable file or one without the header of a merge plan."""
        self.path = path
        is_stream(str(path))  # names a directory, a socket or a device
        try:
            with path.open("rb") as file:
                document = _parsed(path, 1, file.readline())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error
        if document.get("kind") != KIND or document.get("format") != FORMAT:
            raise UsageError(f"{path} is no merge plan of this version of crmctl", hint=MAKES_ONE, code="not_a_plan")
        try:
            self.header = MergePlanHeader(
                object=document["object"], object_id=document["objectId"], origin=document["origin"], version=document["version"],
                created_at=document["createdAt"], match=document["match"], keep=document["keep"], as_of=document["asOf"],
            )  # fmt: skip
            if not all(isinstance(text, str) for text in (self.header.object, self.header.object_id, self.header.origin)):
                raise TypeError
        except (KeyError, TypeError) as error:
            raise UsageError(f"{path}, line 1: {_odd(error)}", code="not_a_plan") from error

    def merges(self, attributes: Sequence[Attribute]) -> Iterator[PlannedMerge]:
        """Yield every group, with the user's edits applied. Raises UsageError with the number of an invalid line."""
        with self.path.open("rb") as file:
            file.readline()
            for number, line in enumerate(file, 2):
                if line.strip():
                    yield _Line(self.path, number, attributes).read(_parsed(self.path, number, line))


def _odd(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else "something is of another kind than it was"


@frozen
class _Line:
    path: Path
    number: int
    attributes: Sequence[Attribute]

    def read(self, document: Mapping[str, Any]) -> PlannedMerge:
        try:
            merge = self._as_written(document)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise self._wrong(_odd(error)) from error
        for record in merge.records:
            if fingerprint(record.data) != document["records"][record.id].get("hash"):
                raise self._wrong(f"what record {record.id} looked like was edited")
        ids = [record.id for record in merge.records]
        if unknown := [record_id for record_id in (merge.survivor, *merge.losers) if record_id not in ids]:
            raise self._wrong(f"{unknown[0]} is no record of this group")
        losers = list(dict.fromkeys(loser for loser in merge.losers if loser != merge.survivor))
        if merge.survivor in merge.losers:
            # Records without any mention were left out by the user.
            left_out = [record_id for record_id in ids if record_id not in (merge.survivor, *losers)]
            losers += [document["proposed"]] if document.get("proposed") in left_out else left_out if len(left_out) == 1 else []
        if not losers:
            raise self._wrong("no record is left to be merged")
        named = replace(merge, losers=tuple(losers))
        return replace(named, values={slug: self._value(named, slug, value, document) for slug, value in merge.values.items()})

    def _as_written(self, document: Mapping[str, Any]) -> PlannedMerge:
        self._check_kinds(document)
        records = tuple(
            MergeRecord(record_id, entry["data"], entry.get("createdAt"), entry.get("updatedAt"), entry.get("activities"))
            for record_id, entry in document["records"].items()
        )
        reasons = document.get("why", ())
        why = tuple(MatchReason((reason["records"][0], reason["records"][1]), reason["rule"], reason["score"]) for reason in reasons)
        values = {
            slug: MergedValue(entry.get("value"), tuple(_listed(entry.get("from"))), entry.get("by") or "")
            for slug, entry in document["values"].items()
        }
        spelled = {record.id.lower(): record.id for record in records}
        survivor, *losers = (spelled.get(record_id.lower(), record_id) for record_id in (document["survivor"], *document["losers"]))
        score = float(document.get("score", 0.0))
        return PlannedMerge(document["group"], score, why, survivor, tuple(losers), values, records, self.number)

    def _check_kinds(self, document: Mapping[str, Any]) -> None:
        """Normalise edits written in another form. Raises UsageError."""
        group, losers = document["group"], document["losers"]
        if not isinstance(group, int) or isinstance(group, bool) or not 0 <= group < 1 << 53:
            raise self._wrong(f"group is {jsontext.dumps(group)}, which is no number of a group")
        if not isinstance(document["survivor"], str):
            raise self._wrong("survivor is no id", 'for example "survivor": "ID"')
        if not isinstance(losers, list) or not all(isinstance(loser, str) for loser in losers):
            raise self._wrong("losers is no list of ids", 'for example "losers": ["ID"]')
        for name in ("values", "records"):
            if not isinstance(document[name], dict) or not all(isinstance(entry, dict) for entry in document[name].values()):
                raise self._wrong(f"{name} is not what it was", 'for example "values": {"name": {"value": "Ada"}}')

    def _value(self, merge: PlannedMerge, slug: str, value: MergedValue, document: Mapping[str, Any]) -> MergedValue:
        """Recompute a value after edits: from the new survivor if it follows the survivor, or from the record it names."""
        attribute = next((attribute for attribute in self.attributes if attribute.slug == slug), None)
        if attribute is None:
            raise self._wrong(f"there is no attribute {slug}")
        values = values_of(attribute, merge.records)
        is_given = "value" in document["values"][slug]
        if not value.sources:
            if not is_given:
                raise self._wrong(f"{slug} has neither a value nor a record it is from")
            return value
        if unknown := [source for source in value.sources if source not in values]:
            raise self._wrong(f"{slug} is from {unknown[0]}, which is no record of this group")
        if len(value.sources) > 1:
            return value
        source = values[value.sources[0]]
        if is_given and value.value != source and not (value.value is None and value.sources[0] == merge.survivor):
            hint = 'delete "from" to write a value of your own, or delete "value" to take that record\'s'
            raise self._wrong(f"{slug} is not what {value.sources[0]} holds", hint)
        proposed = str(document.get("proposed", merge.survivor))
        chosen_by_hand = value.sources[0] != proposed and not is_empty(values.get(proposed))
        if value.rule == OF_SURVIVOR and value.sources[0] != merge.survivor and is_given and not chosen_by_hand:
            members = [record for record in merge.records if record.id in (merge.survivor, *merge.losers)]
            return merge_value(members, merge.survivor, values, OF_SURVIVOR)
        return value if is_given else replace(value, value=source)

    def _wrong(self, what: str, hint: str = EDITABLE) -> UsageError:
        return UsageError(f"{self.path}, line {self.number}: {what}", hint=hint, code="malformed_plan")


def _parsed(path: Path, number: int, line: bytes) -> Json:
    if number == 1 and not line.strip():
        raise UsageError(f"{path} is empty", hint=MAKES_ONE, code="not_a_plan")
    try:
        document = jsontext.loads(line)
    except ValueError as error:
        message = f"{path}, line {number}: no JSON object ({reason_of(error)})"
        raise UsageError(message, hint="one group a line; delete the line to leave its group alone", code="malformed_plan") from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}, line {number}: no JSON object", hint="one group a line", code="malformed_plan")
    return document


def reason_of(error: ValueError) -> str:
    """Describe why a line is not JSON, and where."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    column = getattr(error, "colno", None)
    return f"{json_words(getattr(error, 'msg', str(error)))}{f', column {column}' if column else ''}"


def _listed(value: Any) -> list[str]:
    return [] if value is None else [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _value_document(value: MergedValue) -> Json:
    source: Any = value.sources[0] if len(value.sources) == 1 else list(value.sources) or None
    return {"value": value.value, "from": source, "by": value.rule}


def _record_document(record: MergeRecord) -> Json:
    counted = {"activities": record.activities} if record.activities is not None else {}
    times = {"createdAt": record.created_at, "updatedAt": record.updated_at}
    return {**times, **counted, "hash": fingerprint(record.data), "data": held(record.data)}


COMPARED_WHOLE = 2_000
"""Components above this size are cut without comparing: so many records cannot be duplicates."""


@frozen
class MatchGroup:
    """Records considered duplicates.

    `members` are their numbers, `pairs` the matching pairs, best first. `score` (0 to 1) is the weakest likeness that joined the group,
    times the square root of the share of its pairs that match.
    """

    members: tuple[int, ...]
    pairs: tuple[Pair, ...]
    score: float


@dataclass
class GroupCounts:
    """`cut` counts rejected pairs that would have joined different records, `too_large` the components and groups above a size limit."""

    cut: int = 0
    too_large: int = 0


def components(count: int, pairs: Iterable[Pair]) -> Iterator[list[int]]:
    """Yield the connected components of at least two records. Uses eight bytes of memory per record."""
    parent = array("q", range(count))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    linked = bytearray(count)
    for pair in pairs:
        linked[pair.a] = linked[pair.b] = 1
        a, b = root(pair.a), root(pair.b)
        if a != b:
            parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for number in range(count):
        if linked[number]:
            groups.setdefault(root(number), []).append(number)
    yield from groups.values()


def find_groups(candidates: MatchCandidates, counts: GroupCounts, most: int) -> Iterator[MatchGroup]:
    """Yield the groups among compared candidates, in order of their first record, with at most `most` members each."""
    following = candidates.pairs()
    for members in components(candidates.count, candidates.pairs()):
        if len(members) == 2:
            # Components come in the order of their first record, as pairs do.
            pair = next(pair for pair in following if pair.a == members[0])
            yield MatchGroup((pair.a, pair.b), (pair,), round(pair.score, 4))
        elif len(members) > COMPARED_WHOLE:
            counts.too_large += 1
        else:
            for group in clusters(members, candidates.pairs_among(members), counts):
                if len(group.members) > most:
                    counts.too_large += 1
                else:
                    yield group


def clusters(members: Sequence[int], pairs: Sequence[Pair], counts: GroupCounts) -> Iterator[MatchGroup]:
    """Yield the groups of one component.

    Starting with the best pairs, merge two clusters if at least half of the pairs between them match. If A is like B, B like C and C like
    D, A and D are not yet duplicates.
    """
    pairs_matched = {(pair.a, pair.b) for pair in pairs}
    home = {member: {member} for member in members}
    weakest: dict[int, float] = {}
    ordered = sorted(pairs, key=lambda pair: (-pair.score, pair.a, pair.b))
    for pair in ordered:
        first, other = home[pair.a], home[pair.b]
        if first is other:
            continue
        matching = sum((min(a, b), max(a, b)) in pairs_matched for a in first for b in other)
        if 2 * matching < len(first) * len(other):
            counts.cut += 1
            continue
        first |= other
        home.update(dict.fromkeys(other, first))
        weakest.update(dict.fromkeys(first, pair.score))
    done: set[int] = set()
    for member in members:
        cluster = home[member]
        if member in done or len(cluster) < 2:
            continue
        done |= cluster
        inside = [pair for pair in ordered if pair.a in cluster and pair.b in cluster]
        share = len(inside) / math.comb(len(cluster), 2)
        yield MatchGroup(tuple(sorted(cluster)), tuple(inside), round(weakest[member] * math.sqrt(share), 4))
