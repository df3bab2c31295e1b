"""The OpenAPI document, honest to the last status code: what is said of an endpoint, and the whole document."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from crmctl.service.http.endpoints import PREFIX, Endpoint
from crmctl.service.http.parameters import document_parameters
from crmctl.service.http.schemas import ErrorBody
from crmctl.version import __version__

TITLE = "Customer Records Service"
DESCRIPTION = "Objects, attributes, records, members, activities, reports and workflows over JSON. Every endpoint needs an API key."

_REFERENCE = "#/components/schemas/{model}"
RATE_HEADERS = {
    "X-RateLimit-Limit": {"description": "Requests allowed in a window.", "schema": {"type": "integer"}},
    "X-RateLimit-Remaining": {"description": "Requests left in this window.", "schema": {"type": "integer"}},
    "X-RateLimit-Reset": {"description": "When the window ends, Unix seconds.", "schema": {"type": "integer"}},
}
RETRY_AFTER = {"Retry-After": {"description": "Whole seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
ETAG = {"ETag": {"description": "The record's version, for If-Match. An addition to the interface.", "schema": {"type": "string"}}}
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "Change the record only if it still has this version (the ETag of an answer), else 412. An addition to the interface.",
    "schema": {"type": "string", "pattern": '^("[!#-~]*"|[*])$'},
    "x-addition": True,
}
_MEANINGS = {
    400: "Bad request: details.field names what is at fault",
    401: "No valid API key",
    403: "The key lacks the scope, or this cannot be changed",
    404: "Not found",
    408: "The body did not arrive in time",
    409: "Conflict with what is stored",
    412: "Changed since: none of the versions in If-Match is the record's",
    413: "The body is over the limit",
    429: "Rate limited",
    500: "Internal server error",
    503: "The storage did not answer in time; nothing was written",
}


def describe(endpoint: Endpoint) -> dict[str, Any]:
    """The operation of the document that an endpoint is."""
    refusals = {400, 401, 403, 429, 500, 503}
    refusals |= {404} if "{" in endpoint.path else set()
    refusals |= {408, 413} if endpoint.body else set()
    refusals |= {409} if endpoint.conflicts else set()
    changes_version = endpoint.is_versioned and endpoint.writes and endpoint.method != "POST"
    refusals |= {412} if changes_version else set()
    headers = RATE_HEADERS | (ETAG if endpoint.is_versioned and endpoint.method != "DELETE" else {})
    succeeds = {"description": "Successful Response", "content": _json(endpoint.answers), "headers": headers}
    responses = {str(endpoint.status): succeeds}
    for status in sorted(refusals):
        headers = RATE_HEADERS | (RETRY_AFTER if status in (429, 503) else {})
        responses[str(status)] = {"content": _json(ErrorBody), "description": _MEANINGS[status], "headers": headers}
    names = re.findall(r"\{(\w+)", endpoint.path)
    parameters = [{"name": one, "in": "path", "required": True, "schema": {"type": "string", "format": "uuid"}} for one in names]
    operation: dict[str, Any] = {
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "operationId": endpoint.name,
        "parameters": parameters + document_parameters(endpoint.query, endpoint.filters) + ([IF_MATCH] if changes_version else []),
        "responses": responses,
        "security": [{"apiKey": []}],
        "x-required-scope": endpoint.scope,
    }
    if endpoint.is_addition:
        operation |= {"x-addition": True, "description": "An addition to the interface: no client of it needs this."}
    if endpoint.body:
        operation["requestBody"] = {"required": not endpoint.optional_body, "content": _json(endpoint.body)}
    return operation


def _json(model: type[BaseModel]) -> dict[str, Any]:
    """A document of the model's shape, by name."""
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(model=model.__name__)}}}


def build_document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The whole document: operations, the shapes of requests and answers, the way to authenticate."""
    paths: dict[str, dict[str, Any]] = {}
    models: set[tuple[type[BaseModel], JsonSchemaMode]] = {(ErrorBody, "serialization")}
    for endpoint in endpoints:
        template = re.sub(r":\w+}", "}", PREFIX + endpoint.path)
        paths.setdefault(template, {})[endpoint.method.lower()] = describe(endpoint)
        models.add((endpoint.answers, "serialization"))
        if endpoint.body:
            models.add((endpoint.body, "validation"))
    _, shapes = models_json_schema(sorted(models, key=lambda entry: entry[0].__name__), ref_template=_REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "description": DESCRIPTION, "version": __version__},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(shapes["$defs"].items())),
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer", "description": "Authorization: Bearer <API_KEY>"}},
        },
    }
