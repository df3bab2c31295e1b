"""Check folders, and find the differences between a folder and a service, or between two folders."""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from crmctl.bulk_context import BulkContext
from crmctl.errors import RejectedError, UsageError
from crmctl.frozen import frozen
from crmctl.match.keys import key_rule
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.resources import Attribute, AttributeType, Object
from crmctl.org.folder import (
    ACTIVITY_ROWS,
    FILES,
    MEMBER_ROWS,
    SCHEMA,
    SECTION_ROWS,
    OrgFolder,
    OrgRow,
    entry_id,
    file_facts,
    references_of,
)
from crmctl.org.pull import Organization, object_option, sync_organization
from crmctl.org.sections import Entries, fetch_file, portable
from crmctl.org.tables import ANY, USERS, OrgTables, Side
from crmctl.schema.apply import ChangeAction, SchemaChange, compare
from crmctl.schema.schema_document import Present, SchemaDocument
from crmctl.values.object_spec import TARGET, AttributeSpec
from crmctl.write.effect import alike

MOST_PROBLEMS = 100
FILE_ROWS = f" {FILES}"
EMAIL = Attribute(id="email", slug="email", type=AttributeType.EMAIL)

KeyOf = Callable[[OrgRow], str | None]
"""Returns the key of a row."""


@frozen
class OrgChange:
    """One difference: a record, activity or entry that was added, removed or changed. `values` maps slugs to `[before, after]`."""

    change: str
    object: str
    id: str
    other_id: str | None = None
    values: Mapping[str, list[Any]] = field(default_factory=dict)

    def to_document(self) -> Json:
        """Return the JSON form. Every key is present."""
        return {"change": self.change, "object": self.object, "id": self.id, "otherId": self.other_id, "values": self.values}


@dataclass
class OrgComparison:
    """Two sides of which `right` is the folder that shall be. `kinds`: the rows besides records that both sides show.

    `entries`: those of the service. `open_references`: slug, id and attributes of records in the folder that refer to records of other
    objects, unknown to the service. `is_exact`: values that mean the same differ if they are written differently.
    """

    tables: OrgTables
    right: OrgFolder
    schema: list[SchemaChange]
    kinds: Sequence[str]
    entries: Entries = field(default_factory=dict)
    open_references: Sequence[tuple[str, str, list[str]]] = ()
    is_exact: bool = False
    _lefts: dict[str, dict[str, str]] = field(default_factory=dict)

    @cached_property
    def _attributes(self) -> Mapping[str, Mapping[str, Attribute]]:
        return {**present_of(self.right.schema).attributes, MEMBER_ROWS: {"email": EMAIL}}

    def match(self, id_map: Mapping[str, str], members: Iterable[Json]) -> None:
        """Pair rows by id, known pair or key; activities also by content, entries by name. `members`: those of the left side."""
        self.match_users(members)
        self.tables.match(id_map)
        for slug in self.right.objects:
            self.tables.match_keys(slug)
        self.tables.key_activities(lambda data: self.translated(ACTIVITY_ROWS, data)[0])
        self.tables.match_keys(ACTIVITY_ROWS)

    def match_users(self, members: Iterable[Json]) -> None:
        """Pair users by the e-mail addresses of the members."""
        users = {entry_id("members", member): member["userId"] for member in members}
        rows = [*self.right.entries("members")]
        self._lefts[USERS] = {str(row.data.get("userId")): users[row.id] for row in rows if row.id in users}

    def lefts(self, kind: str) -> dict[str, str]:
        """Map ids of the folder to ids of the other side."""
        if kind not in self._lefts:
            self._lefts[kind] = self.tables.lefts(kind)
        return self._lefts[kind]

    def pair(self, kind: str, lefts: Mapping[str, str]) -> None:
        """Pair rows that were created: ids of the other side by ids of the folder."""
        self.tables.pair(kind, lefts)
        self.lefts(kind).update(lefts)

    def translated(self, kind: str, data: Json, *, strict: bool = False) -> tuple[Json, list[str]]:
        """Return a row of the folder with the ids of the other side, and names of what was left out.

        Unpaired ids stay; `strict` leaves them out.
        """

        def new(_: str, target: str, record_id: str) -> str | None:
            kinds = self.right.objects if target == ANY else (target,)
            left_id = next((paired for target_kind in kinds if (paired := self.lefts(target_kind).get(record_id)) is not None), None)
            return left_id if left_id is not None or strict else record_id

        return self.tables.moved(kind, data, new)

    def changed(self, kind: str, *, strict: bool = False) -> Iterator[OrgChange]:
        """Yield the pairs that differ. `strict` is that of `translated`."""
        for left_id, before, right, after in self.tables.pairs(kind):
            expected = self.translated(kind, after, strict=strict)[0]
            names = [name for name in {**before, **expected} if not self._alike(kind, name, expected.get(name), before.get(name))]
            if names:
                yield OrgChange("changed", kind.strip(), left_id, right, {name: [before.get(name), expected.get(name)] for name in names})

    def updates(self, kind: str, *, strict: bool) -> Iterator[tuple[OrgChange, Json]]:
        """Yield the pairs that an apply changes, each with the values that the folder holds: apply clears nothing."""
        for change in self.changed(kind, strict=strict):
            if values := {name: after for name, (_, after) in change.values.items() if after is not None}:
                yield change, values

    def _alike(self, kind: str, name: str, expected: Any, current: Any) -> bool:
        attribute = None if self.is_exact else self._attributes.get(kind, {}).get(name)
        return bool(expected == current) or (attribute is not None and expected is not None and alike(attribute, expected, current))

    def changes(self, *, strict: bool = False) -> Iterator[OrgChange]:
        """Yield every difference of records, activities and entries."""
        for kind in (*self.right.objects, *self.kinds):
            for row_id, data in self.tables.unpaired(Side.RIGHT, kind):
                yield OrgChange("added", kind.strip(), row_id, None, {name: [None, value] for name, value in data.items()})
            for row_id, data in self.tables.unpaired(Side.LEFT, kind):
                yield OrgChange("removed", kind.strip(), row_id, None, {name: [value, None] for name, value in data.items()})
            yield from self.changed(kind, strict=strict)


