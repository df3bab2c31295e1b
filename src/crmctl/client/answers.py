"""Answers of the service: errors, tolerant reading of their shapes, and pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from crmctl.errors import CrmctlError, DeniedError, ForbiddenError, NotFoundError, RateLimitedError, RejectedError, ServiceError
from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT, Attribute, BulkResult, Object, Resource
from crmctl.models.scopes import SCOPES

if TYPE_CHECKING:
    from crmctl.values.filters import Condition

EXCERPT = 200
"""Characters of an unreadable body that a message shows."""

MOST_REASONS = 5
"""Reasons of an answer that its message shows; the details have all."""

INVALID = (400, 409, 422)
"""Statuses of answers that refuse content."""

WEB_PAGE = "this looks like a web page, perhaps a proxy's or a login page: check the base URL"
NO_JSON = "the answer is no JSON, so it may not come from the service: check the base URL"
FIELD = ("field", "attributeSlug", "attribute", "slug", "path", "property", "loc", "name", "key", "pointer", "param")
REASONS = (
    "message",
    "errors",
    "details",
    "fields",
    "fieldErrors",
    "field_errors",
    "formErrors",
    "validationErrors",
    "violations",
    "issues",
    "detail",
)
"""Names under which services explain refusals of single fields, and name the fields. The specification leaves them open."""

COUNTS = frozenset({"created", "updated", "failed", "deleted"})
ERROR_FIELDS = frozenset({"error", "code", "status", "statusCode", "title", "type", "requestId", "timestamp", "path", *REASONS})
"""Fields of a body that is nothing but an error."""


@frozen
class Answer:
    """One answer: header names in lower case, the body as bytes. `wrote`: the request may have changed something."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    wrote: bool = False

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_empty(self) -> bool:
        return not self.content.strip()

    @property
    def tells_nothing(self) -> bool:
        """Whether the body is empty, or is one of the JSON values that frameworks send for no content."""
        return self.content.strip() in (b"", b"null", b"{}", b'""')

    def json(self) -> Any:
        """Parse the body. Raises ServiceError (outcome unknown after a write) if it is not JSON, or only reports a failure."""
        try:
            document = jsontext.loads(self.content)
        except ValueError:
            raise unreadable(self) from None
        if not self.ok or not isinstance(document, dict):
            return document
        if document.get("success") is False or document.get("ok") is False:
            is_failure = not document.keys() & COUNTS  # a bulk answer with counts says which items failed
        else:
            is_failure = bool(document.get("error")) and document.keys() <= ERROR_FIELDS
        if is_failure:
            code, message, details = explanation(self)
            said = f"the service answers {self.status}, but reports a failure: {message or _excerpt(self.content)}"
            raise ServiceError(said, code=code or "failed_answer", status=self.status, details=details, outcome_unknown=self.wrote)
        return document


def unreadable(answer: Answer, why: str = "an answer that cannot be read") -> ServiceError:
    """Return a ServiceError that shows status, content type and the start of the body."""
    kind = answer.headers.get("content-type", "no content type")
    start = _excerpt(answer.content)
    shown = f": {start}" if start else ", empty body"
    hint = WEB_PAGE if "html" in kind.lower() or start[:1] == "<" else None
    return ServiceError(
        f"the service sent {why} (status {answer.status}, {kind}){shown}",
        code="unreadable_answer",
        status=answer.status,
        hint=hint,
        outcome_unknown=answer.wrote,
    )


OVER_STORED_KEYS = ("CRMCTL_API_KEY", "key_command", "oidc")
"""Sources of keys that crmctl prefers to the one that `auth login` stores."""


