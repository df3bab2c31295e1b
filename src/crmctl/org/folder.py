"""The folder of an organization: its files, settings and rows, and their replacement by a pull. Needs no service."""

from __future__ import annotations

import hashlib
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, NoReturn, TypeVar, get_args

from pydantic import Field, ValidationError

from crmctl.client.directory import find_object
from crmctl.errors import RejectedError, UsageError, reason, storage_error
from crmctl.files.whole_files import sync_path
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.models.numbers import size_text
from crmctl.models.resources import AttributeType, Object
from crmctl.schema.schema_document import SchemaDocument, read_schema
from crmctl.values import yaml_text
from crmctl.values.folded_text import fold
from crmctl.values.object_spec import AttributeSpec, ObjectSpec, SpecPart, problems_of

FORMAT = 1
SETTINGS, SCHEMA, MANIFEST = "org.toml", "schema.yaml", "MANIFEST.json"
RECORDS, ACTIVITIES, FILES = "records", "activities.jsonl", "files"

Part = Literal["activities", "members", "reports", "workflows", "webhooks", "files"]
PARTS: tuple[str, ...] = get_args(Part)
"""The parts that a folder can contain besides schema and records."""

SECTIONS = {"members": "email", "reports": "name", "workflows": "name", "webhooks": "url", "files": "path"}
"""The parts that are lists of entries, with the field that names an entry."""

ENTRY_FILES = ("reports", "workflows")
"""Sections with a file for each entry; the others are one file."""

ACTIVITY_ROWS, MEMBER_ROWS = " activities", " members"
SECTION_ROWS = tuple(f" {section}" for section in SECTIONS)
"""Kinds of rows besides records; the blank tells them from the slugs of objects."""

DATA_NAMES = (RECORDS, ACTIVITIES, "activities", *ENTRY_FILES, *(f"{section}.yaml" for section in SECTIONS), FILES, SCHEMA, MANIFEST)
"""Files and folders that a pull replaces."""

FREE_NAMES = ("README.md", "LICENSE", "LICENSE.md")
"""Other files that people may keep in the folder, besides names that begin with a dot."""

MOST_BYTES = 1 << 30
MOST_LINE = 16 << 20
SPLIT_BYTES = 64_000_000
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{,199}\Z")
_HINT = "crmctl org verify DIR names every problem"
_SETTINGS_TEXT = """\
# Settings of this folder. crmctl org pull writes this file once; edit it as you like.
format = {format}

# Objects to pull; [] means all. The parts to pull besides records: {every_part}.
objects = {objects}
with = {parts}

# The attribute that identifies a record in another service.
[keys]
{keys}
# Attributes that --mask leaves as they are, such as people.job_title.
[mask]
keep = {keep}
"""


def refuse(place: str, problem: str) -> NoReturn:
    details = [{"place": place, "problem": problem}]
    raise RejectedError(f"{place}: {problem}", hint=_HINT, code="damaged_folder", details=details)


def refuse_folder(path: Path, problem: str, hint: str | None = None) -> NoReturn:
    raise UsageError(f"{path} {problem}", hint=hint, code="foreign_folder")


def name_problem(slugs: Iterable[str]) -> str | None:
    """Return why objects cannot be files of one folder."""
    seen: dict[str, str] = {}
    for slug in slugs:
        if not _SAFE_NAME.match(slug):
            return f"the object {slug!r} cannot be a file name"
        if (other := seen.setdefault(slug.lower(), slug)) != slug:
            return f"{other} and {slug} are the same name where case does not count"
    return None


class OrgRow(NamedTuple):
    """A record, an activity, or an entry of a section. `kind` is the slug of an object or one of the other kinds of rows."""

    kind: str
    id: str
    data: Json
    place: str = ""
    """File and line."""