def present_of(schema: SchemaDocument) -> Present:
    """Return a schema file as if a service had it, with slugs as ids."""

    def attribute_of(spec: AttributeSpec) -> Attribute:
        config = {"allowed_object_id" if name == TARGET else name: value for name, value in (spec.config or {}).items()}
        return Attribute.parse({"id": spec.slug, **spec.model_dump(by_alias=True), "config": config})

    objects = {spec.slug: Object.parse({"id": spec.slug, **spec.model_dump(by_alias=True)}) for spec in schema.objects}
    return Present(
        objects, {spec.slug: {attribute.slug: attribute_of(attribute) for attribute in spec.attributes} for spec in schema.objects}
    )


def keys_of(folder: OrgFolder, matches: Iterable[str]) -> KeyOf:
    """Return how to take the key of a record, from `matches` (OBJECT=ATTR) or the folder's settings. Raises UsageError."""
    chosen = dict(object_option(folder.objects, text, "=", "--match OBJECT=ATTR, for example people=email") for text in matches)
    attributes, keys = present_of(folder.schema).attributes, {**folder.settings.keys, **chosen}
    rules = {slug: key_rule([key], [*attributes[slug].values()], "--match") for slug, key in keys.items() if slug in attributes}
    return lambda row: rules[row.kind].key(row.data) if row.kind in rules else None


# -- reading folders -----------------------------------------------------------------------------------------------------------------


def load_folder(tables: OrgTables, side: Side, folder: OrgFolder, key: KeyOf, *, edited: bool) -> Iterator[tuple[str, str]]:
    """Read a folder into the tables. Yield place and text of its problems. `edited`: files may differ from the manifest."""
    if not edited:
        yield from folder.checksum_problems()
    slugs = {slug: {attribute.slug for attribute in spec.attributes} for slug, spec in folder.objects.items()}
    for row in folder.rows():
        if unknown := sorted(row.data.keys() - slugs.get(row.kind, row.data.keys())):
            yield row.place, f"{row.kind} has no attribute {unknown[0]} in {SCHEMA}"
        if row.kind in SECTION_ROWS:
            row = row._replace(data=portable(row.kind.strip(), row.data))
        if (other := tables.add(side, row, key(row))) is not None:
            yield row.place, f"the id {row.id} is also in {other}"
        if row.kind == FILE_ROWS and not (path := folder.file(f"{FILES}/{row.data['sha256']}")).is_file():
            yield row.place, f"{row.id} is missing: {FILES}/{path.name}"
        elif row.kind == FILE_ROWS and file_facts(path)["sha256"] != path.name:
            yield row.place, f"{row.id} is not what its sha256 says: {FILES}/{path.name}"
    for place, name, target, row_id in tables.open_links(side):
        yield place, f"{name} refers to {target} {row_id}, which the folder does not hold"
    totals = {**folder.manifest.records, ACTIVITY_ROWS: folder.manifest.activities}
    for kind in () if edited else (*folder.objects, ACTIVITY_ROWS):
        if (count := tables.count(side, kind)) != totals.get(kind, 0):
            yield kind.strip(), f"holds {count:,} rows, the manifest says {totals.get(kind, 0):,}"


