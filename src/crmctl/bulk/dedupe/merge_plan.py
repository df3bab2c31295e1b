"""Merge plans: a line of JSON about the whole, then one a group. Made to be edited: reading works out what a line means."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import whole_bytes
from crmctl.bulk.dedupe.survivorship import OF_SURVIVOR, MergedValue, MergeRecord, is_empty, merge_value, values_of
from crmctl.errors import UsageError, reason
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute

FORMAT = 1
KIND = "crmctl merge plan"
EDITABLE = "survivor, losers and values are yours to change; records say what was compared, and stay as they are"

MAKES_ONE = "crmctl bulk dedupe OBJECT --match EXPR --plan FILE makes one"


@dataclass(frozen=True)
class MergePlanHeader:
    """What all groups share. `as_of`: when the records were read."""

    object: str
    object_id: str
    origin: str
    version: str
    created_at: str
    match: Sequence[str]
    keep: Sequence[str]
    as_of: str | None = None

    def to_document(self) -> dict[str, Any]:
        return {
            "kind": KIND, "format": FORMAT, "version": self.version, "createdAt": self.created_at, "origin": self.origin,
            "object": self.object, "objectId": self.object_id, "match": list(self.match), "keep": list(self.keep), "asOf": self.as_of,
        }  # fmt: skip


@dataclass(frozen=True)
class MatchReason:
    """Two records of a group, the rule that holds for them, and how alike they are."""

    records: tuple[str, str]
    rule: str
    score: float


@dataclass(frozen=True)
class PlannedMerge:
    """One group: every record of `losers` becomes part of `survivor`, which then holds `values`. `records` are as they were compared.
    `line`: where in a file it was read."""

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

    def to_document(self) -> dict[str, Any]:
        """Its line."""
        return {
            "group": self.group,
            "score": self.score,
            "why": [{"rule": each.rule, "score": round(each.score, 4), "records": list(each.records)} for each in self.why],
            "survivor": self.survivor,
            "proposed": self.survivor,
            "losers": list(self.losers),
            "values": {slug: _value_document(value) for slug, value in self.values.items()},
            "records": {record.id: _record_document(record) for record in self.records},
        }


def fingerprint(data: Mapping[str, Any]) -> str:
    """What a record holds, in one word: empty values and the order of attributes aside."""
    return hashlib.sha256(jsontext.dumps(held(data), sort_keys=True).encode()).hexdigest()[:24]


def held(data: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that hold something."""
    return {slug: value for slug, value in data.items() if not is_empty(value)}


def write_merge_plan(path: Path, header: MergePlanHeader, merges: Iterable[PlannedMerge]) -> None:
    """Write a plan (0600), whole or not at all. Raises UsageError when that is not possible."""
    with whole_bytes(path, mode=0o600) as file:
        file.write(jsontext.dumps(header.to_document()).encode() + b"\n")
        for merge in merges:
            file.write(jsontext.dumps(merge.to_document()).encode() + b"\n")


def is_merge_plan(path: Path) -> bool:
    """Whether the first line of a file says that it is one; not so for what cannot be read."""
    try:
        with path.open("rb") as file:
            return f'"{KIND}"'.encode() in file.readline(1 << 20)
    except OSError:
        return False


class MergePlanFile:
    """A plan in its file. Reading it again gives the same, as long as nobody edits it."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a file that cannot be read, or whose first line is no header of a merge plan."""
        self.path = path
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
        """Every group, with what follows from how its line was edited. Raises UsageError that names the line for one that means nothing."""
        with self.path.open("rb") as file:
            file.readline()
            for number, line in enumerate(file, 2):
                if line.strip():
                    yield _Line(self.path, number, attributes).read(_parsed(self.path, number, line))


