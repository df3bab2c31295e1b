"""One request for a page, its forms, and the templates that answer it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from datetime import UTC, datetime, tzinfo
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jinja2

from crmctl.frozen import frozen
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import size_text
from crmctl.service.context import Context
from crmctl.service.faults import Fault, Forbidden
from crmctl.service.store import logs, members
from crmctl.service.store.keys import LINKS, sign, use_once
from crmctl.service.store.members import ConsoleSession, MemberRole
from crmctl.service.store.tx import Stamp, Tx
from crmctl.values.value_readers import canonical_uuid

_NAME = re.compile(rb'content-disposition: *form-data; *name="([^"]*)"(?:; *filename="([^"]*)")?', re.IGNORECASE)
_TYPE = re.compile(rb"content-type: *([a-z0-9!#$&^_.+-]{1,80}/[a-z0-9!#$&^_.+-]{1,80})", re.IGNORECASE)
_BOUNDARY = re.compile(r'multipart/form-data; *boundary="?([0-9A-Za-z\'()+_,./:=?-]{1,70})"?', re.IGNORECASE)

DEFAULT_TYPE = "application/octet-stream"


@frozen
class UploadedFile:
    """`name` is its own, without folders."""

    name: str
    content_type: str
    content: bytes


def fields_of(encoded: bytes) -> dict[str, list[str]]:
    """Return the fields of a form or a query. Raises Forbidden for more fields than any page has."""
    try:
        return parse_qs(encoded.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=5000, errors="replace")
    except ValueError as error:
        raise Forbidden("this form has too many fields") from error


def form_parts(raw: bytes, content_type: str) -> tuple[dict[str, list[str]], dict[str, UploadedFile]]:
    """Return the fields and files of a form, by name. Incomplete parts of a multipart form are dropped. Raises Forbidden."""
    multipart = _BOUNDARY.match(content_type)
    if multipart is None:
        return fields_of(raw), {}
    fields, files = dict[str, list[str]](), dict[str, UploadedFile]()
    for piece in (b"\r\n" + raw).split(b"\r\n--" + multipart[1].encode())[1:-1]:
        head, mark, content = piece.partition(b"\r\n\r\n")
        named = _NAME.search(head)
        if not mark or named is None:
            continue
        name = named[1].decode(errors="replace")
        if named[2] is None:
            fields.setdefault(name, []).append(content.decode(errors="replace"))
            continue
        typed = _TYPE.search(head)
        # Of a name, browsers escape quotation marks and line breaks only.
        own = re.split(r"[/\\]", named[2].decode(errors="replace").replace("%22", '"'))[-1]
        files[name] = UploadedFile(own, typed[1].decode().lower() if typed else DEFAULT_TYPE, content)
    return fields, files


@frozen
class ConsolePage:
    """A template and its values; `refresh` asks the browser to look again after that many seconds.

    Without a `status` it is 200, and 400 for a page with an error.
    """

    template: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 0
    refresh: int | None = None


@frozen
class Redirect:
    """Send the browser to a page of the same area. `notice`: the sentence that page shows, by name; `token`: the token of a new session."""

    path: str
    notice: str | None = None
    token: str = ""


@frozen
class Download:
    """A file, or without a name the answer to a script. A long file comes in pieces, each with its own transaction."""

    body: bytes | Iterator[bytes]
    media_type: str
    name: str = ""


Outcome = ConsolePage | Redirect | Download


@frozen
class Visit:
    """One request for a page. `objects` are those of the navigation; `address` and `agent` say where it came from.

    `zone` is the browser's time zone, without scripts the organisation's; `currency` is what forms preselect. `place` is the path in the
    area. `error` refused the form that this page shows again.
    """

    context: Context
    area: str
    session: ConsoleSession
    path: Mapping[str, Any]
    queries: Mapping[str, list[str]]
    form: Mapping[str, list[str]]
    objects: Sequence[Mapping[str, Any]] = ()
    address: str = ""
    agent: str = ""
    files: Mapping[str, UploadedFile] = field(default_factory=dict)
    zone: tzinfo = UTC
    currency: str = ""
    place: str = ""
    error: Fault | None = None

    def may(self, role: MemberRole) -> bool:
        return self.session.role >= role

    @property
    def actor(self) -> str:
        if self.session.member_id:
            return logs.member(self.session.member_id)
        return logs.key(self.session.key_id) if self.session.key_id else logs.OPERATOR

    @property
    def may_write(self) -> bool:
        return self.may(MemberRole.MEMBER)

    @property
    def may_administer(self) -> bool:
        return self.may(MemberRole.ADMIN)

    @property
    def slugs(self) -> dict[str, str]:
        return {crm_object["id"]: crm_object["slug"] for crm_object in self.objects}

    @property
    def query(self) -> Mapping[str, str]:
        return {name: values[0] for name, values in self.queries.items()}

    def id(self, name: str) -> str:
        return str(self.path[name])

    def raw(self, name: str) -> str:
        """Return a field of the form as typed, "" if it was not sent."""
        return self.form.get(name, [""])[0]

    def text(self, name: str) -> str:
        return self.raw(name).strip()

    def chosen(self, name: str) -> list[str]:
        """Return the values of the ticked boxes of one name."""
        return self.form.get(name, [])

    def form_id(self) -> str:
        """Return the id of the thing that a form creates. The form repeats it, so that sending twice creates one thing."""
        return canonical_uuid(self.text("id")) or self.context.ids()

    def number(self, name: str, default: int) -> int:
        """Return a positive whole number of the query, else the default."""
        text = self.query.get(name, "")
        return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else default

    def part(self, read: Callable[[int, int], Sequence[Any]], size: int) -> Json:
        """Return `{rows, page, has_older}` of the page of a list in the query; `read` takes a limit and an offset."""
        page = self.number("page", 1)
        rows = read(size + 1, (page - 1) * size)
        return {"rows": rows[:size], "page": page, "has_older": len(rows) > size}

    def now(self) -> float:
        return self.context.clock.now()

    def stamp(self) -> Stamp:
        return {"ids": self.context.ids, "now": self.now()}


_FOLDER = Path(__file__).parent

LONGEST = 80
"""The most characters of a value in a list; the page of the record shows all."""

STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}

_DONE = {
    "deleted": "endpoint report workflow object attribute activity record view",
    "created": "workflow attribute record",
    "saved": "activity view",
    "active": "object attribute",
    "added": "activity",
    "uploaded": "file",
    "ended": "session",
    "restored": "record",
    "revoked": "key",
}
NOTICES = {f"{noun}-{done}": f"The {noun} is {done}." for done, nouns in _DONE.items() for noun in nouns.split()} | {
    "created-before": "This form was already sent and created its key. The key cannot be shown again.",
    "endpoint-added": "The endpoint is added and enabled.",
    "saved": "Saved.",
    "report-created": "The report is created. Run it to see its results.",
    "object-created": "The object is created. Now add attributes.",
    "object-inactive": "The object is inactive and hidden from lists. Its records stay.",
    "nothing-changed": "Nothing was changed, so nothing was saved.",
    "record-created-before": "This form was already sent and created this record.",
    "password-changed": "The password is changed. Your other sessions are ended.",
    "device-approved": "The login is approved. The device gets its key within a few seconds.",
    "device-denied": "The login is denied.",
    "locked": "The member cannot sign in any more.",
    "attribute-inactive": "The attribute is inactive. Records keep their values.",
    "enabled": "Enabled.",
    "disabled": "Disabled.",
    "rotated": "The secret is rotated. The old one also signs for a day; give the new one to your receiver.",
    "test-sent": "A test event is on its way.",
    "replayed": "The event is sent again.",
    "tried-now": "This delivery was still pending and is tried now.",
    "replayed-range": "The events are sent again; pending deliveries are tried now instead of being sent twice.",
    "replayed-none": "No deliveries in this range.",
    "run-started": "A run is started.",
    "records-changed": "The records are changed. You can undo this below.",
    "records-skipped": "Records that someone else saved meanwhile were left alone; the others are changed. You can undo this below.",
    "records-restored": "The change is undone.",
    "backed-up": "The backup is made. Download it and keep it on another machine.",
    "records-merged": "The records are merged. You can undo this below.",
    "records-imported": "The file is imported. You can undo this below.",
}
"""Messages after a form, by the name in the address. Text from an address is never shown."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render one page. Raises UndefinedError for a missing value."""
    return _templates().get_template(template).render(values)


