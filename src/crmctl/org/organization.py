"""An organization in a service: its mirror, members, reports, workflows, webhook endpoints and files, and how to send entries.

Services show members. Only crmctl's own service shows the other entries and takes them, through extensions of the interface.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.client.answers import iterate
from crmctl.client.uploads import LocalFile, Uploader, download
from crmctl.errors import DeniedError, NotFoundError, RejectedError, ServiceError
from crmctl.mirror.local_copy import LocalCopy
from crmctl.mirror.sync import SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Activity, Object
from crmctl.org.folder import ACTIVITY_ROWS, ENTRY_FILES, FILES, SECTIONS, OrgFolder, OrgRow, entry_id
from crmctl.schema.schema_document import Present, SchemaDocument, to_document

READ, WRITE = "GET /definitions", "POST /definitions"
DOWNLOAD_SECONDS = 600.0
DISABLED = ("workflows", "webhooks")
"""Sections whose entries arrive disabled."""

OMITTED = {"members": ("userId", "image"), **dict.fromkeys(DISABLED, ("enabled",)), FILES: ("url",)}
"""Fields of an entry that belong to one service."""

Entries = dict[str, dict[str, Json]]
"""Entries by section and name. A section that cannot be read is missing."""


def coverage(content: str, count: int | None, note: str = "") -> Json:
    """Return a row of the coverage table; `count` None means that the folder does not contain this."""
    return {"content": content, "contained": count is not None, "count": count, "note": note or None}


def portable(section: str, entry: Mapping[str, object]) -> Json:
    """Return an entry as any service would show it: without defaults, fields that belong to one service, and headers, often secret."""
    kept = {name: value for name, value in entry.items() if name not in OMITTED.get(section, ()) and value not in (None, "", [])}
    return {name: _FORMS[name](value) if name in _FORMS else value for name, value in kept.items()}


def _conditions(conditions: Sequence[Json]) -> list[Json]:
    """Return conditions with their values as text; one without a value compares with `true`."""
    values = [condition.get("value", "true") for condition in conditions]
    texts = [value if isinstance(value, str) else jsontext.dumps(value) for value in values]
    return [condition | {"value": text} for condition, text in zip(conditions, texts, strict=True)]


def _action(action: Json) -> Json:
    return {name: value for name, value in action.items() if name != "headers" and value is not None and (name, value) != ("repeat", False)}


_FORMS: Mapping[str, Callable[[Any], object]] = {
    "filters": _conditions,
    "conditions": _conditions,
    "actions": lambda actions: [_action(action) for action in actions],
    "sort": lambda sort: {"order": "asc"} | sort if isinstance(sort, dict) else sort,
    "eventTypes": lambda types: sorted(types, key=str) if isinstance(types, list) else types,
}
"""Fields that can be written in several ways, each with a function that returns one of them."""


@dataclass
class Organization:
    """An organization in a service: its mirror, its objects, those that are chosen with their active attributes, and its entries.

    `notes`: rows of coverage about sections that the service does not show.
    """

    copy: LocalCopy
    present: Present
    entries: Entries
    notes: list[Json]
    has_activities: bool

    @cached_property
    def objects(self) -> dict[str, Object]:
        """The chosen objects by slug."""
        return {slug: self.present.objects[slug] for slug in self.present.attributes}

    @cached_property
    def schema(self) -> SchemaDocument:
        return to_document(self.present, list(self.objects))

    def excluded(self, slug: str) -> set[str]:
        """Return the attributes of an object whose values the mirror does not keep."""
        state = self.copy.state(self.objects[slug].id)
        return set(state.excluded) if state is not None else set()

    def leave_out_other_entries(self) -> None:
        """Leave out the reports and workflows of objects that are not chosen."""
        slugs = {None, *self.objects}
        for section in self.entries.keys() & ENTRY_FILES:
            self.entries[section] = {name: entry for name, entry in self.entries[section].items() if entry.get("object") in slugs}

    def rows(self) -> Iterator[OrgRow]:
        """Yield records with their attributes in schema order, activities and portable entries."""
        for slug, crm_object in self.objects.items():
            names = self.present.attributes[slug]
            for record in self.copy.records_by_id(crm_object.id):
                yield OrgRow(slug, record.id, {name: value for name in names if (value := record.data.get(name)) is not None})
        slugs = self.present.slugs
        for activity in self.copy.activities() if self.has_activities else ():
            yield OrgRow(ACTIVITY_ROWS, activity.id, _activity_data(activity, slugs))
        for section, entries in self.entries.items():
            for name, entry in entries.items():
                yield OrgRow(f" {section}", name, portable(section, entry))


def _by_slug(objects: Iterable[Object]) -> dict[str, Object]:
    return {crm_object.slug or crm_object.id: crm_object for crm_object in objects}


def _activity_data(activity: Activity, slugs: Mapping[str, str]) -> Json:
    """Return an activity as a folder holds it; its links are texts such as `people/ID`."""
    links = [f"{slugs.get((link.object_id or '').lower(), link.object_id)}/{link.record_id}" for link in activity.linked_records or ()]
    participants = [{"type": participant.type, "id": participant.id} for participant in activity.participants or ()]
    facts: Json = {"title": activity.title, "summary": activity.summary, "activityDate": activity.activity_date}
    listed = {"participants": participants, "links": links}
    return {name: value for name, value in (facts | listed).items() if value not in (None, [])}


def sync_organization(context: BulkContext, choose: Callable[[list[Object]], list[Object]], parts: Sequence[str]) -> Organization:
    """Sync the objects that `choose` takes from those of the service, and open the mirror. Raises ServiceError unless it can be proven."""
    every = context.service.list_objects()
    chosen = dict(sorted(_by_slug(choose(every)).items()))
    entries, notes = read_sections(context, parts)
    report = sync_mirror(context, SyncRequest([crm_object.id for crm_object in chosen.values()], activities="activities" in parts))
    for result in report.results:
        if not result.state.proven:
            problem = f"{result.state.slug} cannot be read completely: {result.state.proof}"
            raise ServiceError(problem, hint="try again later", code="unproven")
    copy = LocalCopy.find(context)
    if copy is None:
        raise ServiceError("the mirror is gone", hint="crmctl mirror sync")
    attributes = {
        slug: {attribute.slug: attribute for attribute in copy.attributes(crm_object.id) if attribute.is_active is not False}
        for slug, crm_object in chosen.items()
    }
    return Organization(copy, Present(_by_slug(every), attributes), entries, notes, "activities" in parts)


def read_sections(context: BulkContext, parts: Collection[str]) -> tuple[Entries, list[Json]]:
    """Return the entries of these parts, and a row of coverage for each section that the service does not show."""
    sections: Entries = {}
    notes: list[Json] = []
    chosen = [section for section in SECTIONS if section in parts]
    extensions = _extensions(context) if {*chosen} - {"members"} else ()
    shown: Json = context.service.session.request("GET", "/definitions").json() if READ in extensions else {}
    for section in chosen:
        try:
            if section == "members":
                entries = _members(context)
            elif section == FILES and "GET /files" in extensions:
                entries = [*_files(context)]
            elif section in shown:
                entries = shown[section]
            else:
                raise DeniedError("the key lacks the scope" if shown else "this service does not show their content")
        except (DeniedError, RejectedError) as error:
            notes.append(coverage(section, None, error.message))
            continue
        sections[section] = {entry_id(section, entry): entry for entry in reversed(entries)}
        if further := len(entries) - len(sections[section]):
            notes.append(coverage(f"{section} of the same name", None, f"{further:,} left out"))
    return sections, notes


def _extensions(context: BulkContext) -> Sequence[str]:
    offered = context.service.extensions()
    return offered.extensions if offered is not None else ()


def _members(context: BulkContext) -> list[Json]:
    users = [(member.role, user) for member in context.service.list_members() if (user := member.user) is not None and user.email]
    return [{"email": user.email, "name": user.name, "role": role, "userId": user.id} for role, user in users]


def _files(context: BulkContext) -> Iterator[Json]:
    for page in iterate(lambda limit, offset: context.service.list_files(limit=limit, offset=offset)):
        for file in page.items:
            yield {"path": f"{file.bucket}/{file.path}", "contentType": file.content_type, "url": file.public_url}


def fetch_file(context: BulkContext, entry: Json, folder: Path | None = None) -> Json:
    """Download a file, into a folder if one is given; return the entry with the checksum."""
    with tempfile.NamedTemporaryFile(dir=folder, delete=folder is None) as file:
        download(context.service.session, entry["url"], file.write, DOWNLOAD_SECONDS)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if folder is not None:
        Path(file.name).replace(folder / digest)
    return portable(FILES, entry) | {"sha256": digest}


def activity_to_send(data: Json, present: Present) -> Json:
    """Return an activity of a folder, with the ids of the service, as the service accepts it."""
    links = [link.split("/", 1) for link in data.get("links", ())]
    linked = [{"objectId": present.objects[slug].id, "recordId": record_id} for slug, record_id in links]
    plain = {name: value for name, value in data.items() if name != "links"}
    return plain | ({"linkedRecords": linked} if linked else {})


def to_send(section: str, entry: Json, current: Json | None) -> Json:
    """Return the entry as the service shall have it: a new one disabled, a known one with what only the service has."""
    if section == "members":
        present = current or {"email": entry["email"], "role": "member"}
        return {"name": entry.get("name", present.get("name", "")), "email": present["email"], "role": entry.get("role", present["role"])}
    if current is not None and section != FILES:
        entry = portable(section, current) | entry
    if section in DISABLED:
        entry = entry | {"enabled": current is not None and current.get("enabled", True)}
    if current is not None and section == "workflows":
        headers: dict[str, list[Json]] = {}  # of the actions of the service, by URL and in their order
        for action in current["actions"]:
            headers.setdefault(action.get("url"), []).append({"headers": action["headers"]} if "headers" in action else {})
        entry["actions"] = [action | (headers[url].pop(0) if headers.get(url := action.get("url")) else {}) for action in entry["actions"]]
    return entry


def definitions_of(folder: OrgFolder) -> Json:
    """Return a folder as a definitions file: schema, members, reports, workflows and webhook endpoints."""
    sections = [section for section in SECTIONS if section != FILES]
    return folder.schema.wire() | {
        section: [to_send(section, portable(section, row.data), None) for row in folder.entries(section)] for section in sections
    }


def takes_sections(context: BulkContext) -> bool:
    return WRITE in _extensions(context)


def current_entry(context: BulkContext, section: str, name: str, fields: Iterable[str]) -> Json | None:
    """Return an entry of the service, or these fields of an activity."""
    if section != "activities":
        return read_sections(context, (section,))[0].get(section, {}).get(name)
    wire = context.service.get_activity(name).wire
    return {field: wire.get(field) for field in fields}


def send_entry(context: BulkContext, section: str, name: str | None, entry: Json, folder: Path) -> tuple[str | None, Json]:
    """Create or change an entry, or an activity with the id `name`; return its name and the fields as the service has them.

    Raises what the request raises, such as RejectedError of a service that takes none.
    """
    service = context.service
    if section == "activities":
        wire = (service.create_activity(entry) if name is None else service.update_activity(name, entry)).wire
        return wire["id"], {field: wire.get(field) for field in entry}
    if section != FILES:
        service.session.request("POST", "/definitions", body={section: [entry]}, idempotent=True)
        return name, entry
    bucket, _, path = entry["path"].partition("/")
    source = folder / FILES / entry["sha256"]
    uploader = Uploader(service, bucket, context.clock, advance=context.listener.progress.advance, warn=context.listener.note)
    [outcome] = uploader.upload_all([LocalFile(source, path, source.stat().st_size, entry["contentType"])], 1)
    if outcome.error is not None:
        raise outcome.error
    return name, entry


def take_back(context: BulkContext, section: str, name: str, sent: Json, before: Json | None) -> str | None:
    """Restore the former activity or entry, or delete a new one; return why it stays instead."""
    if section == FILES:
        return "the interface deletes no files"
    try:
        current = current_entry(context, section, name, sent)
        if current is None or (before is not None and _facts(current) == _facts(before)):
            return None
        if not _facts(sent).items() <= _facts(current).items():
            return "it has changed since"
        if before is not None:
            send_entry(context, section, name, {field: value for field, value in before.items() if field != "userId"}, Path())
        elif section == "activities":
            context.service.delete_activity(name)
        else:
            context.service.session.request("DELETE", "/definitions", body={section: [name]})
    except NotFoundError:
        return None
    except (DeniedError, RejectedError) as error:
        return error.message
    return None


def _facts(entry: Json) -> dict[str, str]:
    """Return the fields of an entry as text, with the flag that a service leaves out where it is true."""
    return {name: jsontext.dumps(value, sort_keys=True) for name, value in ({"enabled": True} | entry).items()}
