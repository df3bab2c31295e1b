"""Data checks: their files, their evaluation on the mirror, their outcomes and trend."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, create_model, model_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from crmctl.bulk_context import BulkContext
from crmctl.client.query.clauses import FilterReader
from crmctl.client.query.record_filter import ListOrder, QueryContext
from crmctl.client.query.record_query import RecordQuery
from crmctl.config.settings import write_private
from crmctl.errors import CrmctlError, NotFoundError, UsageError, reason
from crmctl.files.whole_files import whole_file
from crmctl.mirror.local_copy import LocalCopy, MirroredLists
from crmctl.mirror.sql import ask
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.findings import shorten
from crmctl.models.ids import suggestion
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType, Record
from crmctl.plan.ci_reports import Case
from crmctl.values import yaml_text
from crmctl.values.conditions import elements_of, keys_of, text_of
from crmctl.values.equality import as_written
from crmctl.values.folded_text import fold
from crmctl.values.moments import MICROS, micros_of, read_span, seconds_of, to_timestamp
from crmctl.values.object_spec import problems_of

RUNS = 30  # in the trend
SHOWN = 20  # ids of failing records in the output; the CSV has all
LEAST = 20  # records from which --suggest trusts the data
_BARS = "▁▂▃▄▅▆▇█"

T = TypeVar("T")


class CheckPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class DataCheck(CheckPart):
    """A check in a file. One more key is its kind, with the rule as its value (see KINDS)."""

    name: str
    object: str | None = None
    severity: Literal["error", "warn"] = "error"
    owner: str | None = None
    message: str | None = None
    max: int = Field(default=0, ge=0)
    _places: Mapping[str, str] = PrivateAttr(default_factory=dict)
    """File and line of each key."""

    @model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        if sum(getattr(self, kind) is not None for kind in KINDS) != 1:
            raise ValueError(f"needs exactly one of: {', '.join(KINDS)}")
        if self.object is None and self.kind != "sql":
            raise ValueError("needs an object")
        return self

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


def read_checks(folder: Path) -> list[DataCheck]:
    checks = [check for path in sorted(folder.glob("*.y*ml")) for check in _read_file(path)]
    if not checks:
        problem = f"{folder} holds no checks" if folder.is_dir() else f"there is no folder {folder} with checks"
        raise UsageError(problem, hint="crmctl check --suggest proposes some")
    places: dict[str, str] = {}
    for check in checks:
        if check.name in places:
            raise UsageError(f"{check._places['name']}: the name {check.name!r} is taken by {places[check.name]}")
        places[check.name] = check._places["name"]
    return checks


def _read_file(path: Path) -> Iterator[DataCheck]:
    try:
        document, lines = yaml_text.loads_with_lines(path.read_text(encoding="utf-8-sig"))
        file: Any = CHECK_FILE.model_validate(document)
    except ValidationError as error:
        problem, first = problems_of(error, document)[0], error.errors()[0]
        location = first["loc"]
        line = next((lines[location[:end]] for end in range(len(location), 0, -1) if location[:end] in lines), 1)
        hint = suggestion(str(location[-1]), CHECK.model_fields) if first["type"] == "extra_forbidden" else None
        raise UsageError(f"{path}, line {line}: {problem['place']} {problem['problem']}", hint=hint, code="bad_check_file") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {reason(error)}", code="bad_check_file") from error
    for number, check in enumerate(file.checks):
        check._places = {key: f"{path}, line {lines['checks', number, key]}" for key in document["checks"][number]}
        yield check


def _texts(attribute: Attribute, record: Record) -> list[str]:
    """Return the values as patterns see them: the items of a list, none if it is empty."""
    return [text for value in elements_of(record.data.get(attribute.slug)) if (text := text_of(attribute, as_written(value)))]


class CheckedData:
    """The mirror as a check sees it: the object with its attributes, the `columns`, and for filters every other object."""

    def __init__(self, copy: LocalCopy, context: BulkContext, name: str | None, seconds: float | None = None) -> None:
        """`seconds` limits SQL. Raises NotFoundError if the mirror does not have the object, as the methods do."""
        self.copy, self.context, self.seconds = copy, context, seconds
        self.slug, self.object_id, self.columns = "", "", dict[str, Attribute]()
        if name is None:
            return  # a query in SQL needs no object
        states = {key: state for state in copy.states() if state.syncs for key in (state.slug, state.object_id)}
        if name not in states:
            raise NotFoundError(f"{name} is not in the mirror", hint=suggestion(name, states, f"crmctl mirror sync {name} adds it"))
        self.slug, self.object_id = states[name].slug, states[name].object_id
        attributes = copy.attributes(self.object_id)
        self.columns = {attribute.slug: attribute for attribute in attributes if attribute.slug not in states[name].excluded}

    def column(self, slug: str) -> Attribute:
        """Raises UsageError for an unknown or excluded attribute."""
        if slug not in self.columns:
            hint = suggestion(slug, self.columns, f"it has {', '.join(self.columns)}")
            raise UsageError(f"{self.slug} has no attribute {slug!r}", hint=hint, code="unknown_attribute")
        return self.columns[slug]

    def records(self) -> Iterator[Record]:
        for page in self.copy.pages(self.object_id):
            yield from page

    def attributes(self, of: str) -> list[Attribute]:
        return [*CheckedData(self.copy, self.context, of).columns.values()]

    def with_object(self, of: str, use: Callable[[str], T]) -> T:
        return use(CheckedData(self.copy, self.context, of).object_id)


Failing = tuple[str | None, str]
"""The id of a record that fails a check, None for a row without one, and why it fails."""

Found = Iterator[Failing]
Names = Annotated[list[str], Field(min_length=1)]
Conditions = Annotated[Names, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]


def _not_empty(data: CheckedData, rule: Names) -> Found:
    columns = [data.column(name) for name in rule]
    for record in data.records():
        if empty := [column.slug for column in columns if not _texts(column, record)]:
            yield record.id, f"{', '.join(empty)} is empty"


def _unique(data: CheckedData, rule: Names) -> Found:
    columns, keys = [data.column(name) for name in rule], dict[str, tuple[str, ...]]()
    for record in data.records():
        keys[record.id] = tuple("\0".join(sorted(keys_of(column, record.data.get(column.slug)))) for column in columns)
    counts = Counter(keys.values())
    yield from ((record_id, f"{', '.join(rule)} is shared") for record_id, key in keys.items() if counts[key] > 1 and all(key))


def _outside(data: CheckedData, column: Attribute, fits: Callable[[str], bool]) -> Found:
    for record in data.records():
        if other := next((text for text in _texts(column, record) if not fits(text)), None):
            yield record.id, f"{column.slug} is {shorten(other)!r}"


def _whole_match(pattern: object) -> Callable[[str], bool]:
    """Return a test of whole texts by pydantic's engine, which takes no longer than a text is long. Raises ValueError."""
    if not isinstance(pattern, str):
        raise ValueError("must be text")
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern))  # by itself: its parentheses may not close the group below
        return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?:{pattern})\z")).isinstance_python
    except SchemaError as error:
        raise ValueError(f"must be a valid regular expression: {reason(error).rpartition('error: ')[2]}") from error


