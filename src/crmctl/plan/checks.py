"""Data checks: their files, and their evaluation on the mirror."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from crmctl.bulk_context import BulkContext
from crmctl.client.query.clauses import FilterReader
from crmctl.client.query.record_filter import Admits, QueryContext
from crmctl.errors import NotFoundError, UsageError, reason
from crmctl.mirror.local_copy import LocalCopy
from crmctl.mirror.sql import ask
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models.field_paths import value_at
from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.models.numbers import canonical_number
from crmctl.models.resources import Attribute, AttributeType, Record
from crmctl.values import yaml_text
from crmctl.values.conditions import keys_of, value_test
from crmctl.values.moments import seconds_of

_SPAN = re.compile(r"[0-9]{1,5}[mhdw]", re.ASCII)
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True)
class DataCheck:
    """One check; `places` holds the file and line of its keys. `rule` is the value of its kind in the file."""

    places: Mapping[str, str]
    name: str
    kind: str
    rule: Any
    object: str | None = None
    severity: str = "error"
    owner: str | None = None
    message: str | None = None
    max: int = 0

    @property
    def place(self) -> str:
        return self.places[self.kind]


@dataclass
class Outcome:
    """The result of a check: the failing records, or rows without an id."""

    check: DataCheck
    failures: list[tuple[str | None, str]] = field(default_factory=list)
    """Id of the record, and why it fails."""

    @property
    def status(self) -> str:
        if len(self.failures) <= self.check.max:
            return "passed"
        return "failed" if self.check.severity == "error" else "warned"


def read_checks(folder: Path) -> list[DataCheck]:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} with checks", hint="crmctl check --suggest proposes some")
    checks = [check for path in sorted(folder.glob("*.y*ml")) for check in _read_file(path)]
    if not checks:
        raise UsageError(f"{folder} holds no checks", hint="crmctl check --suggest proposes some")
    places: dict[str, str] = {}
    for check in checks:
        if check.name in places:
            raise UsageError(f"{check.places['name']}: the name {check.name!r} is taken by {places[check.name]}")
        places[check.name] = check.places["name"]
    return checks


def _read_file(path: Path) -> Iterator[DataCheck]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        document, root = yaml_text.loads(text), cast(Any, yaml.compose(text, Loader=yaml.SafeLoader))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {reason(error)}", code="bad_check_file") from error
    if not isinstance(document, dict) or list(document) != ["checks"] or not isinstance(document["checks"], list):
        raise _wrong(f"{path}, line 1", "the file must hold one list: checks:")
    for entry, node in zip(document["checks"], root.value[0][1].value, strict=True):
        place = f"{path}, line {node.start_mark.line + 1}"
        if not isinstance(entry, dict):
            raise _wrong(place, "a check is an object with a name")
        yield _read_check(entry, place, {key.value: f"{path}, line {key.start_mark.line + 1}" for key, _ in node.value})


def _read_check(entry: Json, place: str, places: Mapping[str, str]) -> DataCheck:
    """Return the check of an entry at `place`, whose keys are at `places`. Raises UsageError."""
    names = (*FIELDS, *RULES)
    if unknown := next((name for name in entry if name not in names), None):
        raise _wrong(places[unknown], f"unknown key {unknown!r}", suggestion(unknown, names, f"keys: {', '.join(names)}"))
    kinds = [name for name in entry if name in RULES]
    if len(kinds) != 1:
        raise _wrong(places[kinds[1]] if kinds else place, f"a check needs exactly one of: {', '.join(RULES)}")
    for name in ("name",) if kinds == ["sql"] else ("name", "object"):
        if name not in entry:
            raise _wrong(place, f"{name} is missing")
    for name, value in entry.items():
        form, fits = FIELDS[name] if name in FIELDS else RULES[name].value
        try:
            if not fits(value):
                raise _wrong(places[name], f"{name} must be {form}, not {value!r}")
        except re.error as error:
            raise _wrong(places[name], f"{name} has a pattern that is no regular expression: {error}") from error
    fields = {name: value for name, value in entry.items() if name in FIELDS}
    return DataCheck(places, kind=kinds[0], rule=entry[kinds[0]], **fields)


def _wrong(place: str, problem: str, hint: str | None = None) -> UsageError:
    return UsageError(f"{place}: {problem}", hint=hint, code="bad_check_file")


class MirroredObject:
    """An object in the mirror with its attributes."""

    def __init__(self, copy: LocalCopy, check: DataCheck) -> None:
        """Raises NotFoundError if the mirror does not have the object."""
        states = {name: state for state in copy.states() if state.syncs for name in (state.slug, state.object_id)}
        if check.object not in states:
            hint = suggestion(check.object or "", states, f"crmctl mirror sync {check.object} adds it")
            raise NotFoundError(f"{check.places['object']}: {check.object} is not in the mirror", hint=hint)
        state = states[check.object]
        self.copy, self.check, self.slug, self.object_id = copy, check, state.slug, state.object_id
        self.attributes = {attribute.slug: attribute for attribute in copy.attributes(state.object_id)}
        self._excluded = state.excluded

    def attribute(self, name: str) -> Attribute:
        """Return an attribute by its slug, or by the slug and a part. Raises UsageError for an unknown or excluded one."""
        slug = name.partition(".")[0]
        if slug not in self.attributes or slug in self._excluded:
            mirrored = [slug for slug in self.attributes if slug not in self._excluded]
            raise _wrong(
                self.check.place, f"{self.slug} has no attribute {slug!r}", suggestion(slug, mirrored, f"it has {', '.join(mirrored)}")
            )
        return self.attributes[slug]

    def records(self) -> Iterator[Record]:
        for page in self.copy.pages(self.object_id):
            yield from page


Found = Iterator[tuple[str | None, str]]


Value = tuple[str, Callable[[Any], bool]]
"""The value of a key in a check: its form in words, and whether a value has it."""


@dataclass(frozen=True)
class CheckKind:
    """A kind of check: the value of its key, and a search that yields what fails."""

    value: Value
    find: Callable[[MirroredObject, Any, BulkContext], Found]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_pattern(value: Any) -> bool:
    """Whether a value is an attribute with a pattern. Raises re.error for a bad one."""
    is_form = isinstance(value, dict) and value.keys() == {"attribute", "pattern"} and all(map(_is_text, value.values()))
    return is_form and bool(re.compile(value["pattern"]))


def _is_choice(value: Any) -> bool:
    is_form = isinstance(value, dict) and value.keys() == {"attribute", "values"} and _is_text(value["attribute"])
    return is_form and isinstance(value["values"], list) and bool(value["values"])


TEXT: Value = ("a text", _is_text)
NAMES: Value = ("a list of attributes: [email]", _are_texts)
FIELDS: dict[str, Value] = {
    **dict.fromkeys(("name", "object", "owner", "message"), TEXT),
    "severity": ("error or warn", lambda value: value in ("error", "warn")),
    "max": ("a whole number from 0", lambda value: type(value) is int and value >= 0),
}
"""The keys of a check besides the one of its kind."""


def values_of(name: str, record: Record) -> list[Any]:
    """Return the values of an attribute or part: the items of a list, none if it is empty."""
    value = value_at(record.data, tuple(name.split(".")))
    items = value if isinstance(value, list) else [value]
    return [item for item in items if not _is_empty(item)]


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value == "" or value == []


def _text(value: Any) -> str:
    """Return a value as its patterns see it: a composite's parts joined by blanks, 12.0 as 12."""
    if isinstance(value, dict):
        return " ".join(_text(part) for part in value.values() if not _is_empty(part))
    if isinstance(value, bool):
        return str(value).lower()
    return canonical_number(value) if isinstance(value, int | float | Decimal) else str(value)