def check_folder(tables: OrgTables, side: Side, folder: OrgFolder, key: KeyOf = lambda _: None, *, edited: bool = False) -> None:
    """Read a folder into the tables. Raises RejectedError with its first problems. `edited` is that of `load_folder`."""
    problems = list[Json]()
    try:
        loading = load_folder(tables, side, folder, key, edited=edited)
        problems.extend({"place": place, "problem": text} for place, text in islice(loading, MOST_PROBLEMS))
    except RejectedError as error:
        problems += error.details or [{"place": str(folder.path), "problem": error.message}]
    if problems:
        text = problems[0]["problem"]
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        hint = "--edited accepts changed files" if "changed" in text else "crmctl org verify DIR names every problem"
        raise RejectedError(f"{problems[0]['place']}: {text}{more}", hint=hint, code="damaged_folder", details=problems)


def verify(path: Path) -> OrgFolder:
    """Check checksums, JSON, schema, references and counts of a folder. Raises RejectedError with its first problems.

    Raises UsageError for a folder that crmctl did not write.
    """
    folder = OrgFolder(path)
    with OrgTables(folder.schema.objects) as tables:
        check_folder(tables, Side.RIGHT, folder)
    return folder


# -- comparing -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def folders_compared(
    before: OrgFolder, after: OrgFolder, matches: Iterable[str], id_map: Mapping[str, str] | None = None, *, is_exact: bool = False
) -> Iterator[OrgComparison]:
    """Compare two folders. `id_map` maps ids of the second to ids of the first; `is_exact` is that of the comparison."""
    key = keys_of(after, matches)
    with OrgTables(after.schema.objects) as tables:
        check_folder(tables, Side.LEFT, before, key, edited=True)
        check_folder(tables, Side.RIGHT, after, key, edited=True)
        schema = compare(after.schema, present_of(before.schema), prune=True)
        compared = OrgComparison(tables, after, schema, (ACTIVITY_ROWS, *SECTION_ROWS), is_exact=is_exact)
        compared.match(id_map or {}, [row.data for row in before.entries("members")])
        yield compared


@contextmanager
def service_compared(
    context: BulkContext, folder: OrgFolder, matches: Iterable[str], id_map: Mapping[str, str], *, edited: bool = False
) -> Iterator[tuple[OrgComparison, Present]]:
    """Compare a folder with the service, which is synced first, and yield also the schema of the service.

    `id_map` maps ids of the folder to ids of the service. Raises RejectedError for a damaged folder before the first request.
    """
    key = keys_of(folder, matches)
    with OrgTables(folder.schema.objects) as tables, ExitStack() as stack:
        check_folder(tables, Side.RIGHT, folder, key, edited=edited)
        slugs = {*folder.objects, *(reference.target for spec in folder.objects.values() for reference in references_of(spec).values())}
        organization = sync_organization(
            context, lambda every: [crm_object for crm_object in every if crm_object.slug in slugs], folder.parts
        )
        stack.enter_context(organization.copy)
        _refuse_excluded(organization, folder)
        files = {*tables.unpaired_ids(Side.RIGHT, FILE_ROWS)}
        for row in organization.rows():
            if row.kind == FILE_ROWS and row.id in files:
                row = row._replace(data=fetch_file(context, organization.entries[FILES][row.id]))
            tables.add(Side.LEFT, row, key(row))
        kinds = (ACTIVITY_ROWS, *(f" {section}" for section in organization.entries))
        compared = OrgComparison(tables, folder, compare(folder.schema, organization.present), kinds, organization.entries)
        compared.match(id_map, organization.entries.get("members", {}).values())
        compared.open_references = [*tables.cut_unpaired_links()]
        yield compared, organization.present


