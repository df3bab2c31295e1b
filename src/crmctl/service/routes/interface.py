"""Every endpoint of the interface (specification 4) and its additions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crmctl.models.jsontext import Json
from crmctl.models.resources import EVENT_TYPES
from crmctl.service.console.visits import CONSOLE, PORTAL, make_link
from crmctl.service.definitions.definitions_file import Document, EntryNames, delete_entries, dump_sections, load_sections, parse_sections
from crmctl.service.faults import BadRequest, Forbidden
from crmctl.service.files import storage
from crmctl.service.files.storage import check_bucket, normalise_path, open_storage
from crmctl.service.http import schemas
from crmctl.service.http.endpoint import Call, Endpoint, Handler
from crmctl.service.http.json_answers import present
from crmctl.service.http.schemas import ORDER, SORT, choice, identifier, page_parameters
from crmctl.service.jobs.worker import after_removal
from crmctl.service.reports.report_definition import run_report
from crmctl.service.store import activities, logs, members, objects, records, reports, short_lived_keys, webhooks, workflows
from crmctl.service.store.condition_sql import read_condition
from crmctl.service.store.members import MemberRole, role_of
from crmctl.service.store.objects import edit_options
from crmctl.service.store.record_history import read_history
from crmctl.service.store.tx import Tx
from crmctl.service.workflows.run_executor import start_by_hand

ENDPOINTS: list[tuple[Endpoint, Handler]] = []
"""Each endpoint with the function that answers it, in the order of the OpenAPI document."""

DELETED = {"deleted": True}


def endpoint(method: str, path: str, scope: str, answers: Json, **options: Any) -> Callable[[Handler], Handler]:
    """Decorator: add an endpoint. Its name and summary are those of the function; `options` are further fields of Endpoint."""

    def add(handler: Handler) -> Handler:
        summary = (handler.__doc__ or "").rstrip(".")
        options.setdefault("writes", method != "GET")
        ENDPOINTS.append((Endpoint(method, path, summary, answers, scope, handler.__name__, **options), handler))
        return handler

    return add


OBJECT = "/objects/{objectId:uuid}"


@endpoint("GET", "/objects", "objects:read", schemas.listed("ObjectList", objects=schemas.OBJECT), is_short=True)
def list_objects(tx: Tx, _: Call) -> Json:
    """List the active objects."""
    return {"objects": objects.list_objects(tx)}


@endpoint("GET", OBJECT, "objects:read", schemas.OBJECT_WITH_ATTRIBUTES, is_short=True)
def get_object(tx: Tx, call: Call) -> Json:
    """Get an object with its attributes."""
    return objects.get_object(tx, call.id("objectId"))


@endpoint("POST", "/objects", "objects:write", schemas.OBJECT, status=201, body=schemas.ObjectCreate, conflicts=True)
def create_object(tx: Tx, call: Call) -> Json:
    """Create a custom object."""
    return objects.create_object(tx, objects.NewObject(**call.fields()), **call.stamp())


@endpoint("PATCH", OBJECT, "objects:write", schemas.OBJECT, body=schemas.ObjectUpdate)
def update_object(tx: Tx, call: Call) -> Json:
    """Update a custom object."""
    return objects.update_object(tx, call.id("objectId"), call.body, now=call.now())


@endpoint("DELETE", OBJECT, "objects:write", schemas.DELETED, conflicts=True)
def delete_object(tx: Tx, call: Call) -> Json:
    """Delete a custom object with its attributes and records."""
    objects.delete_object(tx, call.id("objectId"))
    return DELETED


ATTRIBUTES = OBJECT + "/attributes"
ATTRIBUTE = ATTRIBUTES + "/{attributeId:uuid}"
INCLUDE_INACTIVE = choice("includeInactive", ("false", "true"), "With `true`, inactive attributes are listed too.")
NEW_ATTRIBUTE: Json = {"status": 201, "body": schemas.AttributeCreate, "conflicts": True, "is_long": True, "in_transaction": False}


@endpoint("GET", ATTRIBUTES, "attributes:read", schemas.listed("AttributeList", attributes=schemas.ATTRIBUTE), query=[INCLUDE_INACTIVE])
def list_attributes(tx: Tx, call: Call) -> Json:
    """List an object's attributes in display order."""
    include_inactive = call.query["includeInactive"] == "true"
    return {"attributes": objects.list_attributes(tx, call.id("objectId"), include_inactive=include_inactive)}


@endpoint("GET", ATTRIBUTE, "attributes:read", schemas.ATTRIBUTE)
def get_attribute(tx: Tx, call: Call) -> Json:
    """Get an attribute."""
    return objects.get_attribute(tx, call.id("objectId"), call.id("attributeId"))


