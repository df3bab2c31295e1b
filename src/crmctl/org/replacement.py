"""Replace the data of a folder as a whole, however the program ends.

The new data is written to a sibling folder and moved entry by entry. A note in the sibling makes the move repeatable: the next command that
opens the folder completes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from crmctl.errors import UsageError, reason, storage_error
from crmctl.files.whole_files import sync_path, whole_file
from crmctl.models import jsontext

NOTE = "COMPLETE.json"
NEW, OLD = "new", "old"


def sibling(folder: Path) -> Path:
    """Return the place of the new content: beside the folder, or inside a folder that is a mount point."""
    folder = folder.resolve()
    name = f".{folder.name}.crmctl"
    return folder / name if is_mounted(folder) else folder.with_name(name)


def is_mounted(folder: Path) -> bool:
    return folder.is_dir() and folder.stat().st_dev != folder.parent.stat().st_dev


@contextmanager
def new_content(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for the new content. Deletes it when the block ends, unless `replace_content` has moved it."""
    finish_replacement(folder)
    place = sibling(folder)
    try:
        shutil.rmtree(place, ignore_errors=True)
        (place / NEW).mkdir(parents=True, mode=0o700)
        yield place / NEW
    except OSError as error:
        raise storage_error(error, place, UsageError(f"cannot write {place}: {reason(error)}", code="unwritable_file")) from error
    finally:
        if not (place / NOTE).exists():
            shutil.rmtree(place, ignore_errors=True)


def replace_content(folder: Path, names: Collection[str]) -> None:
    """Replace these entries of the folder by those of the new content; entries that the new content lacks are removed."""
    place = sibling(folder)
    for path in (place / NEW).rglob("*"):
        if path.is_file():
            sync_path(path)
    with whole_file(place / NOTE) as note:
        note.write(jsontext.dumps({"names": list(names), "new": [entry.name for entry in (place / NEW).iterdir()]}))
    finish_replacement(folder)


def finish_replacement(folder: Path) -> None:
    """Complete an interrupted replacement, if there is one."""
    place = sibling(folder)
    if not (place / NOTE).is_file():
        return
    try:
        _move(folder, place)
    except OSError as error:
        raise storage_error(error, folder, UsageError(f"cannot write {folder}: {reason(error)}", code="unwritable_file")) from error


def _move(folder: Path, place: Path) -> None:
    note = jsontext.loads((place / NOTE).read_bytes())
    folder.mkdir(exist_ok=True)
    (place / OLD).mkdir(exist_ok=True)
    for name in note["names"]:
        is_moved = name in note["new"] and not (place / NEW / name).exists()
        if (folder / name).exists() and not is_moved:
            (folder / name).rename(place / OLD / name)
        if (place / NEW / name).exists():
            (place / NEW / name).rename(folder / name)
    sync_path(folder)
    (place / NOTE).unlink()
    shutil.rmtree(place, ignore_errors=True)
