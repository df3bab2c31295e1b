"""Write an organization into a folder, from the mirror."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

from crmctl.bulk_context import BulkContext
from crmctl.client.directory import find_object
from crmctl.errors import ServiceError, UsageError
from crmctl.match.keys import KEY_TYPES
from crmctl.match.references import ids_only
from crmctl.mirror.file import writing_turn
from crmctl.mirror.local_copy import LocalCopy
from crmctl.mirror.sync import SyncReport, SyncRequest, sync_mirror
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Activity, Attribute, AttributeType, Object, Record
from crmctl.org.folder import (
    ACTIVITIES,
    DATA_NAMES,
    FORMAT,
    MANIFEST,
    PARTS,
    RECORDS,
    SCHEMA,
    SECTIONS,
    SETTINGS,
    SPLIT_BYTES,
    OrgFolder,
    OrgSettings,
    data_files,
    file_facts,
    refuse_folder,
    refuse_foreign,
)
from crmctl.org.mask import HARMLESS, Mask, scan, texts_in
from crmctl.org.replacement import finish_replacement, new_content, replace_content
from crmctl.org.sections import Entries, coverage, read_sections, write_sections
from crmctl.org.subset import Chosen, choose_subset, refuse_too_many
from crmctl.schema.schema_document import Present, to_document
from crmctl.values import yaml_text
from crmctl.values.moments import to_timestamp

LOCKS = "org"
NEVER_CONTAINED = (
    ("history", "the interface has no history; crmctl mirror changes emits it from now on"),
    ("times and authors of records", "the service sets them"),
    ("API keys and webhook secrets", "secrets never leave the service"),
)


@dataclass(frozen=True)
class PullRequest:
    """A pull into a folder. `objects` and `parts` replace the folder's settings."""

    folder: Path
    objects: Sequence[str] = ()
    parts: Sequence[str] | None = None
    where: Sequence[str] = ()
    sample: Sequence[str] = ()
    max_records: int | None = None
    mask: bool = False
    mask_key: Path | None = None


