"""An answer of the service, and the error of the contract for every answer that is not a success."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crmctl.errors import CrmctlError, DeniedError, NotFoundError, RateLimitedError, RejectedError, ServiceError
from crmctl.models import jsontext
from crmctl.models.scopes import SCOPES

EXCERPT = 200
"""Characters of an unreadable body that a message shows."""

MOST_REASONS = 5
"""So many of the reasons that an answer gives are in its message; all are in its details."""

INVALID = (400, 409, 422)
"""Statuses of what is refused for what it holds."""

WEB_PAGE = "this looks like a web page, perhaps a proxy's or a login page: check the base URL"
FIELD = ("field", "attributeSlug", "attribute", "slug", "path", "property", "loc", "name", "key", "pointer", "param")
REASONS = ("errors", "details", "fields", "fieldErrors", "field_errors", "formErrors", "validationErrors", "violations", "issues", "detail")
"""Under which names services say what is wrong with single fields, and which fields those are. The specification leaves it open."""


@dataclass(frozen=True)
class Answer:
    """One answer: header names in lower case, the body as bytes. `wrote` says that the request may have changed something."""

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

    def json(self) -> Any:
        """The body as JSON; raises ServiceError `unreadable_answer` (outcome unknown after a write) when it is not JSON."""
        try:
            return jsontext.loads(self.content)
        except ValueError:
            raise unreadable(self) from None


def unreadable(answer: Answer, why: str = "an answer that cannot be read") -> ServiceError:
    """ServiceError that shows status, content type and the start of the body."""
    kind = answer.headers.get("content-type", "no content type")
    start = _excerpt(answer.content)
    shown = f": {start}" if start else ", empty body"
    page = "html" in kind.lower() or start[:1] == "<"
    hint = WEB_PAGE if page else None
    return ServiceError(
        f"the service sent {why} (status {answer.status}, {kind}){shown}",
        code="unreadable_answer",
        status=answer.status,
        hint=hint,
        outcome_unknown=answer.wrote,
    )


def refusal(answer: Answer, *, retry_after: float | None = None, until: str | None = None) -> CrmctlError:
    """The error for an answer outside 2xx; whatever the service said about it is kept in message, code and details."""
    code, message, details = explanation(answer)
    status = answer.status
    facts: dict[str, Any] = {"code": code, "status": status, "details": details}
    if status == 401:
        return DeniedError(message or "the service does not accept the API key", hint="crmctl auth login stores a valid key", **facts)
    if status == 403:
        scope = _required_scope(message, details)
        said = message or "the key may not do this"
        if scope and scope not in said:
            said = f"{said} (missing scope: {scope})"
        hint = f"the key needs the scope {scope}: create one with it under Organization Settings, Developers" if scope else None
        return DeniedError(said, hint=hint, required_scope=scope, **(facts | {"code": code or "forbidden"}))
    if status == 404:
        page = "html" in answer.headers.get("content-type", "").lower()
        shown, hint = (_shown(answer), WEB_PAGE) if page else ("", None)
        return NotFoundError(message or f"the service has nothing under this address{shown}", hint=hint, **facts)
    if status == 429:
        wait = f"; it asks to come back {until}" if until else ""
        hint = "--max-wait SECONDS waits longer"
        return RateLimitedError((message or "too many requests") + wait, hint=hint, retryable=True, retry_after=retry_after, **facts)
    if 300 <= status < 400:
        return _redirected(answer)
    if 400 <= status < 500:
        return RejectedError(
            message or f"the service refused the request (status {status}){_shown(answer)}", retryable=status == 408, **facts
        )
    message = message or f"the service failed with status {status}{_shown(answer)}"
    retryable = status in (502, 503, 504)
    return ServiceError(message, retryable=retryable, retry_after=retry_after, outcome_unknown=answer.wrote, **facts)


def _redirected(answer: Answer) -> ServiceError:
    target = answer.headers.get("location", "").partition("?")[0] or "nowhere"
    return ServiceError(
        f"the service answers {answer.status} and points to {target}; the API key is not sent there",
        code="redirected",
        status=answer.status,
        hint="if that is where the service lives now, use it as the base URL",
        # 301, 307 and 308 ask for the same request elsewhere; 302 and 303 are also how a finished write answers.
        outcome_unknown=answer.wrote and answer.status in (302, 303),
    )


def explanation(answer: Answer) -> tuple[str | None, str | None, Any]:
    """Code, message and details of an error body of any shape; unknown fields of a JSON object become the details when there are none."""
    try:
        body = jsontext.loads(answer.content)
    except ValueError:
        return None, _plain_text(answer), None
    if isinstance(body, str):
        return None, body or None, None
    if not isinstance(body, dict):
        return None, None, body
    inner = body.get("error")
    if isinstance(inner, dict):
        body = {**inner, **{key: value for key, value in body.items() if key != "error"}}
        code = text_of(inner.get("code") or inner.get("error") or inner.get("type"))
    else:
        code = text_of(inner if inner is not None else body.get("code"))
    told = [body.get(key) for key in ("message", "detail", "error_description", "title", "reason", "errors")]
    if is_invalid := answer.status in INVALID:
        told = [value for value in told if not isinstance(value, list)]
    message = next((text for value in told if (text := text_of(value))), None)
    if code and " " in code:
        # A sentence where the code should be: it is the message.
        code, message = None, message or code
    details = body.get("details")
    if details is None:
        details = {key: value for key, value in body.items() if key not in ("error", "message", "code")} or None
    return code, (with_reasons(message, body) if is_invalid else message) or code, details


def text_of(value: Any) -> str | None:
    """Words in a value of any shape: the text itself, an object's message, a list's items one after another."""
    if isinstance(value, str):
        return " ".join(value.split()) or None
    if isinstance(value, dict):
        return next((text for key in ("message", "msg", "detail", "error", "reason") if (text := text_of(value.get(key)))), None)
    if isinstance(value, list):
        return "; ".join(text for item in value if (text := text_of(item))) or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def with_reasons(message: str | None, body: Mapping[str, Any]) -> str | None:
    """What is wrong, and with which fields: what a message of a general kind leaves to the details."""
    said = (message or "").casefold()
    try:
        found = dict.fromkeys(reason for name in REASONS for reason in _reasons(body.get(name), sure=name != "details"))
    except RecursionError:
        return message
    new = [f"{field}: {why}" if field else why for field, why in found if why.casefold() not in said or field.casefold() not in said]
    if len(new) == 1 and new[0].endswith(f": {message}"):
        return new[0]
    more = [f"and {len(new) - MOST_REASONS:,} more"] if len(new) > MOST_REASONS else []
    return ": ".join(filter(None, [(message or "").rstrip(".: "), "; ".join(new[:MOST_REASONS] + more)])) if new else message


def _reasons(value: Any, field: str = "", *, sure: bool) -> Iterator[tuple[str, str]]:
    """Fields and what is wrong with each, in a value of any shape. Where that is not `sure`, a word alone is something else."""
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
                yield from _reasons(item, field if key in REASONS else f"{field}.{key}" if field else str(key), sure=sure or key in REASONS)
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
