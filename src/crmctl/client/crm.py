"""The service's endpoints, one typed method each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Unpack
from urllib.parse import quote

from crmctl.client.answers import (
    Answer,
    ListQuery,
    Page,
    R,
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
from crmctl.client.rate_limit.limiter import SharedBudget, ledger_path
from crmctl.client.session import AttemptObserver, Query, Session, encode_json
from crmctl.client.transport import HttpTransport
from crmctl.clock import Clock, SystemClock
from crmctl.config.credentials import Credential
from crmctl.config.settings import Paths, Settings
from crmctl.errors import CrmctlError, NotFoundError, RejectedError
from crmctl.models.resources import (
    Activity,
    Attribute,
    BulkResult,
    Extensions,
    HistoryEntry,
    Member,
    Object,
    Record,
    Report,
    ReportRun,
    StoredFile,
    UploadUrl,
    Webhooks,
    Workflow,
    WorkflowRun,
    WorkflowStart,
)

Fields = Mapping[str, Any]

NOT_OFFERED = frozenset({404, 405, 501})
"""Statuses of an endpoint that a service does not have."""

_RESERVED = frozenset({"", ".", "..", "bulk", "search"})


class Crm:
    """Typed calls. Methods raise the errors of `Session.request`, and ServiceError for an answer they cannot understand.

    Ids are UUIDs; `Directory` resolves slugs. Request fields are named as on the wire (camelCase).
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    def _page(
        self, path: str, model: type[R], limit: int, offset: int, pairs: Sequence[tuple[str, str]] = (), *, key: str = "records"
    ) -> Page[R]:
        query = [("limit", str(limit)), ("offset", str(offset)), *pairs]
        return read_page(self.session.request("GET", path, query=query), key, model, limit, offset)

    def list_objects(self) -> list[Object]:
        return read_list(self.session.request("GET", "/objects"), "objects", Object)

    def get_object(self, object_id: str) -> tuple[Object, list[Attribute] | None]:
        """Return the object and its attributes; None for the attributes if the service sent none."""
        return read_object(self.session.request("GET", path_of("objects", object_id)))

    def create_object(self, fields: Fields) -> Object:
        return read_made(self.session.request("POST", "/objects", body=fields), "object", Object, fields)

    def update_object(self, object_id: str, fields: Fields) -> Object:
        answer = self.session.request("PATCH", path_of("objects", object_id), body=fields)
        return self.get_object(object_id)[0] if answer.tells_nothing else read_one(answer, "object", Object)

    def delete_object(self, object_id: str) -> None:
        read_deleted(self.session.request("DELETE", path_of("objects", object_id)))

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
        return self.get_attribute(object_id, attribute_id) if answer.tells_nothing else read_made(answer, "attribute", Attribute, {})

    def delete_attribute(self, object_id: str, attribute_id: str) -> None:
        read_deleted(self.session.request("DELETE", path_of("objects", object_id, "attributes", attribute_id)))

    def list_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        """Return one page of 50 records, unless `limit` says otherwise."""
        pairs = [condition.to_query() for condition in query.get("filters", ())]
        pairs += _given(sort=query.get("sort"), order=query.get("order"))
        return self._page(path_of("objects", object_id, "records"), Record, query.get("limit", 50), query.get("offset", 0), pairs)

    def search_records(self, object_id: str, **query: Unpack[ListQuery]) -> Page[Record]:
        """Like `list_records`, through the search endpoint: a POST that only reads and is retried like a GET."""
        sort, order, limit, offset = query.get("sort"), query.get("order"), query.get("limit", 50), query.get("offset", 0)
        sorting = {"sort": {"field": sort or "created_at", "order": order or "desc"}} if sort or order else {}
        body = {"filters": [condition.to_search() for condition in query.get("filters", ())], **sorting, "limit": limit, "offset": offset}
        answer = self.session.request("POST", path_of("objects", object_id, "records", action="search"), body=body, reads=True)
        return read_page(answer, "records", Record, limit, offset)

    def get_record(self, object_id: str, record_id: str) -> Record:
        return read_one(self.session.request("GET", path_of("objects", object_id, "records", record_id)), "record", Record)

    def get_version(self, object_id: str, record_id: str) -> tuple[Record, str | None]:
        """Return a record and its ETag, if the service sends a strong one."""
        answer = self.session.request("GET", path_of("objects", object_id, "records", record_id))
        tag = answer.headers.get("etag", "")
        return read_one(answer, "record", Record), tag if tag.startswith('"') else None

    def record_history(self, object_id: str, record_id: str, *, limit: int = 50, offset: int = 0) -> Page[HistoryEntry]:
        """Return the newest changes first. Services without this addition to the interface answer as for a missing record."""
        path = path_of("objects", object_id, "records", record_id, action="history")
        return self._page(path, HistoryEntry, limit, offset, key="changes")

    def create_record(self, object_id: str, data: Fields) -> Record:
        body = {"data": data}
        return read_made(self.session.request("POST", path_of("objects", object_id, "records"), body=body), "record", Record, body)

    def update_record(
        self, object_id: str, record_id: str, data: Fields, *, version: str | None = None, watch: AttemptObserver | None = None
    ) -> Record:
        """Merge `data` into the record; with the ETag of a `version`, only if the record still has it. `watch` hears of every attempt
        before it is sent."""
        headers = {"If-Match": version} if version is not None else None
        path = path_of("objects", object_id, "records", record_id)
        answer = self.session.request("PATCH", path, body={"data": data}, headers=headers, watch=watch)
        return self.get_record(object_id, record_id) if answer.tells_nothing else read_one(answer, "record", Record)

    def delete_record(self, object_id: str, record_id: str) -> None:
        read_deleted(self.session.request("DELETE", path_of("objects", object_id, "records", record_id)))

    def bulk_write(
        self,
        object_id: str,
        records: Sequence[bytes],
        *,
        mode: str = "create",
        watch: AttemptObserver | None = None,
    ) -> BulkResult:
        """Write up to 100 `{data, id?}`, each as JSON; `mode` is `create` or `upsert`. The caller checks that the counts add up.

        The request is never repeated after an unknown outcome; the error then has `outcome_unknown`. `watch` hears of every attempt before
        it is sent and gives the idempotency key.
        """
        headers = {"Idempotency-Key": watch.idempotency_key} if watch is not None and watch.idempotency_key else None
        body = b'{"mode":%s,"records":[%s]}' % (encode_json(mode), b",".join(records))
        path = path_of("objects", object_id, "records", action="bulk")
        return read_bulk(self.session.request("POST", path, body=body, headers=headers, watch=watch))

    def bulk_delete(self, object_id: str, ids: Sequence[str], *, watch: AttemptObserver | None = None) -> int | None:
        """Delete up to 100 records; return the number the service reports, or None.

        The request is repeated only if the first attempt certainly did nothing: a second answer would not count what the first attempt
        deleted. Other failures have `outcome_unknown`, and the caller looks first. `watch` hears of every attempt before it is sent.
        """
        path = path_of("objects", object_id, "records", action="bulk")
        return read_deleted(self.session.request("DELETE", path, body={"ids": list(ids)}, idempotent=False, watch=watch))

    def list_activities(
        self, *, record_id: str | None = None, object_id: str | None = None, limit: int = 50, offset: int = 0
    ) -> Page[Activity]:
        pairs = _given(recordId=record_id, objectId=object_id)
        return self._page("/activities", Activity, limit, offset, pairs, key="activities")

    def get_activity(self, activity_id: str) -> Activity:
        return read_one(self.session.request("GET", path_of("activities", activity_id)), "activity", Activity)

    def create_activity(self, fields: Fields) -> Activity:
        return read_made(self.session.request("POST", "/activities", body=fields), "activity", Activity, fields)

    def update_activity(self, activity_id: str, fields: Fields) -> Activity:
        answer = self.session.request("PATCH", path_of("activities", activity_id), body=fields)
        return self.get_activity(activity_id) if answer.tells_nothing else read_one(answer, "activity", Activity)

    def delete_activity(self, activity_id: str) -> None:
        read_deleted(self.session.request("DELETE", path_of("activities", activity_id)))

    def list_members(self) -> list[Member]:
        return read_list(self.session.request("GET", "/members"), "members", Member)

    def list_reports(self) -> list[Report]:
        return read_list(self.session.request("GET", "/reports"), "reports", Report)

    def get_report(self, report_id: str) -> Report:
        return read_one(self.session.request("GET", path_of("reports", report_id)), "report", Report)

    def run_report(self, report_id: str) -> ReportRun:
        return read_one(self.session.request("POST", path_of("reports", report_id, "run")), "run", ReportRun)

    def list_report_runs(self, report_id: str, *, limit: int = 20, offset: int = 0) -> Page[ReportRun]:
        return self._page(path_of("reports", report_id, "runs"), ReportRun, limit, offset, key="runs")

    def get_report_run(self, report_id: str, run_id: str) -> ReportRun:
        """Return the run; its results have no fixed shape and are in `wire`."""
        return read_one(self.session.request("GET", path_of("reports", report_id, "runs", run_id)), "run", ReportRun, beside=(list, dict))

    def list_workflows(self) -> list[Workflow]:
        return read_list(self.session.request("GET", "/workflows"), "workflows", Workflow)

    def get_workflow(self, workflow_id: str) -> Workflow:
        return read_one(self.session.request("GET", path_of("workflows", workflow_id)), "workflow", Workflow)

    def run_workflow(self, workflow_id: str, data: Fields | None = None) -> tuple[WorkflowStart, str | None]:
        """Return the acknowledgement, which names no run, and its Date header."""
        body = None if data is None else {"data": data}
        answer = self.session.request("POST", path_of("workflows", workflow_id, "run"), body=body)
        return read_loose(answer, WorkflowStart, "workflowId", "workflowName", "message"), answer.headers.get("date")

    def list_workflow_runs(self, workflow_id: str, *, limit: int = 20, offset: int = 0) -> Page[WorkflowRun]:
        return self._page(path_of("workflows", workflow_id, "runs"), WorkflowRun, limit, offset, key="runs")

    def list_files(self, *, limit: int = 50, offset: int = 0) -> Page[StoredFile]:
        """Return uploaded files, newest first. Only crmctl's own service lists them."""
        query = [("limit", str(limit)), ("offset", str(offset))]
        return read_page(self.extension("GET /files", query=query), "files", StoredFile, limit, offset)

    def upload_url(self, path: str, bucket: str) -> UploadUrl:
        """Return a signed address for an upload. The request stores nothing, so it may be repeated."""
        body = {"path": path, "bucket": bucket}
        return read_holder(self.session.request("POST", "/files/upload-url", body=body, idempotent=True), UploadUrl, "signedUrl")

    def extensions(self) -> Extensions | None:
        """Return what the service offers beyond the interface; None if it is not crmctl's own."""
        try:
            return read_holder(self.session.request("GET", "/extensions"), Extensions, "extensions", "consoleUrl")
        except CrmctlError as error:
            if error.status in NOT_OFFERED:
                return None
            raise

    def extension(self, name: str, *ids: str, query: Query = (), body: Any = None) -> Answer:
        """Call an endpoint beyond the interface, such as `PATCH /members/{memberId}`. Raises RejectedError if the service lacks it."""
        method, _, path = name.partition(" /")
        rest = iter(ids)
        segments = [next(rest) if segment.startswith("{") else segment for segment in path.split("/")]
        try:
            return self.session.request(method, path_of(*segments), query=query, body=body)
        except CrmctlError as error:
            if error.status not in NOT_OFFERED:
                raise
            offered = self.extensions()
            if offered is not None and name in offered.extensions:
                raise
        raise not_offered(f"the extension {name}")

    def webhooks(self) -> Webhooks:
        return read_holder(self.session.request("GET", "/webhooks"), Webhooks, "portalUrl", "eventTypes")


