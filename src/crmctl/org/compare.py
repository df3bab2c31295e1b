"""Check folders, and find the differences between a folder and a service, or between two folders."""

from __future__ import annotations

import io
import re
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
from crmctl.org.folder import FILES, OrgFolder, OrgLine, entry_id, references_of
from crmctl.org.pull import Organization, sync_organization
from crmctl.org.sections import Entries, fetch_file, portable
from crmctl.org.tables import ACTIVITY_ROWS, SECTION_ROWS, KeyOf, OrgTables, Side, activity_links, check_folder, folder_problems
from crmctl.schema.apply import ChangeAction, SchemaChange, compare
from crmctl.schema.schema_document import Present, SchemaDocument
from crmctl.values.object_spec import TARGET, AttributeSpec
from crmctl.write.effect import alike

UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


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
    """Two sides of which `right` is the folder that shall be. Reading `changes` pairs nothing new."""

    def __init__(self, tables: OrgTables, right: OrgFolder, schema: list[SchemaChange], others: Collection[str]) -> None:
        """`others`: the rows besides records that both sides show."""
        self.tables = tables
        self.right = right
        self.schema = schema
        self.others = others
        self.current: Entries = {}
        """The entries of the service."""
        self.users: Mapping[str, str] = {}
        """User ids of the other side by user id of the folder."""
        self.is_exact = False
        """Whether values that mean the same differ if they are written differently."""
        self._lefts: dict[str, dict[str, str]] = {}
        self._references = {slug: references_of(spec) for slug, spec in right.objects.items()}
        self._attributes = {slug: {each.slug: attribute_of(each) for each in spec.attributes} for slug, spec in right.objects.items()}

    def match(self) -> None:
        """Pair rows by id, known pair or key; activities also by content, entries by name."""
        for slug in self.right.objects:
            self.tables.match(slug)
        targets = {each.target or "" for references in self._references.values() for each in references.values()}
        for slug in targets - self.right.objects.keys():
            self.tables.match_targets(slug)
        self.tables.key_activities(lambda data: self.translated(ACTIVITY_ROWS, data)[0])
        for slug in self.others:
            self.tables.match(slug)

    def match_users(self, left: Iterable[Json]) -> None:
        """Pair users by the e-mail addresses of the members."""
        users = {entry_id("members", member): member["userId"] for member in left}
        members = (line.document for line in self.right.entries("members"))
        self.users = {str(each["data"].get("userId")): users[each["id"]] for each in members if each["id"] in users}

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

    def translated(self, slug: str, data: Json, pending: Collection[str] | None = None) -> tuple[Json, list[str]]:
        """Return a row of the folder with the ids of the other side, and the references in it to unpaired records.

        Unpaired ids stay. With `pending` they are left out, unless they are of these objects: those will be paired.
        """
        if slug == ACTIVITY_ROWS:
            return self._activity(data, is_closed=pending is not None)
        if slug not in self._references:
            return jsontext.loads(UUID.sub(lambda found: self._left(found[0]) or found[0], jsontext.dumps(data))), []
        translated, open_names = dict(data), []
        for name, attribute in self._references[slug].items():
            if (value := ids_only(data.get(name))) is None:
                continue
            ids, listed = self.lefts(attribute.target or ""), value if isinstance(value, list) else [value]
            is_closed = pending is not None and attribute.target not in pending
            kept = [ids.get(each, each) for each in listed if not is_closed or each in ids]
            if len(kept) < len(listed):
                open_names.append(name)
            if kept or not listed:
                translated[name] = kept if isinstance(value, list) else kept[0]
            else:
                del translated[name]
        return translated, open_names

    def _activity(self, data: Json, *, is_closed: bool) -> tuple[Json, list[str]]:
        links, participants, unknown = list[str](), list[Json](), list[str]()
        for slug, (record_id,) in activity_links(OrgLine("", data)):
            if (left := self.lefts(slug).get(record_id)) is None and is_closed:
                unknown.append(f"{slug}/{record_id}")
            else:
                links.append(f"{slug}/{left or record_id}")
        for each in data.get("participants", ()):
            record_id = str(each.get("id"))
            left = self.users.get(record_id) if each.get("type") == "user" else self._left(record_id)
            if left is None and is_closed:
                unknown.append(f"participant {record_id}")
            else:
                participants.append(each | {"id": left or record_id})
        listed = {"participants": sorted(participants, key=jsontext.dumps), "links": sorted(links)}
        plain = {name: value for name, value in data.items() if name not in listed}
        return plain | {name: value for name, value in listed.items() if value}, unknown

    def _left(self, record_id: str) -> str | None:
        return next((found for slug in self.right.objects if (found := self.lefts(slug).get(record_id))), None)

    def open_references(self, slug: str, pending: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """Yield each record of the folder that refers to unpaired records, with the attributes."""
        if self._references[slug]:
            for record_id, data in self.tables.rows(Side.RIGHT, slug):
                if open_names := self.translated(slug, data, pending)[1]:
                    yield record_id, open_names

    def changed(self, slug: str, pending: Collection[str] | None = None) -> Iterator[OrgChange]:
        """Yield the pairs that differ. `pending` is that of `translated`."""
        for left, before, right, after in self.tables.pairs(slug):
            wanted = self.translated(slug, after, pending)[0]
            names = [name for name in {**before, **wanted} if not self._alike(slug, name, wanted.get(name), before.get(name))]
            if names:
                yield OrgChange("changed", slug.strip(), left, right, {name: (before.get(name), wanted.get(name)) for name in names})

    def _alike(self, slug: str, name: str, wanted: Any, current: Any) -> bool:
        attribute = None if self.is_exact else self._attributes.get(slug, {}).get(name)
        return bool(wanted == current) or (attribute is not None and wanted is not None and alike(attribute, wanted, current))

    def changes(self, pending: Collection[str] | None = None) -> Iterator[OrgChange]:
        """Yield every difference of records, activities and entries."""
        for slug in (*self.right.objects, *self.others):
            for record_id, data in self.tables.unpaired(Side.RIGHT, slug):
                yield OrgChange("added", slug.strip(), record_id, None, {name: (None, value) for name, value in data.items()})
            for record_id, data in self.tables.unpaired(Side.LEFT, slug):
                yield OrgChange("removed", slug.strip(), record_id, None, {name: (value, None) for name, value in data.items()})
            yield from self.changed(slug, pending)


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
    chosen = {**folder.settings.keys, **matches}
    if unknown := sorted(matches.keys() - folder.objects.keys()):
        raise UsageError(f"--match: {folder.path} has no object {unknown[0]}", hint=f"its objects are: {', '.join(folder.objects)}")
    rules = {
        slug: key_rule([key], [attribute_of(each) for each in folder.objects[slug].attributes], "--match")
        for slug, key in chosen.items()
        if slug in folder.objects
    }
    return lambda slug: rules[slug].key if slug in rules else lambda _: None


@contextmanager
def folders_compared(
    before: OrgFolder, after: OrgFolder, matches: Mapping[str, str], known: Mapping[str, str] | None = None
) -> Iterator[OrgComparison]:
    """Compare two folders. `known` maps ids of the second to ids of the first."""
    schema = compare(after.schema, present_of(before.schema), prune=True)
    keys = keys_of(after, matches)
    with OrgTables() as tables:
        check_folder(tables, Side.LEFT, before, keys, edited=True)
        check_folder(tables, Side.RIGHT, after, keys, edited=True)
        tables.know((left, right) for right, left in (known or {}).items())
        compared = OrgComparison(tables, after, schema, (ACTIVITY_ROWS, *SECTION_ROWS))
        compared.match_users(line.document["data"] for line in before.entries("members"))
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
        _load_service(context, tables, organization, keys)
        tables.know((left, right) for right, left in (known or {}).items())
        others = (ACTIVITY_ROWS, *(slug for slug, section in SECTION_ROWS.items() if section in organization.entries))
        compared = OrgComparison(tables, folder, compare(folder.schema, organization.present()), others)
        compared.current = organization.entries
        compared.match_users(organization.entries.get("members", {}).values())
        compared.match()
        yield compared, organization.present()


def _read_service(context: BulkContext, folder: OrgFolder) -> Organization:
    every = context.service.list_objects()
    targets = {each.target for spec in folder.objects.values() for each in references_of(spec).values()}
    chosen = [one for one in every if one.slug in folder.objects or one.slug in targets]
    organization, _ = sync_organization(context, every, chosen, folder.parts)
    for one in organization.objects:
        state, spec = organization.copy.state(one.id), folder.objects.get(one.slug or "")
        excluded = {each.slug for each in spec.attributes} & set(state.excluded) if spec is not None and state is not None else set()
        if excluded:
            organization.copy.__exit__()
            problem = f"the mirror of the service excludes {one.slug}.{min(excluded)}, so crmctl cannot compare it"
            raise UsageError(problem, hint="crmctl mirror remove, then give the command again")
    return organization


def _load_service(context: BulkContext, tables: OrgTables, organization: Organization, keys: KeyOf) -> None:
    for one in organization.objects:
        slug = one.slug or one.id
        key = keys(slug)
        for document in organization.lines(one):
            tables.add(Side.LEFT, slug, OrgLine("", document), key(document["data"]))
    if "activities" in organization.parts:
        for document in organization.activities():
            tables.add(Side.LEFT, ACTIVITY_ROWS, OrgLine("", document))
    for slug, section in SECTION_ROWS.items():
        for name, entry in organization.entries.get(section, {}).items():
            if section == FILES and tables.has(Side.RIGHT, slug, name):
                entry = fetch_file(context, entry)
            tables.add(Side.LEFT, slug, OrgLine("", {"id": name, "data": portable(section, entry)}))


def verify(path: Path) -> tuple[OrgFolder, list[Json]]:
    """Check checksums, JSON, schema, references and counts; return the folder and its first problems.

    Raises UsageError for a folder that crmctl did not write or cannot open.
    """
    folder = OrgFolder(path)
    with OrgTables() as tables:
        problems = folder_problems(tables, Side.RIGHT, folder)
    return folder, [{"place": place, "problem": text} for place, text in problems]


def drill_differences(folder: OrgFolder, restored: OrgFolder, ids: Mapping[str, str]) -> list[Json]:
    """Compare a folder with what a throw-away service gave back; `ids` maps its ids to those of that service.

    References to what the folder does not hold do not count.
    """
    with folders_compared(restored, folder, {}, ids) as compared:
        compared.is_exact = True
        found = [{"place": one.place, "problem": one.summary} for one in compared.schema if one.action is not ChangeAction.DELETE]
        words = {"added": "not restored", "removed": "restored although the folder lacks it", "changed": "restored differently"}
        for change in compared.changes(()):
            values = f": {', '.join(change.values)}" if change.change == "changed" else ""
            found.append({"place": f"{change.object} {change.other_id or change.id}", "problem": words[change.change] + values})
    return found


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
            archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)  # the first Pythons 3.11 have none
            archive.extractall(place)  # noqa: S202 - the filter is set above
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
