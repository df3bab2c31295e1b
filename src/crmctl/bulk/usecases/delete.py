"""Deleting many records, given by id or by conditions: all ids are known, and agreed to, before the first one is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from crmctl.bulk.context import BulkContext
from crmctl.bulk.read.seen_ids import SeenIds
from crmctl.bulk.run.job_start import temporary_input
from crmctl.bulk.send.deletion import DeletedObject, DeleteSummary, collect_ids, delete_records, read_ids
from crmctl.bulk.usecases.targets import store_of
from crmctl.errors import CrmctlError, PartialError, RejectedError, UsageError
from crmctl.models.filters import Condition
from crmctl.models.ids import is_uuid
from crmctl.models.records import BULK_LIMIT


@dataclass(frozen=True)
class DeleteRequest:
    """Records of `object`: those whose ids a file holds (`-` is stdin), those with these `ids`, or those that meet all conditions."""

    object: str
    ids_file: str | None = None
    conditions: Sequence[Condition] = ()
    ids: Iterable[str] | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class Deletion:
    """What a deletion is about to do, and, once it is done, what became of it. `first`: the ids of its first request."""

    object: str
    object_id: str
    records: int
    first: Sequence[str]
    summary: DeleteSummary | None = None

    @property
    def requests(self) -> int:
        return -(-self.records // BULK_LIMIT)

    def to_document(self) -> dict[str, Any]:
        """The JSON form: of what it did, else its first request in full."""
        if self.summary is not None:
            return self.summary.to_document()
        path = f"/api/v1/objects/{self.object_id}/records/bulk"
        body = {"ids": list(self.first)}
        return {"dryRun": True, "method": "DELETE", "path": path, "body": body, "records": self.records, "requests": self.requests}

    @property
    def error(self) -> CrmctlError | None:
        """What ended it early, or that not every record was deleted."""
        summary = self.summary
        if summary is None or summary.error is not None:
            return summary.error if summary is not None else None
        left = {"failed": summary.failed, "in doubt": summary.in_doubt, "not sent": summary.unsent}
        said = ", ".join(f"{count:,} {what}" for what, count in left.items() if count)
        return PartialError(f"not every record was deleted: {said}") if said else None

    def raise_for_error(self) -> None:
        """Raises the error that goes with the outcome; nothing when every record is gone."""
        if self.error is not None:
            raise self.error


def example_deletion(object_name: str) -> dict[str, Any]:
    """What a deletion tells a program, without anything in it."""
    return DeleteSummary(object_name).to_document()


def delete(context: BulkContext, request: DeleteRequest, approve: Callable[[Deletion], None]) -> Deletion:
    """Collect the ids, show what is about to be deleted to `approve`, which raises to leave it, and delete; a dry run stops before that.

    What the service refuses is in the result. Raises UsageError when it is not clear which records are meant, and RejectedError for what
    is no id.
    """
    if sum((request.ids_file is not None, request.ids is not None, bool(request.conditions))) != 1:
        raise UsageError("say which records: either --ids or --filter", hint="crmctl bulk delete --help")
    with SeenIds() as ids:
        object_id = _gather(context, request, ids)
        plan = Deletion(request.object, object_id, len(ids), next(iter(ids.chunks(BULK_LIMIT)), []))
        if request.dry_run:
            return plan
        if plan.records:
            approve(plan)
        target = DeletedObject(context.service, request.object, object_id, were_there=bool(request.conditions))
        summary = delete_records(target, ids, context.clock, context.listener.progress)
    return Deletion(plan.object, object_id, plan.records, plan.first, summary)


def _gather(context: BulkContext, request: DeleteRequest, ids: SeenIds) -> str:
    """Fill `ids`; returns the object's id."""
    if request.ids is not None:
        for one in request.ids:
            if not is_uuid(one):
                raise RejectedError(f"{one!r} is not a record id; nothing was deleted", code="malformed_id")
            ids.add(one.lower())
        return context.directory.object_id(request.object)
    if request.ids_file is None:
        object_id = context.directory.object_id(request.object)
        collect_ids(context.service, object_id, request.conditions, ids, context.listener.progress)
        return object_id
    name = "stdin" if request.ids_file == "-" else request.ids_file
    with temporary_input(store_of(context), request.ids_file, context.stdin) as given:
        read_ids(given.path, name, ids)
    if not len(ids):
        context.listener.note(f"{name} holds no ids: nothing to delete")
    return context.directory.object_id(request.object)
