"""`api -f data.email=a@b.c`: fields one by one become the body of a request, or the query of one that has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crmctl.errors import UsageError, reason


def body_of(fields: Sequence[str]) -> dict[str, Any]:
    """`key=value` is text, `key:=JSON` any value; dots lead into objects. Raises UsageError for what is neither, and for a key twice."""
    body: dict[str, Any] = {}
    for text in fields:
        name, value = _field(text)
        *outer, last = name.split(".")
        target: Any = body
        for key in outer:
            target = target.setdefault(key, {})
            if not isinstance(target, dict):
                raise _twice(name)
        if last in target:
            raise _twice(name)
        target[last] = value
    return body


def query_of(fields: Sequence[str]) -> list[tuple[str, str]]:
    """The same as parameters of an address. Raises UsageError."""
    pairs = [_field(text) for text in fields]
    return [(name, value if isinstance(value, str) else _json(value)) for name, value in pairs]


def _field(text: str) -> tuple[str, Any]:
    from crmctl.models import jsontext

    name, sign, value = text.partition("=")
    if not sign or not name.strip(":") or "" in name.removesuffix(":").split("."):
        raise UsageError(f"-f {text!r} is not key=value", hint="for example -f data.email=ada@acme.com, or -f data.score:=12")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], jsontext.loads(value, unique_keys=True)
    except ValueError as error:
        raise UsageError(f"-f {text!r}: what follows := is not JSON: {reason(error)}", hint=f"-f {name[:-1]}=... takes text") from error


def _json(value: Any) -> str:
    from crmctl.models import jsontext

    return jsontext.dumps(value)


def _twice(name: str) -> UsageError:
    return UsageError(f"-f {name} is given twice, or is a value and an object", hint="give each key once")