def not_offered(what: str) -> RejectedError:
    return RejectedError(f"this service does not offer {what}", hint="crmctl's own service does: crmctl serve", code="not_supported")


@lru_cache
def path_of(*segments: str, action: str | None = None) -> str:
    """Return an API path with percent-encoded segments. Raises NotFoundError for an id that would address something else."""
    for segment in segments:
        if segment in _RESERVED:
            raise NotFoundError(f"{segment!r} is not an id", hint="ids are UUIDs, as `list` shows them")
    return "/" + "/".join(quote(segment, safe="") for segment in (*segments, *((action,) if action else ())))


def _given(**parameters: str | None) -> list[tuple[str, str]]:
    return [(name, value) for name, value in parameters.items() if value is not None]


def connect(
    settings: Settings,
    credential: Credential,
    paths: Paths,
    *,
    clock: Clock | None = None,
    log: Callable[[str], None] | None = None,
    note: Callable[[str], None] | None = None,
    lane: str = "interactive",
    transport: HttpTransport | None = None,
) -> Crm:
    """Return a client for the profile's service.

    `log` receives debug lines without the key, `note` messages about long waits. `lane` is `interactive` or `bulk`: bulk work leaves some
    requests of the rate limit to people. Raises ConfigError without a base URL, DeniedError for a key of another origin.
    """
    clock = clock or SystemClock()
    base_url = settings.require_base_url()
    session = Session(
        base_url,
        credential,
        transport or HttpTransport(ca_bundle=settings.ca_bundle.value),
        clock=clock,
        budget=SharedBudget(ledger_path(paths.state, credential.origin, credential.key), clock, lane=lane, note=note),
        max_wait=settings.max_wait.value,
        timeout=settings.timeout.value,
        log=log,
        note=note,
    )
    return Crm(session)
