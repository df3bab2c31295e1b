"""Two people and one form: which version of a thing a form was filled in for, and what is said when it is another by now."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from crmctl.models import jsontext
from crmctl.service.console.pages import Visit
from crmctl.service.definitions.document import format_document
from crmctl.service.faults import Conflict, Fault


class SavedMeanwhile(Conflict):
    """Somebody else has changed what the form changes since it was opened."""


def refuse_if_saved_meanwhile(visit: Visit, stored: Mapping[str, Any]) -> None:
    """`stored`: what the form changes of the thing, as it is now. Raises SavedMeanwhile; a form that names no version is not refused."""
    if visit.text("version") not in ("", _version(stored)):
        raise SavedMeanwhile(
            "somebody else saved this meanwhile: it is shown below, and what you filled in is kept; save again to replace it"
        )


def form_values(stored: Mapping[str, Any] | None, error: Fault | None) -> dict[str, Any]:
    """What the template of a form shows of this; `stored` is None for a thing that is new."""
    is_stale = stored is not None and isinstance(error, SavedMeanwhile)
    return {
        "version": _version(stored) if stored is not None else "",
        "saved": format_document(dict(stored or {})) if is_stale else "",
        "error": error.message if error else None,
    }


def form_status(error: Fault | None) -> HTTPStatus:
    """Of the page that shows the form once more, or for the first time."""
    if isinstance(error, SavedMeanwhile):
        return HTTPStatus.CONFLICT
    return HTTPStatus.BAD_REQUEST if error else HTTPStatus.OK


def _version(stored: Mapping[str, Any]) -> str:
    return hashlib.blake2b(jsontext.dumps(dict(stored)).encode(), digest_size=12).hexdigest()
