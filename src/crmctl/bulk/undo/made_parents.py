"""Records that an import made because its rows refer to them: deleted last, unless somebody has changed them or still refers to them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from crmctl.bulk.journal.journal import FILE_NAME, Journal
from crmctl.bulk.journal.states import RowState
from crmctl.bulk.match.reference_resolution import ParentGroup
from crmctl.bulk.progress import Progress
from crmctl.bulk.read.read_back import Reader
from crmctl.bulk.read.records_by_id import AwaitedRecords
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.run.created_ids import is_edited
from crmctl.bulk.run.job_start import ImportJob
from crmctl.bulk.run.parents import FOLDER
from crmctl.bulk.send.context import ImportService
from crmctl.bulk.send.deletion import DeletedObject, Deleter, delete_records
from crmctl.clock import Clock
from crmctl.errors import CrmctlError, RejectedError
from crmctl.models import jsontext
from crmctl.models.attributes import Attribute, AttributeType
from crmctl.models.filters import Condition, Operator

FILTER_WORKS = "filter works"
"""The fact of a phase: the service finds the records that refer to a given one."""

TRIED = 3
"""So many parents are tried to see whether it does."""


@dataclass
class _Group:
    """The parents of one object: those to delete, and where their journal is."""

    parents: ParentGroup
    folder: Path
    ids: list[str] = field(default_factory=list)


@dataclass
class Parents:
    """All parents of a job. `found`: unchanged ones; `edited`: those that somebody changed; `used`: those that something refers to, or
    nobody can say; `failed`: those that could not be deleted."""

    job: ImportJob
    attributes: Sequence[Attribute]
    clock: Clock
    edited: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    deleted: int = 0
    failed: int = 0
    requests: int = 0
    error: CrmctlError | None = None
    _groups: list[_Group] = field(default_factory=list)

    @property
    def found(self) -> int:
        return sum(len(group.ids) for group in self._groups)

    def find(self, service: ImportService) -> None:
        """Find the parents the job created, as they are now. Raises what reading raises."""
        references, folder = self.job.input.references, self.job.journal.folder
        for number, parents in enumerate(references.groups() if references is not None else (), 1):
            group = _Group(parents, folder / f"{FOLDER}-{number}")
            if (group.folder / FILE_NAME).exists():
                with closing(Journal(group.folder, self.clock)) as phase:
                    self._look(service, group, phase)
                self._groups.append(group)

    def delete(self, service: ImportService, deleter: Deleter, progress: Progress) -> None:
        """Delete those that nothing refers to any more; an error that ended it early is `error`."""
        for group in self._groups:
            with closing(Journal(group.folder, self.clock)) as phase, SeenIds() as ids:
                try:
                    for record_id in group.ids:
                        if phase.recall(FILTER_WORKS) and not self._is_used(service, group, record_id):
                            ids.add(record_id)
                        else:
                            self.used.append(record_id)
                except CrmctlError as failure:
                    self.error = failure
                    return
                reference = group.parents.reference
                target = DeletedObject(deleter, reference.object, reference.object_id, remember=phase.mark_undone)
                done = delete_records(target, ids, self.clock, progress)
                self.deleted += done.deleted + done.not_found
                self.requests += done.requests
                self.failed += done.failed + done.in_doubt + done.unsent
                self.error = self.error or done.error

    def _look(self, service: ImportService, group: _Group, phase: Journal) -> None:
        references = self.job.input.references
        assert references is not None
        with AwaitedRecords() as awaited:
            for number, data, record_id in references.parents(group.parents):
                row = phase.rows(number, number).get(number)
                if record_id is not None and row is not None and row.state is RowState.CREATED and not phase.is_undone(record_id):
                    awaited.add(record_id, data)
            for page in awaited.pages(Reader(service, group.parents.reference.object_id)):
                for made, record in page:
                    edited = is_edited(record, jsontext.dumps(made), None)
                    (self.edited if edited else group.ids).append(record.id)
        if not phase.recall(FILTER_WORKS) and any(self._is_used(service, group, record_id) for record_id in group.ids[:TRIED]):
            phase.remember(FILTER_WORKS, True)

    def _is_used(self, service: ImportService, group: _Group, record_id: str) -> bool:
        """Whether a record of the imported object refers to this one. Raises what the call raises."""
        target = group.parents.reference.object_id
        slugs = [each.slug for each in self.attributes if each.type == AttributeType.REFERENCE and each.target_object_id in (None, target)]
        for slug in slugs:
            self.requests += 1
            condition = Condition(slug, Operator.EQUALS, record_id)
            try:
                page = service.list_records(self.job.journal.header.object_id, filters=[condition], limit=1)
            except RejectedError:
                return False  # it is no more believed than a filter that finds nothing
            if any(record_id.lower() in jsontext.dumps(record.data.get(slug)).lower() for record in page.items):
                return True
        return False
