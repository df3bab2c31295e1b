"""A JSON answer, written losslessly."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from crmctl.models import jsontext


class Answer(Response):
    """A document as UTF-8 JSON; decimals and big integers keep every digit."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        # Half of a surrogate pair, quoted from a request in an error message, has no UTF-8; backslashreplace spells it as JSON does.
        return jsontext.dumps(content).encode(errors="backslashreplace")