class Pattern(CheckPart):
    attribute: str
    pattern: Annotated[Callable[[str], bool], BeforeValidator(_whole_match)]


def _matches(data: CheckedData, rule: Pattern) -> Found:
    return _outside(data, data.column(rule.attribute), rule.pattern)


class Choice(CheckPart):
    attribute: str
    values: list[Any] = Field(min_length=1)


def _in(data: CheckedData, rule: Choice) -> Found:
    column = data.column(rule.attribute)
    return _outside(data, column, {text_of(column, as_written(value)) for value in rule.values}.__contains__)


def _references(data: CheckedData, rule: Names) -> Found:
    targets = []
    for column in map(data.column, rule):
        target = column.target_object_id
        if target is None:
            raise UsageError(f"{column.slug} is no reference")
        state = data.copy.state(target)
        if state is None:
            raise NotFoundError(f"the mirror lacks the object that {column.slug} refers to", hint="crmctl mirror sync OBJECT")
        targets.append((column, set(map(fold, data.copy.ids(target))), state.as_of))
    for record in data.records():
        changed = micros_of(record.updated_at) or 0
        # A reference may be newer than the copy of the object it leads to.
        of_copies = [(column, ids) for column, ids, as_of in targets if changed < as_of]
        references = [(column.slug, key, ids) for column, ids in of_copies for key in keys_of(column, record.data.get(column.slug))]
        if missing := [f"{slug} refers to {key}" for slug, key, ids in references if key not in ids]:
            yield record.id, f"{missing[0]}, which does not exist"