@dataclass
class Organization:
    """The contents of a pull: a mirror as of one moment, the chosen objects with their active attributes, and entries."""

    copy: LocalCopy
    objects: Sequence[Object]
    every_object: Sequence[Object]
    parts: Sequence[str]
    entries: Entries
    notes: list[Json]
    chosen: Chosen | None = None
    """Ids of the records of a subset, by object id."""
    mask: Mask | None = None
    dangling: dict[str, int] = field(default_factory=dict)
    """Number of references to deleted records, by object id, after the records were read."""

    def attributes(self, object_id: str) -> list[Attribute]:
        return [attribute for attribute in self.copy.attributes(object_id) if attribute.is_active is not False]

    @cached_property
    def ids(self) -> dict[str, set[str]]:
        """The ids of the records, by object id in lower case."""
        return {one.id.lower(): self.copy.ids(one.id) if self.chosen is None else self.chosen[one.id] for one in self.objects}

    def lines(self, one: Object) -> Iterator[Json]:
        """Yield the records of an object as a folder holds them, unmasked."""
        attributes, self.dangling[one.id] = self.attributes(one.id), 0
        slugs = [attribute.slug for attribute in attributes]
        known_ids = {each.slug: self.ids.get((each.target_object_id or "").lower()) for each in attributes if _refers(each)}
        for record in self.copy.records_by_id(one.id, None if self.chosen is None else self.chosen[one.id]):
            document, dangling = record_document(record, slugs, known_ids)
            self.dangling[one.id] += dangling
            yield document

    def masked(self, one: Object) -> Iterator[Json]:
        """Yield the records of an object as the folder may hold them."""
        mask, attributes, slug = self.mask, self.attributes(one.id), one.slug or one.id
        return ({"id": each["id"], "data": mask.record(slug, attributes, each["data"])} if mask else each for each in self.lines(one))

    def activities(self) -> Iterator[Json]:
        """Yield the activities as a folder holds them, without links to deleted records; in a subset, those with links to its records."""
        slugs = {one.id.lower(): one.slug or one.id for one in self.every_object}
        known = {slugs[object_id]: ids for object_id, ids in self.ids.items()}
        every = set().union(*known.values()) if self.chosen is not None else set[str]()
        for activity in self.copy.activities():
            document = activity_document(activity, slugs)
            pairs = [link.partition("/") for link in document.pop("links", ())]
            kept = [
                f"{slug}/{each}" for slug, _, each in pairs if (self.chosen is None and slug not in known) or each in known.get(slug, ())
            ]
            if self.chosen is not None:
                people = [each for each in document.pop("participants", ()) if each["type"] == "user" or each["id"] in every]
                document |= {"participants": people} if people else {}
            if kept or self.chosen is None:
                yield document | ({"links": kept} if kept else {})

    def masked_activities(self) -> Iterator[Json]:
        """Yield the activities as the folder may hold them."""
        for each in self.activities():
            texts = {name: self.mask.text(each[name]) for name in ("title", "summary") if name in each} if self.mask else {}
            yield each | texts

    def masked_entries(self) -> Entries:
        """Return the entries as the folder may hold them."""
        if (mask := self.mask) is None:
            return self.entries
        members = (
            each | {"email": mask.email(each["email"]), "name": each["name"] and mask.name(each["name"])}
            for each in self.entries.get("members", {}).values()
        )
        return {"members": {each["email"]: each for each in members}} if "members" in self.entries else {}

    def see_sources(self) -> None:
        """Show the mask every value that it will replace, and those that are harmless."""
        if self.mask is None:
            return
        mask, masks, harmless = self.mask, dict[str, set[str]](), set[str]()
        for one in self.objects:
            attributes = self.attributes(one.id)
            masks[one.id] = {each.slug for each in attributes if mask.is_masked(one.slug or one.id, each)}
            harmless.update(text.lower() for each in attributes for text in (each.slug, *each.options))
        for one in self.objects:
            for line in self.lines(one):
                shown = (value for slug, value in line["data"].items() if slug not in masks[one.id])
                harmless.update(text.strip().lower() for value in shown for text in texts_in(value))
        known = frozenset(harmless)
        for one in self.objects:
            for line in self.lines(one):
                for slug in line["data"].keys() & masks[one.id]:
                    mask.see(line["data"][slug], known)
        for activity in self.activities():
            mask.see([activity.get("title"), activity.get("summary")], known)
        for member in self.entries.get("members", {}).values():
            mask.see([member["email"], member["name"]], known)

    def written_texts(self, place: Path) -> Iterator[tuple[str, str]]:
        """Yield the texts in the written files that a person could have entered, with their places."""
        for one in self.objects:
            skipped = {each.slug for each in self.attributes(one.id) if each.type in HARMLESS and each.type != AttributeType.SELECT}
            slug = one.slug or one.id
            for path in [*(place / RECORDS).glob(f"{slug}.jsonl"), *(place / RECORDS).glob(f"{slug}/*")]:
                for number, line in enumerate(path.open(encoding="utf-8"), 1):
                    values = ((name, value) for name, value in jsontext.loads(line)["data"].items() if name not in skipped)
                    yield from ((f"{slug}, line {number}, {name}", text) for name, value in values for text in texts_in(value))
        if (place / ACTIVITIES).exists():
            for number, line in enumerate((place / ACTIVITIES).open(encoding="utf-8"), 1):
                document = jsontext.loads(line)
                yield from ((f"{ACTIVITIES}, line {number}", document[name]) for name in ("title", "summary") if name in document)
        for path in place.glob("members.yaml"):
            for member in yaml_text.loads(path.read_text(encoding="utf-8")):
                yield from ((path.name, text) for text in (member["email"], member["name"]) if text)

    def present(self) -> Present:
        """Return the schema: the chosen objects with attributes, the others only by name."""
        slugs = {crm_object.slug or crm_object.id: crm_object for crm_object in self.every_object}
        attributes = {
            crm_object.slug or crm_object.id: {each.slug: each for each in self.attributes(crm_object.id)} for crm_object in self.objects
        }
        return Present(slugs, attributes)


