"""Import a CSV or Excel file into an object: upload, choose columns, check, import. `crmctl bulk import` reads files with the same code."""

from __future__ import annotations

import contextlib
import hashlib
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from crmctl.errors import CrmctlError, RejectedError
from crmctl.files.cell_values import ValueOptions, merger_of
from crmctl.files.column_names import RECORD_ID, Names
from crmctl.files.mapping import MappingOptions, Mode, build_mapping, resolve_column
from crmctl.files.payloads import RowBuilder
from crmctl.files.rows import Format, Row, Source, SourceOptions
from crmctl.files.sources import open_source
from crmctl.models.field_paths import delimited_row
from crmctl.models.jsontext import Json
from crmctl.models.resources import BULK_LIMIT, Attribute, AttributeType
from crmctl.service.console.cells import reference_target
from crmctl.service.console.pages import LARGEST_FILE, PAGE_SECONDS
from crmctl.service.console.record_form import part_attributes
from crmctl.service.console.record_list import object_of
from crmctl.service.console.visits import ConsolePage, Download, Redirect, Visit
from crmctl.service.context import DAY
from crmctl.service.faults import BadRequest, Fault
from crmctl.service.store import records
from crmctl.service.store.change_log import differ
from crmctl.service.store.engine import rehearse
from crmctl.service.store.records import Paging
from crmctl.service.store.tx import Stamp, Tx, to_micros
from crmctl.values.composites import usual_name
from crmctl.values.value_readers import canonical_uuid

MOST_UNPACKED = 60 * 1024 * 1024
"""Bytes that the parts of a workbook may unpack to."""
MOST_ROWS, MOST_COLUMNS, MOST_SHOWN, SAMPLES = 10_000, 300, 25, 3
FOLDER = "imports"
FORMATS = (Format.CSV, Format.TSV, Format.XLSX)

_FILE = re.compile(r"[0-9a-f]{32}\.(?:csv|xlsx)")
_FAR_CELL = re.compile(rb'r(?:ef)?="(?:[A-Z]+[0-9]+:)?(?:[A-Z]{3,}[0-9]*|[A-Z]*[0-9]{6,})"')