def _fresh(data: CheckedData, rule: Annotated[float, BeforeValidator(read_span)]) -> Found:
    since = data.context.clock.now() - rule
    if all((seconds_of(record.updated_at or record.created_at) or 0) < since for record in data.records()):
        yield None, f"no record of {data.slug} has changed since {to_timestamp(int(since) * MICROS)}"


def _filter(data: CheckedData, rule: Conditions) -> Found:
    note = data.context.listener.note
    context = QueryContext(MirroredLists(data.copy), data, data.context.clock.now(), warn=note, tell=note, strict=True)
    for record in RecordQuery(context, data.slug, FilterReader(context, data.slug).read(rule), ListOrder(order="asc")).records():
        yield record.id, f"matches {', '.join(rule)}"


def _sql(data: CheckedData, rule: str) -> Found:
    for row in ask(data.copy.path, rule, {}, data.context.clock, data.seconds):
        record_id = row.get("id")
        shown = ", ".join(f"{name}={shorten(value)}" for name, value in row.items() if name != "id")
        yield record_id if isinstance(record_id, str) and data.slug else None, shown or "the query returns this row"


_SEARCHES: Sequence[Callable[[CheckedData, Any], Found]] = (_not_empty, _unique, _matches, _in, _references, _fresh, _filter, _sql)
KINDS = {search.__name__.removeprefix("_"): search for search in _SEARCHES}
"""The search for what fails by the kind of check. Its parameter `rule` has the type of the rule in a file."""

_FIELDS: dict[str, Any] = {name: (get_type_hints(find, include_extras=True)["rule"] | None, None) for name, find in KINDS.items()}
CHECK = create_model("Check", __base__=DataCheck, **_FIELDS)
CHECK_FILE = create_model("CheckFile", __base__=CheckPart, checks=(Sequence[CHECK], ...))


@dataclass
class Outcome:
    """The result of a check. `trend` holds the numbers of failures of the last runs, `file` the failing records of its object."""

    check: DataCheck
    failures: Sequence[Failing]
    trend: Sequence[int] = ()
    file: Path | None = None

    @property
    def status(self) -> str:
        if len(self.failures) <= self.check.max:
            return "passed"
        return "failed" if self.check.severity == "error" else "warned"

    @property
    def text(self) -> str | None:
        """The check's own message, then the first failure; None if it passed."""
        if self.status == "passed":
            return None
        failing = f"{len(self.failures):,} failing, for example {self.failures[0][1]}"
        return f"{self.check.message}: {failing}" if self.check.message else failing

    def to_document(self) -> Json:
        facts = self.check.model_dump(include={"name", "object", "severity", "max", "owner"})
        facts |= {"kind": self.check.kind, "status": self.status, "failing": len(self.failures), "message": self.text}
        facts["ids"] = [record_id for record_id, _ in self.failures[:SHOWN] if record_id is not None]
        return facts | {"file": None if self.file is None else str(self.file), "trend": list(self.trend)}

    def to_case(self) -> Case:
        name, level = self.check.name, {"failed": "error", "warned": "warning"}.get(self.status, "")
        cells = {"check": name, "object": self.check.object, "status": self.status, "failing": len(self.failures)}
        file, _, line = self.check._places[self.check.kind].rpartition(", line ")
        return Case(level, name, file, (int(line), int(line)), name, self.text or "", cells | {"owner": self.check.owner, "": self.text})