@cache
def static_file(name: str) -> bytes:
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
    templates.filters |= {
        "day": day,
        "moment": moment,
        "full_moment": full_moment,
        "pretty": pretty,
        "upto": counted_up_to,
        "size": size_text,
    }
    templates.filters |= {"creator": creator_name, "shortened": shortened, "titled": titled, "sentence": sentence, "trigger": trigger_name}
    templates.filters["prefixed"] = lambda part, home: (home + part[0], part[1])
    macros = vars(templates.get_template("macros.html").module)
    templates.globals |= {name: macro for name, macro in macros.items() if not name.startswith("_")}
    return templates


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WIRE_TIME = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-\d{2}(?:T\d{2}:\d{2}.*Z)?")


def is_wire_time(text: str) -> bool:
    """Whether this is a date or a timestamp as the service writes them."""
    return _WIRE_TIME.fullmatch(text) is not None


_zone: ContextVar[tzinfo] = ContextVar("zone", default=UTC)


@contextmanager
def in_zone(zone: tzinfo) -> Iterator[None]:
    token = _zone.set(zone)
    try:
        yield
    finally:
        _zone.reset(token)


def local(wire: str) -> str:
    """Return a timestamp as clocks in the visitor's time zone show it. Dates without a time stay as they are."""
    if len(wire) <= 10 or _zone.get() is UTC:
        return wire
    try:
        return datetime.fromisoformat(wire).astimezone(_zone.get()).isoformat()
    except OverflowError:  # the last hours of the year 9999
        return wire


