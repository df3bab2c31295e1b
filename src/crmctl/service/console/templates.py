"""The templates of the pages: everything escaped, every name known. What they are filled with is the pages' business."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from crmctl.models import jsontext
from crmctl.models.numbers import size_text

_FOLDER = Path(__file__).parent

LONGEST = 80
"""Characters of one value in a list; its record's page has all of them."""

STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}


NOTICES = {
    "created-before": "That form was sent before, and made the key it was for. Its value cannot be shown again.",
    "revoked": "The key is revoked.",
    "endpoint-added": "The endpoint is added and enabled.",
    "endpoint-deleted": "The endpoint is deleted.",
    "saved": "Saved.",
    "report-created": "The report is created. Run it to see its results.",
    "report-deleted": "The report is deleted.",
    "workflow-created": "The workflow is created.",
    "workflow-deleted": "The workflow is deleted.",
    "object-created": "The object is created. It needs attributes.",
    "object-active": "The object is active.",
    "object-inactive": "The object is inactive: lists of objects leave it out. Its records stay.",
    "object-deleted": "The object is deleted.",
    "attribute-created": "The attribute is created.",
    "attribute-deleted": "The attribute is deleted.",
    "activity-saved": "The activity is saved.",
    "activity-deleted": "The activity is deleted.",
    "file-uploaded": "The file is uploaded.",
    "nothing-changed": "Nothing was changed, so nothing was saved.",
    "record-created": "The record is created.",
    "record-created-before": "That form was sent before, and made this record.",
    "record-deleted": "The record is deleted.",
    "activity-added": "The activity is added.",
    "session-ended": "The session is ended.",
    "password-changed": "The password is changed. Your other sessions are ended.",
    "locked": "The member cannot sign in any more.",
    "attribute-active": "The attribute is active.",
    "attribute-inactive": "The attribute is inactive. Records keep their values of it.",
    "enabled": "Enabled.",
    "disabled": "Disabled.",
    "rotated": "The secret is rotated. The one before signs along for a day; give the new one to your receiver.",
    "test-sent": "A test event is on its way.",
    "replayed": "The event is sent once more.",
    "tried-now": "This delivery was still waiting: it is tried now, and not sent twice.",
    "replayed-range": "The events are sent once more; those that were still waiting are tried now, and not sent twice.",
    "run-started": "A run is started.",
    "replayed-none": "There is nothing to replay in that range.",
}
"""What a page says about the form that led to it, by the name in its address: no text of an address is ever shown."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """One page. Raises for a name that a template uses and nobody gave."""
    return _templates().get_template(template).render(values)


@cache
def static_file(name: str) -> bytes:
    """One of STATIC."""
    return (_FOLDER / "static" / name).read_bytes()


@cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    # A change of a file changes its address, so that browsers may keep it for good.
    templates.globals["notices"] = NOTICES
    templates.globals["version_of"] = lambda name: hashlib.sha256(static_file(name)).hexdigest()[:12]
    templates.filters["moment"] = moment
    templates.filters["pretty"] = pretty
    templates.filters["upto"] = counted_up_to
    templates.filters["browser"] = browser_name
    templates.filters["shortened"] = shortened
    templates.filters["size"] = size_text
    return templates


def moment(wire: str) -> str:
    """`2026-01-31 09:30:00 UTC` of a timestamp on the wire."""
    return f"{wire[:19].replace('T', ' ')} UTC"


def counted_up_to(number: int, most: int) -> str:
    """`1,204`, or `10,000+` of what is counted no further."""
    return f"{most:,}+" if number > most else f"{number:,}"


def browser_name(agent: str) -> str:
    """`Firefox on Linux` of a User-Agent header; its beginning where neither is known."""
    browser = next((name for mark, name in _BROWSERS.items() if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS.items() if mark in agent), "")
    return " on ".join(part for part in (browser, system) if part) or shortened(agent, 40) or "unknown"


# What calls itself many things comes before what it calls itself, too.
_BROWSERS = {"Edg/": "Edge", "OPR/": "Opera", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari", "curl/": "curl"}
_SYSTEMS = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows", "Mac OS X": "macOS", "Linux": "Linux"}


def shortened(text: str, longest: int = LONGEST) -> str:
    """Not much longer than this many characters, and seen to be cut."""
    return text if len(text) <= longest else f"{text[:longest].rstrip()}…"


def pretty(text: str) -> str:
    """JSON with line breaks; any other text as it is."""
    try:
        return jsontext.dumps(jsontext.loads(text), indent=2)
    except (ValueError, ArithmeticError, RecursionError):
        return text