class OrgSettings(SpecPart):
    """The content of `org.toml`. `objects` is empty for all. `keep` under `mask` names attributes that a mask leaves alone."""

    format: int = FORMAT
    objects: list[str] = Field(default_factory=list)
    parts: list[Part] = Field([part for part in get_args(Part) if part != FILES], alias="with")
    keys: Mapping[str, str] = Field(default_factory=dict)
    mask: Mapping[Literal["keep"], list[str]] = Field(default_factory=dict)

    @staticmethod
    def read(path: Path) -> OrgSettings:
        return _read(path, OrgSettings, tomllib.loads)

    def chosen(self, every: list[Object]) -> list[Object]:
        """Return the objects to pull. Raises NotFoundError, and RejectedError for names that cannot be files of one folder."""
        chosen = [find_object(name, every) for name in dict.fromkeys(self.objects)]
        chosen = chosen or [crm_object for crm_object in every if crm_object.is_active is not False]
        if problem := name_problem(crm_object.slug or crm_object.id for crm_object in chosen):
            raise RejectedError(problem, hint="--objects A,B pulls only objects with other names", code="unusable_name")
        return chosen

    def text(self) -> str:
        objects, parts, keep = (jsontext.dumps(sorted(names)) for names in (self.objects, self.parts, self.mask.get("keep", ())))
        keys = "".join(f"{jsontext.quote(slug)} = {jsontext.quote(key)}\n" for slug, key in sorted(self.keys.items()))
        return _SETTINGS_TEXT.format(format=FORMAT, every_part=", ".join(PARTS), objects=objects, parts=parts, keys=keys, keep=keep)


class Manifest(SpecPart, extra="allow"):
    """The facts in `MANIFEST.json` that crmctl relies on; it tells people more. `source` is the digest of the service.

    `files` holds size and checksum of each file, `coverage` what the folder contains and lacks.
    """

    format: int
    as_of: str
    masked: bool
    subset: bool
    source: str
    records: Mapping[str, int]
    activities: int
    coverage: Sequence[Json]
    files: Mapping[str, Json]


M = TypeVar("M", OrgSettings, Manifest)