def day(wire: str) -> str:
    """Return `31 Jan 2026` for a date or a timestamp."""
    wire = local(wire)
    return f"{int(wire[8:10])} {_MONTHS[int(wire[5:7]) - 1]} {wire[:4]}"


def moment(wire: str) -> str:
    """Return `31 Jan 2026, 09:30` for a timestamp, and the day alone for a date."""
    return f"{day(wire)}, {local(wire)[11:16]}" if len(wire) > 10 else day(wire)


def full_moment(wire: str) -> str:
    """Return `2026-01-31 09:30:00 UTC` for a timestamp."""
    return f"{wire[:19].replace('T', ' ')} UTC" if len(wire) > 10 else wire


def counted_up_to(number: int, most: int) -> str:
    """Return `1,204`, or `10,000+` for a count that stopped there."""
    return f"{most:,}+" if number > most else f"{number:,}"


def creator_name(user: Mapping[str, Any]) -> str:
    """Return the name of a user; the account of a new service is the operator's."""
    return "Operator" if user.get("email") == "owner@localhost" else str(user["name"])


def browser_name(agent: str) -> str:
    """Return `Firefox on Linux` for a User-Agent header, or its beginning if neither is known."""
    browser = next((name for mark, name in _BROWSERS.items() if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS.items() if mark in agent), "")
    return " on ".join(part for part in (browser, system) if part) or shortened(agent, 40) or "unknown"


# Order matters: Edge and Opera also call themselves Chrome, and Chrome calls itself Safari.
_BROWSERS = {"Edg/": "Edge", "OPR/": "Opera", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari", "curl/": "curl"}
_SYSTEMS = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows", "Mac OS X": "macOS", "Linux": "Linux"}


def shortened(text: str, longest: int = LONGEST) -> str:
    """Return the text cut to about this many characters, with an ellipsis."""
    return text if len(text) <= longest else f"{text[:longest].rstrip()}…"


def titled(text: str) -> str:
    return text[:1].upper() + text[1:]


def sentence(message: str) -> str:
    """Return the message with a capital, unless it begins with a name such as `data.csv` or `ada@example.com`."""
    return titled(message) if re.match(r"[a-z]+[ ,:]", message) else message


def trigger_name(trigger: str) -> str:
    """Return what starts a workflow or run in words: `Record updated` for `record/updated`."""
    return "API" if trigger == "api" else titled(trigger.replace("/", " "))


def pretty(text: str) -> str:
    """Return JSON with line breaks, and any other text unchanged."""
    try:
        return jsontext.dumps(jsontext.loads(text), indent=2)
    except (ValueError, ArithmeticError, RecursionError):
        return text


CONSOLE, PORTAL = "console", "portal"
LINK_SECONDS = 600
"""How long a link opens new sessions. A session lasts longer than the link that opened it."""

_OPERATOR = "operator"
_TOKEN = re.compile(r"([0-9]{1,12})\.([0-9a-f-]{1,36}|operator)\.([0-9a-f]{16})\.([0-9a-f]{64})")


@frozen
class SignedLink:
    """`expires_at` in Unix seconds."""

    url: str
    expires_at: int


def make_link(tx: Tx, address: str, area: str, *, key_id: str | None = None, now: float) -> SignedLink:
    """Return a link to CONSOLE or PORTAL on the service at `address`. Its session ends with the key `key_id`, if there is one."""
    expires, subject, nonce = int(now) + LINK_SECONDS, key_id or _OPERATOR, secrets.token_hex(8)
    token = f"{expires}.{subject}.{nonce}.{sign(tx, LINKS, area, expires, subject, nonce)}"
    return SignedLink(f"{address}/{area}?link={token}", expires)


def make_password_link(tx: Tx, address: str, member_id: str, *, now: float) -> SignedLink:
    """Return a link that sets the password of a member once. It invalidates the previous link."""
    code = members.make_code(tx, member_id, now=now)
    return SignedLink(f"{address}/{CONSOLE}/password?code={code}", int(now) + members.LINK_SECONDS)


def read_link(tx: Tx, area: str, token: str, *, now: float) -> str | None:
    """Return the id of the API key that the link was made for, None for the operator's, which works once. Raises Forbidden."""
    parts = _TOKEN.fullmatch(token)
    if parts is None or not hmac.compare_digest(parts[4], sign(tx, LINKS, area, int(parts[1]), parts[2], parts[3])):
        raise Forbidden("this link is not valid")
    if now >= int(parts[1]):
        raise Forbidden("this link has expired")
    if parts[2] != _OPERATOR:
        return parts[2]
    if not use_once(tx, parts[4], int(parts[1]), now=now):
        raise Forbidden("this link was used; crmctl service console prints another one")
    return None