def pull(context: BulkContext, request: PullRequest) -> Json:
    """Sync the mirror and write the folder; return what it contains, whether it changed, and how many records references added to a subset.

    Raises UsageError for a foreign folder, ServiceError for an unproven mirror.
    """
    folder = request.folder
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    with writing_turn(context.state / LOCKS / digest, context.clock, context.listener.note):
        finish_replacement(folder)
        check_start(folder, is_masked=request.mask)
        settings = _settings(request)
        mask = Mask.of(request.mask_key, settings.keep) if request.mask else None
        organization, report = read_organization(context, settings)
        with organization.copy:
            organization.copy.hold_still()
            added = _restrict(organization, request, mask)
            with new_content(folder) as place:
                manifest = write_folder(context, organization, place) | {"source": source_digest(context.origin)}
                if mask is not None:
                    scan(mask, organization.written_texts(place))
                is_changed = _store(folder, place, manifest, _proposed(settings, request, organization))
    manifest = OrgFolder(folder).manifest
    names = ("asOf", "masked", "subset", "records", "activities", "members", "sections", "coverage")
    contents = {name: manifest.get(name) for name in names}
    return {"folder": str(folder), "changed": is_changed, "requests": report.requests, "added": dict(added), **contents}


def _restrict(organization: Organization, request: PullRequest, mask: Mask | None) -> Mapping[str, int]:
    """Choose the subset and prepare the mask. Raises errors of both."""
    added: Mapping[str, int] = {}
    objects = {one.slug or one.id: one for one in organization.objects}
    if request.where or request.sample:
        organization.chosen, added = choose_subset(organization.copy, objects, request.where, request.sample, request.max_records)
        organization.notes.append(coverage("records outside the subset", None, "--where and --sample"))
    elif request.max_records is not None:
        refuse_too_many(sum(len(organization.copy.ids(one.id)) for one in organization.objects), request.max_records)
    if mask is not None:
        known = {f"{slug}.{each.slug}" for slug, one in objects.items() for each in organization.attributes(one.id)}
        if unknown := sorted(mask.keep - known):
            raise UsageError(f"keep in {SETTINGS} names {unknown[0]}, which does not exist", code="unknown_attribute")
        organization.mask = mask
        organization.see_sources()
    return added