@endpoint("POST", ATTRIBUTES, "attributes:write", schemas.ATTRIBUTE, **NEW_ATTRIBUTE)
def create_attribute(call: Call) -> Json:
    """Create an attribute."""
    new = objects.NewAttribute(**call.fields())

    def create(tx: Tx) -> Json:
        return objects.create_attribute(tx, call.id("objectId"), new, **call.stamp())

    return after_removal(call.context.engine, create, within=call.within, by=logs.key(call.key.id))


@endpoint("PATCH", ATTRIBUTE, "attributes:write", schemas.ATTRIBUTE, body=schemas.AttributeUpdate)
def update_attribute(tx: Tx, call: Call) -> Json:
    """Rename an attribute."""
    return objects.update_attribute(tx, call.id("objectId"), call.id("attributeId"), call.body, now=call.now())


@endpoint("POST", ATTRIBUTE + "/options", "attributes:write", schemas.ATTRIBUTE, body=schemas.OptionsEdit, is_long=True, is_addition=True)
def edit_attribute_options(tx: Tx, call: Call) -> Json:
    """Add, rename and retire options of a select; records with a renamed option get its new name."""
    return edit_options(tx, call.id("objectId"), call.id("attributeId"), call.body, **call.stamp())


@endpoint("DELETE", ATTRIBUTE, "attributes:write", schemas.DELETED, conflicts=True, is_long=True)
def delete_attribute(tx: Tx, call: Call) -> Json:
    """Delete an attribute and its values in all records."""
    objects.delete_attribute(tx, call.id("objectId"), call.id("attributeId"))
    return DELETED


RECORDS = OBJECT + "/records"
RECORD = RECORDS + "/{recordId:uuid}"
BULK = RECORDS + "/bulk"
LIST_QUERY: Json = {"query": [*page_parameters(), SORT, ORDER], "filters": True, "is_short": True}
WRITE: Json = {"body": schemas.RecordWrite, "conflicts": True, "is_versioned": True}


@endpoint("GET", RECORDS, "records:read", schemas.RECORDS, **LIST_QUERY)
def list_records(tx: Tx, call: Call) -> bytearray:
    """List records, newest first."""
    return _page(tx, call, call.query)


@endpoint("POST", RECORDS + "/search", "records:read", schemas.RECORDS, body=schemas.RecordSearch, optional_body=True, writes=False)
def search_records(tx: Tx, call: Call) -> bytearray:
    """List records by a search body."""
    sort = call.body.get("sort") or {}
    return _page(tx, call, {**call.body, "sort": sort.get("field"), "order": sort.get("order")})


def _page(tx: Tx, call: Call, query: Json) -> bytearray:
    sorting = (query.get("sort") or SORT.schema["default"], query.get("order") or ORDER.schema["default"])
    page = records.Paging(*sorting, int(query.get("limit", 50)), int(query.get("offset", 0)))
    conditions = [
        read_condition(condition["attributeSlug"], condition["operator"], condition.get("value")) for condition in query.get("filters", ())
    ]
    return records.write_list(tx, call.id("objectId"), conditions, page)


@endpoint("GET", RECORD, "records:read", schemas.RECORD, is_versioned=True, is_short=True)
def get_record(tx: Tx, call: Call) -> Json:
    """Get a record."""
    return records.get_record(tx, call.id("objectId"), call.id("recordId"))


@endpoint("POST", RECORDS, "records:write", schemas.RECORD, status=201, **WRITE)
def create_record(tx: Tx, call: Call) -> Json:
    """Create a record."""
    return records.create_record(tx, call.id("objectId"), call.body["data"], **call.stamp())


@endpoint("PATCH", RECORD, "records:write", schemas.RECORD, **WRITE)
def update_record(tx: Tx, call: Call) -> Json:
    """Merge values into a record; null clears one."""
    return records.update_record(tx, call.id("objectId"), call.id("recordId"), call.body["data"], call.only_if, **call.stamp())


@endpoint("DELETE", RECORD, "records:write", schemas.DELETED, is_versioned=True)
def delete_record(tx: Tx, call: Call) -> Json:
    """Delete a record."""
    records.delete_record(tx, call.id("objectId"), call.id("recordId"), call.only_if, **call.stamp())
    return DELETED


@endpoint("POST", BULK, "records:write", schemas.BULK_RESULT, body=schemas.BulkWrite)
def bulk_write(tx: Tx, call: Call) -> Json:
    """Create or upsert up to 100 records; those that fail are listed, the others are written."""
    return records.bulk_write(tx, call.id("objectId"), call.body.get("mode", "create"), call.body["records"], **call.stamp())


