"""A JSON answer, written losslessly."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from crmctl.models import jsontext


def present(document: dict[str, Any], *optional: str) -> dict[str, Any]:
    """The document without those optional fields that have no value: the specification knows no null for them."""
    return {field: value for field, value in document.items() if value is not None or field not in optional}


class JsonAnswer(Response):
    """A document as UTF-8 JSON; decimals and big integers keep every digit."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        # Half of a surrogate pair, quoted from a request in an error message, has no UTF-8; backslashreplace spells it as JSON does.
        return jsontext.dumps(content).encode(errors="backslashreplace")
