"""Removes what must never be shown: the API key wherever it turns up, and the secret part of signed links."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from crmctl.errors import CrmctlError
from crmctl.models import jsontext

HIDDEN = "[redacted]"

_LINK_FIELD = r'("(?:signedUrl|portalUrl)"\s*:\s*"[a-z]+://[^/"?]*)[^"]*"'
_LINK_QUERY = r"""([a-z]+://[^\s"'<>?]+)\?[^\s"'<>]*"""


class Redactor:
    """Knows the key of one session."""

    def __init__(self, key: str | None) -> None:
        self._spellings = sorted({key, quote(key, safe=""), jsontext.dumps(key)[1:-1]}, key=len, reverse=True) if key else []

    def text(self, text: str) -> str:
        """`text` without the key and without the queries of links."""
        text = self.without_key(text)
        text = re.sub(_LINK_FIELD, rf'\1/{HIDDEN}"', text)
        return re.sub(_LINK_QUERY, rf"\1?{HIDDEN}", text)

    def without_key(self, text: str) -> str:
        for spelling in self._spellings:
            text = text.replace(spelling, HIDDEN)
        return text

    def error(self, error: CrmctlError) -> CrmctlError:
        """The same error; a service that repeats the key in its message does not put it on the screen."""
        error.message = self.without_key(error.message)
        error.args = (error.message,)
        if error.hint:
            error.hint = self.without_key(error.hint)
        error.details = self._value(error.details)
        return error

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.without_key(value)
        if isinstance(value, dict):
            return {self._value(key): self._value(item) for key, item in value.items()}
        return [self._value(item) for item in value] if isinstance(value, list) else value
