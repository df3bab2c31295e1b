"""Members, reports, workflows, webhook endpoints and files of an organization: read them from a service, and send them to one.

Services show members. Only crmctl's own service shows the others and takes them, through extensions of the interface.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from crmctl.bulk_context import BulkContext
from crmctl.client.answers import read_page
from crmctl.client.uploads import LocalFile, Uploader, download
from crmctl.errors import DeniedError, RejectedError
from crmctl.models.jsontext import Json
from crmctl.models.resources import PAGE_LIMIT, StoredFile
from crmctl.org.folder import FILES, SECTIONS, OrgFolder, entry_id
from crmctl.values import yaml_text

READ, WRITE = "GET /definitions", "POST /definitions"
DOWNLOAD_SECONDS = 600.0
OMITTED = {"members": ("userId", "image"), "workflows": ("enabled",), "webhooks": ("enabled",), FILES: ("size", "url")}
"""Fields of an entry that belong to one service."""

Entries = dict[str, dict[str, Json]]
"""Entries by section and name. A section that cannot be read is missing."""


def coverage(content: str, count: int | None, note: str = "") -> Json:
    """Return a row of the coverage table; `count` None means that the folder does not contain this."""
    return {"content": content, "contained": count is not None, "count": count, "note": note or None}


def portable(section: str, entry: Mapping[str, object]) -> Json:
    """Return an entry without fields that belong to one service, and without headers of requests, which may hold secrets."""
    kept: Json = {name: value for name, value in entry.items() if name not in OMITTED.get(section, ())}
    if section == "members":
        kept["email"] = entry_id(section, kept)
    if section == "workflows":
        kept["actions"] = [{name: value for name, value in action.items() if name != "headers"} for action in kept["actions"]]
    return kept


def read_sections(context: BulkContext, parts: Collection[str]) -> tuple[Entries, list[Json]]:
    """Return the entries of these parts, and a row of coverage for each section that the service does not show."""
    found: Entries = {}
    notes: list[Json] = []
    if "members" in parts:
        try:
            found["members"] = {entry_id("members", entry): entry for entry in _members(context) if entry["email"]}
        except DeniedError as error:
            notes.append(coverage("members", None, error.message))
    others = [section for section in SECTIONS if section in parts and section != "members"]
    offered = context.service.extensions() if others else None
    extensions = offered.extensions if offered is not None else []
    shown: Json = context.service.session.request("GET", "/definitions").json() if READ in extensions else {}
    for section in others:
        if section == FILES and "GET /files" in extensions:
            try:
                found[section] = {entry["path"]: entry for entry in _files(context)}
            except (DeniedError, RejectedError) as error:
                notes.append(coverage(section, None, error.message))
        elif section in shown:
            found[section] = {entry[SECTIONS[section]]: entry for entry in reversed(shown[section])}
            if further := len(shown[section]) - len(found[section]):
                notes.append(coverage(f"{section} of the same name", None, f"{further:,} left out"))
        else:
            notes.append(coverage(section, None, "the key lacks the scope" if shown else "this service does not show their content"))
    return found, notes


def _members(context: BulkContext) -> Iterator[Json]:
    for member in context.service.list_members():
        if (user := member.user) is not None:
            yield {"email": user.email or "", "name": user.name, "role": member.role, "userId": user.id}


def _files(context: BulkContext) -> Iterator[Json]:
    offset = 0
    while True:
        answer = context.service.session.request("GET", "/files", query=[("limit", str(PAGE_LIMIT)), ("offset", str(offset))])
        page = read_page(answer, FILES, StoredFile, PAGE_LIMIT, offset)
        for file in page.items:
            yield {"path": f"{file.bucket}/{file.path}", "contentType": file.content_type, "size": file.size, "url": file.public_url}
        if len(page.items) < PAGE_LIMIT:
            return
        offset += PAGE_LIMIT


def fetch_file(context: BulkContext, entry: Json, folder: Path | None = None) -> Json:
    """Download a file, into a folder if one is given; return the entry with the checksum."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder, delete=folder is None) as file:

        def take(piece: bytes) -> None:
            digest.update(piece)
            file.write(piece)

        download(context.service.session, entry["url"], take, DOWNLOAD_SECONDS)
    if folder is not None:
        Path(file.name).replace(folder / digest.hexdigest())
    return {"path": entry["path"], "contentType": entry["contentType"], "sha256": digest.hexdigest()}


