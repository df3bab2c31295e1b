"""`crmctl api`: any endpoint of the service, raw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from crmctl.client.answers import Answer
    from crmctl.models.resources import Resource

app = CommandApp()

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
READS = ("GET", "HEAD", "OPTIONS")


@app.command(
    "api",
    writes=None,
    examples=[
        "crmctl api GET objects",
        "crmctl api members -i",
        "crmctl api GET activities --paginate",
        "crmctl api POST objects/{people}/records -f data.email=alan@acme.com -f data.score:=12 --dry-run",
        """echo '{"slug": "trips", "singularName": "Trip", "pluralName": "Trips"}' | crmctl api POST objects --input - --dry-run""",
    ],
)
def call_endpoint(
    runtime: Runtime,
    method: Annotated[str, argument("METHOD", "GET, POST, PATCH, DELETE ...; GET when left out.")],
    path: Annotated[str | None, argument("PATH", "Path under /api/v1, with its query if it has one.")] = None,
    input: Annotated[str | None, option("--input", "FILE|-", "Send the JSON in this file, or from stdin.")] = None,
    body_fields: Annotated[
        list[str] | None, option("--field -f", "KEY=VALUE", "Build the body; KEY:=JSON takes any value, dots lead inside.")
    ] = None,
    include: Annotated[bool, flag("--include -i", "Print status and headers before the body.")] = False,
    paginate: Annotated[bool, flag("--paginate", "Follow the pages of a list and print one joined list.")] = False,
) -> None:
    """Call any endpoint of the service directly.

    objects, /objects and /api/v1/objects are the same path; {people} in it stands for the id of that object. The answer is printed as
    it came, as JSON unless --output says otherwise. With GET, -f makes parameters of the address.
    """
    if body_fields and input is not None:
        raise UsageError("--field and --input exclude each other", hint="leave one of them out")
    verb, address = _target(method, path)
    body, query = _content(runtime, verb, input, body_fields or [])
    address = _with_ids(runtime, address)
    if paginate and (verb != "GET" or include):
        raise UsageError("--paginate is for GET alone, without --include")
    if verb not in READS:
        runtime.guard_write()
    if verb == "DELETE":
        runtime.confirm(f"Send DELETE {address}")
    if runtime.settings.output.value is None:
        runtime.emitter.format = "json"
    try:
        if paginate:
            runtime.emitter.emit_pages(_pages(runtime, address, query))
        else:
            _print(runtime, runtime.crm.session.request(verb, address, body=body, query=query), include=include)
    except NotFoundError as error:
        if slug := re.search(r"(?:^|/)objects/([a-z][a-z0-9_]*)(?:[/?]|$)", address):
            error.hint = f"an object is named by its id, and {{{slug[1]}}} stands for it: objects/{{{slug[1]}}}"
        raise


def _content(runtime: Runtime, verb: str, input: str | None, fields: list[str]) -> tuple[Any, list[tuple[str, str]]]:
    """The body of the request and the parameters of its address."""
    from crmctl.cli.fields import body_of, query_of
    from crmctl.cli.targets import read_json_bytes

    if input is not None:
        return read_json_bytes(runtime, input), []
    if verb in READS:
        return None, query_of(fields)
    return (body_of(fields) if fields else None), []


def _with_ids(runtime: Runtime, address: str) -> str:
    """The percent-encoded path, the slugs of objects in braces as their ids. Raises NotFoundError for one that is none."""
    from urllib.parse import quote

    path = re.sub(r"\{([^{}/]+)\}", lambda match: runtime.directory.object_id(match[1]), address)
    return quote(path, safe="%/:?#[]@!$&'()*+,;=~")


def _target(method: str, path: str | None) -> tuple[str, str]:
    """The verb and the path. Raises UsageError for a verb that is none."""
    verb, address = ("GET", method) if path is None else (method.upper(), path)
    if verb not in METHODS:
        raise UsageError(f"{method!r} is not a method", hint=f"methods: {', '.join(METHODS)}")
    if path is None and address.upper() in METHODS:
        raise UsageError("the path is missing", hint=f"for example: crmctl api {address.upper()} objects")
    from urllib.parse import urlsplit

    try:
        urlsplit(address.encode().decode())
    except ValueError as error:
        raise UsageError(f"{address!r} is no path", hint="for example: crmctl api objects") from error
    return verb, address


def _print(runtime: Runtime, answer: Answer, *, include: bool) -> None:
    from crmctl.models import jsontext

    if include:
        head = [f"HTTP {answer.status}", *(f"{name}: {value}" for name, value in answer.headers.items())]
        runtime.streams.write_out("\n".join(head) + "\n\n")
    if answer.is_empty:
        return
    try:
        document = jsontext.loads(answer.content)
    except ValueError:
        text = answer.content.decode("utf-8", "replace")
        runtime.streams.write_out(text if text.endswith("\n") else f"{text}\n")
        return
    runtime.emitter.emit_result(document)


def _pages(runtime: Runtime, address: str, fields: list[tuple[str, str]]) -> Iterator[list[Resource]]:
    """Return the items page by page. The first request is sent as given: lists without pages know no limit and offset."""
    from urllib.parse import parse_qsl, urlsplit

    from crmctl.client.answers import Page, iterate, read_page
    from crmctl.models.resources import Resource

    parts = urlsplit(address)
    query = parse_qsl(parts.query, keep_blank_values=True) + fields
    rest = [pair for pair in query if pair[0] not in ("limit", "offset")]
    text = dict(query).get("offset", "")
    start = int(text) if text.isdecimal() else 0

    def fetch(limit: int, offset: int) -> Page[Resource]:
        paging = query if offset == start else [*rest, ("limit", str(limit)), ("offset", str(offset))]
        return read_page(runtime.crm.session.request("GET", parts.path, query=paging), "items", Resource, limit, offset)

    return (page.items for page in iterate(fetch, offset=start))