@endpoint("DELETE", BULK, "records:write", schemas.DELETED_COUNT, body=schemas.BulkDelete)
def bulk_delete(tx: Tx, call: Call) -> Json:
    """Delete up to 100 records; ids that are not there are not counted."""
    return {"deleted": records.bulk_delete(tx, call.id("objectId"), call.body["ids"], **call.stamp())}


@endpoint("GET", RECORD + "/history", "records:read", schemas.HISTORY, query=page_parameters(), is_addition=True)
def get_record_history(tx: Tx, call: Call) -> Json:
    """List the changes of a record, newest first."""
    limit, offset = call.query["limit"], call.query["offset"]
    history = read_history(tx, call.id("objectId"), call.id("recordId"), limit, offset)
    answer = {"changes": history.changes, "pagination": {"total": history.total, "limit": limit, "offset": offset}}
    return answer if history.since is None else answer | {"knownSince": history.since}


@endpoint("GET", "/trusts", "members:read", schemas.listed("TrustList", trusts=schemas.TRUST), is_addition=True)
def list_trusts(tx: Tx, call: Call) -> Json:
    """List the rules by which identity tokens of other issuers get API keys; for keys with full access."""
    _role_of(tx, call)  # raises Forbidden without full access
    return {"trusts": short_lived_keys.list_trusts(tx)}


@endpoint("GET", "/extensions", "objects:read", schemas.EXTENSIONS, is_addition=True)
def list_extensions(_tx: Tx, call: Call) -> Json:
    """List the endpoints that extend the interface, and the address of the console."""
    names = [f"{added.method} {added.path.replace(':uuid', '')}" for added, _ in ENDPOINTS if added.is_addition]
    return {"extensions": names, "consoleUrl": f"{call.context.settings.address}/{CONSOLE}"}


@endpoint("GET", "/members", "members:read", schemas.listed("MemberList", members=schemas.MEMBER))
def list_members(tx: Tx, _: Call) -> Json:
    """List the members of the organization."""
    return {"members": [member | {"user": present(member["user"], "image")} for member in members.list_members(tx)]}


MEMBER = "/members/{memberId:uuid}"
MEMBER_CHANGE: Json = {"conflicts": True, "is_addition": True}


@endpoint("PATCH", MEMBER, "members:read", schemas.MEMBER, body=schemas.MemberUpdate, **MEMBER_CHANGE)
def update_member(tx: Tx, call: Call) -> Json:
    """Change the role of a member; the key needs full access."""
    member, role = members.get_member(tx, call.id("memberId")), members.role_named(call.body["role"])
    members.check_change(tx, member, _role_of(tx, call), role)
    changed = members.update_member(tx, member["id"], name=member["user"]["name"], role=role.label, image=member["user"]["image"])
    return changed | {"user": present(changed["user"], "image")}


@endpoint("DELETE", MEMBER, "members:read", schemas.REMOVED_MEMBER, **MEMBER_CHANGE)
def remove_member(tx: Tx, call: Call) -> Json:
    """Remove a member; the key needs full access. The API keys that the member made keep working and are named."""
    member = members.get_member(tx, call.id("memberId"))
    members.check_change(tx, member, _role_of(tx, call))
    return DELETED | {"keys": members.remove_member(tx, member["id"], now=call.now())}


DEFINITIONS: Json = {"group": "definitions", "is_addition": True}
WRITTEN_DEFINITIONS: Json = DEFINITIONS | {"conflicts": True}


@endpoint("GET", "/definitions", "objects:read", schemas.DEFINITIONS, **DEFINITIONS)
def get_definitions(tx: Tx, call: Call) -> Json:
    """Get what a definitions file holds, as far as the key's scopes allow."""
    scopes = {"members": "members:read", "objects": "attributes:read", "webhooks": "webhooks:manage"}
    scopes |= {"reports": "reports:read", "workflows": "workflows:read"}
    sections = {name: part for name, part in dump_sections(tx).items() if name not in scopes or call.key.allows(scopes[name])}
    if "workflows" in sections:
        sections["workflows"] = [_as_shown_to(call, workflow) for workflow in sections["workflows"]]
    return sections


@endpoint("POST", "/definitions", "objects:write", schemas.DEFINED, body=Document, is_long=True, **WRITTEN_DEFINITIONS)
def load_definitions(tx: Tx, call: Call) -> Json:
    """Create and change what a definitions file holds; needs a key with full access that an owner made."""
    _require_owner(tx, call)
    return load_sections(tx, parse_sections(call.body), **call.stamp())