def refusal(
    answer: Answer, *, retry_after: float | None = None, until: str | None = None, key_source: str = "", not_followed: str = ""
) -> CrmctlError:
    """Return the error for an answer outside 2xx, with the service's message, code and details; `not_followed` is why a redirect ended."""
    code, message, details = explanation(answer)
    status = answer.status
    facts: Json = {"code": code, "status": status, "details": details}
    page = "html" in answer.headers.get("content-type", "").lower()
    shown, web_page = (_shown(answer), WEB_PAGE) if page else ("", None)
    if status == 401:
        where = f"the key comes from {key_source}" if key_source in OVER_STORED_KEYS else "crmctl auth login stores a valid key"
        hint = web_page or where
        return DeniedError(message or f"the service does not accept the API key{shown}", hint=hint, **facts)
    if status == 403:
        scope = _required_scope(message, details)
        text = message or f"the key may not do this{shown}"
        if scope and scope not in text:
            text = f"{text} (missing scope: {scope})"
        needed = f"the key needs the scope {scope}: create one with it under Organization Settings, Developers" if scope else web_page
        return ForbiddenError(text, hint=needed, required_scope=scope, **facts)
    if status == 404:
        no_json = None if _is_json(answer) else NO_JSON
        return NotFoundError(message or f"the service has nothing under this address{shown}", hint=web_page or no_json, **facts)
    if status == 429:
        wait = f"; it asks to come back {until}" if until else ""
        hint = "--max-wait SECONDS waits longer"
        return RateLimitedError((message or "too many requests") + wait, hint=hint, retryable=True, retry_after=retry_after, **facts)
    if 300 <= status < 400:
        target = answer.headers.get("location", "").partition("?")[0]
        text, hint = f"points to {target}; {not_followed}", "if that is where the service lives now, use it as the base URL"
        if not target:
            text, hint = "names no other address", "this may be the answer of a proxy or cache: check the base URL"
        # 301, 307 and 308 ask for the same request elsewhere; 302 and 303 may also answer a finished write.
        unknown = answer.wrote and status in (302, 303)
        said = f"the service answers {status} and {text}"
        return ServiceError(said, code="redirected", status=status, hint=hint, outcome_unknown=unknown)
    if 400 <= status < 500:
        return RejectedError(
            message or f"the service refused the request (status {status}){_shown(answer)}",
            hint=web_page,
            retryable=status == 408,
            **facts,
        )
    message = message or f"the service failed with status {status}{_shown(answer)}"
    retryable = status in (502, 503, 504)
    return ServiceError(message, retryable=retryable, retry_after=retry_after, outcome_unknown=answer.wrote, **facts)


def _is_json(answer: Answer) -> bool:
    try:
        jsontext.loads(answer.content)
    except ValueError:
        return False
    return True


def explanation(answer: Answer) -> tuple[str | None, str | None, Any]:
    """Return code, message and details of an error body of any shape; unknown fields serve as details if there are none."""
    try:
        body = jsontext.loads(answer.content)
    except jsontext.TooDeepError:
        return None, None, None
    except ValueError:
        return None, _plain_text(answer), None
    if isinstance(body, str):
        return None, body or None, None
    if not is_shallow(body):
        return None, None, None
    if not isinstance(body, dict):
        return None, None, body
    inner = body.get("error")
    if isinstance(inner, dict):
        body = {**inner, **{key: value for key, value in body.items() if key != "error"}}
        code = text_of(inner.get("code") or inner.get("error") or inner.get("type"))
    else:
        code = text_of(inner if inner is not None else body.get("code"))
    candidates = [body.get(key) for key in ("message", "detail", "error_description", "title", "reason", "errors", "details")]
    if is_invalid := answer.status in INVALID:
        candidates = [value for value in candidates if not isinstance(value, list)]
    message = next((text for value in candidates if (text := text_of(value))), None)
    if code and " " in code:
        # a sentence in the place of the code is the message
        code, message = None, message or code
    details = body.get("details")
    if details is None:
        details = {key: value for key, value in body.items() if key not in ("error", "message", "code", "details")} or None
    return code, (with_reasons(message, body) if is_invalid or message is None else message) or code, details