def _not_empty(held: MirroredObject, names: Sequence[str], _context: BulkContext) -> Found:
    for name in names:
        held.attribute(name)
    for record in held.records():
        if empty := [name for name in names if not values_of(name, record)]:
            yield record.id, f"{', '.join(empty)} is empty"


def _unique(held: MirroredObject, names: Sequence[str], _context: BulkContext) -> Found:
    attributes = {name: held.attribute(name) for name in names}
    first: dict[tuple[str, ...], str] = {}
    seen: set[str] = set()
    for record in held.records():
        values = {name: values_of(name, record) for name in names}
        if not all(values.values()):
            continue
        parts = [
            _text(values[name]).casefold() if "." in name else "\0".join(sorted(keys_of(attributes[name], record.data.get(name))))
            for name in names
        ]
        other = first.setdefault(tuple(parts), record.id)
        if other != record.id:
            shown = f"{', '.join(names)} is shared"
            if other not in seen:
                seen.add(other)
                yield other, shown
            yield record.id, shown


def _outside(held: MirroredObject, name: str, fits: Callable[[str], object]) -> Found:
    held.attribute(name)
    for record in held.records():
        if other := [text for text in map(_text, values_of(name, record)) if not fits(text)]:
            yield record.id, f"{name} is {other[0]!r}"