def check_start(folder: Path, *, is_masked: bool) -> None:
    """Raise UsageError unless the folder is new, empty, or one of crmctl."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        refuse_folder(folder, "is no folder")
    if not folder.resolve().parent.is_dir():
        refuse_folder(folder, "cannot be made: its parent folder does not exist")
    if folder.exists() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
        refuse_foreign(folder, is_start=True)
        if not is_masked and (folder / MANIFEST).exists() and OrgFolder(folder).is_masked:
            refuse_folder(folder, "is masked; an unmasked pull would reveal its records", "choose another folder, or --mask")


def source_digest(origin: str) -> str:
    """Return a digest that identifies a service without naming it."""
    return hashlib.sha256(f"crmctl org {origin}".encode()).hexdigest()[:16]


def _settings(request: PullRequest) -> OrgSettings:
    path = request.folder / SETTINGS
    stored = OrgSettings.read(path) if path.exists() else OrgSettings()
    parts = tuple(stored.parts if request.parts is None else request.parts)
    if unknown := sorted(set(parts) - set(PARTS)):
        raise UsageError(f"--with {unknown[0]}: there is no such part", hint=f"parts: {', '.join(PARTS)}")
    return OrgSettings(tuple(request.objects) or stored.objects, parts, stored.keys, stored.keep)


def read_organization(context: BulkContext, settings: OrgSettings) -> tuple[Organization, SyncReport]:
    """Sync the objects of the settings and open the mirror. Raises NotFoundError and what `sync_organization` raises."""
    every = context.service.list_objects()
    chosen = [find_object(name, every) for name in dict.fromkeys(settings.objects)]
    organization, report = sync_organization(context, every, chosen or [one for one in every if one.is_active is not False], settings.parts)
    slugs, entries = {None, *(one.slug for one in organization.objects)}, organization.entries
    for section in entries.keys() & {"reports", "workflows"}:
        entries[section] = {name: entry for name, entry in entries[section].items() if entry.get("object") in slugs}
    return organization, report


def sync_organization(
    context: BulkContext, every: Sequence[Object], chosen: Sequence[Object], parts: Sequence[str]
) -> tuple[Organization, SyncReport]:
    """Sync the chosen objects and open the mirror. Raises ServiceError if the mirror cannot be proven."""
    entries, notes = read_sections(context, parts)
    report = sync_mirror(context, SyncRequest([one.id for one in chosen], activities="activities" in parts))
    report.requests += 1 + len(entries)
    for result in report.results:
        if not result.state.proven:
            problem = f"{result.state.slug} cannot be read completely: {result.state.proof}"
            raise ServiceError(problem, hint="try again later", code="unproven")
    copy = LocalCopy.find(context)
    if copy is None:
        raise ServiceError("the mirror is gone", hint="crmctl mirror sync")
    return Organization(copy, sorted(chosen, key=lambda one: one.slug or one.id), every, parts, entries, notes), report


def write_folder(context: BulkContext, organization: Organization, place: Path) -> Json:
    """Write every data file into an empty folder and return the manifest."""
    copy = organization.copy
    document = to_document(organization.present(), [one.id for one in organization.objects])
    (place / SCHEMA).write_text(yaml_text.dumps(document.wire()), encoding="utf-8")
    rows: list[Json] = []
    counts: dict[str, int] = {}
    (place / RECORDS).mkdir()
    for one in organization.objects:
        slug = one.slug or one.id
        counts[slug] = _write_lines(place / RECORDS / f"{slug}.jsonl", organization.masked(one))
        _split(place / RECORDS / f"{slug}.jsonl")
        rows += [coverage(slug, counts[slug]), *_left_out(organization, one)]
    activities = None
    if "activities" in organization.parts:
        activities = _write_lines(place / ACTIVITIES, organization.masked_activities())
    rows.append(coverage("activities", activities, "" if activities is not None else "not chosen"))
    entries = organization.masked_entries()
    rows += write_sections(context, entries, place)
    rows += [coverage(section, None, "left out of a masked folder") for section in organization.entries if section not in entries]
    rows += [coverage(section, None, "not chosen") for section in SECTIONS if section not in organization.parts]
    rows += [*organization.notes, *(coverage(content, None, note) for content, note in NEVER_CONTAINED)]
    states = [copy.state(one.id) for one in organization.objects]
    return {
        "format": FORMAT,
        "asOf": to_timestamp(min((state.as_of for state in states if state is not None), default=0)),
        "masked": organization.mask is not None,
        "subset": organization.chosen is not None,
        "records": counts,
        "activities": activities or 0,
        "members": len(entries.get("members", ())),
        "sections": {section: len(by_name) for section, by_name in entries.items()},
        "proof": {state.slug: state.proof for state in states if state is not None},
        "coverage": rows,
        "files": {name: file_facts(place / name) for name in data_files(place)},
    }


def record_document(record: Record, slugs: Sequence[str], known_ids: Mapping[str, set[str] | None]) -> tuple[Json, int]:
    """Return a record as a folder holds it: attributes in schema order, references as ids.

    References to deleted records are left out; return also their number. `known_ids`: those of the targets, by reference.
    """
    data, dangling = {slug: value for slug in slugs if (value := record.data.get(slug)) is not None}, 0
    for slug in data.keys() & known_ids.keys():
        value, known = ids_only(data[slug]), known_ids[slug]
        listed = value if isinstance(value, list) else [value]
        kept = [each for each in listed if known is None or each in known]
        dangling += len(listed) - len(kept)
        data[slug] = kept if isinstance(value, list) else kept[0] if kept else None
        if data[slug] is None:
            del data[slug]
    return {"id": record.id, "data": data}, dangling


def _refers(attribute: Attribute) -> bool:
    return attribute.type == AttributeType.REFERENCE


def activity_document(activity: Activity, slugs: Mapping[str, str]) -> Json:
    """Return an activity as a folder holds it; its links are texts such as `people/ID`."""
    links = [f"{slugs.get((link.object_id or '').lower(), link.object_id)}/{link.record_id}" for link in activity.linked_records or ()]
    participants = [{"type": each.type, "id": each.id} for each in activity.participants or ()]
    facts: Json = {"title": activity.title, "summary": activity.summary, "activityDate": activity.activity_date}
    listed = {"participants": sorted(participants, key=jsontext.dumps), "links": sorted(links)}
    return {"id": activity.id, **{name: value for name, value in (facts | listed).items() if value not in (None, [])}}


def _left_out(organization: Organization, crm_object: Object) -> Iterator[Json]:
    """Yield the coverage rows of what an object's records have and the folder has not."""
    slug, copy = crm_object.slug or crm_object.id, organization.copy
    state = copy.state(crm_object.id)
    for excluded in state.excluded if state is not None else ():
        yield coverage(f"{slug}.{excluded}", None, "excluded from the mirror")
    for attribute in copy.attributes(crm_object.id):
        if attribute.is_active is False:
            yield coverage(f"{slug}.{attribute.slug}", None, "the attribute is inactive")
        elif _refers(attribute) and attribute.target_object_id not in {one.id for one in organization.objects}:
            yield coverage(f"{slug}.{attribute.slug}", None, "the ids are contained, the records they name are not")
    if dangling := organization.dangling[crm_object.id]:
        yield coverage(f"{slug}: references to deleted records", None, f"{dangling:,} left out")


