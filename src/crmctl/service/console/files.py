"""Pages of files and of imports."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from crmctl.errors import reason
from crmctl.models.resources import AttributeType
from crmctl.service.console.cells import reference_target
from crmctl.service.console.pages import NavigationLink, Pages
from crmctl.service.console.record_form import PART_LABELS, USUAL_PARTS
from crmctl.service.console.record_list import object_of
from crmctl.service.console.visits import ConsolePage, Redirect, Visit
from crmctl.service.context import FILES_FOLDER
from crmctl.service.faults import BadRequest, OverQuota, Unavailable
from crmctl.service.files.storage import Disk, Incoming, check_bucket, normalise_path, url_path
from crmctl.service.roles import MemberRole
from crmctl.service.store import attributes
from crmctl.service.store.tx import Tx
from crmctl.values.attribute_types import PART_NAMES
from crmctl.values.folded_text import fold
from crmctl.values.value_readers import canonical_uuid

MOST_SHOWN = 200
LARGEST = 20 * 1024 * 1024
"""Bytes of a file from the browser; larger ones are uploaded by `crmctl files upload`."""


def add_file_pages(pages: Pages) -> None:
    pages.navigation.append(NavigationLink("Work", "files", "/files", "Files"))

    @pages.get("/files", is_slow=True)
    def list_files(_tx: object, visit: Visit) -> ConsolePage:
        return _files(visit)

    @pages.post("/files", needs=MemberRole.MEMBER, in_transaction=False, form_limit=LARGEST + 64 * 1024)
    def upload(visit: Visit) -> ConsolePage | Redirect:
        if visit.context.settings.files_s3 is not None:
            return _files(visit, "files go to S3 here: upload them with the command")
        file = visit.files.get("file")
        try:
            if file is None or not file.name or not file.content:
                raise BadRequest("choose a file that is not empty", {"field": "file"})
            bucket = check_bucket(visit.text("bucket"))
            path = normalise_path("/".join(part for part in (visit.text("folder").strip("/"), file.name) if part))
            if len(file.content) > min(LARGEST, visit.context.settings.file_limit):
                raise BadRequest("the file is too large for this page", {"field": "file"})
            _store(_disk(visit).receive(bucket, path, file.content_type, len(file.content)), file.content)
        except BadRequest as error:
            return _files(visit, error.message)
        except OverQuota as error:
            return _files(visit, error.message, HTTPStatus.INSUFFICIENT_STORAGE)
        except OSError as error:
            raise Unavailable(f"the file could not be stored: {reason(error)}") from error
        return Redirect("/files", "file-uploaded")


def _store(incoming: Incoming, content: bytes) -> None:
    try:
        incoming.write(content)
        incoming.finish()
    finally:
        incoming.close()


def _disk(visit: Visit) -> Disk:
    return Disk(visit.context.settings.data_dir / FILES_FOLDER, visit.context.settings.quotas.files)


def _files(visit: Visit, error: str | None = None, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> ConsolePage:
    is_local = visit.context.settings.files_s3 is None
    found = _disk(visit).list_files(MOST_SHOWN) if is_local else []
    values = {
        "section": "files",
        "files": [{"file": file, "url": f"{visit.context.settings.address}/files/{url_path(file.bucket, file.path)}"} for file in found],
        "most": MOST_SHOWN,
        "is_local": is_local,
        "largest": min(LARGEST, visit.context.settings.file_limit) // (1024 * 1024),
        "fields": {"bucket": visit.text("bucket") or "uploads", "folder": visit.text("folder")},
        "error": error,
    }
    return ConsolePage("files.html", values, status if error else HTTPStatus.OK)


LARGEST_HEAD = 256 * 1024
"""Bytes of a file that are looked at: its header and first rows."""


def add_import_pages(pages: Pages) -> None:
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
    """An attribute, or a part of one, that a column can fill. `spellings` are the usual names of such columns."""

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
    """Return the path of the attribute, or of the only part, with the column's name; empty if there is none."""
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
    """Return (description, command) in the order to run them."""
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
