"""Reading what the service sent in any of the shapes the specification leaves open. Pure: documents in, resources out.

A resource may be bare, under its own name, under `data`, or the only object of a wrapper; a list may be bare, under its key, under
`data`, or the only array. What fits none of these is `unreadable_answer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from crmctl.client.http.answers import Answer, text_of, unreadable, with_reasons
from crmctl.errors import ServiceError
from crmctl.models.attributes import Attribute
from crmctl.models.base import Resource
from crmctl.models.objects import Object
from crmctl.models.records import BulkResult

R = TypeVar("R", bound=Resource)
Document = dict[str, Any]

_DEPTH = 4
_TOTALS = ("total", "totalCount", "total_count")


@dataclass(frozen=True)
class Page(Generic[R]):
    """One page of a list. `total` is None when the service does not say; `limit` and `offset` are the service's, else as asked for.

    `date` is the answer's Date header.
    """

    items: list[R]
    total: int | None
    limit: int
    offset: int
    date: str | None = None


def read_one(answer: Answer, name: str, model: type[R], *, whole: bool = False) -> R:
    """One resource. With `whole`, fields that stand next to its wrapper (`{"run": {...}, "results": [...]}`) become part of it."""
    return _parse(model, find_one(answer, name, has_id, whole=whole), answer)


def read_made(answer: Answer, name: str, model: type[R], sent: Mapping[str, Any]) -> R:
    """What was created. A success without a body leaves what was `sent`: id and slug are then "", and missing in `wire`."""
    if not answer.is_empty:
        return read_one(answer, name, model)
    resource = _parse(model, {"id": "", "slug": "", **sent}, answer)
    resource._wire = dict(sent)
    return resource


def read_list(answer: Answer, key: str, model: type[R]) -> list[R]:
    """A list of resources, documented under `key`."""
    return _parse_items(model, _find_items(answer.json(), key, answer)[0], answer)


def read_page(answer: Answer, key: str, model: type[R], limit: int, offset: int) -> Page[R]:
    """A list with its pagination, which may be missing or go by another name."""
    items, around = _find_items(answer.json(), key, answer)
    numbers = _pagination(around)
    return Page(
        items=_parse_items(model, items, answer),
        total=_count(numbers, *_TOTALS),
        limit=_count(numbers, "limit") or limit,
        offset=offset if (said := _count(numbers, "offset")) is None else said,
        date=answer.headers.get("date"),
    )


def read_object(answer: Answer) -> tuple[Object, list[Attribute] | None]:
    """Get Object: the object, and its attributes under whatever name they came; None when they did not come at all."""
    raw = find_one(answer, "object", has_id, whole=True)
    attributes = _attributes_of(raw)
    return _parse(Object, raw, answer), attributes


def read_bulk(answer: Answer) -> BulkResult:
    """The counts of a bulk write; `wire` keeps them as sent. A count that is missing reads as 0: the caller checks that they add up."""
    raw = find_one(answer, "result", _has_any("created", "updated", "failed"))
    failed = raw.get("failed")
    readable = {**raw, "failed": [_failure(entry) for entry in failed]} if isinstance(failed, list) else raw
    result = _parse(BulkResult, readable, answer)
    result._wire = raw
    return result


def read_deleted(answer: Answer) -> int | None:
    """How many records a bulk delete says it removed, or None when it does not say."""
    if answer.is_empty:
        return None
    document = answer.json()
    for _ in range(_DEPTH):
        if not isinstance(document, dict):
            return None
        deleted = document.get("deleted")
        if isinstance(deleted, list):
            return len(deleted)
        count = _count(document, "deleted", "deletedCount", "deleted_count", "count")
        if count is not None:
            return count
        document = document.get("data", document.get("result"))
    return None


def read_loose(answer: Answer, model: type[R], *fields: str) -> R:
    """An acknowledgement none of whose fields is needed: an empty body is one too."""
    if answer.is_empty:
        return model.parse({})
    document = answer.json()
    if not isinstance(document, dict):
        raise unreadable(answer)
    return _parse(model, (_locate(document, "result", _has_any(*fields), _DEPTH) or [document])[0], answer)


def read_holder(answer: Answer, model: type[R], *fields: str) -> R:
    """An object without an id that is known by having one of `fields`."""
    return _parse(model, find_one(answer, "result", _has_any(*fields)), answer)


def find_one(answer: Answer, name: str, is_it: Callable[[Document], bool], *, whole: bool = False) -> Document:
    """The JSON object that `is_it` recognises, wherever it is wrapped. Raises ServiceError `unreadable_answer`."""
    path = _locate(answer.json(), name, is_it, _DEPTH)
    if path is None:
        raise unreadable(answer, f"an answer without the expected {name}")
    found = path[0]
    for inner, outer in pairwise(path if whole else ()):
        found = {**{key: value for key, value in outer.items() if value is not inner}, **found}
    return found


def has_id(document: Document) -> bool:
    """Whether this is a resource itself and not a wrapper: only resources have an id (a record has `data` as well)."""
    return isinstance(document.get("id"), str) and document["id"] != ""


def _has_any(*fields: str) -> Callable[[Document], bool]:
    return lambda document: any(field in document for field in fields)


def _locate(document: Any, name: str, is_it: Callable[[Document], bool], depth: int) -> list[Document] | None:
    """What `is_it` recognises and the objects around it, innermost first."""
    if not isinstance(document, dict) or depth == 0:
        return None
    if is_it(document):
        return [document]
    key = next((key for key in (name, "data") if isinstance(document.get(key), dict)), None)
    if key is None:
        wrapped = [key for key, value in document.items() if isinstance(value, dict) and is_it(value)]
        key = wrapped[0] if len(wrapped) == 1 else None
    inner = _locate(document[key], name, is_it, depth - 1) if key is not None else None
    return None if inner is None else [*inner, document]


def _find_items(document: Any, key: str, answer: Answer) -> tuple[list[Any], list[Document]]:
    """The array of a list answer, and the JSON objects around it, innermost first."""
    around: list[Document] = []
    for _ in range(_DEPTH):
        if isinstance(document, list):
            return document, around
        if not isinstance(document, dict):
            break
        around.insert(0, document)
        if key in document and document[key] is None:
            return [], around  # an empty list, as some languages write it
        arrays = [value for value in document.values() if isinstance(value, list)]
        named = next((document[name] for name in (key, "data") if isinstance(document.get(name), list | dict)), None)
        document = named if named is not None else arrays[0] if len(arrays) == 1 else None
    raise unreadable(answer, f"an answer without a list of {key}")


def _parse(model: type[R], raw: Mapping[str, Any], answer: Answer) -> R:
    try:
        return model.parse(raw)
    except ServiceError as error:
        error.status, error.outcome_unknown = answer.status, answer.wrote
        raise


def _parse_items(model: type[R], items: list[Any], answer: Answer) -> list[R]:
    if not all(isinstance(item, dict) for item in items):
        raise unreadable(answer, "a list whose items are not objects")
    return [_parse(model, item, answer) for item in items]


def _attributes_of(raw: Document) -> list[Attribute] | None:
    """Attributes inside Get Object: under `attributes`, or in the only array that looks like them."""
    arrays = {key: value for key, value in raw.items() if isinstance(value, list)}
    chosen = next((arrays[key] for key in ("attributes", "fields") if key in arrays), None)
    if chosen is None:
        alike = [items for items in arrays.values() if items and all(isinstance(item, dict) and "slug" in item for item in items)]
        chosen = alike[0] if len(alike) == 1 else None
    if chosen is None:
        return None
    try:
        return [Attribute.parse(item) for item in chosen if isinstance(item, dict)]
    except ServiceError:
        return None  # not attributes after all; they have an endpoint of their own


def _failure(entry: Any) -> Any:
    if not isinstance(entry, dict) or isinstance(entry.get("error"), str):
        return entry
    inner = entry.get("error")
    return {**entry, "error": with_reasons(text_of(entry), inner if isinstance(inner, dict) else entry) or ""}


def _pagination(around: list[Document]) -> Document:
    """The object that holds the paging numbers: `pagination`, `meta` or the like, else the answer's own top level."""
    for document in around:
        for name in ("pagination", "meta", "paging", "page"):
            inner = document.get(name)
            if isinstance(inner, dict):
                nested = inner.get("pagination")
                return nested if isinstance(nested, dict) else inner
    return next((document for document in around if _count(document, *_TOTALS) is not None), {})


def _count(document: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields that is a whole number, or digits, from 0 on."""
    for name in names:
        value = document.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None