@endpoint("DELETE", "/definitions", "objects:write", schemas.DELETED_COUNT, body=EntryNames, **WRITTEN_DEFINITIONS)
def delete_definitions(tx: Tx, call: Call) -> Json:
    """Delete members, reports, workflows and webhook endpoints; needs a key with full access that an owner made."""
    _require_owner(tx, call)
    return {"deleted": delete_entries(tx, call.body, now=call.now())}


def _require_owner(tx: Tx, call: Call) -> None:
    if _role_of(tx, call) is not MemberRole.OWNER:
        raise Forbidden("this needs an API key with full access that an owner made")


def _role_of(tx: Tx, call: Call) -> MemberRole:
    """Return the role of the member who made the key; a key of the operator has an owner's. Raises Forbidden without full access: no scope
    of the interface stands for changing members or definitions."""
    if call.key.scopes is not None:
        raise Forbidden("this needs an API key with full access")
    maker = call.key.created_by
    if maker is None:
        return MemberRole.OWNER
    return next((role_of(member["role"]) for member in members.list_members(tx) if member["id"] == maker), MemberRole.NOBODY)


ACTIVITY = "/activities/{activityId:uuid}"
LINKED_TO = (
    identifier("recordId", "Only activities linked to this record."),
    identifier("objectId", "Only activities linked to a record of this object."),
)


@endpoint(
    "GET",
    "/activities",
    "activities:read",
    schemas.listed("ActivityList", activities=schemas.ACTIVITY),
    query=[*page_parameters(), *LINKED_TO],
)
def list_activities(tx: Tx, call: Call) -> Json:
    """List activities, newest first."""
    query = call.query
    return {"activities": activities.list_activities(tx, query["recordId"], query["objectId"], query["limit"], query["offset"])}


@endpoint("GET", ACTIVITY, "activities:read", schemas.ACTIVITY)
def get_activity(tx: Tx, call: Call) -> Json:
    """Get an activity."""
    return activities.get_activity(tx, call.id("activityId"))


@endpoint("POST", "/activities", "activities:write", schemas.ACTIVITY, status=201, body=schemas.ActivityCreate)
def create_activity(tx: Tx, call: Call) -> Json:
    """Create an activity."""
    return activities.create_activity(tx, call.body, created_by=call.key.created_by, **call.stamp())


@endpoint("PATCH", ACTIVITY, "activities:write", schemas.ACTIVITY, body=schemas.ActivityUpdate)
def update_activity(tx: Tx, call: Call) -> Json:
    """Update an activity; only the fields given change."""
    return activities.update_activity(tx, call.id("activityId"), call.body, **call.stamp())


@endpoint("DELETE", ACTIVITY, "activities:write", schemas.DELETED)
def delete_activity(tx: Tx, call: Call) -> Json:
    """Delete an activity."""
    activities.delete_activity(tx, call.id("activityId"), **call.stamp())
    return DELETED


@endpoint("POST", "/files/upload-url", "files:write", schemas.UPLOAD_URL, writes=False, body=schemas.UploadRequest)
def create_upload_url(tx: Tx, call: Call) -> Json:
    """Get an address that takes a file by PUT."""
    bucket, path = check_bucket(call.body["bucket"]), normalise_path(call.body["path"])
    signed_url, public_url = open_storage(call.context.settings)(tx, bucket, path, now=call.now())
    return {"signedUrl": signed_url, "publicUrl": public_url}


@endpoint("GET", "/files", "files:write", schemas.listed("FileList", files=schemas.STORED_FILE), query=page_parameters(), is_addition=True)
def list_files(_tx: Tx, call: Call) -> Json:
    """List uploaded files, newest first."""
    settings, offset = call.context.settings, call.query["offset"]
    if settings.files_s3 is not None:
        raise BadRequest("this service keeps its files in S3, which lists them")
    return {"files": storage.list_files(settings, offset + call.query["limit"])[offset:]}


@endpoint("POST", "/webhooks/deliveries/{deliveryId:uuid}/replay", "webhooks:manage", schemas.REPLAY, is_addition=True)
def replay_delivery(tx: Tx, call: Call) -> Json:
    """Deliver an event to the same endpoint again; one that still waits is tried now."""
    delivery_id, is_new = webhooks.replay(tx, call.id("deliveryId"), **call.stamp())
    return {"deliveryId": delivery_id, "isNew": is_new}


