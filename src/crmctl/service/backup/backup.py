"""Back up a running service into one file, and restore it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from crmctl.clock import Clock
from crmctl.errors import CrmctlError, RejectedError, ServiceError, UsageError, reason, storage_error
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.service.context import DATABASE_FILE, FILES_FOLDER, UNFINISHED, S3Settings, ServiceSettings
from crmctl.service.files.storage import open_client, sync_folder
from crmctl.service.store.engine import Engine, check_copy, has_data, load_copy
from crmctl.service.store.tx import to_micros, to_wire
from crmctl.version import __version__

MANIFEST = "manifest.json"
FORMAT = 1
CHUNK = 1024 * 1024
_LEVEL = 4
"""Compression level: half the time of the default for a tenth more bytes."""


def add_member(archive: tarfile.TarFile, name: str, source: Path) -> None:
    """Add a file under this name, without what is appended meanwhile. Raises FileNotFoundError, OSError."""
    with source.open("rb") as content:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = os.fstat(content.fileno()).st_size, 0o600
        archive.addfile(entry, content)


def unpack(path: Path, folder: Path | None, name: str = "") -> Json:
    """Write the members below the folder, if any, and return the manifest. Raises RejectedError unless the backup is whole.

    `name` is what messages call the backup when it is not the path.
    """
    name = name or str(path)
    manifest: Json | None = None
    with _reading(path, name) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is not None and entry.name == MANIFEST:
                manifest = jsontext.loads(content.read())
            elif content is not None and folder is not None:
                place = (folder / entry.name).resolve()
                if not place.is_relative_to(folder.resolve()):
                    raise RejectedError(f"the backup holds {entry.name!r}, which leads out of it", code="damaged_backup")
                _copy(content, place)
    if manifest is None:
        raise RejectedError(f"{name} is not a whole backup: it ends too early", code="damaged_backup")
    if manifest.get("format") != FORMAT:
        raise RejectedError(f"{name} is a backup of a format that this crmctl does not know", hint="upgrade crmctl")
    return manifest


def _copy(content: IO[bytes], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        shutil.copyfileobj(content, file, CHUNK)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _reading(path: Path, name: str) -> Iterator[tarfile.TarFile]:
    try:
        with gzip.open(path) as content, tarfile.open(fileobj=content, mode="r|") as tar:
            yield tar
            # Read to the end, where the checksum of the whole file is.
            while content.read(CHUNK):
                pass
    except (tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        raise RejectedError(f"{name} is not a whole backup of a service", code="damaged_backup") from error
    except OSError as error:
        # A file that is not compressed raises an OSError without a number.
        problem = reason(error) if error.errno else "it is not a backup of a service"
        raise RejectedError(f"cannot read {name}: {problem}", code="damaged_backup" if not error.errno else None) from error


DATABASE = "database"


def make_backup(engine: Engine, settings: ServiceSettings, target: Path, clock: Clock) -> Json:
    """Write the backup, replacing an existing file, read it back, and describe it. Raises UsageError if it cannot be written."""
    try:
        with _beside(target) as folder:
            _write(engine, settings, folder, clock)
            manifest = unpack(folder / "archive", None)
            (folder / "archive").replace(target)
            sync_folder(target.parent)
            return _description(manifest, target)
    except (OSError, sqlite3.Error) as error:
        refused = UsageError(f"cannot write {target}: {reason(error)}", hint="a place with room for all of the service's data")
        raise storage_error(error, target, refused) from error


def restore_backup(source: Path, settings: ServiceSettings, name: str = "") -> Json:
    """Restore into an empty place and describe the backup. Raises RejectedError for a damaged one, UsageError where there is data already.

    A restore that fails takes its files back. One that is killed, or loses its database, leaves a folder that keeps the service from
    starting, and the next restore continues.
    """
    data = settings.data_dir
    if has_data(settings.engine_url):
        place = data if settings.database_url is None else "this database"
        raise UsageError(f"there is a service's data in {place} already", hint="--data DIR or --database-url URL, where there is none yet")
    try:
        with _beside(data / DATABASE_FILE) as folder:
            manifest = unpack(source, folder, name)
            check_copy(settings.engine_url, manifest["database"])
            placed = _place_files(folder / FILES_FOLDER, data / FILES_FOLDER)
            try:
                # Last: the data exists once the database does.
                load_copy(settings.engine_url, folder / DATABASE, manifest["database"])
            except BaseException as error:
                _take_back(placed, settings, error)
                raise
            sync_folder(data)
        for leftover in data.glob(UNFINISHED):
            shutil.rmtree(leftover, ignore_errors=True)
    except (OSError, sqlite3.Error) as error:
        raise storage_error(error, data, UsageError(f"cannot write to {data}: {reason(error)}", hint="--data DIR")) from error
    return _description(manifest, source)


def _take_back(placed: list[Path], settings: ServiceSettings, error: BaseException) -> None:
    """Remove the placed files, unless the database arrived or may have arrived."""
    try:
        is_known = not (isinstance(error, CrmctlError) and error.outcome_unknown)
        is_there = has_data(settings.engine_url)
    except CrmctlError:
        is_known = False
    if not is_known:
        # The next start refuses, as after a killed restore.
        (settings.data_dir / UNFINISHED.replace("*", "unknown")).mkdir(exist_ok=True)
    elif not is_there:
        for file in placed:
            file.unlink(missing_ok=True)


def _description(manifest: Json, file: Path) -> Json:
    about = {"engine": manifest["database"]["engine"]} | {name: manifest[name] for name in ("createdAt", "records", "files")}
    return about | {"bytes": file.stat().st_size}


def _place_files(source: Path, target: Path) -> list[Path]:
    """Move files that are not there yet, and return them. Files that an unfinished restore of this backup left stay.

    Raises UsageError if there are files that the backup does not have.
    """
    members = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    existing = {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    if existing - members:
        raise UsageError(f"there are uploaded files in {target} that are not in the backup", hint="--data DIR, where there is none yet")
    for path in members - existing:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).replace(target / path)
    return [target / path for path in members - existing]


def _write(engine: Engine, settings: ServiceSettings, folder: Path, clock: Clock) -> None:
    created_at = to_wire(to_micros(clock.now()))
    (folder / DATABASE).mkdir()
    described = engine.copy_out(folder / DATABASE)
    records = described.pop("records")
    files = 0
    # The backup holds all data, and the keys that sign links.
    with open(os.open(folder / "archive", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b") as file:  # noqa: PTH123
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=_LEVEL) as archive:
            for part in sorted((folder / DATABASE).iterdir()):
                add_member(archive, f"{DATABASE}/{part.name}", part)
                part.unlink()
            for stored in sorted((settings.data_dir / FILES_FOLDER).glob("[0-9a-f][0-9a-f]/*")):
                # A replaced file is whole all the same: files never change, a name moves to another one.
                with contextlib.suppress(FileNotFoundError):
                    add_member(archive, f"{FILES_FOLDER}/{stored.parent.name}/{stored.name}", stored)
                    files += 1
            manifest: Json = {"format": FORMAT, "createdAt": created_at, "crmctl": __version__, "database": described}
            (folder / MANIFEST).write_text(jsontext.dumps(manifest | {"records": records, "files": files}, indent=2), encoding="utf-8")
            # Last: an archive that has it is whole.
            add_member(archive, MANIFEST, folder / MANIFEST)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a private folder on the same disk and delete it afterwards. Its name tells what a killed process left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".partial", dir=target.parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


class RemotePlace:
    """An object `s3://BUCKET/KEY`. Credentials, region and endpoint are found as the AWS tools find them."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for an address that names no object, and what open_client raises."""
        parts = urlsplit(url)
        self.bucket, self.key = parts.netloc, parts.path.lstrip("/")
        if not self.bucket or not self.key or self.key.endswith("/"):
            raise UsageError(f"{url} names no object", hint="s3://BUCKET/NAME")
        self.url = url
        self._client, self._failures = open_client(S3Settings())

    def put(self, path: Path) -> None:
        """Upload the file. Its name holds the previous object, or none, until everything has arrived. Raises ServiceError."""
        try:
            self._client.upload_file(str(path), self.bucket, self.key)
            body = self._client.get_object(Bucket=self.bucket, Key=self.key)["Body"]
            stored = hashlib.sha256()
            for piece in iter(lambda: body.read(CHUNK), b""):
                stored.update(piece)
        except self._failures as error:
            raise ServiceError(f"cannot write {self.url}: {reason(error)}", hint="the bucket must exist and be writable") from error
        with path.open("rb") as file:
            if stored.digest() != hashlib.file_digest(file, "sha256").digest():
                raise ServiceError(f"what {self.url} gives back is not what was written")

    def get(self, path: Path) -> None:
        try:
            self._client.download_file(self.bucket, self.key, str(path))
        except self._failures as error:
            raise ServiceError(f"cannot read {self.url}: {reason(error)}") from error
