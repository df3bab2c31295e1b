"""Differences between a folder and a service, or between two folders."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crmctl.bulk_context import BulkContext
from crmctl.errors import UsageError
from crmctl.match.keys import key_rule
from crmctl.match.references import ids_only
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, Object
from crmctl.org.folder import OrgFolder, OrgLine, references_of
from crmctl.org.pull import Organization, sync_organization
from crmctl.org.tables import ACTIVITY_ROWS, KeyOf, OrgTables, Side, activity_links, check_folder
from crmctl.schema.apply import ChangeAction, SchemaChange, compare
from crmctl.schema.schema_document import TARGET, AttributeSpec, Present, SchemaDocument
from crmctl.write.effect import alike


@dataclass(frozen=True)
class OrgChange:
    """One difference: a record or activity that was added, removed or changed. `values` maps slugs to `[before, after]`."""

    change: str
    object: str
    id: str
    other_id: str | None = None
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def to_document(self) -> Json:
        """Return the JSON form. Every key is present."""
        return {
            "change": self.change, "object": self.object, "id": self.id, "otherId": self.other_id,
            "values": {slug: list(values) for slug, values in self.values.items()},
        }  # fmt: skip


class OrgComparison:
    """Two sides of which `right` is the folder that shall be. Iterating over `changes` pairs nothing new."""

    def __init__(self, tables: OrgTables, right: OrgFolder, schema: list[SchemaChange]) -> None:
        self.tables = tables
        self.right = right
        self.schema = schema
        self.members: Mapping[str, str] = {}
        """User ids of the other side by user id of the folder."""
        self._lefts: dict[str, dict[str, str]] = {}
        self.targets = {each.target or "" for spec in right.objects.values() for each in references_of(spec).values()}
        self._attributes = {
            slug: {each.slug: attribute_of(each) for each in spec.attributes} for slug, spec in right.objects.items()
        }  # fmt: skip

    def match(self) -> None:
        """Pair records by id, known pair or key; then activities by id, known pair or content."""
        for slug in self.right.objects:
            self.tables.match(slug)
        for slug in self.targets - self.right.objects.keys():
            self.tables.match_targets(slug)
        self.tables.key_activities(self.activity)
        self.tables.match(ACTIVITY_ROWS)

    def lefts(self, slug: str) -> dict[str, str]:
        """Map ids of the folder to ids of the other side."""
        if slug not in self._lefts:
            self._lefts[slug] = self.tables.lefts(slug)
        return self._lefts[slug]

    def pair(self, slug: str, pairs: Iterable[tuple[str, str]]) -> None:
        """Add pairs: ids of the folder with ids of the other side."""
        for right, left in pairs:
            self.tables.pair(slug, left, right)
            self.lefts(slug)[right] = left

    def record(self, slug: str, data: Json) -> Json:
        """Return a record of the folder with the ids of the other side. Unpaired ids stay."""
        translated = dict(data)
        for name, attribute in references_of(self.right.objects[slug]).items():
            if (value := ids_only(data.get(name))) is not None:
                ids = self.lefts(attribute.target or "")
                translated[name] = [ids.get(each, each) for each in value] if isinstance(value, list) else ids.get(value, value)
        return translated

    def closed_record(self, slug: str, data: Json, pending: Collection[str] = ()) -> tuple[Json, list[str]]:
        """Like `record`, without references to unpaired records; return also the attributes that have such references.

        Records of the `pending` objects count as paired, because they will be.
        """
        translated, open_names = self.record(slug, data), []
        for name, attribute in references_of(self.right.objects[slug]).items():
            value, ids = ids_only(data.get(name)), self.lefts(attribute.target or "")
            listed = value if isinstance(value, list) else [value]
            if value is None or attribute.target in pending or all(each in ids for each in listed):
                continue
            open_names.append(name)
            kept = [ids[each] for each in listed if each in ids]
            if kept:
                translated[name] = kept
            else:
                del translated[name]
        return translated, open_names

    def open_references(self, slug: str, pending: Collection[str] = ()) -> Iterator[tuple[str, list[str]]]:
        """Yield each record of the folder that refers to unpaired records, with the attributes."""
        if references_of(self.right.objects[slug]):
            for record_id, data in self.tables.rows(Side.RIGHT, slug):
                if open_names := self.closed_record(slug, data, pending)[1]:
                    yield record_id, open_names

    def activity(self, data: Json) -> Json:
        """Return an activity of the folder with the ids of the other side. Unpaired ids stay."""
        links = [f"{slug}/{self.lefts(slug).get(record_id, record_id)}" for slug, (record_id,) in activity_links(OrgLine("", data))]
        participants = [dict(each) | {"id": self._participant(each) or each.get("id")} for each in data.get("participants", ())]
        listed = {"participants": sorted(participants, key=jsontext.dumps), "links": sorted(links)}
        return data | {name: value for name, value in listed.items() if value}

    def closed_activity(self, data: Json) -> tuple[Json, list[str]]:
        """Like `activity`, without unpaired links and participants; return also what was left out."""
        links = [link for link in data.get("links", ()) if link.partition("/")[2] not in self.lefts(link.partition("/")[0])]
        strangers = [each for each in data.get("participants", ()) if self._participant(each) is None]
        kept = {
            name: [each for each in data[name] if each not in (*links, *strangers)] for name in ("links", "participants") if name in data
        }
        return self.activity(data | kept), [*links, *(f"participant {each.get('id')}" for each in strangers)]

    def _participant(self, participant: Json) -> str | None:
        record_id = str(participant.get("id"))
        if participant.get("type") == "user":
            return self.members.get(record_id)
        return next((found for slug in self.right.objects if (found := self.lefts(slug).get(record_id))), None)

    def record_changes(self, slug: str, pending: Collection[str] | None = None) -> Iterator[OrgChange]:
        """Yield the pairs that differ. With `pending`, leave references to unpaired records of other objects out."""
        attributes = self._attributes[slug]
        for left, before, right, after in self.tables.pairs(slug):
            translated = self.record(slug, after) if pending is None else self.closed_record(slug, after, pending)[0]
            names = [name for name in {**before, **translated} if not _alike(attributes, name, translated.get(name), before.get(name))]
            if names:
                yield OrgChange("changed", slug, left, right, {name: (before.get(name), translated.get(name)) for name in names})

    def activity_changes(self) -> Iterator[OrgChange]:
        for left, before, right, after in self.tables.pairs(ACTIVITY_ROWS):
            translated = self.activity(after)
            if names := [name for name in {**before, **translated} if before.get(name) != translated.get(name)]:
                values = {name: (before.get(name), translated.get(name)) for name in names}
                yield OrgChange("changed", ACTIVITY_ROWS.strip(), left, right, values)

    def changes(self) -> Iterator[OrgChange]:
        """Yield every difference of records and activities."""
        for slug in (*self.right.objects, ACTIVITY_ROWS):
            for record_id, data in self.tables.unpaired(Side.RIGHT, slug):
                yield OrgChange("added", slug.strip(), record_id, None, {name: (None, value) for name, value in data.items()})
            for record_id, data in self.tables.unpaired(Side.LEFT, slug):
                yield OrgChange("removed", slug.strip(), record_id, None, {name: (value, None) for name, value in data.items()})
            yield from self.activity_changes() if slug == ACTIVITY_ROWS else self.record_changes(slug)


def _alike(attributes: Mapping[str, Attribute], slug: str, wanted: Any, current: Any) -> bool:
    return bool(wanted == current) or (wanted is not None and alike(attributes.get(slug), wanted, current))


def attribute_of(spec: AttributeSpec) -> Attribute:
    """Return the attribute that a schema file describes; its target is named by slug."""
    config = dict(spec.config or {})
    if TARGET in config:
        config["allowed_object_id"] = config.pop(TARGET)
    return Attribute(
        id=spec.slug, slug=spec.slug, name=spec.name, type=spec.type, is_required=spec.is_required, is_unique=spec.is_unique,
        is_list=spec.is_list, config=config or None,
    )  # fmt: skip


def present_of(schema: SchemaDocument) -> Present:
    """Return a schema file as if a service had it, with slugs as ids."""
    objects = {
        spec.slug: Object(
            id=spec.slug, slug=spec.slug, type=spec.type, singular_name=spec.singular_name, plural_name=spec.plural_name,
            description=spec.description,
        )
        for spec in schema.objects
    }  # fmt: skip
    return Present(objects, {spec.slug: {each.slug: attribute_of(each) for each in spec.attributes} for spec in schema.objects})


def keys_of(folder: OrgFolder, matches: Mapping[str, str]) -> KeyOf:
    """Return how to take the key of a record, from `matches` or the folder's settings. Raises UsageError for an unknown attribute."""
    chosen = {**folder.key_attributes, **matches}
    if unknown := sorted(matches.keys() - folder.objects.keys()):
        raise UsageError(f"--match: {folder.path} has no object {unknown[0]}", hint=f"its objects are: {', '.join(folder.objects)}")
    rules = {
        slug: key_rule([key], [attribute_of(each) for each in folder.objects[slug].attributes], "--match")
        for slug, key in chosen.items()
        if slug in folder.objects
    }
    return lambda slug: rules[slug].key if slug in rules else lambda _: None