def is_shallow(value: Any, levels: int = 50) -> bool:
    """Whether a value is nested less deeply than explanations are; a deeper one exceeds the recursion of those who read and write it."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(is_shallow(item, levels - 1) for item in items)


def text_of(value: Any) -> str | None:
    """Return the words in a value of any shape: the text, an object's message, or a list's items."""
    if isinstance(value, str):
        return " ".join(value.split()) or None
    if isinstance(value, dict):
        return next((text for key in ("message", "msg", "detail", "error", "reason") if (text := text_of(value.get(key)))), None)
    if isinstance(value, list):
        return "; ".join(text for item in value if (text := text_of(item))) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def with_reasons(message: str | None, body: Mapping[str, Any]) -> str | None:
    """Return the message with the reasons for single fields that it lacks."""
    folded = (message or "").casefold()
    reasons = dict.fromkeys(reason for name in REASONS for reason in _reasons(body.get(name), sure=name != "details"))
    new = [f"{field}: {why}" if field else why for field, why in reasons if why.casefold() not in folded or field.casefold() not in folded]
    if len(new) == 1 and new[0].endswith(f": {message}"):
        return new[0]
    more = [f"and {len(new) - MOST_REASONS:,} more"] if len(new) > MOST_REASONS else []
    return ": ".join(filter(None, [(message or "").rstrip(".: "), "; ".join(new[:MOST_REASONS] + more)])) if new else message


def _reasons(value: Any, field: str = "", *, sure: bool) -> Iterator[tuple[str, str]]:
    """Yield fields and their reasons in a value of any shape. Unless `sure`, a single word is not a reason."""
    if isinstance(value, str):
        if field == "" or sure or " " in value.strip():
            yield field, " ".join(value.split())
    elif isinstance(value, list):
        for item in value:
            yield from _reasons(item, field, sure=True)
    elif isinstance(value, dict):
        why = next((text for key in ("message", "msg", "error", "reason") if isinstance(text := value.get(key), str)), None)
        if why is None:
            for key, item in value.items():
                inner = field if key in REASONS else f"{field}.{key}" if field else str(key)
                if key != "valid":  # the message names the choices
                    yield from _reasons(item, inner, sure=sure or key in REASONS)
            return
        named = next((value[key] for key in FIELD if value.get(key) not in (None, "", [])), field)
        path = [str(part) for part in named] if isinstance(named, list) else [str(named)]
        yield ".".join(path[2:] if path[:2] == ["body", "data"] else path), " ".join(why.split())


def _required_scope(message: str | None, details: Any) -> str | None:
    if isinstance(details, dict):
        for key in ("requiredScope", "required_scope", "scope"):
            if isinstance(details.get(key), str) and details[key]:
                return str(details[key])
    words = re.findall(r"[a-z_]+:[a-z_]+", message or "")
    return next((word for word in words if word in SCOPES), None)


def _plain_text(answer: Answer) -> str | None:
    kind = answer.headers.get("content-type", "").lower()
    text = _excerpt(answer.content)
    return text if text and "html" not in kind and not text.startswith("<") else None


def _shown(answer: Answer) -> str:
    start = _excerpt(answer.content)
    return f", {answer.headers.get('content-type', 'no content type')}: {start}" if start else ", empty body"


def _excerpt(content: bytes) -> str:
    text = " ".join(content[: EXCERPT * 8].decode("utf-8", "replace").split())
    text = "".join(character if character.isprintable() else "�" for character in text)
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"


R = TypeVar("R", bound=Resource)

_DEPTH = 4
_TOTALS = ("total", "totalCount", "total_count")


@frozen
class Page(Generic[R]):
    """One page of a list. `total` is None if the service sends none; `limit` and `offset` are the service's, else the requested ones.
    `date` is the Date header."""

    items: list[R]
    total: int | None
    limit: int
    offset: int
    date: str | None = None


class ListQuery(TypedDict, total=False):
    """The arguments of `Crm.list_records`; `sort` is `created_at` or `updated_at`, `order` `asc` or `desc`."""

    filters: Sequence[Condition]
    sort: str | None
    order: str | None
    limit: int
    offset: int


def read_one(answer: Answer, name: str, model: type[R], *, beside: tuple[type, ...] = ()) -> R:
    """Read one resource. Values of the types `beside` its wrapper (`{"run": {...}, "results": [...]}`) become part of it."""
    return _parse(model, find_one(answer, name, has_id, beside=beside), answer)


def read_made(answer: Answer, name: str, model: type[R], sent: Mapping[str, Any]) -> R:
    """Read a created resource. Fields missing from the answer keep the values `sent`. Without a body, `wire` is what was sent."""
    raw = {} if answer.tells_nothing else find_one(answer, name, has_id)
    resource = _parse(model, {"id": "", "slug": "", **sent, **raw}, answer)
    resource._wire = dict(raw or sent)
    return resource


def read_list(answer: Answer, key: str, model: type[R]) -> list[R]:
    """Read a list of resources, documented under `key`."""
    return _parse_items(model, _find_items(answer.json(), key, answer)[0], answer)


def read_page(answer: Answer, key: str, model: type[R], limit: int, offset: int) -> Page[R]:
    """Read a list with its paging numbers, under one of several names, at the top level, or missing; those with a total come first. A total
    below the items that exist counts as none."""
    items, around = _find_items(answer.json(), key, answer)
    names = ("pagination", "meta", "paging", "page")
    named = [inner for document in around for name in names if isinstance(inner := document.get(name), dict)]
    nested = [inner["pagination"] for inner in named if isinstance(inner.get("pagination"), dict)]
    ranked = ((document, fields) for fields in (_TOTALS, ("limit", "offset")) for document in (*nested, *named, *around))
    numbers: Json = next((document for document, fields in ranked if _count(document, *fields) is not None), {})
    start, total = _count(numbers, "offset"), _count(numbers, *_TOTALS)
    return Page(
        items=_parse_items(model, items, answer),
        total=None if total is not None and items and total < (start or 0) + len(items) else total,
        limit=_count(numbers, "limit") or limit,
        offset=offset if start is None else start,
        date=answer.headers.get("date"),
    )


def read_object(answer: Answer) -> tuple[Object, list[Attribute] | None]:
    """Read an object and its attributes; None for the attributes if the service sent none."""
    raw = find_one(answer, "object", has_id, beside=(list,))
    attributes = _attributes_of(raw)
    return _parse(Object, raw, answer), attributes


def read_bulk(answer: Answer) -> BulkResult:
    """Read the counts of a bulk write; `wire` keeps them as sent. A missing count reads as 0: the caller checks the sum."""
    raw = find_one(answer, "result", _has_any("created", "updated", "failed"))
    failed = raw.get("failed")
    readable = {**raw, "failed": [_failure(entry) for entry in failed]} if isinstance(failed, list) else raw
    result = _parse(BulkResult, readable, answer)
    result._wire = raw
    return result


def read_deleted(answer: Answer) -> int | None:
    """Return how many records a deletion reports, or None, also for a text. Raises ServiceError for a web page."""
    try:
        document = None if answer.is_empty else answer.json()
    except ServiceError as error:
        if error.code != "unreadable_answer" or _plain_text(answer) is None:
            raise
        return None
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
    """Read an acknowledgement whose fields are optional; its body may be empty."""
    if answer.tells_nothing:
        return model.parse({})
    document = answer.json()
    if not isinstance(document, dict):
        raise unreadable(answer)
    return _parse(model, (_locate(document, "result", _has_any(*fields), _DEPTH) or [document])[0], answer)


def read_holder(answer: Answer, model: type[R], *fields: str) -> R:
    """Read an object without an id, recognised by one of `fields`."""
    return _parse(model, find_one(answer, "result", _has_any(*fields)), answer)


def find_one(answer: Answer, name: str, is_it: Callable[[Json], bool], *, beside: tuple[type, ...] = ()) -> Json:
    """Return the JSON object that `is_it` recognises inside its wrappers. Raises ServiceError `unreadable_answer`."""
    path = _locate(answer.json(), name, is_it, _DEPTH)
    if path is None:
        raise unreadable(answer, f"an answer without the expected {name}")
    resource = path[0]
    for inner, outer in pairwise(path):
        resource = {**{key: value for key, value in outer.items() if value is not inner and isinstance(value, beside)}, **resource}
    return resource


def has_id(document: Json) -> bool:
    """Whether this is a resource and not a wrapper: only resources have an id (a record also has `data`)."""
    return isinstance(document.get("id"), str) and document["id"] != ""


def _has_any(*fields: str) -> Callable[[Json], bool]:
    return lambda document: any(field in document for field in fields)


def _locate(document: Any, name: str, is_it: Callable[[Json], bool], depth: int) -> list[Json] | None:
    """Return the object that `is_it` recognises and those around it, innermost first."""
    if not isinstance(document, dict) or depth == 0:
        return None
    inner = document.get(name)
    if is_it(document) and not (isinstance(inner, dict) and is_it(inner)):  # a wrapper may have an id of its own
        return [document]
    key = next((key for key in (name, "data") if isinstance(document.get(key), dict)), None)
    if key is None:
        wrapped = [key for key, value in document.items() if isinstance(value, dict) and is_it(value)]
        key = wrapped[0] if len(wrapped) == 1 else None
    path = _locate(document[key], name, is_it, depth - 1) if key is not None else None
    return None if path is None else [*path, document]


def _find_items(document: Any, key: str, answer: Answer) -> tuple[list[Any], list[Json]]:
    """Return the array of a list answer, and the objects around it, innermost first."""
    around: list[Json] = []
    for _ in range(_DEPTH):
        if isinstance(document, list):
            return document, around
        if not isinstance(document, dict):
            break
        around.insert(0, document)
        if key in document and document[key] is None:
            return [], around  # some languages write an empty list so
        arrays = [value for value in document.values() if isinstance(value, list)]
        named = next((document[name] for name in (key, "data") if isinstance(document.get(name), list | dict)), None)
        document = named if named is not None else arrays[0] if len(arrays) == 1 else None
    raise unreadable(answer, f"an answer without a list of {key}")


def _parse(model: type[R], raw: Mapping[str, Any], answer: Answer) -> R:
    try:
        return model.parse(raw)
    except ServiceError as error:
        raise unreadable(answer, error.message.removeprefix("the service sent ")) from None


def _parse_items(model: type[R], items: list[Any], answer: Answer) -> list[R]:
    if not all(isinstance(item, dict) for item in items):
        raise unreadable(answer, "a list whose items are not objects")
    return [_parse(model, item, answer) for item in items]


def _attributes_of(raw: Json) -> list[Attribute] | None:
    """Return the attributes inside an object: under `attributes`, or in the only array that looks like them."""
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
        return None  # not attributes; they have their own endpoint


def _failure(entry: Any) -> Any:
    if not isinstance(entry, dict) or isinstance(entry.get("error"), str):
        return entry
    if not is_shallow(entry):
        return {**entry, "error": ""}
    inner = entry.get("error")
    return {**entry, "error": with_reasons(text_of(entry), inner if isinstance(inner, dict) else entry) or ""}


def _count(document: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these fields that is a natural number, or its digits."""
    for name in names:
        value = document.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


