"""Records with every attribute type and awkward values, and emitters that print into memory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from crmctl.models.resources import Attribute
from crmctl.output.emitter import Emitter
from crmctl.output.messages import Messages
from crmctl.output.streams import Streams
from crmctl.output.views import View, record_view

TYPES = ("text", "email", "number", "phone_number", "checkbox", "name", "address", "currency", "date", "select", "list", "reference")
NIL = "00000000-0000-4000-8000-"


def view(*slugs: str) -> View:
    """Return the view of an object with one attribute per type, in reverse order to show that displayOrder counts."""
    chosen = slugs or TYPES
    attributes = [Attribute.parse({"id": slug, "slug": slug, "type": slug, "displayOrder": place}) for place, slug in enumerate(chosen)]
    return record_view(reversed(attributes))


def record(place: int = 1, /, **data: Any) -> dict[str, Any]:
    """Return a record; `data` replaces or adds values."""
    values: dict[str, Any] = {
        "text": "[on hold] Zoë",
        "email": "ada@acme.test",
        "number": -5,
        "phone_number": "+33 1 23 45 67 89",
        "checkbox": True,
        "name": {"first": "Ada", "last": "Lovelace"},
        "address": {"line1": "1 Rue X", "city": "Paris", "country": "FR"},
        "currency": {"amount": 1234.5, "currency": "EUR"},
        "date": "2026-01-02",
        "select": "won",
        "list": ["a", "b"],
        "reference": f"{NIL}000000000099",
    }
    stamps = {"createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-02T00:00:00Z"}
    return {"id": f"{NIL}{place:012d}", "objectId": f"{NIL}aaaaaaaaaaaa", "data": {**values, **data}, **stamps}


class Run:
    """An emitter in memory: `out` and `err` hold its output so far."""

    def __init__(self, format: str, environ: Mapping[str, str] | None = None, **options: Any) -> None:
        self._out, self._err = io.StringIO(), io.StringIO()
        self.streams = Streams(io.StringIO(), self._out, self._err, environ or {})
        self.messages = Messages(self.streams, machine=format != "table")
        self.emitter = Emitter(self.streams, format, messages=self.messages, **options)

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def err(self) -> str:
        self.messages.finish()
        return self._err.getvalue()