@contextmanager
def folders_compared(before: OrgFolder, after: OrgFolder, matches: Mapping[str, str]) -> Iterator[OrgComparison]:
    """Compare two folders."""
    schema = compare(after.schema, present_of(before.schema), prune=True)
    keys = keys_of(after, matches)
    with OrgTables() as tables:
        check_folder(tables, Side.LEFT, before, keys, edited=True)
        check_folder(tables, Side.RIGHT, after, keys, edited=True)
        compared = OrgComparison(tables, after, schema)
        compared.match()
        yield compared


@contextmanager
def service_compared(
    context: BulkContext, folder: OrgFolder, matches: Mapping[str, str], known: Mapping[str, str] | None = None, *, edited: bool = False
) -> Iterator[tuple[OrgComparison, Present]]:
    """Compare a folder with the service, which is synced first, and yield also the schema of the service.

    `known` maps ids of the folder to ids of the service. Raises RejectedError for a damaged folder before the first request.
    """
    keys = keys_of(folder, matches)
    with OrgTables() as tables, ExitStack() as stack:
        check_folder(tables, Side.RIGHT, folder, keys, edited=edited)
        organization = _read_service(context, folder)
        stack.enter_context(organization.copy)
        _load_service(tables, organization, folder, keys)
        tables.know((left, right) for right, left in (known or {}).items())
        compared = OrgComparison(tables, folder, compare(folder.schema, organization.present()))
        users = {member.user.email: member.user.id for member in organization.members if member.user is not None}
        emails = {str(member.get("userId")): member.get("email") for member in folder.members()}
        compared.members = {user: there for user, email in emails.items() if (there := users.get(email)) is not None}
        compared.match()
        yield compared, organization.present()


