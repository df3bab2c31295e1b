"""The service's endpoints, one typed method each. Knows paths and bodies; shapes, retries and errors are `shapes` and `session`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crmctl.client.http.answers import Answer
from crmctl.client.http.attempt_observer import AttemptObserver, BatchObserver
from crmctl.client.http.session import Session, encode_json
from crmctl.client.http.transport import UploadBody
from crmctl.client.shapes import (
    Page,
    read_bulk,
    read_deleted,
    read_holder,
    read_list,
    read_loose,
    read_made,
    read_object,
    read_one,
    read_page,
)
from crmctl.errors import NotFoundError
from crmctl.models.attributes import Attribute
from crmctl.models.objects import Object
from crmctl.models.records import BulkResult, HistoryEntry, Record

if TYPE_CHECKING:
    from crmctl.models.activities import Activity
    from crmctl.models.files import UploadUrl
    from crmctl.models.filters import Condition
    from crmctl.models.members import Member
    from crmctl.models.reports import Report, ReportRun
    from crmctl.models.webhooks import Webhooks
    from crmctl.models.workflows import Workflow, WorkflowRun, WorkflowStart

Fields = Mapping[str, Any]

_RESERVED = frozenset({"", ".", "..", "bulk", "search"})


class Crm:
    """Typed calls; every method raises the errors of `Session.request`, and ServiceError for an answer it cannot understand.

    Ids are UUIDs; `Directory` turns slugs into them. Fields of requests are named as on the wire (camelCase).
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    # objects

    def list_objects(self) -> list[Object]:
        return read_list(self.session.request("GET", "/objects"), "objects", Object)

    def get_object(self, object_id: str) -> tuple[Object, list[Attribute] | None]:
        """The object and its attributes; None for the attributes when the service did not send them."""
        return read_object(self.session.request("GET", path_of("objects", object_id)))

    def create_object(self, fields: Fields) -> Object:
        return read_made(self.session.request("POST", "/objects", body=fields), "object", Object, fields)

    def update_object(self, object_id: str, fields: Fields) -> Object:
        answer = self.session.request("PATCH", path_of("objects", object_id), body=fields)
        return self.get_object(object_id)[0] if answer.is_empty else read_one(answer, "object", Object)

    def delete_object(self, object_id: str) -> None:
        self.session.request("DELETE", path_of("objects", object_id))

    # attributes

    def list_attributes(self, object_id: str, *, include_inactive: bool = False) -> list[Attribute]:
        query = [("includeInactive", "true")] if include_inactive else []
        return read_list(self.session.request("GET", path_of("objects", object_id, "attributes"), query=query), "attributes", Attribute)

    def get_attribute(self, object_id: str, attribute_id: str) -> Attribute:
        return read_one(self.session.request("GET", path_of("objects", object_id, "attributes", attribute_id)), "attribute", Attribute)

    def create_attribute(self, object_id: str, fields: Fields) -> Attribute:
        answer = self.session.request("POST", path_of("objects", object_id, "attributes"), body=fields)
        return read_made(answer, "attribute", Attribute, fields)

    def update_attribute(self, object_id: str, attribute_id: str, fields: Fields) -> Attribute:
        answer = self.session.request("PATCH", path_of("objects", object_id, "attributes", attribute_id), body=fields)
        return self.get_attribute(object_id, attribute_id) if answer.is_empty else read_one(answer, "attribute", Attribute)

    def delete_attribute(self, object_id: str, attribute_id: str) -> None:
        self.session.request("DELETE", path_of("objects", object_id, "attributes", attribute_id))

    # records

    def list_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]:
        """One page; `sort` is `created_at` or `updated_at`, `order` `asc` or `desc`."""
        query = [("limit", str(limit)), ("offset", str(offset)), *_given(sort=sort, order=order)]
        query += [condition.to_query() for condition in filters]
        return read_page(
            self.session.request("GET", path_of("objects", object_id, "records"), query=query), "records", Record, limit, offset
        )

    def search_records(
        self,
        object_id: str,
        *,
        filters: Sequence[Condition] = (),
        sort: str | None = None,
        order: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> Page[Record]:
        """Like `list_records`, by the search body. A POST that only reads, so it is retried like a GET."""
        body: dict[str, Any] = {"filters": [condition.to_search() for condition in filters]}
        if sort or order:
            body["sort"] = {"field": sort or "created_at", "order": order or "desc"}
        body |= {"limit": limit, "offset": offset}
        answer = self.session.request("POST", path_of("objects", object_id, "records", action="search"), body=body, reads=True)
        return read_page(answer, "records", Record, limit, offset)

    def get_record(self, object_id: str, record_id: str) -> Record:
        return read_one(self.session.request("GET", path_of("objects", object_id, "records", record_id)), "record", Record)

    def get_version(self, object_id: str, record_id: str) -> tuple[Record, str | None]:
        """A record with its ETag where the service gives one that names exactly one version."""
        answer = self.session.request("GET", path_of("objects", object_id, "records", record_id))
        tag = answer.headers.get("etag", "")
        return read_one(answer, "record", Record), tag if tag.startswith('"') else None

    def record_history(self, object_id: str, record_id: str, *, limit: int = 50, offset: int = 0) -> Page[HistoryEntry]:
        """Newest first. An addition to the interface: a service that does not have it answers as for a record that is not there."""
        path = path_of("objects", object_id, "records", record_id, action="history")
        answer = self.session.request("GET", path, query=[("limit", str(limit)), ("offset", str(offset))])
        return read_page(answer, "changes", HistoryEntry, limit, offset)

    def create_record(self, object_id: str, data: Fields) -> Record:
        body = {"data": data}
        return read_made(self.session.request("POST", path_of("objects", object_id, "records"), body=body), "record", Record, body)

    def update_record(
        self, object_id: str, record_id: str, data: Fields, *, version: str | None = None, watch: AttemptObserver | None = None
    ) -> Record:
        """The service merges `data` into what the record holds; with the ETag of a `version`, only where it still has that one. `watch`
        hears of every attempt before it leaves."""
        headers = {"If-Match": version} if version is not None else None
        path = path_of("objects", object_id, "records", record_id)
        answer = self.session.request("PATCH", path, body={"data": data}, headers=headers, watch=watch)
        return self.get_record(object_id, record_id) if answer.is_empty else read_one(answer, "record", Record)

    def delete_record(self, object_id: str, record_id: str) -> None:
        self.session.request("DELETE", path_of("objects", object_id, "records", record_id))

    def bulk_write(
        self,
        object_id: str,
        records: Sequence[Fields | bytes],
        *,
        mode: str = "create",
        watch: BatchObserver | None = None,
    ) -> BulkResult:
        """Write up to 100 `{data, id?}`; `mode` is `create` or `upsert`. The counts are as the service sent them: check that they add up.
        A record given as bytes is JSON already.

        Never repeated after an unknown outcome: such an error says `outcome_unknown`. `watch` hears of every attempt before it leaves;
        its key is sent for services that know such keys.
        """
        headers = {"Idempotency-Key": watch.idempotency_key} if watch is not None else None
        encoded = b",".join([record if isinstance(record, bytes) else encode_json(record) for record in records])
        body = b'{"mode":%s,"records":[%s]}' % (encode_json(mode), encoded)
        path = path_of("objects", object_id, "records", action="bulk")
        return read_bulk(self.session.request("POST", path, body=body, headers=headers, watch=watch))

    def bulk_delete(self, object_id: str, ids: Sequence[str], *, watch: AttemptObserver | None = None) -> int | None:
        """Delete up to 100 records; the number the service reports, or None when it reports none.

        Repeating it would do no harm to the records, but the second answer would not count what the first try had deleted. So it is
        repeated only when the first try certainly did nothing; any other failure says `outcome_unknown`, and the caller looks first.
        `watch` hears of every attempt before it leaves.
        """
        path = path_of("objects", object_id, "records", action="bulk")
        return read_deleted(self.session.request("DELETE", path, body={"ids": list(ids)}, idempotent=False, watch=watch))

    # activities

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]:
        from crmctl.models.activities import Activity

        query = [("limit", str(limit)), ("offset", str(offset)), *_given(recordId=record_id, objectId=object_id)]
        return read_page(self.session.request("GET", "/activities", query=query), "activities", Activity, limit, offset)

    def get_activity(self, activity_id: str) -> Activity:
        from crmctl.models.activities import Activity

        return read_one(self.session.request("GET", path_of("activities", activity_id)), "activity", Activity)

    def create_activity(self, fields: Fields) -> Activity:
        from crmctl.models.activities import Activity

        return read_made(self.session.request("POST", "/activities", body=fields), "activity", Activity, fields)

    def update_activity(self, activity_id: str, fields: Fields) -> Activity:
        from crmctl.models.activities import Activity

        answer = self.session.request("PATCH", path_of("activities", activity_id), body=fields)
        return self.get_activity(activity_id) if answer.is_empty else read_one(answer, "activity", Activity)

    def delete_activity(self, activity_id: str) -> None:
        self.session.request("DELETE", path_of("activities", activity_id))

    # members

    def list_members(self) -> list[Member]:
        from crmctl.models.members import Member

        return read_list(self.session.request("GET", "/members"), "members", Member)

    # reports

    def list_reports(self) -> list[Report]:
        from crmctl.models.reports import Report

        return read_list(self.session.request("GET", "/reports"), "reports", Report)

    def get_report(self, report_id: str) -> Report:
        from crmctl.models.reports import Report

        return read_one(self.session.request("GET", path_of("reports", report_id)), "report", Report)

    def run_report(self, report_id: str) -> ReportRun:
        from crmctl.models.reports import ReportRun

        return read_one(self.session.request("POST", path_of("reports", report_id, "run")), "run", ReportRun)

    def list_report_runs(self, report_id: str, *, limit: int = 20, offset: int = 0) -> Page[ReportRun]:
        from crmctl.models.reports import ReportRun

        query = [("limit", str(limit)), ("offset", str(offset))]
        return read_page(self.session.request("GET", path_of("reports", report_id, "runs"), query=query), "runs", ReportRun, limit, offset)

    def get_report_run(self, report_id: str, run_id: str) -> ReportRun:
        """The run with its results, whose shape is open: read them from `wire`."""
        from crmctl.models.reports import ReportRun

        return read_one(self.session.request("GET", path_of("reports", report_id, "runs", run_id)), "run", ReportRun, whole=True)

    # workflows

    def list_workflows(self) -> list[Workflow]:
        from crmctl.models.workflows import Workflow

        return read_list(self.session.request("GET", "/workflows"), "workflows", Workflow)

    def get_workflow(self, workflow_id: str) -> Workflow:
        from crmctl.models.workflows import Workflow

        return read_one(self.session.request("GET", path_of("workflows", workflow_id)), "workflow", Workflow)

    def run_workflow(
        self, workflow_id: str, data: Fields | None = None, *, watch: AttemptObserver | None = None
    ) -> tuple[WorkflowStart, str | None]:
        """The acknowledgement, which names no run, and the Date header it came with. `watch` hears of every attempt before it leaves."""
        from crmctl.models.workflows import WorkflowStart

        body = None if data is None else {"data": data}
        answer = self.session.request("POST", path_of("workflows", workflow_id, "run"), body=body, watch=watch)
        return read_loose(answer, WorkflowStart, "workflowId", "workflowName", "message"), answer.headers.get("date")

    def list_workflow_runs(self, workflow_id: str, *, limit: int = 20, offset: int = 0) -> Page[WorkflowRun]:
        from crmctl.models.workflows import WorkflowRun

        query = [("limit", str(limit)), ("offset", str(offset))]
        return read_page(
            self.session.request("GET", path_of("workflows", workflow_id, "runs"), query=query), "runs", WorkflowRun, limit, offset
        )

    # files and webhooks

    def upload_url(self, path: str, bucket: str) -> UploadUrl:
        """A signed address to upload to. Nothing is stored by asking, so that asking twice does no harm."""
        from crmctl.models.files import UploadUrl

        body = {"path": path, "bucket": bucket}
        return read_holder(self.session.request("POST", "/files/upload-url", body=body, idempotent=True), UploadUrl, "signedUrl")

    def upload(self, upload: UploadBody) -> Answer:
        """PUT the bytes to a signed URL, without the API key; the storage's answer, refusals too."""
        return self.session.upload(upload)

    def webhooks(self) -> Webhooks:
        from crmctl.models.webhooks import Webhooks

        return read_holder(self.session.request("GET", "/webhooks"), Webhooks, "portalUrl", "eventTypes")


def path_of(*segments: str, action: str | None = None) -> str:
    """An API path, its segments percent-encoded. Raises NotFoundError for an id that would address something else than one resource."""
    for segment in segments:
        if segment in _RESERVED:
            raise NotFoundError(f"{segment!r} is not an id", hint="ids are UUIDs, as `list` shows them")
    return "/" + "/".join(quote(segment, safe="") for segment in (*segments, *((action,) if action else ())))


def _given(**parameters: str | None) -> list[tuple[str, str]]:
    return [(name, value) for name, value in parameters.items() if value is not None]