def _refuse_excluded(organization: Organization, folder: OrgFolder) -> None:
    for slug in organization.objects.keys() & folder.objects:
        for attribute in folder.objects[slug].attributes:
            if not organization.copy.holds(organization.objects[slug].id, [attribute.slug]):
                problem = f"the mirror of the service excludes {slug}.{attribute.slug}, so crmctl cannot compare it"
                raise UsageError(problem, hint="crmctl mirror remove, then give the command again")


def drill_differences(folder: OrgFolder, restored: OrgFolder, ids: Mapping[str, str]) -> list[Json]:
    """Compare a folder with what a throw-away service gave back; `ids` maps its ids to those of that service.

    References to what the folder does not hold do not count.
    """
    with folders_compared(restored, folder, (), ids, is_exact=True) as compared:
        problems = [
            {"place": change.place, "problem": change.summary} for change in compared.schema if change.action is not ChangeAction.DELETE
        ]
        words = {"added": "not restored", "removed": "restored although the folder lacks it", "changed": "restored differently"}
        for change in compared.changes(strict=True):
            values = f": {', '.join(change.values)}" if change.change == "changed" else ""
            problems.append({"place": f"{change.object} {change.other_id or change.id}", "problem": words[change.change] + values})
    return problems


def _git(place: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(place), *words], capture_output=True, check=False)  # noqa: S603, S607 - each word is one argument


@contextmanager
def opened(name: str) -> Iterator[OrgFolder]:
    """Open a folder, or with `DIR@REV` a commit of it. Raises UsageError."""
    path, at, revision = name.rpartition("@")
    if Path(name).exists() or not at or revision.startswith("-"):
        yield OrgFolder(Path(name))
        return
    with tempfile.TemporaryDirectory(prefix="crmctl-org-") as place:
        base = next(parent for parent in (Path(path), *Path(path).absolute().parents) if parent.is_dir())  # the folder may be gone
        try:
            top = Path(os.fsdecode(_git(base, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n")) or base).resolve()
            inside = "/".join(Path(path).resolve().relative_to(top).parts)
            done = _git(top, "archive", "--format=zip", "-0", f"{revision}:{inside}")
        except OSError as error:
            raise UsageError(f"{name}: git cannot be started", hint="install git, or compare two folders") from error
        if done.returncode:
            message = done.stderr.decode(errors="replace").strip().splitlines()
            raise UsageError(f"{name}: {message[-1] if message else 'git has no such commit'}", code="unknown_commit")
        with ZipFile(io.BytesIO(done.stdout)) as archive:
            archive.extractall(place)
        yield OrgFolder(Path(place))


LISTED = 200
"""Most records of an object in a report; the counts are exact."""


def report_text(changes: Sequence[OrgChange], schema: Sequence[SchemaChange], title: str) -> str:
    """Return the differences as Markdown for a merge request."""
    lines = [f"# {title}", ""]
    if schema:
        words = {ChangeAction.DELETE: "remove", ChangeAction.EXTRA: "remove"}
        lines += ["## Schema", ""]
        lines += [*(f"- {words.get(change.action, change.action)} `{change.place}`: {_cell(change.summary)}" for change in schema), ""]
    for slug in dict.fromkeys(change.object for change in changes):
        of_object = [change for change in changes if change.object == slug]
        counts = {word: sum(change.change == word for change in of_object) for word in ("added", "removed", "changed")}
        lines += [f"## {slug}", "", ", ".join(f"{count:,} {word}" for word, count in counts.items() if count), ""]
        lines += ["| record | change | attribute | before | after |", "|---|---|---|---|---|"]
        for change in of_object[:LISTED]:
            for name, (before, after) in change.values.items() or {"": ("", "")}.items():
                lines.append(f"| `{_cell(change.id)}` | {change.change} | {name} | {_cell(before)} | {_cell(after)} |")
        lines += [f"| and {len(of_object) - LISTED:,} more | | | | |"] if len(of_object) > LISTED else []
        lines.append("")
    return "\n".join(lines if changes or schema else [*lines, "No differences.", ""])


def _cell(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else jsontext.dumps(value)
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())[:120]