def _read_service(context: BulkContext, folder: OrgFolder) -> Organization:
    every = context.service.list_objects()
    targets = {each.target for spec in folder.objects.values() for each in references_of(spec).values()}
    chosen = [one for one in every if one.slug in folder.objects or one.slug in targets]
    organization, _ = sync_organization(context, every, chosen, folder.settings.parts)
    for one in organization.objects:
        state, spec = organization.copy.state(one.id), folder.objects.get(one.slug or "")
        excluded = {each.slug for each in spec.attributes} & set(state.excluded) if spec is not None and state is not None else set()
        if excluded:
            organization.copy.__exit__()
            problem = f"the mirror of the service excludes {one.slug}.{min(excluded)}, so crmctl cannot compare it"
            raise UsageError(problem, hint="crmctl mirror remove, then give the command again")
    return organization


def _load_service(tables: OrgTables, organization: Organization, folder: OrgFolder, keys: KeyOf) -> None:
    for one, lines in organization.lines():
        slug = one.slug or one.id
        key = keys(slug)
        for document in lines:
            tables.add(Side.LEFT, slug, OrgLine("", document), key(document["data"]))
    if "activities" in folder.settings.parts:
        for document in organization.activities():
            tables.add(Side.LEFT, ACTIVITY_ROWS, OrgLine("", document))


@contextmanager
def opened(name: str) -> Iterator[OrgFolder]:
    """Open a folder, or with `DIR@REV` a commit of it. Raises UsageError."""
    path, at, revision = name.rpartition("@")
    if Path(name).exists() or not at or revision.startswith("-"):
        yield OrgFolder(Path(name))
        return
    with tempfile.TemporaryDirectory(prefix="crmctl-org-") as place:
        command = ["git", "-C", path, "archive", "--format=tar", revision]
        try:
            done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - the revision is one argument
        except OSError as error:
            raise UsageError(f"{name}: git cannot be started", hint="install git, or compare two folders") from error
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip().splitlines()
            raise UsageError(f"{name}: {message[-1] if message else 'git has no such commit'}", code="unknown_commit")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(place, filter="data")
        yield OrgFolder(Path(place))


def report_text(changes: Sequence[OrgChange], schema: Sequence[SchemaChange], title: str) -> str:
    """Return the differences as Markdown for a merge request."""
    lines = [f"# {title}", ""]
    if schema:
        lines += ["## Schema", "", *(f"- {_word(change)} `{change.place}`: {_cell(change.summary)}" for change in schema), ""]
    for slug in dict.fromkeys(change.object for change in changes):
        of_object = [change for change in changes if change.object == slug]
        counts = {word: sum(change.change == word for change in of_object) for word in ("added", "removed", "changed")}
        lines += [f"## {slug}", "", ", ".join(f"{count:,} {word}" for word, count in counts.items() if count), ""]
        lines += ["| record | change | attribute | before | after |", "|---|---|---|---|---|"]
        for change in of_object[:LISTED]:
            for name, (before, after) in change.values.items() or {"": ("", "")}.items():
                lines.append(f"| `{change.id}` | {change.change} | {name} | {_cell(before)} | {_cell(after)} |")
        lines += [f"| and {len(of_object) - LISTED:,} more | | | | |"] if len(of_object) > LISTED else []
        lines.append("")
    return "\n".join(lines if changes or schema else [*lines, "No differences.", ""])


LISTED = 200
"""Most records of an object in a report; the counts are exact."""


def _word(change: SchemaChange) -> str:
    return "remove" if change.action in (ChangeAction.DELETE, ChangeAction.EXTRA) else str(change.action)


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else jsontext.dumps(value)
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())[:120]