def _odd(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else "something is of another kind than it was"


@dataclass(frozen=True)
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
        if unknown := [one for one in (merge.survivor, *merge.losers) if one not in ids]:
            raise self._wrong(f"{unknown[0]} is no record of this group")
        losers = list(dict.fromkeys(one for one in merge.losers if one != merge.survivor))
        if merge.survivor in merge.losers:
            # Only the survivor was named anew: who was it before is to go. Who is named nowhere else was left out.
            left = [one for one in ids if one not in (merge.survivor, *losers)]
            losers += [document["proposed"]] if document.get("proposed") in left else left if len(left) == 1 else []
        if not losers:
            raise self._wrong("no record is left to be merged")
        named = replace(merge, losers=tuple(losers))
        return replace(named, values={slug: self._value(named, slug, value, document) for slug, value in merge.values.items()})

    def _as_written(self, document: Mapping[str, Any]) -> PlannedMerge:
        self._check_kinds(document)
        records = tuple(
            MergeRecord(record_id, one["data"], one.get("createdAt"), one.get("updatedAt"), one.get("activities"))
            for record_id, one in document["records"].items()
        )
        reasons = document.get("why", ())
        why = tuple(MatchReason((one["records"][0], one["records"][1]), one["rule"], one["score"]) for one in reasons)
        values = {
            slug: MergedValue(one.get("value"), tuple(_listed(one.get("from"))), one.get("by") or "")
            for slug, one in document["values"].items()
        }
        spelled = {record.id.lower(): record.id for record in records}
        survivor, *losers = (spelled.get(one.lower(), one) for one in (document["survivor"], *document["losers"]))
        score = float(document.get("score", 0.0))
        return PlannedMerge(document["group"], score, why, survivor, tuple(losers), values, records, self.number)

    def _check_kinds(self, document: Mapping[str, Any]) -> None:
        """What a person may have written in another form. Raises UsageError."""
        group, losers = document["group"], document["losers"]
        if not isinstance(group, int) or isinstance(group, bool) or not 0 <= group < 1 << 53:
            raise self._wrong(f"group is {jsontext.dumps(group)}, which is no number of a group")
        if not isinstance(document["survivor"], str):
            raise self._wrong("survivor is no id", 'for example "survivor": "ID"')
        if not isinstance(losers, list) or not all(isinstance(one, str) for one in losers):
            raise self._wrong("losers is no list of ids", 'for example "losers": ["ID"]')
        for name in ("values", "records"):
            if not isinstance(document[name], dict) or not all(isinstance(one, dict) for one in document[name].values()):
                raise self._wrong(f"{name} is not what it was", 'for example "values": {"name": {"value": "Ada"}}')

    def _value(self, merge: PlannedMerge, slug: str, value: MergedValue, document: Mapping[str, Any]) -> MergedValue:
        """A value that follows the survivor is that of the survivor there is now; one that names its record is what that record holds."""
        attribute = next((one for one in self.attributes if one.slug == slug), None)
        if attribute is None:
            raise self._wrong(f"there is no attribute {slug}")
        found = values_of(attribute, merge.records)
        is_given = "value" in document["values"][slug]
        if not value.sources:
            if not is_given:
                raise self._wrong(f"{slug} has neither a value nor a record it is from")
            return value
        if unknown := [one for one in value.sources if one not in found]:
            raise self._wrong(f"{slug} is from {unknown[0]}, which is no record of this group")
        if len(value.sources) > 1:
            return value
        source = found[value.sources[0]]
        if is_given and value.value != source and not (value.value is None and value.sources[0] == merge.survivor):
            hint = 'delete "from" to write a value of your own, or delete "value" to take that record\'s'
            raise self._wrong(f"{slug} is not what {value.sources[0]} holds", hint)
        proposed = str(document.get("proposed", merge.survivor))
        chosen_by_hand = value.sources[0] != proposed and not is_empty(found.get(proposed))
        if value.rule == OF_SURVIVOR and value.sources[0] != merge.survivor and is_given and not chosen_by_hand:
            members = [record for record in merge.records if record.id in (merge.survivor, *merge.losers)]
            return merge_value(members, merge.survivor, found, OF_SURVIVOR)
        return value if is_given else replace(value, value=source)

    def _wrong(self, what: str, hint: str = EDITABLE) -> UsageError:
        return UsageError(f"{self.path}, line {self.number}: {what}", hint=hint, code="malformed_plan")


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
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
    """Why a line is no JSON, and where in it."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    column = getattr(error, "colno", None)
    return f"{getattr(error, 'msg', error)}{f', column {column}' if column else ''}"


def _listed(value: Any) -> list[str]:
    return [] if value is None else [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _value_document(value: MergedValue) -> dict[str, Any]:
    source: Any = value.sources[0] if len(value.sources) == 1 else list(value.sources) or None
    return {"value": value.value, "from": source, "by": value.rule}


def _record_document(record: MergeRecord) -> dict[str, Any]:
    counted = {"activities": record.activities} if record.activities is not None else {}
    times = {"createdAt": record.created_at, "updatedAt": record.updated_at}
    return {**times, **counted, "hash": fingerprint(record.data), "data": held(record.data)}
