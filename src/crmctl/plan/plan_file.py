"""Save the decision for each row in a plan file, and compare it with the current records."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from crmctl.errors import CrmctlError, RejectedError, UsageError, reason
from crmctl.files.mapping import Mode, schema_digest
from crmctl.files.sources import GivenInput
from crmctl.files.spills import Spill
from crmctl.files.validation import Payload
from crmctl.files.whole_files import check_place, is_special, whole_bytes
from crmctl.frozen import frozen
from crmctl.match.keys import KeyIndex, Wanted
from crmctl.models import jsontext
from crmctl.models.resources import Attribute
from crmctl.plan.import_plan import NO_ID, ImportPlan, PlannedInput, RowAction, file_digest, open_input
from crmctl.plan.row_actions import AMBIGUOUS, Resolution, Resolver
from crmctl.read.read_back import Reader
from crmctl.read.records import fetch
from crmctl.read.stable_pages import SeenIds
from crmctl.values.equality import is_unchanged
from crmctl.write.database import JobKind
from crmctl.write.journal import Header

INVALID, AMBIGUOUS_ROW = "invalid", "ambiguous"

LISTED_DIFFERENCES = 100
"""Maximum number of listed differences; the count is exact."""

NAMED_DIFFERENCES = 5
"""Maximum number of differences in the message."""


class Decision(NamedTuple):
    """Decision for one row.

    `action`: create, update, unchanged, skip, invalid or ambiguous. `id` and `record`: id and fingerprint of the record to update.
    `payload`: fingerprint of the payload. `changes`: the attributes that get a new value.
    """

    row: int
    line: int
    action: str
    id: str | None = None
    record: str | None = None
    payload: str | None = None
    changes: tuple[str, ...] | None = None
    reason: str | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the JSON form without null fields."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Decision:
        """Parse the output of `to_document`. Raises TypeError or KeyError for anything else."""
        changes = document.get("changes")
        return cls(**{**document, "changes": None if changes is None else tuple(changes)})


class Decisions(Spill):
    """Decisions of one import. Add them in any order; iteration follows the order of the rows."""

    TABLES = """