def write_sections(context: BulkContext, entries: Entries, place: Path) -> list[Json]:
    """Write the entries into a folder; return rows of coverage."""
    rows = []
    for section, by_name in entries.items():
        kept = [entry if section in ("members", FILES) else portable(section, entry) for _, entry in sorted(by_name.items())]
        if section in ("reports", "workflows"):
            (place / section).mkdir()
            for entry in kept:
                (place / section / _file_name(entry["name"], by_name)).write_text(yaml_text.dumps(entry), encoding="utf-8")
        else:
            if section == FILES:
                (place / FILES).mkdir()
            kept = [fetch_file(context, entry, place / FILES) for entry in kept] if section == FILES else kept
            (place / f"{section}.yaml").write_text(yaml_text.dumps(kept), encoding="utf-8")
        rows.append(coverage(section, len(kept), "they arrive disabled" if "enabled" in OMITTED.get(section, ()) else ""))
    if any("headers" in action for entry in entries.get("workflows", {}).values() for action in entry["actions"]):
        rows.append(coverage("headers of callUrl actions", None, "they may hold secrets"))
    return rows


def _file_name(name: str, others: Collection[str]) -> str:
    """Return a safe file name for an entry, the same in every pull; entries whose names look alike get a checksum."""

    def simple(text: str) -> str:
        return "-".join("".join(letter if letter.isascii() and letter.isalnum() else " " for letter in text.lower()).split())[:60]

    is_unique = simple(name) and sum(simple(other) == simple(name) for other in others) == 1
    return f"{simple(name)}.yaml" if is_unique else f"{simple(name) or 'entry'}-{hashlib.sha256(name.encode()).hexdigest()[:12]}.yaml"


def to_send(section: str, entry: Json, current: Json | None) -> Json:
    """Return the entry as the service shall have it: a new one disabled, a known one with what only the service has."""
    if section == "members":
        there = current or {"email": entry["email"], "role": "member"}
        return {"name": entry["name"], "email": there["email"], "role": entry.get("role", there["role"])}
    if current is not None and section != FILES:
        entry = portable(section, current) | entry
    if "enabled" in OMITTED.get(section, ()):
        entry = entry | {"enabled": current is not None and current.get("enabled", True)}
    if current is not None and section == "workflows":
        entry["actions"] = _with_headers(entry["actions"], current["actions"])
    return entry


def _with_headers(actions: list[Json], current: list[Json]) -> list[Json]:
    """Return the actions with the headers of the action in their place, else of the only one with their URL."""
    urls, known = Counter(action.get("url") for action in actions), Counter(action.get("url") for action in current)
    every = []
    for position, action in enumerate(actions):
        url = action.get("url")
        same = [other for other in current[position : position + 1] if other.get("url") == url]
        if not same and urls[url] == known[url] == 1:
            same = [other for other in current if other.get("url") == url]
        every.append(action | ({"headers": same[0]["headers"]} if same and "headers" in same[0] else {}))
    return every


def definitions_of(folder: OrgFolder) -> Json:
    """Return a folder as a definitions file: schema, members, reports, workflows and webhook endpoints."""
    sections = {
        section: [to_send(section, line.document["data"], None) for line in folder.entries(section)]
        for section in SECTIONS
        if section != FILES
    }
    return folder.schema.wire() | sections


def send_entry(context: BulkContext, section: str, entry: Json, folder: Path) -> None:
    """Create or change an entry. Raises RejectedError for a service that takes none, and what the request raises."""
    if section != FILES:
        context.service.session.request("POST", "/definitions", body={section: [entry]}, idempotent=True)
        return
    bucket, _, path = entry["path"].partition("/")
    source = folder / FILES / entry["sha256"]
    progress = context.listener.progress
    uploader = Uploader(context.service, bucket, context.clock, advance=progress.advance, warn=context.listener.note)
    [outcome] = uploader.upload_all([LocalFile(source, path, source.stat().st_size, entry["contentType"])], 1)
    if outcome.error is not None:
        raise outcome.error


def takes_sections(context: BulkContext) -> bool:
    offered = context.service.extensions()
    return offered is not None and WRITE in offered.extensions


def take_back(context: BulkContext, section: str, name: str, sent: Json, before: Json | None) -> str | None:
    """Restore the former entry, or delete a new one; return why it stays instead."""
    if section == FILES:
        return "the interface deletes no files"
    found, _ = read_sections(context, (section,))
    current = found.get(section, {}).get(name)
    if current is None or current == before:
        return None
    if any(current.get(field) != value for field, value in sent.items()):
        return "it has changed since"
    try:
        if before is None:
            context.service.session.request("DELETE", "/definitions", body={section: [name]})
        else:
            send_entry(context, section, {field: value for field, value in before.items() if field != "userId"}, Path())
    except (DeniedError, RejectedError) as error:
        return error.message
    return None