def _matches(held: MirroredObject, rule: Json, _context: BulkContext) -> Found:
    return _outside(held, rule["attribute"], re.compile(rule["pattern"]).fullmatch)


def _in(held: MirroredObject, rule: Json, _context: BulkContext) -> Found:
    return _outside(held, rule["attribute"], set(map(_text, rule["values"])).__contains__)


def _references(held: MirroredObject, names: Sequence[str], _context: BulkContext) -> Found:
    targets = {}
    for name in names:
        target = (held.attribute(name).config or {}).get("allowed_object_id")
        if held.attribute(name).type != AttributeType.REFERENCE or not isinstance(target, str):
            raise _wrong(held.check.place, f"{name} is no reference")
        if held.copy.state(target) is None:
            raise NotFoundError(f"{held.check.place}: the mirror lacks the object that {name} refers to", hint="crmctl mirror sync OBJECT")
        targets[name] = {record_id.lower() for record_id in held.copy.ids(target)}
    for record in held.records():
        for name, ids in targets.items():
            keys = [key for key in keys_of(held.attribute(name), record.data.get(name)) if key.lower() not in ids]
            if keys:
                yield record.id, f"{name} refers to {keys[0]}, which does not exist"


def _fresh(held: MirroredObject, rule: str, context: BulkContext) -> Found:
    newest = max((seconds_of(record.updated_at) or 0 for record in held.records()), default=0)
    if context.clock.now() - newest > int(rule[:-1]) * _UNITS[rule[-1]]:
        yield None, f"no record of {held.slug} has changed for {rule}"


def _filter(held: MirroredObject, rule: str | list[str], context: BulkContext) -> Found:
    def tell(text: str) -> None:
        context.listener.note(f"{held.check.place}: {text}")

    query_context = QueryContext(context.crm, context.directory, context.clock.now(), warn=tell, tell=tell, strict=True)
    try:
        record_filter = FilterReader(query_context, held.slug).read([rule] if isinstance(rule, str) else rule)
    except UsageError as error:
        raise _wrong(held.check.place, error.message, error.hint) from error
    tests = [
        (condition.slug, value_test(held.attribute(condition.slug), condition.operator, condition.value))
        for condition in record_filter.conditions
    ]
    further: list[Admits] = [*(choice.admits for choice in record_filter.choices), *(bound.admits for bound in record_filter.bounds)]
    further += [condition.admits for condition in record_filter.local_conditions]
    for record in () if record_filter.is_impossible else held.records():
        if all(test(record.data.get(slug)) for slug, test in tests) and all(admits(record) for admits in further):
            yield record.id, f"matches {rule if isinstance(rule, str) else ', '.join(rule)}"


