"""The reference of the interface, from the service's own OpenAPI document: each call with its fields, an example, curl and crmctl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.console.visits import ConsolePage, Visit
from crmctl.service.faults import NotFound

Document = Mapping[str, Any]

COMMANDS = {
    "list_objects": "crmctl objects list",
    "get_object": "crmctl objects get people",
    "create_object": "crmctl objects create --plural-name Projects --singular-name Project",
    "update_object": "crmctl objects update projects --plural-name Works",
    "delete_object": "crmctl objects delete projects",
    "list_attributes": "crmctl attributes list people",
    "get_attribute": "crmctl attributes get people email",
    "create_attribute": "crmctl attributes create people --name Nickname --type text",
    "update_attribute": "crmctl attributes update people nickname --name 'Short name'",
    "delete_attribute": "crmctl attributes delete people nickname",
    "list_records": "crmctl records list people --filter 'email endsWith @example.com'",
    "search_records": "crmctl records search people --filter 'score>=5'",
    "get_record": "crmctl records get people RECORD-ID",
    "get_record_history": "crmctl records history people RECORD-ID",
    "create_record": "crmctl records create people --set email=ada@example.com",
    "update_record": "crmctl records update people RECORD-ID --set score=5",
    "delete_record": "crmctl records delete people RECORD-ID",
    "bulk_write": "crmctl bulk import people people.csv",
    "bulk_delete": "crmctl bulk delete people --filter 'status=inactive'",
    "list_activities": "crmctl activities list",
    "get_activity": "crmctl activities get ACTIVITY-ID",
    "create_activity": "crmctl activities create --title 'Call with Ada'",
    "update_activity": "crmctl activities update ACTIVITY-ID --title 'Call'",
    "delete_activity": "crmctl activities delete ACTIVITY-ID",
    "list_members": "crmctl members list",
    "list_reports": "crmctl reports list",
    "get_report": "crmctl reports get REPORT-ID",
    "start_report_run": "crmctl reports run REPORT-ID",
    "list_report_runs": "crmctl reports runs REPORT-ID",
    "get_report_run": "crmctl reports results REPORT-ID RUN-ID",
    "list_workflows": "crmctl workflows list",
    "get_workflow": "crmctl workflows get WORKFLOW-ID",
    "start_workflow_run": "crmctl workflows run WORKFLOW-ID",
    "list_workflow_runs": "crmctl workflows runs WORKFLOW-ID",
    "create_upload_url": "crmctl files upload picture.png",
    "get_webhooks": "crmctl webhooks portal",
}
"""The command for each operation."""

Row = tuple[str, str, str, bool, int]
"""One field of a body or an answer: name, type, meaning, whether it is required, and depth."""


def show_calls(document: Callable[[], Document], _tx: object, visit: Visit) -> ConsolePage:
    address = visit.context.settings.address
    return ConsolePage("api.html", {"groups": calls_of(document(), address), "address": address})


def show_noun(document: Callable[[], Document], _tx: object, visit: Visit) -> ConsolePage:
    calls = calls_of(document(), visit.context.settings.address).get(str(visit.path["tag"]))
    if calls is None:
        raise NotFound("there are no calls of this name")
    return ConsolePage("api_noun.html", {"tag": visit.path["tag"], "calls": calls})


def calls_of(document: Document, address: str) -> dict[str, list[Json]]:
    """Return the calls of each noun in the order of the document."""
    groups: dict[str, list[Json]] = {}
    for path, methods in document.get("paths", {}).items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append(_call(document, address, (method.upper(), path), operation))
    return groups


def _call(document: Document, address: str, line: tuple[str, str], operation: Mapping[str, Any]) -> Json:
    method, path = line
    body = _schema_in(operation.get("requestBody", {}))
    good = next(status for status in operation["responses"] if status.startswith("2"))
    shown = path.replace("{", "").replace("}", "")
    curl = [f"curl {address}{path}", f"-X {method}" if method != "GET" else "", '-H "Authorization: Bearer $CRMCTL_API_KEY"']
    if body:
        curl += ["-H 'Content-Type: application/json'", f"-d '{jsontext.dumps(_example(document, body))}'"]
    return {
        "id": operation["operationId"],
        "method": method,
        "path": path,
        "summary": operation["summary"],
        "scope": operation["x-required-scope"],
        "parameters": [_parameter(parameter) for parameter in operation.get("parameters", [])],
        "body": _fields(document, body) if body else [],
        "answer": _fields(document, _schema_in(operation["responses"][good])),
        "status": good,
        "refusals": [status for status in operation["responses"] if status != good],
        "curl": " \\\n  ".join(part for part in curl if part),
        "command": COMMANDS.get(operation["operationId"], f"crmctl api {method.lower()} {shown}"),
    }


def _schema_in(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(content.get("content", {}).get("application/json", {}).get("schema", {}))


def _parameter(parameter: Mapping[str, Any]) -> Row:
    about = parameter.get("description", "")
    return parameter["name"], f"{_type(parameter['schema'])}, {parameter['in']}", about, parameter.get("required", False), 0


def _resolved(document: Document, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema behind a reference; of several alternatives the first that is not null."""
    while "$ref" in schema or "anyOf" in schema or "oneOf" in schema:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        else:
            choices = schema.get("anyOf") or schema["oneOf"]
            schema = next((choice for choice in choices if choice.get("type") != "null"), {})
    return schema


def _fields(document: Document, schema: Mapping[str, Any], depth: int = 0) -> list[Row]:
    schema = _resolved(document, schema)
    if schema.get("type") == "array":
        return _fields(document, schema["items"], depth)
    rows: list[Row] = []
    for name, part in schema.get("properties", {}).items():
        inner = _resolved(document, part)
        required = name in schema.get("required", ())
        rows.append((name, _type(inner), part.get("description", inner.get("description", "")), required, depth))
        if depth < 3:
            rows += _fields(document, inner, depth + 1)
    return rows


def _type(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return f"“{schema['const']}”"
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"][:20])
    kind = schema.get("type", "any")
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _example(document: Document, schema: Mapping[str, Any]) -> Any:
    """Return a body with every required field, or with all fields if none is required."""
    schema = _resolved(document, schema)
    if "const" in schema or "enum" in schema or "default" in schema:
        return schema.get("const", schema.get("default", next(iter(schema.get("enum", ())), None)))
    match schema.get("type"):
        case "object":
            parts = schema.get("properties", {})
            named = [name for name in parts if name in schema.get("required", ())] or list(parts)
            return {name: _example(document, parts[name]) for name in named}
        case "array":
            return [_example(document, schema.get("items", {}))]
        case "boolean":
            return True
        case "integer" | "number":
            return 1
    formats = {"uuid": "00000000-0000-4000-8000-000000000000", "date-time": "2026-01-31T09:30:00Z"}
    return formats.get(schema.get("format", ""), "text")
