"""Taking back a deletion: what its backup holds is created again, with new ids, and what pointed at the old ids points at the new ones.

The records are a phase of the job, with a journal of its own, so that none is created twice; what follows can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from crmctl.bulk.atomic_file import whole_file
from crmctl.bulk.journal.journal import FILE_NAME, Journal
from crmctl.bulk.journal.states import JobState, RowState
from crmctl.bulk.match.record_match import canonical
from crmctl.bulk.match.reference_values import as_sent, replace_ids
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import fetch
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.rows.batches import Entry
from crmctl.bulk.run.created_ids import capture_ids
from crmctl.bulk.run.delete_hooks import KeptRecords
from crmctl.bulk.run.job_start import ImportJob
from crmctl.bulk.run.phases import phase_context, send_phase
from crmctl.bulk.send.context import SendContext
from crmctl.client.http.session import encode_json
from crmctl.errors import CrmctlError, UsageError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.records import Record

FOLDER, LINKS_FOLDER = "undo", "undo-links"
LIST_NAME, IDS_NAME = "recreate.jsonl", "recreated.csv"
CHUNK_ROWS = 500


@dataclass(frozen=True)
class DeletedRecords:
    """The records that a job deleted, in a file of the job that is made once: the rows of the phase that creates them."""

    job: ImportJob
    attributes: Sequence[Attribute]

    @property
    def path(self) -> Path:
        return self.job.journal.folder / LIST_NAME

    def find(self, reader: Reader) -> int:
        """How many records are to be created again. Raises UsageError where there is no backup, and what reading raises."""
        journal = self.job.journal
        if not self.path.exists():
            backup = KeptRecords.of(journal)
            with SeenIds() as gone:
                self._gather(reader, gone)
                if backup is None and len(gone):
                    raise UsageError(f"job {journal.header.job} kept no copy of what it deleted", code="no_backup")
                with whole_file(self.path, mode=0o600) as file:
                    for record in backup.records() if backup is not None else ():
                        if record.id.lower() in gone:
                            file.write(f"{jsontext.dumps(record.wire)}\n")
        return sum(1 for _ in self.records())

    def _gather(self, reader: Reader, gone: SeenIds) -> None:
        """What is gone for certain: rows in doubt are looked up."""
        journal = self.job.journal
        rows = (row for row in self.job.input.payloads() if row.id is not None)
        with SeenIds() as doubtful, SeenIds() as there:
            while chunk := list(islice(rows, CHUNK_ROWS)):
                known = journal.rows(chunk[0].ordinal, chunk[-1].ordinal)
                for row in chunk:
                    state = known[row.ordinal].state if row.ordinal in known else RowState.UNSENT
                    if state in (RowState.UPDATED, RowState.IN_DOUBT):
                        (gone if state is RowState.UPDATED else doubtful).add(str(row.id).lower())
            for page in fetch(reader, doubtful) if len(doubtful) else ():
                for record in page:
                    there.add(record.id.lower())
            for ids in doubtful.chunks(CHUNK_ROWS):
                for one in ids:
                    if one not in there:
                        gone.add(one)

    def records(self) -> Iterator[Record]:
        with self.path.open(encoding="utf-8") as file:
            yield from (Record.parse(jsontext.loads(line)) for line in file)

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(record.id.lower() for record in self.records())

    def entries(self) -> Iterator[Entry]:
        """The records as they are created: without references to others that were deleted with them."""
        for number, record in enumerate(self.records(), 1):
            yield Entry(number, encode_json({"data": self._split(record)[0]}))

    def links(self, new: Mapping[str, str]) -> Iterator[Entry]:
        """Those references, as soon as the records they mean are known by their new ids."""
        linked = ((record, links) for record in self.records() if (links := self._split(record)[1]) and record.id.lower() in new)
        for number, (record, links) in enumerate(linked, 1):
            data = {slug: replace_ids(value, new) for slug, value in links.items()}
            yield Entry(number, encode_json({"data": data, "id": new[record.id.lower()]}), new[record.id.lower()])

    def _split(self, record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
        data: dict[str, Any] = {}
        links: dict[str, Any] = {}
        for attribute in self.attributes:
            value = as_sent(attribute, record.data.get(attribute.slug))
            if attribute.is_active is False or canonical(value) is None:
                continue
            values = value if isinstance(value, list) else [value]
            is_link = attribute.type == AttributeType.REFERENCE and any(str(one).lower() in self._ids for one in values)
            (links if is_link else data)[attribute.slug] = value
        return data, links


@dataclass
class Recreated:
    """What became of it. `failed`: rows that the service refused, and why; `unknown`: records that are there, under an id that nobody can
    tell; `activities` and `references` of other records: how many were linked again, `unlinked` and `unreferenced`: could not be."""

    created: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    unknown: int = 0
    activities: int = 0
    unlinked: int = 0
    references: int = 0
    unreferenced: int = 0
    requests: int = 0
    error: CrmctlError | None = None
    notes: list[str] = field(default_factory=list)


def recreate(deleted: DeletedRecords, run: SendContext, count: int) -> tuple[Recreated, dict[str, str]]:
    """Create the records, learn their ids, link them to each other; the new ids by the old ones. Interrupted, it can be done again."""
    done, new = Recreated(), {}
    header = run.journal.header
    unique = next((one.slug for one in deleted.attributes if one.is_unique and not one.is_list), None)
    run.journal.set_state(JobState.FINISHED)  # what was not deleted yet will not be
    with phase_context(run, FOLDER, mode="create", kind="recreate", unique=unique) as phase:
        done.error = send_phase(phase, count, deleted.entries, f"records of {header.object}")
        rows = phase.journal.rows(1, count)
        done.created = sum(row.state is RowState.CREATED for row in rows.values())
        done.failed = {n: row.error or "refused" for n, row in rows.items() if row.state is RowState.FAILED}
        if done.error is None:
            reader = Reader(run.service, header.object_id, lambda: run.interrupt.requested)
            done.unknown = capture_ids(phase.journal, reader, deleted.entries)
            phase.journal.add_effort(reader.requests, 0.0)
            named = phase.journal.rows(1, count)
            pairs = zip(deleted.records(), range(1, count + 1), strict=True)
            new = {old.id.lower(): str(row.record_id) for old, n in pairs if (row := named.get(n)) is not None and row.record_id}
            _keep_ids(run.journal, new)
    if done.error is None and (linked := sum(1 for _ in deleted.links(new))):
        with phase_context(run, LINKS_FOLDER, mode="upsert", kind="update") as phase:
            done.error = send_phase(phase, linked, lambda: deleted.links(new), "references")
    done.requests = _requests(run.journal)
    return done, new


def _keep_ids(journal: Journal, new: Mapping[str, str]) -> None:
    with whole_file(journal.folder / IDS_NAME, mode=0o600) as file:
        file.write("old,new\n")
        file.writelines(f"{old},{one}\n" for old, one in new.items())
    journal.mark_undone(new)


def _requests(journal: Journal) -> int:
    total = 0
    for path in journal.folder.glob(f"{FOLDER}*/{FILE_NAME}"):
        with closing(Journal(path.parent, journal.clock)) as phase:
            total += phase.effort()[0]
    return total