RULES: dict[str, CheckKind] = {
    "not_empty": CheckKind(NAMES, _not_empty),
    "unique": CheckKind(NAMES, _unique),
    "matches": CheckKind(("{attribute: SLUG, pattern: REGEX}", _is_pattern), _matches),
    "in": CheckKind(("{attribute: SLUG, values: [...]}", _is_choice), _in),
    "references": CheckKind(NAMES, _references),
    "fresh": CheckKind(("a duration such as 2d or 12h", lambda value: _is_text(value) and bool(_SPAN.fullmatch(value))), _fresh),
    "filter": CheckKind(("a condition or a list of conditions", lambda value: _is_text(value) or _are_texts(value)), _filter),
    "sql": CheckKind(("a SELECT", _is_text), lambda *_: iter(())),
}
"""The kinds of checks by their key in the file."""


@contextmanager
def open_mirror(context: BulkContext, *, sync: bool) -> Iterator[LocalCopy]:
    """Open the mirror, synced first on request. Raises NotFoundError without one."""
    if sync and not sync_mirror(context, SyncRequest([])).is_proven:
        context.listener.note("the mirror is not proven complete; the checks use what it has")
    copy = LocalCopy.find(context)
    if copy is None:
        raise NotFoundError("there is no mirror of this service", hint="crmctl mirror sync makes it", code="no_mirror")
    with copy:
        yield copy


def run_checks(copy: LocalCopy, context: BulkContext, checks: Sequence[DataCheck], seconds: float | None) -> list[Outcome]:
    """Evaluate the checks on the mirror. Raises UsageError and NotFoundError for what a check cannot use."""
    return [Outcome(check, list(_find(copy, check, context, seconds))) for check in checks]


def _find(copy: LocalCopy, check: DataCheck, context: BulkContext, seconds: float | None) -> Found:
    if check.kind != "sql":
        yield from RULES[check.kind].find(MirroredObject(copy, check), check.rule, context)
        return
    if check.object:
        MirroredObject(copy, check)  # the object of the file of failing records
    try:
        for row in ask(copy.path, check.rule, {}, context.clock, seconds):
            record_id = row.get("id")
            shown = ", ".join(f"{name}={value}" for name, value in row.items() if name != "id")
            yield (record_id if isinstance(record_id, str) and check.object else None), shown or "the query returns this row"
    except UsageError as error:
        raise _wrong(check.place, error.message, error.hint) from error


LEAST = 20
"""Records from which --suggest trusts the data."""


def suggest_checks(copy: LocalCopy) -> list[Json]:
    """Propose checks from the schema and the data."""
    proposals: dict[str, Json] = {}
    for state in copy.states():
        mirrored = MirroredObject(copy, DataCheck({}, "", "", None, object=state.slug))
        records = list(mirrored.records())
        for slug, attribute in mirrored.attributes.items():
            if slug in state.excluded:
                continue
            filled = sum(bool(values_of(slug, record)) for record in records)
            rules: Json = {}
            if attribute.is_required or (len(records) >= LEAST and filled == len(records)):
                rules["not_empty"] = [slug]
            if attribute.is_unique or (filled >= LEAST and _is_key(attribute, records)):
                rules["unique"] = [slug]
            if attribute.type == AttributeType.REFERENCE:
                rules["references"] = [slug]
            if attribute.type == AttributeType.SELECT and attribute.options:
                rules["in"] = {"attribute": slug, "values": list(attribute.options)}
            for kind, rule in rules.items():
                name = f"{state.slug}-{slug}-{kind}".replace("_", "-")
                name += f"-{len(proposals) + 1}" if name in proposals else ""
                proposals[name] = {"name": name, "object": state.slug, kind: rule}
    return list(proposals.values())


def _is_key(attribute: Attribute, records: Sequence[Record]) -> bool:
    if attribute.type not in (AttributeType.EMAIL, AttributeType.PHONE_NUMBER):
        return False
    keys = [tuple(keys_of(attribute, record.data.get(attribute.slug))) for record in records if values_of(attribute.slug, record)]
    return len(set(keys)) == len(keys)