def _read(path: Path, model: type[M], parse: Callable[[str], Any]) -> M:
    """Read settings or a manifest. Raises UsageError for another format and for wrong settings, RejectedError for a wrong manifest."""
    document = None
    try:
        document = parse(path.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("format") != FORMAT:
            refuse_folder(path.parent, f"has the format {document.get('format')!r}, this crmctl reads {FORMAT}", "update crmctl")
        return model.model_validate(document)
    except ValidationError as error:
        first = problems_of(error, document)[0]
        problem = f"{first['place']} {first['problem']}"
    except (OSError, ValueError) as error:
        problem = reason(error)
    if model is Manifest:
        refuse(path.name, problem)
    raise UsageError(f"{path}: {problem}", hint="delete the file, and org pull writes it again", code="bad_settings")


class OrgFolder:
    """A folder with its settings, schema and manifest. Reading rows raises RejectedError that names file and line."""

    def __init__(self, path: Path) -> None:
        """Open a folder and complete an interrupted pull. Raises UsageError unless crmctl wrote the folder."""
        self.path = path
        if not path.is_dir():
            refuse_folder(path, "is no folder", "crmctl org pull DIR makes one")
        finish_replacement(path)
        refuse_foreign(path)
        for name in (SETTINGS, MANIFEST, SCHEMA):
            if not (path / name).is_file():
                refuse(name, "is missing")
        self.settings = OrgSettings.read(path / SETTINGS)
        self.manifest = _read(path / MANIFEST, Manifest, jsontext.loads)
        if outside := [name for name in self.manifest.files if name.startswith("/") or ".." in Path(name).parts or "\\" in name]:
            refuse(MANIFEST, f"the path {outside[0]!r} leaves the folder")
        self.schema = self._read_schema()
        self._names = data_files(path)
        self.objects = {spec.slug: spec for spec in self.schema.objects}

    @property
    def parts(self) -> list[str]:
        """The parts that the folder holds."""
        return [part for part in PARTS if any((self.path / name).exists() for name in (f"{part}.jsonl", f"{part}.yaml", part))]

    def _read_schema(self) -> SchemaDocument:
        try:
            schema = read_schema(self.file(SCHEMA).read_bytes(), SCHEMA)
        except (RejectedError, UsageError) as error:
            refuse(SCHEMA, error.message.removeprefix(SCHEMA).lstrip(": "))
        if problem := name_problem(spec.slug for spec in schema.objects):
            refuse(SCHEMA, problem)
        return schema

    def file(self, name: str) -> Path:
        """Return the path of a file. Raises RejectedError for links, for places outside of the folder, and for files that are too large."""
        path = self.path / name
        if path.is_symlink() or not path.resolve().is_relative_to(self.path.resolve()):
            refuse(name, "leaves the folder")
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            refuse(name, f"has {size_text(path.stat().st_size)}; crmctl reads files of at most {size_text(MOST_BYTES)}")
        return path

    def _files(self, part: str, ending: str) -> list[str]:
        """Return the files of a part: one, or those of its folder, such as the pieces of a large object. Files with another ending, such as
        an editor's backups, do not count."""
        return [name for name in self._names if name == part + ending or (name.rpartition("/")[0] == part and name.endswith(ending))]

    def rows(self) -> Iterator[OrgRow]:
        for slug in self.objects:
            for place, document in self._lines(f"{RECORDS}/{slug}"):
                if not isinstance(document.get("data"), dict) or document.keys() != {"id", "data"}:
                    refuse(place, 'a record is {"id": ..., "data": {...}}')
                yield OrgRow(slug, document["id"], document["data"], place)
        for place, document in self._lines("activities"):
            links = document.get("links", [])
            if not isinstance(links, list) or not all(isinstance(link, str) and "/" in link for link in links):
                refuse(place, "links must be texts such as people/ID")
            if not _are_objects(document.get("participants", []), "type", "id"):
                refuse(place, "participants must have a type and an id")
            yield OrgRow(ACTIVITY_ROWS, document.pop("id"), document, place)
        for section in SECTIONS:
            yield from self.entries(section)

    def entries(self, section: str) -> Iterator[OrgRow]:
        """Yield the entries of a section, with their names as ids."""
        key, is_list = SECTIONS[section], section not in ENTRY_FILES
        for name in [name for name in self._files(section, ".yaml") if is_list is (name == f"{section}.yaml")]:
            try:
                content, lines = yaml_text.loads_with_lines(self.file(name).read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                refuse(name, reason(error))
            if isinstance(content, list) is not is_list:
                refuse(name, "must be a list" if is_list else "must be one entry")
            for number, entry in enumerate(content if is_list else [content]):
                place = f"{name}:{lines[number,] if is_list else 1}"
                if not isinstance(entry, dict) or not isinstance(entry.get(key), str):
                    refuse(place, f"an entry has no {key}")
                if problem := _entry_problem(section, entry):
                    refuse(place, f"{entry[key]} {problem}")
                yield OrgRow(f" {section}", entry_id(section, entry), entry, place)

    def _lines(self, part: str) -> Iterator[tuple[str, Json]]:
        for name in self._files(part, ".jsonl"):
            with self.file(name).open("rb") as file:
                for number, raw in enumerate(iter(partial(file.readline, MOST_LINE), b""), 1):
                    yield f"{name}:{number}", _line(f"{name}:{number}", raw)

    def checksum_problems(self) -> Iterator[tuple[str, str]]:
        """Yield file and problem for each file that is not as the pull wrote it."""
        files = self.manifest.files
        for name in sorted({*files, *self._names}):
            path = self.file(name)
            if name not in files:
                yield name, "is not in the manifest"
            elif not path.is_file():
                yield name, "is missing"
            elif file_facts(path) != files[name]:
                converted = hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest() == files[name]["sha256"]
                ends = ", but only its line ends, which git converts with core.autocrlf: '* -text' in .gitattributes keeps them"
                yield name, f"has changed since the pull{ends if converted else ''}"


def refuse_foreign(path: Path, *, is_start: bool = False) -> None:
    """Raise UsageError if the folder has other files than those of an organization. `is_start`: settings without data are fine."""
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".") and entry.name not in FREE_NAMES}
    if foreign := sorted(names - {*DATA_NAMES, SETTINGS}):
        refuse_folder(path, f"holds files that are not crmctl's: {', '.join(foreign[:5])}", "choose a folder of its own")
    if MANIFEST not in names and (not is_start or names - {SETTINGS}):
        refuse_folder(path, "is no folder of crmctl org", "crmctl org pull DIR makes one")


def check_start(path: Path, *, is_masked: bool) -> None:
    """Raise UsageError unless the folder is new, empty, or one of crmctl that a pull may replace. Completes an interrupted pull."""
    finish_replacement(path)
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        refuse_folder(path, "is no folder")
    if not path.resolve().parent.is_dir():
        refuse_folder(path, "cannot be made: its parent folder does not exist")
    if path.exists():
        refuse_foreign(path, is_start=True)
        manifest = (path / MANIFEST).read_bytes() if (path / MANIFEST).exists() else b'"masked": false'
        if not is_masked and {*re.findall(rb'"masked"\s*:\s*(\w+)', manifest)} != {b"false"}:  # it may be damaged by a merge
            refuse_folder(path, "is masked; an unmasked pull would reveal its records", "choose another folder, or --mask")