_DEFAULT_PAGES = (50, 20)
"""The specification's default page sizes. A page of this length may come from a service that ignores `limit`."""

_LEAST_PAGE, _ROUND = 10, 5
"""A page of another round length may also be the longest a service sends. Without a total or a longer page before, only the next page
tells: if it repeats, the list is complete."""

REPEATS = 2
"""Pages in a row without news that prove that the service ignores `offset`. A single one also comes when others insert a page in front."""


SHIFTED = "the list changed while its pages were read: something may be missing"


def iterate(
    fetch: Callable[[int, int], Page[R]],
    *,
    limit: int | None = None,
    offset: int = 0,
    on_doubt: Callable[[str], object] = lambda _: None,
) -> Iterator[Page[R]]:
    """Yield pages of `fetch(limit, offset)` from `offset` on, until `limit` items (None: all) or the end of the list.

    The first page always comes, even when empty, so that its `total` is known. Items that a page repeats from the one before are left out.
    `on_doubt` gets a sentence if items may be missing: repeats or another `total` show that the list changed, or the list ends before its
    `total`. Raises ServiceError `no_progress` if the service ignores `offset`.
    """
    count, position, repeats, longest, has_shifted = 0, offset, 0, 0, False
    seen_ids: set[Any] = set()
    seen: set[int] = set()
    total: int | None = None
    while True:
        size = PAGE_LIMIT if limit is None else min(PAGE_LIMIT, limit - count)
        page = fetch(size, position)
        items = [item for item in page.items if item.wire.get("id") is None or item.wire["id"] not in seen_ids]
        if page.items and _digest(page.items) in seen:
            items = []
        repeats = repeats + 1 if page.items and not items else 0
        if repeats and page.total is None and _is_short(page, size) and len(page.items) not in _DEFAULT_PAGES:
            return
        if repeats == REPEATS:
            raise ServiceError(
                "the service sends the same page again and again instead of the next one",
                code="no_progress",
                hint="ask for fewer with --limit",
            )
        seen.add(_digest(page.items))
        shifts = position > offset and ((None not in (page.total, total) and page.total != total) or len(items) < len(page.items))
        if shifts and not has_shifted:
            on_doubt(SHIFTED)
        has_shifted = has_shifted or shifts
        seen_ids = {item.wire.get("id") for item in page.items}
        total = None if may_count_page(page, size) else page.total
        items = items if limit is None else items[: limit - count]
        if items or position == offset:
            yield Page(items, page.total, page.limit, page.offset, page.date)
        count += len(items)
        position += len(page.items)
        longest = max(longest, len(page.items))
        if not page.items and page.total is not None and position < page.total and not has_shifted:
            on_doubt(f"the list ends after {position:,} of {page.total:,}: the service gives no more of them")
        if not page.items or count == limit or (_is_last(page, size, position, longest) and not (items and may_count_page(page, size))):
            return


def _digest(items: list[R]) -> int:
    return hash(tuple(str(item.wire.get("id") or jsontext.dumps(item.wire)) for item in items))  # files have no id


def may_count_page(page: Page[R], size: int = PAGE_LIMIT) -> bool:
    """Whether the total may be the number of items on this page of at most `size`, because it is as long as a page of the service can be.
    The next page tells."""
    length = len(page.items)
    return page.total == length and (length in (PAGE_LIMIT, *_DEFAULT_PAGES) or length == page.limit < size)


def _is_short(page: Page[R], size: int) -> bool:
    return len(page.items) < min(size, page.limit)


def _is_last(page: Page[R], size: int, position: int, longest: int) -> bool:
    if page.total is not None:
        return position >= page.total
    length = len(page.items)
    return _is_short(page, size) and (length < longest or length < _LEAST_PAGE or length % _ROUND != 0)