def _write_lines(path: Path, documents: Iterable[Json]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for count, document in enumerate(documents, 1):  # noqa: B007 - the last number is the count
            file.write(jsontext.dumps(document) + "\n")
    return count


def _split(path: Path, limit: int = SPLIT_BYTES) -> None:
    """Split a large file by the last digits of the ids, so that each part stays below the limit."""
    size, digits = path.stat().st_size, 0
    while size / 16**digits > limit:
        digits += 1
    if not digits:
        return
    folder = path.with_suffix("")
    folder.mkdir()
    parts: dict[str, IO[bytes]] = {}
    with path.open("rb") as file:
        for line in file:
            name = jsontext.loads(line)["id"][-digits:].lower()
            name = name if name.isalnum() else "other"
            if name not in parts:
                parts[name] = (folder / f"{name}.jsonl").open("wb")
            parts[name].write(line)
    for part in parts.values():
        part.close()
    path.unlink()


def _proposed(settings: OrgSettings, request: PullRequest, organization: Organization) -> OrgSettings | None:
    """Return the settings to write: on the first pull, with a unique attribute as the key of each object."""
    if (request.folder / SETTINGS).exists():
        return None
    keys = {}
    for one in organization.objects:
        unique = (each for each in organization.attributes(one.id) if each.is_unique and each.type in KEY_TYPES and not each.is_list)
        if (key := next(unique, None)) is not None:
            keys[one.slug or one.id] = key.slug
    return OrgSettings(tuple(settings.objects), settings.parts, keys, settings.keep)


def _store(folder: Path, place: Path, manifest: Json, settings: OrgSettings | None) -> bool:
    """Move the new content into the folder; return False if it holds exactly that already. Settings are written only once."""
    if settings is None and (folder / MANIFEST).exists():
        old = OrgFolder(folder)
        same = ("files", "masked", "subset", "source")
        if all(old.manifest.get(name) == manifest[name] for name in same) and not list(old.checksum_problems()):
            return False
    (place / MANIFEST).write_text(jsontext.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    names = list(DATA_NAMES)
    if settings is not None:
        (place / SETTINGS).write_text(settings.text(), encoding="utf-8")
        names.insert(0, SETTINGS)
    replace_content(folder, names)
    return True