def _holds(path: Path, manifest: Json) -> bool:
    """Whether an undamaged folder holds exactly the content of a manifest."""
    try:
        old = OrgFolder(path)
        is_same = all(getattr(old.manifest, name) == manifest[name] for name in ("files", "masked", "subset", "source"))
        return is_same and not list(old.checksum_problems())
    except RejectedError:
        return False


def entry_id(section: str, entry: Json) -> str:
    """Return what identifies an entry: its name, for members the address without case."""
    name = str(entry[SECTIONS[section]])
    return fold(name) if section == "members" else name


def _line(place: str, raw: bytes) -> Json:
    """Return a line of a file as an object with an id. Raises RejectedError."""
    if not raw.endswith(b"\n"):
        refuse(place, "the last line is cut off" if len(raw) < MOST_LINE else f"the line is longer than {size_text(MOST_LINE)}")
    try:
        document = jsontext.loads(raw, unique_keys=True)
    except ValueError as error:
        refuse(place, f"is no JSON: {reason(error)}")
    if b"\\u" in raw and jsontext.holds_half(document):
        refuse(place, "holds half a character (a lone surrogate)")
    if not isinstance(document, dict) or not isinstance(document.get("id"), str) or not document["id"]:
        refuse(place, "has no id")
    return document


def _are_objects(value: object, *fields: str) -> bool:
    """Whether a value is a list of objects that have these fields."""
    return isinstance(value, list) and all(isinstance(item, dict) and item.keys() >= {*fields} for item in value)


def _entry_problem(section: str, entry: Json) -> str | None:
    """Return what is wrong with an entry that has a name."""
    is_member, is_file = section == "members", section == FILES
    problems = {
        "has no name": is_member and "name" not in entry,
        "has a role that is no text": is_member and not isinstance(entry.get("role", ""), str),
        "has no sha256": is_file and not re.fullmatch("[0-9a-f]{64}", str(entry.get("sha256"))),
        "has no contentType": is_file and not isinstance(entry.get("contentType"), str),
        "holds half a character (a lone surrogate)": jsontext.holds_half(entry),
        "has filters that are no list of conditions": not _are_objects(entry.get("filters", [])),
        "has conditions that are no list of conditions": not _are_objects(entry.get("conditions", [])),
        "has no list of actions": section == "workflows" and not (entry.get("actions") and _are_objects(entry["actions"])),
    }
    return next((problem for problem, is_wrong in problems.items() if is_wrong), None)


def data_files(path: Path) -> list[str]:
    """Return the data files in a folder, without settings and manifest."""
    tops = [path / name for name in DATA_NAMES if name != MANIFEST]
    files = [file for top in tops for file in (top.rglob("*") if top.is_dir() else [top]) if file.is_file() or file.is_symlink()]
    return sorted(file.relative_to(path).as_posix() for file in files)


def digest_of(text: str) -> str:
    """Return a text of 16 characters that looks random and is always the same."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def source_digest(origin: str) -> str:
    """Return a digest that identifies a service without naming it."""
    return digest_of(f"crmctl org {origin}")


def file_facts(path: Path) -> Json:
    """Return size and checksum of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def references_of(spec: ObjectSpec) -> dict[str, AttributeSpec]:
    """Return an object's reference attributes by slug."""
    return {attribute.slug: attribute for attribute in spec.attributes if attribute.type == AttributeType.REFERENCE}


# -- writing -------------------------------------------------------------------------------------------------------------------------


def write_lines(place: Path, part: str, documents: Iterable[Json]) -> int:
    """Write the file of a part, or a folder of pieces if it is large; return the number of its lines."""
    path = place / f"{part}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        number = sum(1 for document in documents if file.write(jsontext.dumps(document) + "\n"))
    split_lines(path)
    return number