@endpoint("GET", "/webhooks", "webhooks:manage", schemas.WEBHOOKS)
def get_webhooks(tx: Tx, call: Call) -> Json:
    """Get a link to the webhook portal, and the event types."""
    link = make_link(tx, call.context.settings.address, PORTAL, key_id=call.key.id, now=call.now())
    return {"portalUrl": link.url, "eventTypes": [{"name": name, "description": text} for name, text in EVENT_TYPES.items()]}


REPORT = "/reports/{reportId:uuid}"
RUNS: Json = {"query": page_parameters(20)}


@endpoint("GET", "/reports", "reports:read", schemas.listed("ReportList", reports=schemas.REPORT))
def list_reports(tx: Tx, _: Call) -> Json:
    """List reports, oldest first."""
    return {"reports": [present(report, "lastRunAt") for report in reports.list_reports(tx)]}


@endpoint("GET", REPORT, "reports:read", schemas.REPORT_WITH_DEFINITION)
def get_report(tx: Tx, call: Call) -> Json:
    """Get a report with what it asks."""
    return present(reports.get_report(tx, call.id("reportId")), "lastRunAt", "object")


@endpoint("POST", REPORT + "/run", "reports:run", schemas.STARTED_REPORT_RUN, status=201, in_transaction=False, is_long=True)
def start_report_run(call: Call) -> Json:
    """Run a report and store its results."""
    return {"run": run_report(call.context, call.id("reportId"), within=call.within)}


@endpoint("GET", REPORT + "/runs", "reports:read", schemas.listed("ReportRunList", runs=schemas.REPORT_RUN), **RUNS)
def list_report_runs(tx: Tx, call: Call) -> Json:
    """List the runs of a report, newest first."""
    return {"runs": reports.list_runs(tx, call.id("reportId"), call.query["limit"], call.query["offset"])}


@endpoint("GET", REPORT + "/runs/{runId:uuid}", "reports:read", schemas.REPORT_RUN_WITH_RESULTS)
def get_report_run(tx: Tx, call: Call) -> Json:
    """Get a run of a report with its results."""
    return reports.get_run(tx, call.id("reportId"), call.id("runId"))


WORKFLOW = "/workflows/{workflowId:uuid}"
MANUAL_RUN: Json = {"status": 202, "body": schemas.WorkflowRunStart, "optional_body": True, "conflicts": True}


@endpoint("GET", "/workflows", "workflows:read", schemas.listed("WorkflowList", workflows=schemas.WORKFLOW))
def list_workflows(tx: Tx, _: Call) -> Json:
    """List workflows, oldest first."""
    return {"workflows": [_workflow(workflow) for workflow in workflows.list_workflows(tx)]}


@endpoint("GET", WORKFLOW, "workflows:read", schemas.WORKFLOW_WITH_DEFINITION)
def get_workflow(tx: Tx, call: Call) -> Json:
    """Get a workflow with its conditions and actions."""
    return _as_shown_to(call, _workflow(workflows.get_workflow(tx, call.id("workflowId"))))


def _as_shown_to(call: Call, workflow: Json) -> Json:
    """Return a workflow for a key: the values of headers, which are secrets, are null without full access. Null cannot be loaded back."""
    if call.key.scopes is None:
        return workflow
    return workflow | {
        "actions": [
            action | ({"headers": dict.fromkeys(action["headers"])} if action["type"] == "callUrl" and "headers" in action else {})
            for action in workflow["actions"]
        ]
    }


def _workflow(workflow: Json) -> Json:
    """Leave out the object of a workflow that has none, or whose object was deleted."""
    of_object = workflow["object"]
    return present(workflow | {"object": of_object if of_object and of_object["pluralName"] is not None else None}, "object")


@endpoint("POST", WORKFLOW + "/run", "workflows:run", schemas.WORKFLOW_START, **MANUAL_RUN)
def start_workflow_run(tx: Tx, call: Call) -> Json:
    """Start a run of an enabled workflow; it is executed after this answer."""
    workflow = start_by_hand(tx, call.id("workflowId"), call.body.get("data"), **call.stamp())
    return {"message": "Workflow run started", "workflowId": workflow.id, "workflowName": workflow.name}


@endpoint("GET", WORKFLOW + "/runs", "workflows:read", schemas.listed("WorkflowRunList", runs=schemas.WORKFLOW_RUN), **RUNS)
def list_workflow_runs(tx: Tx, call: Call) -> Json:
    """List the runs of a workflow, newest first."""
    runs = workflows.list_runs(tx, call.id("workflowId"), call.query["limit"], call.query["offset"])
    return {"runs": [present(run, "startedAt", "completedAt") for run in runs]}