@dataclass
class ImportOutcome:
    """The numbers of records created, updated and left alone, and each failed row with its reason."""

    header: Sequence[str]
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    failed: list[tuple[Row, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.created + self.updated


def ask_for_file(tx: Tx, visit: Visit) -> ConsolePage:
    values = {"object": object_of(tx, visit), "most": MOST_ROWS, "largest": LARGEST_FILE // 1024 // 1024, "file": ""}
    return ConsolePage("import.html", values)


def upload(visit: Visit) -> Redirect:
    crm_object = visit.context.engine.read(lambda tx: object_of(tx, visit))
    return Redirect(f"/records/{crm_object['slug']}/import/columns?file={_store(visit)}")


def download_failed(tx: Tx, visit: Visit) -> Download:
    crm_object = object_of(tx, visit)
    return Download(_place(visit, visit.query.get("file", ""), ".failed").read_bytes(), "text/csv", f"{crm_object['slug']}-failed.csv")


def check_or_import(visit: Visit) -> ConsolePage | Redirect:
    engine, name = visit.context.engine, visit.text("file")
    place = _place(visit, name)
    stamp = visit.stamp()

    def carry_out(tx: Tx, path: Path) -> ImportOutcome:
        return _carry_out(tx, visit, path, stamp)

    if visit.text("do") != "import":
        outcome = rehearse(engine, lambda tx: carry_out(tx, place), by=visit.actor)
    else:
        # Only one of two identical requests gets the file. An upload meanwhile removes it.
        claimed, is_done = place.with_suffix(f".claimed{place.suffix}"), False
        try:
            place.replace(claimed)
        except FileNotFoundError:
            raise _is_gone() from None
        try:
            outcome = engine.write(lambda tx: carry_out(tx, claimed), within=PAGE_SECONDS, by=visit.actor)
            is_done = not outcome.is_empty
        finally:
            with contextlib.suppress(FileNotFoundError):
                claimed.unlink() if is_done else claimed.replace(place)
    if outcome.failed:
        lines = [delimited_row([*row.cells, reason], excel_safe=True) for row, reason in outcome.failed]
        header = delimited_row([*outcome.header, "_error"], excel_safe=True)
        _place(visit, name, ".failed", must_exist=False).write_text("\ufeff" + "".join([header, *lines]), encoding="utf-8")
    if visit.text("do") == "import" and not outcome.is_empty:
        failed = f"&failed={len(outcome.failed)}&file={name}" if outcome.failed else ""
        return Redirect(f"/records/{visit.path['slug']}/changed?at={to_micros(stamp['now'])}{failed}", "records-imported")
    return engine.read(lambda tx: columns_page(tx, visit, outcome))


def _store(visit: Visit) -> str:
    """Store the uploaded file and return its name. Raises BadRequest for a file that no import can read."""
    upload = visit.files.get("file")
    if upload is None or not upload.content:
        raise BadRequest("choose a file that is not empty", {"field": "file"})
    if len(upload.content) > LARGEST_FILE:
        raise BadRequest(f"the file has more than {LARGEST_FILE // 1024 // 1024} MB; import it with crmctl bulk import", {"field": "file"})
    folder = visit.context.settings.data_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    mine = _owner(visit)
    for old in folder.iterdir():
        with contextlib.suppress(OSError):
            if old.name.startswith(mine) or old.stat().st_mtime < visit.now() - DAY:
                old.unlink()
    name = f"{hashlib.sha256(upload.content).hexdigest()[:32]}{'.xlsx' if upload.content.startswith(b'PK') else '.csv'}"
    path = folder / f"{mine}-{name}"
    path.touch(mode=0o600)
    path.write_bytes(upload.content)
    try:
        _refuse_bombs(path, upload.content[:4])
        with _as_bad_request():
            source = open_source(path, SourceOptions(), name=upload.name)
        if source.dialect.format not in FORMATS:
            raise BadRequest(f"{upload.name} is neither CSV nor an Excel workbook (.xlsx)", {"field": "file"})
        if len(source.header) > MOST_COLUMNS:
            raise BadRequest(f"the file has more than {MOST_COLUMNS} columns", {"field": "file"})
    except BadRequest:
        path.unlink(missing_ok=True)
        raise
    return name


def _owner(visit: Visit) -> str:
    return hashlib.sha256(visit.actor.encode()).hexdigest()[:16]


def _place(visit: Visit, name: str, ending: str = "", *, must_exist: bool = True) -> Path:
    """Return the path of a stored file of this visitor. Raises BadRequest if it is gone."""
    path = visit.context.settings.data_dir / FOLDER / f"{_owner(visit)}-{name}{ending}"
    if _FILE.fullmatch(name) is None or (must_exist and not path.is_file()):
        raise _is_gone()
    return path


def _is_gone() -> BadRequest:
    problem = "this file was imported already, is being imported, or another one was uploaded since"
    return BadRequest(f"{problem}; look at the list, and upload it again if its rows are missing", {"field": "file"})


def _refuse_bombs(path: Path, start: bytes) -> None:
    """Raise BadRequest for a compressed file, and for a workbook whose parts or rows are far larger than any import needs."""
    if start.startswith(b"\x1f\x8b"):
        raise BadRequest("the file is compressed; upload the CSV itself", {"field": "file"})
    if not start.startswith(b"PK"):
        return
    too_large = BadRequest("the workbook is far larger than 10,000 rows need; save the sheet as a new file, or as CSV", {"field": "file"})
    try:
        with zipfile.ZipFile(path) as archive:
            # A part never unpacks to more than its declared size.
            if sum(part.file_size for part in archive.infolist()) > MOST_UNPACKED:
                raise too_large
            for part in archive.namelist():
                if part.startswith("xl/worksheets/") and part.endswith(".xml"):
                    content = archive.read(part)
                    if content.count(b"<row") > 2 * MOST_ROWS or _FAR_CELL.search(content):
                        raise too_large
    except (OSError, ValueError, RuntimeError, NotImplementedError, EOFError, zipfile.BadZipFile) as error:
        raise BadRequest("the file cannot be read as an Excel workbook", {"field": "file"}) from error


@contextlib.contextmanager
def _as_bad_request() -> Iterator[None]:
    """Raise the errors of the file readers as BadRequest, without command-line options."""
    try:
        yield
    except CrmctlError as error:
        hint = f"; {error.hint}" if error.hint and "--" not in error.hint else ""
        raise BadRequest(re.sub("^--[a-z]+: ", "", error.message) + hint, {"field": "file"}) from error


def _open(path: Path) -> Source:
    """Return the rows of a file, without the apostrophes that an export for spreadsheets puts before formulas."""
    with _as_bad_request():
        return open_source(path, SourceOptions(excel_safe=path.suffix != ".xlsx"), name=f"the file{path.suffix}")


def _targets(attributes: Sequence[Json]) -> dict[str, str]:
    """Return what a column can fill: each attribute and its parts."""
    targets: dict[str, str] = {}
    for attribute in attributes:
        slug, name = attribute["slug"], attribute["name"]
        targets |= {slug: name} | {part["slug"]: part["name"] for part in part_attributes([attribute])}
        if attribute["type"] == AttributeType.CURRENCY and not attribute["isList"]:
            targets |= {f"{slug}.amount": f"{name}: Amount", f"{slug}.currency": f"{name}: Currency"}
    return targets


def columns_page(tx: Tx, visit: Visit, outcome: ImportOutcome | None = None) -> ConsolePage:
    crm_object, name = object_of(tx, visit), visit.text("file") or visit.query.get("file", "")
    own_attributes = crm_object["attributes"]
    source, targets = _open(_place(visit, name)), _targets(own_attributes)
    rows = list(islice((row for row in _rows(source) if row.problem is None), SAMPLES))
    names, chosen = Names([Attribute.parse(attribute) for attribute in own_attributes]), list[tuple[str, list[str], str]]()
    for place, header in enumerate(source.header):
        target = visit.text(f"column{place}") if visit.form else _proposed(header, place, names)
        is_free = target in {RECORD_ID, *targets} and target not in [taken for _, _, taken in chosen]
        chosen.append((header, [row.cells[place] for row in rows], target if is_free else ""))
    keys = {RECORD_ID: "Id"} | {
        attribute["slug"]: attribute["name"] for attribute in own_attributes if attribute["isUnique"] and not attribute["isList"]
    }
    values = {
        "object": crm_object,
        "file": name,
        "columns": chosen,
        "targets": {RECORD_ID: "Id"} | targets,
        "keys": keys,
        "key": visit.text("key"),
        "outcome": outcome,
        "failed": [(row.first_line, reason) for row, reason in outcome.failed[:MOST_SHOWN]] if outcome else [],
    }
    return ConsolePage("import.html", values)


def _proposed(header: str, place: int, names: Names) -> str:
    """Return the attribute, or its part by the usual name, that the column's name matches, empty if it matches none or several."""
    try:
        column = resolve_column(header, place, names, Mode.UPSERT)
    except CrmctlError:
        return ""
    if column.attribute is None or column.part is None or column.changes_items:
        return column.target or ""
    return f"{column.attribute.slug}.{usual_name(column.attribute, column.part)}"


def _rows(source: Source) -> Iterator[Row]:
    with _as_bad_request():
        yield from source.rows()


def _carry_out(tx: Tx, visit: Visit, path: Path, stamp: Stamp) -> ImportOutcome:
    """Write the rows of the file in this transaction. Rows fail alone. Raises BadRequest for the file or the form as a whole."""
    crm_object = object_of(tx, visit)
    own_attributes = crm_object["attributes"]
    source, key = _open(path), visit.text("key")
    if key and key not in [visit.text(f"column{place}") for place in range(len(source.header))]:
        raise BadRequest("choose the column that identifies existing records", {"field": "key"})
    pairs = tuple(f"#{place + 1}={_target(visit, place, key)}" for place in range(len(source.header)))
    # References are looked up by name below.
    types = [
        attribute | {"type": AttributeType.TEXT, "config": None} if reference_target(attribute) else attribute
        for attribute in own_attributes
    ]
    parsed = [Attribute.parse(attribute) for attribute in types]
    newest, _ = records.list_records(tx, crm_object["id"], [], Paging(limit=BULK_LIMIT))
    options = ValueOptions(samples=[record["data"] for record in newest])
    mode = Mode.UPSERT if key else Mode.CREATE
    keys = (key,) if key and key != RECORD_ID else ()
    with _as_bad_request():
        builder = RowBuilder(build_mapping(source.header, parsed, MappingOptions(mode, pairs, keys=keys)), parsed, options)
    outcome, replace_names = ImportOutcome(source.header), _reference_finder(tx, own_attributes)
    merger, rows, count = merger_of(parsed, options), _rows(source), 0
    while chunk := list(islice(rows, BULK_LIMIT)):
        count += len(chunk)
        if count > MOST_ROWS:
            raise BadRequest(f"the file has more than {MOST_ROWS:,} rows; import it with: crmctl bulk import {crm_object['slug']} FILE")
        built = [_built(builder, row) for row in chunk]
        owners = records.owners_of(tx, crm_object["id"], key, [data.get(key) for data, *_ in built]) if keys else [None] * len(chunk)
        ids = [canonical_uuid(row_id) if row_id else owner for (_, row_id, *_), owner in zip(built, owners, strict=True)]
        present = {record["id"]: record["data"] for record in records.get_records(tx, crm_object["id"], list(filter(None, ids)))}
        items: list[tuple[Row, Json]] = []
        for row, (data, row_id, parts, problem), record_id in zip(chunk, built, ids, strict=True):
            try:
                if problem:
                    raise RejectedError(problem)
                replace_names(data)
                data |= merger.merge_all(parts, present[record_id]) if record_id in present else {}
            except (RejectedError, Fault) as error:
                outcome.failed.append((row, error.message))
                continue
            if record_id in present and not any(differ(present[record_id].get(slug), value) for slug, value in data.items()):
                outcome.unchanged += 1
            else:
                items.append((row, {"data": data} | ({"id": record_id or row_id} if record_id or row_id else {})))
        if items:
            done = records.bulk_write(tx, crm_object["id"], "upsert", [item for _, item in items], **stamp)
            outcome.created += done["created"]
            outcome.updated += done["updated"]
            outcome.failed += [(items[failed["index"]][0], failed["error"]) for failed in done["failed"]]
    return outcome


def _target(visit: Visit, place: int, key: str) -> str:
    """Return what the form says a column fills. Without a key that identifies records, ids are skipped."""
    target = visit.text(f"column{place}")
    return "" if target == RECORD_ID != key else target


def _built(builder: RowBuilder, row: Row) -> tuple[Json, str | None, Mapping[str, Json], str]:
    """Return data, id and changes by part of a row, and the reason why it cannot be imported, if any."""
    data, record_id, findings, _, parts = builder.build(row)
    problems = [f"{finding.column}: {finding.message}" if finding.column else finding.message for finding in findings if finding.rejects]
    return data, record_id, parts, "; ".join(problems)


def _reference_finder(tx: Tx, attributes: Sequence[Json]) -> Callable[[Json], None]:
    """Return a function that replaces names of linked records by ids. It raises RejectedError for unknown and ambiguous names."""
    targets = {attribute["slug"]: target for attribute in attributes if (target := reference_target(attribute))}
    ids: dict[tuple[str, str], str] = {}

    def replace_names(data: Json) -> None:
        for slug in data.keys() & targets.keys():
            text, target = data[slug], targets[slug]
            if not isinstance(text, str) or canonical_uuid(text):
                continue
            if (target, text) not in ids:
                matches = [match for match in records.called(tx, target, text) if match["label"].casefold() == text.strip().casefold()]
                if len(matches) != 1:
                    problem = f"several records are called {text!r}" if matches else f"no record is called {text!r}"
                    raise RejectedError(f"{slug}: {problem}")
                ids[target, text] = matches[0]["id"]
            data[slug] = ids[target, text]

    return replace_names
