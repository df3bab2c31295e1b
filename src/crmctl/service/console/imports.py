"""Importing a file: which column may fill which attribute, as the commands that do it. The service itself imports nothing (decision 43)."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from crmctl.models.attributes import AttributeType
from crmctl.models.folded_text import fold
from crmctl.models.part_names import PART_NAMES
from crmctl.service.console.pages import ConsolePage, Pages, Visit
from crmctl.service.console.record_form import PART_LABELS, USUAL_PARTS
from crmctl.service.console.record_list import object_of, reference_target
from crmctl.service.roles import MemberRole
from crmctl.service.store import attributes
from crmctl.service.store.tx import Tx
from crmctl.service.values.choices import canonical_uuid

LARGEST_HEAD = 256 * 1024
"""Bytes of a file that are looked at: its header and first rows."""


def add_pages(pages: Pages) -> None:
    """The page with its form, and what comes of a header."""

    @pages.get("/records/{slug}/import", needs=MemberRole.MEMBER)
    def show_import(tx: Tx, visit: Visit) -> ConsolePage:
        return _page(tx, visit)

    @pages.post("/records/{slug}/import", needs=MemberRole.MEMBER, form_limit=4 * 1024 * 1024)
    def read_header(tx: Tx, visit: Visit) -> ConsolePage:
        file = visit.files.get("file")
        text = file.content[:LARGEST_HEAD].decode("utf-8-sig", "replace") if file else visit.raw("head")
        return _page(tx, visit, text, (file.name if file else visit.text("name")) or "file.csv")


def _page(tx: Tx, visit: Visit, text: str = "", name: str = "file.csv") -> ConsolePage:
    known = object_of(tx, visit)
    found = attributes.list_attributes(tx, known["id"])
    header, samples = _read_head(text)
    keys = [each["slug"] for each in found if each["isUnique"]]
    targets = _targets(found)
    chosen = {column: visit.text(f"map:{column}") if f"map:{column}" in visit.form else _guess(column, targets) for column in header}
    refs = [ref for column, path in chosen.items() if (ref := _reference(tx, visit, found, path, samples.get(column, "")))]
    options = [*(f"--ref {ref}" for ref in refs), *([f"--key {visit.text('key')}"] if visit.text("key") in keys else [])]
    values = {
        "section": f"records-{known['slug']}",
        "object": known,
        "targets": targets,
        "keys": keys,
        "key": visit.text("key"),
        "columns": [(column, chosen[column], samples.get(column, "")) for column in header],
        "head": "\n".join(text.splitlines()[:2]),
        "name": name,
        "commands": _commands(known["slug"], name, chosen, options) if header else [],
        "error": "the file has no header: its first line must name the columns" if text and not header else None,
    }
    return ConsolePage("import.html", values, HTTPStatus.BAD_REQUEST if values["error"] else HTTPStatus.OK)


def _read_head(text: str) -> tuple[list[str], dict[str, str]]:
    """The names of the columns, and a value of each."""
    rows = list(csv.reader(io.StringIO(text.splitlines()[0] if text.strip() else ""), delimiter=_delimiter(text)))
    header = [column.strip() for column in (rows[0] if rows else []) if column.strip()]
    second = next(csv.reader(io.StringIO("\n".join(text.splitlines()[1:2])), delimiter=_delimiter(text)), [])
    return list(dict.fromkeys(header))[:250], dict(zip(header, second, strict=False))


def _delimiter(text: str) -> str:
    first = text.splitlines()[0] if text.strip() else ""
    return max((",", ";", "\t"), key=first.count)


@dataclass(frozen=True)
class ColumnTarget:
    """What a column may fill: an attribute, or a part of one. `spellings` are what such columns are called."""

    path: str
    label: str
    spellings: frozenset[str]


def _targets(found: Sequence[Mapping[str, Any]]) -> list[ColumnTarget]:
    targets = []
    for each in found:
        slug, name = each["slug"], each["name"]
        targets.append(ColumnTarget(slug, name, frozenset(map(_letters, (slug, name)))))
        parts = PART_NAMES[each["type"]] if each["type"] in USUAL_PARTS and not each["isList"] else {}
        for part, others in parts.items():
            spellings = map(_letters, (part, f"{slug}{part}", f"{name}{part}", *others))
            targets.append(ColumnTarget(f"{slug}.{part}", f"{name}: {PART_LABELS.get(part, part)}", frozenset(spellings)))
    return targets


def _guess(column: str, targets: Sequence[ColumnTarget]) -> str:
    """What is called like the column, an attribute before a part; nothing where several parts are."""
    wanted = _letters(column)
    paths = [target.path for target in targets if wanted in target.spellings]
    return next((path for path in paths if "." not in path), paths[0] if len(paths) == 1 else "")


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, fold(text)))


def _reference(tx: Tx, visit: Visit, found: Sequence[Mapping[str, Any]], path: str, sample: str) -> str:
    """How a column that does not hold ids says which record it means, as --ref has it; nothing where it may hold ids."""
    target = next((reference_target(each) for each in found if each["slug"] == path), None)
    slug = next((each["slug"] for each in visit.objects if each["id"] == target), None)
    if slug is None or not sample or canonical_uuid(sample):
        return ""
    wanted = AttributeType.EMAIL if "@" in sample else AttributeType.TEXT
    key = next((each["slug"] for each in attributes.list_attributes(tx, str(target)) if each["type"] == wanted), None)
    return f"{path}={slug}.{key}" if key else ""


def _commands(slug: str, name: str, chosen: dict[str, str], options: Sequence[str]) -> list[tuple[str, str]]:
    """(what it does, the command), in the order in which they are run."""
    maps = [f"--map {shlex.quote(f'{column}={target}')}" for column, target in chosen.items() if target != column]
    # A name that begins with a dash would be read as an option.
    file = shlex.quote(f"./{name}" if name.startswith("-") else name)
    base = " ".join(["crmctl bulk import", slug, file, *maps, *options])
    failed = shlex.quote(f"{name.rpartition('.')[0] or name}-failed.csv")
    return [
        ("Look first: nothing is written", f"{base} --dry-run"),
        ("Import, and keep what failed in a file of its own", f"{base} --on-error continue --failed {failed}"),
        ("Once the failed rows are mended", f"{base.replace(file, failed, 1)}"),
        ("See what taking it back would change; the first line of the import names its JOB", "crmctl bulk undo JOB --dry-run"),
    ]
