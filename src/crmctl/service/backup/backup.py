"""All of a service into one file while it runs, and out of it: the database as of one moment, then the uploaded files.

Nothing has the backup's name before it is written, on disk, and read back; nothing has the data's name before all of it is there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crmctl.clock import Clock
from crmctl.errors import CrmctlError, UsageError, reason, storage_error
from crmctl.service.backup.archive import ArchiveWriter, unpack
from crmctl.service.settings import DATABASE_FILE, FILES_FOLDER, UNFINISHED, ServiceSettings
from crmctl.service.store.engine import Engine, has_data, load_copy
from crmctl.service.store.timestamps import to_micros, to_wire
from crmctl.version import __version__

DATABASE = "database"


@dataclass(frozen=True)
class Backup:
    """What is in a backup."""

    engine: str
    created_at: str
    records: int
    files: int
    bytes: int

    def wire(self) -> dict[str, Any]:
        about = {"engine": self.engine, "createdAt": self.created_at, "records": self.records}
        return about | {"files": self.files, "bytes": self.bytes}


def make_backup(engine: Engine, settings: ServiceSettings, target: Path, clock: Clock) -> Backup:
    """Write the file, in place of one that is there, and read it back. Raises UsageError where it cannot be written."""
    try:
        with _beside(target) as folder:
            backup = _write(engine, settings, folder, clock)
            unpack(folder / "archive", None)
            (folder / "archive").replace(target)
            _sync(target.parent)
    except (OSError, sqlite3.Error) as error:
        full = storage_error(error, target)
        raise full or UsageError(
            f"cannot write {target}: {reason(error)}", hint="a place with room for all of the service's data"
        ) from error
    return backup


def restore_backup(source: Path, settings: ServiceSettings) -> Backup:
    """Put the data where there is none yet. Raises RejectedError for what is no whole backup, UsageError where there is data already."""
    data = settings.data_dir
    if settings.database_url is None and (data / DATABASE_FILE).exists():
        raise UsageError(f"there is a service's data in {data} already", hint="--data DIR, where there is none yet")
    try:
        with _beside(data / DATABASE_FILE) as folder:
            manifest = unpack(source, folder)
            placed = _place_files(folder / FILES_FOLDER, data / FILES_FOLDER)
            try:
                # Last: with the database the data is there.
                load_copy(settings.engine_url, folder / DATABASE, manifest["database"])
            except BaseException as error:
                _take_back(placed, settings, error)
                raise
            _sync(data)
        # The data is there: what was begun before, and killed, is not needed any more.
        for leftover in data.glob(UNFINISHED):
            shutil.rmtree(leftover, ignore_errors=True)
    except (OSError, sqlite3.Error) as error:
        raise storage_error(error, data) or UsageError(f"cannot write to {data}: {reason(error)}", hint="--data DIR") from error
    described = {name: manifest[name] for name in ("records", "files")}
    return Backup(manifest["database"]["engine"], manifest["createdAt"], **described, bytes=source.stat().st_size)


def _take_back(placed: list[Path], settings: ServiceSettings, error: BaseException) -> None:
    """The files, where no database came: what fails after it leaves it there, and its files with it."""
    try:
        is_known = not (isinstance(error, CrmctlError) and error.outcome_unknown)
        is_there = has_data(settings.engine_url)
    except CrmctlError:
        is_known = False
    if not is_known:
        # Whoever starts next is told, as after a restore that was killed.
        (settings.data_dir / UNFINISHED.replace("*", "unknown")).mkdir(exist_ok=True)
    elif not is_there:
        for each in placed:
            each.unlink(missing_ok=True)


def _place_files(source: Path, target: Path) -> list[Path]:
    """Those that are not there yet; which. What a restore that was killed has left is of the same backup, and stays.

    Raises UsageError where there are files that are not in the backup: somebody uses the place.
    """
    known = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    there = {path.relative_to(target) for path in target.rglob("*") if path.is_file()}
    if there - known:
        raise UsageError(f"there are uploaded files in {target} that are not in the backup", hint="--data DIR, where there is none yet")
    for path in sorted(known - there):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).replace(target / path)
    return [target / path for path in sorted(known - there)]


def _write(engine: Engine, settings: ServiceSettings, folder: Path, clock: Clock) -> Backup:
    created_at = to_wire(to_micros(clock.now()))
    (folder / DATABASE).mkdir()
    described = engine.copy_out(folder / DATABASE)
    records = described.pop("records")
    files = 0
    with ArchiveWriter(folder / "archive") as archive:
        for part in sorted((folder / DATABASE).iterdir()):
            archive.add(f"{DATABASE}/{part.name}", part)
            part.unlink()
        for stored in _uploads(settings.data_dir / FILES_FOLDER):
            # One that is replaced meanwhile is whole all the same: a file never changes, its name goes over to another one.
            with contextlib.suppress(FileNotFoundError):
                archive.add(f"{FILES_FOLDER}/{stored.parent.name}/{stored.name}", stored)
                files += 1
        manifest = {"createdAt": created_at, "crmctl": __version__, "database": described, "records": records, "files": files}
        archive.finish(manifest)
    return Backup(described["engine"], created_at, records, files, (folder / "archive").stat().st_size)


def _uploads(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.glob("[0-9a-f][0-9a-f]/*")))


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A private folder on the same disk, gone afterwards; one that a killed process left has a name that says what it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", suffix=".partial", dir=target.parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _sync(folder: Path) -> None:
    """The new name must outlive a power failure."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
