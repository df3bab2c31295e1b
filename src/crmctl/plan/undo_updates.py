"""Undo updates: compare each record with what the job wrote, and restore it. The report of every undo."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext, Progress
from crmctl.client.crm import Crm
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, PartialError, RejectedError
from crmctl.files.spills import Spill, chunks
from crmctl.files.validation import Entry
from crmctl.match.key_lookups import Lookup
from crmctl.match.references import ParentGroup
from crmctl.models import jsontext
from crmctl.models.resources import BULK_LIMIT, Attribute, Record
from crmctl.plan import relations
from crmctl.plan.audit import StoredValues
from crmctl.plan.import_run import rows_of
from crmctl.plan.job_start import ImportJob
from crmctl.plan.relations import FOLDER
from crmctl.plan.requests import referring_attributes
from crmctl.plan.results import service_words
from crmctl.read.read_back import Reader
from crmctl.read.records import Cost, announced, fetch, find, read_singly
from crmctl.read.stable_pages import SeenIds
from crmctl.values.equality import as_sent
from crmctl.values.filters import Condition
from crmctl.values.operators import Operator
from crmctl.write.database import RowState
from crmctl.write.effect import StepStanding, standing
from crmctl.write.journal import BEFORE, FILE_NAME, WHOLE, Journal, entries_of, is_undone, mark_undone
from crmctl.write.steps import Step, StepKind, StepSender, deletions, take_steps

LEFT = {
    "failed": "refused by the service",
    "conflicts": "changed since, and kept",
    "duplicates": "duplicates kept, because another client may have created them",
    "unknown": "not found, or not distinguishable from other records",
    "gone": "deleted by another client since",
    "updatesKept": "updates kept, because crmctl did not store the earlier values",
    "parentsKept": "created parent records kept, because they changed or other records refer to them",
    "inDoubt": "in doubt, because crmctl cannot tell whether they were written",
    "unlinked": "activities not linked again",
    "unreferenced": "references that still name the old ids",
}
"""Descriptions of changes that an undo leaves in place, by key of the JSON form."""

WAYS = {
    "updatesKept": "crmctl bulk import keeps what updates overwrite only with --key",
    "unknown": "crmctl bulk undo {job} looks for them again",
    "conflicts": "crmctl bulk undo {job} --include-changed undoes those too; what changed is lost",
}
"""Hints about changes that an undo leaves in place."""

LISTED = 1000
"""Maximum number of rows of each kind in a report; the counts are exact."""


@dataclass
class UndoReport:
    """Preview or outcome of an undo. `requests`: those it took, before it has run an estimate; `seconds`: its estimated duration."""

    job: str
    object: str
    requests: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    carried_out: bool = field(default=False, kw_only=True)
    error: CrmctlError | None = field(default=None, kw_only=True)

    @property
    def work(self) -> int:
        raise NotImplementedError

    @property
    def refusals(self) -> Iterable[str]:
        raise NotImplementedError

    def to_document(self) -> dict[str, Any]:
        raise NotImplementedError

    @property
    def left(self) -> dict[str, int]:
        document = self.to_document()
        return {name: document[name] for name in LEFT if document.get(name)}

    @property
    def details(self) -> dict[str, Any]:
        return dict(self.left)

    def raise_for_error(self) -> None:
        """Raise the error that ended the undo, or PartialError if part of the job remains."""
        if self.error is not None:
            self.error.hint = self.error.hint or f"crmctl bulk undo {self.job} goes on with it"
            raise self.error
        if self.carried_out and (left_out := self.left):
            hint = next((way.format(job=self.job) for name, way in WAYS.items() if name in left_out), None)
            reasons = ", ".join(f"{count:,} {LEFT[name]}" for name, count in left_out.items())
            message = f"not everything the job did was undone: {reasons}{service_words(self.refusals)}"
            raise PartialError(message, hint=hint, details=self.details)


class Updates(Spill):
    """Updated rows of a job and the standing of their records.

    `lost`: how many rows have no before image. `lists_lag`: a list shows an older value than its record.
    """

    TABLES = """
    CREATE TABLE one (
        id TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, given TEXT NOT NULL, sent TEXT NOT NULL, before TEXT NOT NULL, standing TEXT,
        changed TEXT NOT NULL DEFAULT '[]'
    ) WITHOUT ROWID;
    CREATE INDEX one_standing ON one (standing, ordinal);
    """

    def __init__(self, attributes: Sequence[Attribute], unlinked: Callable[[int], bool] = lambda _: False) -> None:
        super().__init__()
        self.attributes = {attribute.slug: attribute for attribute in attributes}
        self._unlinked = unlinked
        self.lost = 0
        self.lists_lag = False
        self._as_of = 0

    def gather(self, journal: Journal, again: Callable[[], Iterable[Entry]]) -> None:
        """Take the updated rows of the job that are not undone yet, without values of attributes that no longer exist."""
        for entry, row in entries_of(journal, again()):
            if entry.id is None or row is None or is_undone(journal, entry.id):
                continue
            if row.state is not RowState.UPDATED and (row.state is not RowState.FAILED or not self._unlinked(entry.ordinal)):
                continue
            before = journal.recall(entry.ordinal, BEFORE)
            if before is None:
                self.lost += 1
            else:
                sent = {slug: value for slug, value in entry.data.items() if slug in self.attributes}
                overwritten = jsontext.dumps({slug: value for slug, value in before.items() if slug in sent})
                values = (entry.id.lower(), entry.ordinal, entry.id, jsontext.dumps(sent), overwritten)
                self._db.execute("INSERT OR IGNORE INTO one (id, ordinal, given, sent, before) VALUES (?, ?, ?, ?, ?)", values)

    def read(self, reader: Reader, tell: Callable[[Cost], None] = lambda _: None) -> None:
        """Read every record, after passing the cost to `tell`. Raises read errors."""
        with SeenIds(record_id for (record_id,) in self._db.execute("SELECT id FROM one ORDER BY ordinal")) as ids:
            if not len(ids):
                return
            lookup = Lookup(reader, reader.object_id)
            lookup.begin()
            self._as_of = lookup.as_of
            for page in fetch(reader, ids, tell, self.is_as_written):
                self.see(page)
        if not reader.singly:
            # A list that lags shows old values too: read some records that it shows restored, and all of them if one is not.
            listed = list(self.ids_back())
            records = list(read_singly(reader, lambda: listed, len(listed), self._is_not_restored))
            self.lists_lag = any(map(self._is_not_restored, records))
            self.see(record for record in records if record is not None)

    def _is_not_restored(self, record: Record | None) -> bool:
        return record is None or self.is_as_written(record)

    def look_again(self, reader: Reader) -> None:
        """Read the records that changed since `read`, while crmctl waited for the user.

        A list may be older than a record that was read by itself, so only records as the job wrote them can get another standing.
        """
        lookup = Lookup(reader, reader.object_id, as_of=self._as_of)
        lookup.refresh(partial(self.see, among=StepStanding.AFTER))

    def mark_restored(self, record_id: str) -> None:
        """Store that this record holds its old values again: the lists of a service without times of change do not show it."""
        self._db.execute("UPDATE one SET standing = ?, changed = '[]' WHERE id = ?", (StepStanding.BEFORE, record_id.lower()))

    def see(self, records: Iterable[Record], among: StepStanding | None = None) -> None:
        """Store the standing of records, or only of those with a known one."""
        for record in records:
            if (state := self._standing(record)) is not None:
                values = (state[0], jsontext.dumps(state[1]), record.id.lower(), among, among)
                self._db.execute("UPDATE one SET standing = ?, changed = ? WHERE id = ? AND (? IS NULL OR standing = ?)", values)

    def _standing(self, record: Record) -> tuple[StepStanding, list[str]] | None:
        row = self._db.execute("SELECT sent, before FROM one WHERE id = ?", (record.id.lower(),)).fetchone()
        if row is None:
            return None
        sent, before = map(jsontext.loads, row)
        return standing(before, sent, record.data, self.attributes)

    def is_as_written(self, record: Record) -> bool:
        """Whether a listed record shows what the job wrote. A list that lags may still show the old values."""
        return (self._standing(record) or (None,))[0] is StepStanding.AFTER

    def count(self, stands: StepStanding | None) -> int:
        """Return how many records have a status; None counts deleted ones."""
        return int(self._db.execute("SELECT COUNT(*) FROM one WHERE standing IS ?", (stands,)).fetchone()[0])

    def conflicts(self) -> Iterator[jsontext.Json]:
        rows = self._db.execute("SELECT ordinal, given, changed FROM one WHERE standing = ? ORDER BY ordinal", (StepStanding.CHANGED,))
        return ({"row": ordinal, "id": record_id, "attributes": jsontext.loads(changed)} for ordinal, record_id, changed in rows)

    def gone(self) -> Iterator[jsontext.Json]:
        rows = self._db.execute("SELECT ordinal, given FROM one WHERE standing IS NULL ORDER BY ordinal")
        return ({"row": ordinal, "id": record_id} for ordinal, record_id in rows)

    def ids_back(self) -> Iterator[str]:
        return (record_id for (record_id,) in self._db.execute("SELECT given FROM one WHERE standing = ?", (StepStanding.BEFORE,)))

    def to_put_back(self, object_id: str, *, include_changed: bool = False) -> Iterator[Step]:
        """Yield the steps that restore the old values; with `include_changed` also of records that changed since."""
        states = (StepStanding.AFTER, StepStanding.CHANGED if include_changed else StepStanding.AFTER)
        rows = self._db.execute("SELECT ordinal, given, sent, before FROM one WHERE standing IN (?, ?) ORDER BY ordinal", states)
        for ordinal, record_id, *values in rows:
            sent, before = map(jsontext.loads, values)
            written = {} if include_changed else {slug: sent[slug] for slug in before}
            restored = {slug: as_sent(self.attributes.get(slug), value) for slug, value in before.items()}
            yield Step(StepKind.UPDATE, object_id, record_id, written, restored, ordinal)


def fail_changed(job: ImportJob, reader: Reader, tell: Callable[[str], None]) -> None:
    """Fail unsent rows whose record changed since the job began and holds neither the old values nor the row's.

    Rows without a before image are not compared, nor rows whose parts were just merged into the current values. Raises read errors.
    """
    journal, announce = job.journal, announced(tell, "comparing the rows that are left with their records")
    attributes = {attribute.slug: attribute for attribute in job.input.shown_attributes}
    for chunk in chunks(rows_of(journal, job.input.to_send)(), COMPARED_ROWS):
        first, last = chunk[0].ordinal, chunk[-1].ordinal
        taken, images = journal.rows(first, last), journal.kept(BEFORE, first, last)
        compared = (entry for entry in chunk if entry.ordinal in images and entry.ordinal not in taken)
        values = journal.kept(WHOLE, first, last)
        unsent = {str(entry.id).lower(): entry for entry in compared if entry.id and entry.ordinal not in values}
        if not unsent:
            continue
        with SeenIds(unsent) as ids:
            for record in chain.from_iterable(fetch(reader, ids, announce)):
                entry = unsent[record.id.lower()]
                changed = standing(images[entry.ordinal], entry.data, record.data, attributes)[1]
                if changed:
                    why = f"not sent: {', '.join(changed)} changed since the job began"
                    journal.conclude([(entry.ordinal, RowState.FAILED, record.id, why)])


COMPARED_ROWS = 10_000


def written_rows(job: ImportJob, clock: Clock) -> Callable[[], Iterator[Entry]]:
    """Return a function that reads all valid rows again, each with every value that was written."""
    again, references = rows_of(job.journal, job.input.to_send), job.input.references
    folder = job.journal.folder / relations.LINKS_FOLDER
    if references is None or not (folder / FILE_NAME).exists():
        return again

    def linked() -> Iterator[Entry]:
        with closing(Journal(folder, clock)) as phase:
            pending = relations.second_writes(references, job.journal)
            link = next(pending, None)
            for entry in again():
                while link is not None and link.ordinal < entry.ordinal:
                    link = next(pending, None)
                if link is not None and link.ordinal == entry.ordinal:
                    row = phase.row(link.ordinal)
                    if row is not None and row.state is RowState.UPDATED:
                        entry = Entry.of(entry.ordinal, {**entry.data, **link.data}, entry.id)
                yield entry

    return linked


FILTER_WORKS = "filter works"
"""Journal key of a phase: the service can filter by references."""

TRIED = 3
"""Number of parents used to test the filter."""


@dataclass
class _Group:
    """Parents of one object: the folder of their journal, the ids to delete, and the attributes that may name them, by object id."""

    parents: ParentGroup
    folder: Path
    ids: list[str] = field(default_factory=list)
    referring: Mapping[str, Sequence[Attribute]] = field(default_factory=dict)

    @property
    def looks(self) -> int:
        """The number of requests that ask who refers to these parents."""
        return len(self.ids) * sum(len(attributes) for attributes in self.referring.values())


@dataclass
class Parents:
    """All parents of a job.

    `found`: number of unchanged parents; `edited`: parents that another client changed. `used`: parents that a record refers to, or may
    refer to, and those whose deletion the service refused. `failed`: number of parents that could not be deleted for another reason.
    """

    job: ImportJob
    clock: Clock
    edited: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    deleted: int = 0
    failed: int = 0
    error: CrmctlError | None = None
    _groups: list[_Group] = field(default_factory=list)

    @property
    def found(self) -> int:
        return sum(len(group.ids) for group in self._groups)

    @property
    def requests(self) -> int:
        """The number of requests that it takes to delete the parents, and to see before that nothing refers to them."""
        return sum(group.looks - (-len(group.ids) // BULK_LIMIT) for group in self._groups)

    def find(self, context: BulkContext) -> None:
        """Find the current state of the parents the job created, and what may refer to them. Raises read errors."""
        references, folder = self.job.input.references, self.job.journal.folder
        if references is None:
            return
        for number, parents in enumerate(references.groups(), 1):
            group = _Group(parents, folder / f"{FOLDER}-{number}")
            if not (group.folder / FILE_NAME).exists():
                continue
            self._groups.append(group)
            with closing(Journal(group.folder, self.clock)) as phase:
                created: dict[str, jsontext.Json] = {}
                for place, data, record_id in references.parents(parents):
                    row = phase.row(place)
                    if record_id is not None and row is not None and row.state is RowState.CREATED and not is_undone(phase, record_id):
                        created.setdefault(record_id.lower(), data)
                reader = Reader(context.service, parents.reference.object_id)
                stored = StoredValues(reader)
                facts = {record.id: stored.compare(record, created[record.id.lower()]) for record in find(reader, created)}
                for record_id, differences in facts.items():
                    (self.edited if stored.is_edited(differences) else group.ids).append(record_id)
                group.referring = referring_attributes(context, parents.reference.object_id) if group.ids else {}
                tried = (_is_used(context.service, group, record_id, refused=False) for record_id in group.ids[:TRIED])
                if not phase.recall(FILTER_WORKS) and any(tried):
                    phase.remember(FILTER_WORKS, True)

    def delete(self, service: Crm, progress: Progress) -> None:
        """Delete the parents that no record refers to. Store an error that ended it early in `error`."""
        for group in self._groups:
            with closing(Journal(group.folder, self.clock)) as phase, SeenIds() as ids:
                try:
                    for record_id in group.ids:
                        if phase.recall(FILTER_WORKS) and not _is_used(service, group, record_id, refused=True):
                            ids.add(record_id)
                        else:
                            self.used.append(record_id)
                except CrmctlError as failure:
                    self.error = failure
                    return
                progress.start("deleting", len(ids), BULK_LIMIT)
                steps = deletions(group.parents.reference.object_id, ids)
                done = take_steps(StepSender(service, self.clock), progress, steps, len(ids), partial(mark_undone, phase))
                self.deleted += done.done
                self.used += done.targets.values()
                self.failed += done.left - len(done.failed)
                self.error = self.error or done.error


def _is_used(service: Crm, group: _Group, record_id: str, *, refused: bool) -> bool:
    """Whether a record of any object refers to this parent; `refused` if the service refuses the question. Raises read errors."""
    for object_id, attributes in group.referring.items():
        for attribute in attributes:
            condition = Condition(attribute.slug, Operator.EQUALS, record_id)
            try:
                page = service.list_records(object_id, filters=[condition], limit=1)
            except RejectedError:
                return refused
            if any(record_id.lower() in jsontext.dumps(record.data.get(attribute.slug)).lower() for record in page.items):
                return True
    return False