CREATE TABLE decision (row INTEGER PRIMARY KEY, id TEXT, document TEXT NOT NULL);
CREATE TABLE state (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
"""

    def __init__(self) -> None:
        super().__init__()
        self._ids = self.enter_context(SeenIds())

    def add_row(self, payload: Payload, mode: Mode) -> None:
        """Add a row that needs no lookup by key. Call `see_records` later to read the records that such rows name."""
        finding = next((finding for finding in payload.findings if finding.rejects), None)
        if finding is not None:
            reason = finding.message if finding.column is None else f"{finding.column}: {finding.message}"
            self._add(Decision(payload.ordinal, payload.first_line, INVALID, reason=reason))
            return
        record_id = payload.id.lower() if mode is not Mode.CREATE and payload.id else None
        if record_id is not None:
            self._ids.add(record_id)
        elif mode is Mode.UPDATE:
            self._add(Decision(payload.ordinal, payload.first_line, str(RowAction.SKIP), reason=NO_ID))
            return
        action = RowAction.CREATE if record_id is None else RowAction.UPDATE
        self._add(Decision(payload.ordinal, payload.first_line, str(action), record_id, payload=fingerprint(payload.data)))

    def add_rows(self, planned: PlannedInput, reader: Reader) -> None:
        """Add the rows of an import without a key, and read the records they name. Raises read errors."""
        for payload in planned.payloads():
            self.add_row(payload, planned.mapping.options.mode)
        self.see_records(reader)

    def add_outcomes(self, resolver: Resolver, index: KeyIndex) -> None:
        for row, outcome in resolver.outcomes(index):
            self.add_outcome(row, outcome, resolver, index)

    def add_outcome(self, row: Wanted, outcome: Resolution, resolver: Resolver, index: KeyIndex) -> None:
        finding = outcome.finding
        if finding is not None and outcome.action is RowAction.REJECT:
            action = AMBIGUOUS_ROW if finding.code == AMBIGUOUS else INVALID
            self._add(Decision(row.ordinal, row.line, action, reason=f"{finding.column}: {finding.message}"))
            return
        changes = current = None
        if row.key is not None and outcome.record_id is not None:
            current = dict(index.found(row.key)).get(outcome.record_id)
        if outcome.action is RowAction.UPDATE and current is not None:
            attributes = {attribute.slug: attribute for attribute in resolver.attributes}
            changes = tuple(slug for slug, value in row.data.items() if not is_unchanged({slug: value}, current, attributes))
        record = fingerprint(current) if current is not None else None
        self._add(
            Decision(row.ordinal, row.line, str(outcome.action), outcome.record_id, record, fingerprint(row.data), changes, outcome.reason)
        )

    def see_records(self, reader: Reader) -> None:
        """Read the records that rows name by id. Raises read errors."""
        for page in fetch(reader, self._ids):
            states = ((record.id.lower(), fingerprint(record.data)) for record in page)
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", states)

    def __iter__(self) -> Iterator[Decision]:
        query = "SELECT document, record FROM decision LEFT JOIN state USING (id) ORDER BY row"
        for document, record in self._db.execute(query):
            decision = Decision.from_document(jsontext.loads(document))
            yield decision if record is None else decision._replace(record=record)

    def _add(self, decision: Decision) -> None:
        own = decision.id if decision.record is None else None
        self._db.execute("INSERT INTO decision VALUES (?, ?, ?)", (decision.row, own, jsontext.dumps(decision.to_document())))


@dataclass
class Differences:
    """Differences between a plan and the current decisions. All are counted, the first ones listed."""

    count: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, planned: Decision | None, now: Decision | None) -> None:
        self.count += 1
        if len(self.listed) < LISTED_DIFFERENCES:
            row = planned or now
            assert row is not None
            record_id = (now.id if now is not None else None) or (planned.id if planned is not None else None)
            self.listed.append({"row": row.row, "line": row.line, "id": record_id, "message": _difference(planned, now)})

    @property
    def refusal(self) -> RejectedError:
        named = [
            f"line {difference['line']}{' (record ' + difference['id'] + ')' if difference['id'] else ''}: {difference['message']}"
            for difference in self.listed[:NAMED_DIFFERENCES]
        ]
        more = f"; and {self.count - NAMED_DIFFERENCES:,} more" if self.count > NAMED_DIFFERENCES else ""
        rows = "one row does" if self.count == 1 else f"{self.count:,} rows do"
        return RejectedError(
            f"{rows} something else than the plan says, so nothing was sent: {'; '.join(named)}{more}",
            hint="make it anew: crmctl bulk import OBJECT FILE --dry-run --plan PLAN",
            code="plan_outdated",
            details={"changed": ["records"], "differences": self.listed, "count": self.count},
        )


def compare(planned: Iterable[Decision], now: Iterable[Decision]) -> Differences:
    """Compare two sets of decisions, both in row order. Rows invalid in both are ignored."""
    differences = Differences()
    both = merge(((row.row, 0, row) for row in planned), ((row.row, 1, row) for row in now))
    for _, decisions in groupby(both, key=itemgetter(0)):
        sides = {side: decision for _, side, decision in decisions if decision.action != INVALID}
        planned_row, other = sides.get(0), sides.get(1)
        if (planned_row and _essence(planned_row)) != (other and _essence(other)):
            differences.add(planned_row, other)
    return differences


def fingerprint(data: Mapping[str, Any]) -> str:
    """Return a hash of the data, so that a plan can detect changes without storing the values."""
    return hashlib.blake2b(jsontext.dumps(data, sort_keys=True).encode(), digest_size=12).hexdigest()


def _essence(decision: Decision) -> tuple[Any, ...]:
    return decision.action, decision.id, decision.record, decision.payload


def _difference(planned: Decision | None, now: Decision | None) -> str:
    if planned is None or now is None:
        return "the row was not valid when the plan was made" if planned is None else "the row is not valid any more"
    if planned.action != now.action:
        return f"{planned.action} when the plan was made, {now.action} now"
    if planned.id != now.id:
        return f"it meant record {planned.id}"
    if planned.payload != now.payload:
        return "other values of it would be written now: a reference means another record, or people's values count"
    return "the record is gone" if now.record is None else "the record has changed"


FORMAT = 4
KIND = "crmctl import plan"

LONGEST_HEADER = 10_000_000


@frozen
class SavedPlan:
    """A plan read from its file, with a matching checksum. `header`: that of its job; `summary`: the forecast."""

    path: Path
    header: Header
    plan: ImportPlan
    summary: Mapping[str, Any]
    _start: int = field(repr=False)

    def decisions(self) -> Iterator[Decision]:
        with self.path.open("rb") as file:
            file.seek(self._start)
            for line in file:
                yield Decision.from_document(jsontext.loads(line))


def check_plan_path(path: Path, source: Path) -> None:
    """Raise UsageError if no plan can be written to this path. Call this before reading the input."""
    if is_special(path) and not path.is_dir():
        raise UsageError(f"cannot write {path}: not a file", code="unwritable_file")
    check_place(path, source)


def write_plan(path: Path, header: Header, summary: Mapping[str, Any], decisions: Decisions) -> None:
    """Write a plan atomically with mode 0600. Raises UsageError if that fails."""
    document = {**asdict(header), "kind": KIND, "format": FORMAT, "summary": dict(summary)}
    digest, rows = hashlib.sha256(jsontext.dumps(document, sort_keys=True).encode()), 0

    def lines() -> Iterator[bytes]:
        return (jsontext.dumps(decision.to_document()).encode() + b"\n" for decision in decisions)

    for rows, line in enumerate(lines(), 1):  # noqa: B007
        digest.update(line)
    with whole_bytes(path, mode=0o600) as file:
        file.write(jsontext.dumps({**document, "decisions": rows, "checksum": digest.hexdigest()}).encode() + b"\n")
        file.writelines(lines())
    path.chmod(0o600)


def read_plan(path: Path) -> SavedPlan:
    """Read a plan. Raises UsageError if the file is unreadable, is not a plan, or was changed."""
    try:
        with path.open("rb") as file:
            return _read(path, file)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {reason(error)}", code="unreadable_file") from error


def _read(path: Path, file: BinaryIO) -> SavedPlan:
    first = file.readline(LONGEST_HEADER)
    try:
        document = jsontext.loads(first)
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        hint = "crmctl bulk import OBJECT FILE --dry-run --plan PLAN makes one"
        raise UsageError(f"{path} is not a plan", hint=hint, code="not_a_plan")
    if document.get("format") != FORMAT:
        raise UsageError(f"{path} was written by another version of crmctl ({document.get('version')})", code="not_a_plan")
    rows, stated = document.pop("decisions", None), document.pop("checksum", None)
    digest = hashlib.sha256(jsontext.dumps(document, sort_keys=True).encode())
    count = 0
    for line in file:
        digest.update(line)
        count += 1
    if digest.hexdigest() != stated or count != rows:
        hint = "make it anew: crmctl bulk import OBJECT FILE --dry-run --plan PLAN"
        raise UsageError(f"{path} is not as it was written: changed, or cut short", hint=hint, code="damaged_plan")
    try:
        summary, _ = document.pop("summary"), document.pop("format")
        header = Header(**{**document, "kind": JobKind.IMPORT})
        return SavedPlan(path, header, ImportPlan.from_document(header.plan), summary, len(first))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a plan", code="not_a_plan") from error


def check_service(plan: Path, made_for: str, origin: str) -> None:
    """Raise UsageError if a plan was made for another service than that of the profile."""
    if origin != made_for:
        message = f"the plan {plan} was made for {made_for}, and this profile belongs to {origin}"
        hint = "crmctl auth switch PROFILE, or --profile"
        raise UsageError(message, hint=hint, code="plan_outdated", details={"changed": ["service"]})


def open_plan(saved: SavedPlan, attributes: Sequence[Attribute], source: GivenInput | None = None) -> tuple[GivenInput, PlannedInput]:
    """Return the input if input, schema and mapping are those of the plan. `source`: the new place of an input that was moved.

    Raises UsageError that lists every difference.
    """
    header = saved.header
    plan_source = source or GivenInput.at(Path(header.path))
    path = plan_source.path
    moved: dict[str, str] = {}
    if schema_digest(attributes) != header.schema:
        moved["schema"] = f"the attributes of {header.object} have changed"
    try:
        if file_digest(path, str(path)) != (header.sha256, header.size):
            moved["input"] = f"the file {path} has changed"
    except UsageError as error:
        moved["input"] = error.message
    planned = None
    if not {"input", "schema"} & moved.keys():
        try:
            planned = open_input(saved.plan, path, header.input, attributes)
            if planned.mapping.digest != header.mapping:
                moved["mapping"] = "its columns map to other attributes than before"
        except CrmctlError as error:
            moved["mapping"] = f"its mapping does not fit any more: {error.message}"
    if moved or planned is None:
        hint = "--input FILE, when it has been moved" if list(moved) == ["input"] else None
        raise UsageError(
            f"the plan {saved.path} cannot be applied: {'; '.join(moved.values())}",
            hint=hint or "make it anew: crmctl bulk import OBJECT FILE --dry-run --plan PLAN",
            code="plan_outdated",
            details={"changed": list(moved)},
        )
    return plan_source, planned


def check_rows(plan: Path, add: Callable[[Decisions], None]) -> None:
    """Raise RejectedError if the rows of a job differ from its plan. `add` adds the decisions of now."""
    with Decisions() as now:
        add(now)
        differences = compare(read_plan(plan).decisions(), now)
    if differences.count:
        raise differences.refusal