def open_mirror(context: BulkContext, *, sync: bool) -> LocalCopy:
    """Open the mirror, synced first on request. Raises NotFoundError without one."""
    if sync and not sync_mirror(context, SyncRequest([])).is_proven:
        context.listener.note("the mirror is not proven complete; the checks use what it has")
    copy = LocalCopy.find(context)
    if copy is None:
        raise NotFoundError("there is no mirror of this service", hint="crmctl mirror sync makes it", code="no_mirror")
    return copy


def run_checks(copy: LocalCopy, context: BulkContext, checks: Sequence[DataCheck], seconds: float | None) -> list[Outcome]:
    """Evaluate the checks on the mirror. Errors name the line in the file."""
    outcomes = []
    for check in checks:
        key = "object"
        try:
            data = CheckedData(copy, context, check.object, seconds)
            key = check.kind
            outcomes.append(Outcome(check, list(KINDS[key](data, getattr(check, key)))))
        except CrmctlError as error:
            error.message = f"{check._places[key]}: {error.message}"
            raise
    return outcomes


def suggest_checks(copy: LocalCopy, context: BulkContext) -> list[Json]:
    proposals: dict[str, Json] = {}
    for data in [CheckedData(copy, context, state.slug) for state in copy.states() if state.syncs]:
        records = list(data.records())
        for slug, attribute in data.columns.items():
            filled = sum(bool(_texts(attribute, record)) for record in records)
            identifies = attribute.type in (AttributeType.EMAIL, AttributeType.PHONE_NUMBER) and filled >= LEAST
            rules = {
                "not_empty": (attribute.is_required or filled == len(records) >= LEAST) and [slug],
                "unique": (attribute.is_unique or (identifies and not any(_unique(data, [slug])))) and [slug],
                "references": attribute.type == AttributeType.REFERENCE and [slug],
                "in": attribute.type == AttributeType.SELECT and attribute.options and {"attribute": slug, "values": attribute.options},
            }
            for kind, rule in ((kind, rule) for kind, rule in rules.items() if rule):
                name = f"{data.slug}-{slug}-{kind}".replace("_", "-")
                name += f"-{len(proposals) + 1}" if name in proposals else ""
                proposals[name] = {"name": name, "object": data.slug, kind: rule}
    return list(proposals.values())


def keep_outcomes(context: BulkContext, folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Add a run of the checks in a folder to their trend, and write the failing records of each object to a CSV."""
    digest = hashlib.sha256(f"{context.profile} {context.origin} {folder.resolve()}".encode()).hexdigest()[:12]
    place = context.state / "checks" / digest
    trend = place / "runs.json"
    try:
        runs = {name: [int(number) for number in numbers] for name, numbers in jsontext.loads(trend.read_text("utf-8")).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        runs = {}  # no run yet, or a damaged file
    for outcome in outcomes:
        outcome.trend = runs[outcome.check.name] = [*runs.get(outcome.check.name, []), len(outcome.failures)][-RUNS:]
    write_private(trend, jsontext.dumps(runs))
    for old in place.glob("*.csv"):
        old.unlink()
    rows: dict[Path, dict[str, tuple[str, str, str]]] = defaultdict(dict)
    for outcome in outcomes:
        for record_id, problem in outcome.failures if outcome.status != "passed" else ():
            if record_id is not None:
                outcome.file = place / f"{outcome.check.object}.csv"
                rows[outcome.file].setdefault(record_id, (record_id, outcome.check.name, problem))
    for path, lines in rows.items():
        with whole_file(path, errors="backslashreplace", mode=0o600) as file:
            csv.writer(file).writerows([("id", "check", "problem"), *lines.values()])


def trend_text(numbers: Sequence[int]) -> str:
    """Return `▁▁▃█` for the failures of the last runs."""
    most = max(numbers, default=0)
    return "".join(_BARS[0] if not number else _BARS[max(1, round(number * 7 / most))] for number in numbers)
