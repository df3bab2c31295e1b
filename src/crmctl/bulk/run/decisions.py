"""What each row of an import does, in a form that can be kept and compared later: the rows of a plan. Fingerprints instead of values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple

from crmctl.bulk.match.key_index import KeyIndex, Wanted
from crmctl.bulk.match.keys import is_unchanged
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.mapping import Mode
from crmctl.bulk.rows.validation import Payload
from crmctl.bulk.run.row_actions import AMBIGUOUS, NO_ID, Resolution, Resolver, RowAction
from crmctl.bulk.spill import Spill
from crmctl.models import jsontext

INVALID, AMBIGUOUS_ROW = "invalid", "ambiguous"

LISTED = 100
"""How many differences are listed; all are counted."""

CHUNK_ROWS = 500


class Decision(NamedTuple):
    """What one row does. `action` is create, update, unchanged, skip, invalid or ambiguous; `id` the record it updates and `record` that
    record's fingerprint, `payload` the fingerprint of what is sent, `changes` the attributes that get another value."""

    row: int
    line: int
    action: str
    id: str | None = None
    record: str | None = None
    payload: str | None = None
    changes: tuple[str, ...] | None = None
    reason: str | None = None

    def to_document(self) -> dict[str, Any]:
        """The JSON form, without what does not apply."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Decision:
        """Raises TypeError and KeyError for anything else than what `to_document` makes."""
        changes = document.get("changes")
        return cls(**{**document, "changes": None if changes is None else tuple(changes)})


class Decisions(Spill):
    """The decisions of one import, gathered in any order and given in the order of the rows."""

    TABLES = """
CREATE TABLE decision (row INTEGER PRIMARY KEY, id TEXT, document TEXT NOT NULL);
CREATE TABLE state (id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
"""

    def __init__(self) -> None:
        super().__init__()
        self._ids = SeenIds()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ids.__exit__(kind, error, trace)
        super().__exit__(kind, error, trace)

    def add_row(self, payload: Payload, mode: Mode) -> None:
        """A row that finds its record by its own id, or needs none; or that is invalid by itself.

        What a record holds is not known before `see_records`.
        """
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

    def add_outcomes(self, resolver: Resolver, index: KeyIndex) -> None:
        """The rows of a filled index."""
        for row, outcome in resolver.outcomes(index):
            self.add_outcome(row, outcome, resolver, index)

    def add_outcome(self, row: Wanted, outcome: Resolution, resolver: Resolver, index: KeyIndex) -> None:
        """A row whose record was looked up by key."""
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
        """Look at the records that rows name by id. Raises what reading raises."""
        for page in fetch(reader, self._ids):
            states = ((record.id.lower(), fingerprint(record.data)) for record in page)
            self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", states)

    def __iter__(self) -> Iterator[Decision]:
        last = -1
        query = "SELECT row, document, record FROM decision LEFT JOIN state USING (id) WHERE row > ? ORDER BY row LIMIT ?"
        while found := self._db.execute(query, (last, CHUNK_ROWS)).fetchall():
            for _, document, record in found:
                decision = Decision.from_document(jsontext.loads(document))
                last = decision.row
                yield decision if record is None else decision._replace(record=record)

    def _add(self, decision: Decision) -> None:
        own = decision.id if decision.record is None else None
        self._db.execute("INSERT INTO decision VALUES (?, ?, ?)", (decision.row, own, jsontext.dumps(decision.to_document())))


@dataclass
class Differences:
    """Where what rows do now is not what a plan says; the first ones are listed."""

    count: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, planned: Decision | None, now: Decision | None) -> None:
        self.count += 1
        if len(self.listed) < LISTED:
            one = planned or now
            assert one is not None
            record_id = (now.id if now is not None else None) or (planned.id if planned is not None else None)
            self.listed.append({"row": one.row, "line": one.line, "id": record_id, "message": _difference(planned, now)})


def compare(planned: Iterable[Decision], now: Iterable[Decision]) -> Differences:
    """Both in the order of rows. A row that was and is not sent for what it says itself is no difference."""
    found = Differences()
    left = (decision for decision in planned if decision.action != INVALID)
    right = (decision for decision in now if decision.action != INVALID)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.row < other.row):
            found.add(one, None)
            one = next(left, None)
        elif one is None or other.row < one.row:
            found.add(None, other)
            other = next(right, None)
        else:
            if _essence(one) != _essence(other):
                found.add(one, other)
            one, other = next(left, None), next(right, None)
    return found


def fingerprint(data: Mapping[str, Any]) -> str:
    """Tells two contents apart without saying them."""
    return hashlib.blake2b(jsontext.dumps(data, sort_keys=True).encode(), digest_size=12).hexdigest()


def examples(decisions: Iterable[Decision], count: int) -> list[Decision]:
    """The first ones that change something or cannot."""
    quiet = (str(RowAction.UNCHANGED), str(RowAction.SKIP))
    return list(islice((decision for decision in decisions if decision.action not in quiet), count))


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