def split_lines(path: Path, limit: int = SPLIT_BYTES) -> None:
    """Split a large file by the last digits of the ids, so that each part stays below the limit."""
    digits = 0
    while path.stat().st_size / 16**digits > limit:
        digits += 1
    if not digits:
        return
    folder = path.with_suffix("")
    folder.mkdir()
    with ExitStack() as opened:
        parts: dict[str, IO[bytes]] = {}
        for line in opened.enter_context(path.open("rb")):
            name = jsontext.loads(line)["id"][-digits:].lower()
            name = name if name.isalnum() else "other"
            if name not in parts:
                parts[name] = opened.enter_context((folder / f"{name}.jsonl").open("wb"))
            parts[name].write(line)
    path.unlink()


def write_section(place: Path, section: str, entries: Sequence[Json]) -> None:
    """Write the entries of a section."""
    if section not in ENTRY_FILES:
        (place / f"{section}.yaml").write_text(yaml_text.dumps(list(entries)), encoding="utf-8")
        return
    (place / section).mkdir()
    names = [_file_name(entry["name"]) for entry in entries]
    for entry, name in zip(entries, names, strict=True):
        if not name or names.count(name) > 1:  # names that look alike get a checksum
            name = f"{name or 'entry'}-{digest_of(entry['name'])}"
        (place / section / f"{name}.yaml").write_text(yaml_text.dumps(entry), encoding="utf-8")


def _file_name(name: str) -> str:
    return "-".join("".join(letter if letter.isascii() and letter.isalnum() else " " for letter in name.lower()).split())[:60]


def store_content(path: Path, place: Path, manifest: Json, settings: OrgSettings) -> bool:
    """Move new content from `place` into the folder; return False if it holds exactly that already. Settings are written only once."""
    manifest = {"format": FORMAT, **manifest, "files": {name: file_facts(place / name) for name in data_files(place)}}
    if not (path / SETTINGS).exists():
        (place / SETTINGS).write_text(settings.text(), encoding="utf-8")
    elif (path / MANIFEST).exists() and _holds(path, manifest):
        return False
    (place / MANIFEST).write_text(jsontext.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    replace_content(path)
    return True


# -- replacing the data as a whole, however the program ends -------------------------------------------------------------------------

NEW, COMPLETE, MOVING, OLD = "new", "complete", "moving", "old"
"""Folders in a sibling of the folder. The new data is being written, is complete, or moves; the last one holds the old data.

Entries move one by one. The name of the new data tells how far the move is, so the next command that opens the folder completes it.
"""


def sibling(folder: Path) -> Path:
    """Return the place of the new content: beside the folder, or inside a folder that is a mount point."""
    folder = folder.resolve()
    name = f".{folder.name}.crmctl"
    return folder / name if is_mounted(folder) else folder.with_name(name)


def is_mounted(folder: Path) -> bool:
    return folder.is_dir() and folder.stat().st_dev != folder.parent.stat().st_dev


@contextmanager
def new_content(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for the new content. Deletes it when the block ends, unless a replacement has begun and failed."""
    finish_replacement(folder)
    place = sibling(folder)
    try:
        shutil.rmtree(place, ignore_errors=True)
        (place / NEW).mkdir(parents=True, mode=0o700)
        yield place / NEW
    except OSError as error:
        raise storage_error(error, place, UsageError(f"cannot write {place}: {reason(error)}", code="unwritable_file")) from error
    finally:
        if (place / NEW).exists():
            shutil.rmtree(place, ignore_errors=True)


def replace_content(folder: Path) -> None:
    """Replace the data of the folder by the new content, also data that the new content lacks."""
    place = sibling(folder)
    for path in (place / NEW).rglob("*"):
        if path.is_file():
            sync_path(path)
    (place / NEW).rename(place / COMPLETE)
    finish_replacement(folder)


def finish_replacement(folder: Path) -> None:
    """Complete a replacement, if one has begun."""
    place = sibling(folder)
    try:
        if (place / COMPLETE).exists():
            for made in (folder, place / OLD):
                made.mkdir(exist_ok=True)
            for name in DATA_NAMES:
                if (folder / name).exists():
                    (folder / name).rename(place / OLD / name)
            (place / COMPLETE).rename(place / MOVING)
        if (place / MOVING).exists():
            for entry in [*(place / MOVING).iterdir()]:
                entry.rename(folder / entry.name)
            sync_path(folder)
            shutil.rmtree(place, ignore_errors=True)
    except OSError as error:
        raise storage_error(error, folder, UsageError(f"cannot write {folder}: {reason(error)}", code="unwritable_file")) from error
