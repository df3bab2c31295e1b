"""Which files an upload is about, and the path that each gets: everything is checked here, before anything is sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crmctl.errors import UsageError, reason

if TYPE_CHECKING:
    from crmctl.client.uploads import LocalFile


def plan_uploads(paths: Sequence[str], *, prefix: str | None, recursive: bool, content_type: str | None) -> list[LocalFile]:
    """The files under `paths` with their targets. Raises UsageError naming every path that cannot be uploaded."""
    front = _segments(prefix)
    problems: list[str] = []
    files: list[LocalFile] = []
    for source, inside in _walk(paths, recursive, problems):
        try:
            files.append(_local_file(source, "/".join([*front, *inside]), content_type))
        except OSError as error:
            problems.append(f"{_printable(source)}: {reason(error)}")
        except UnicodeEncodeError:
            problems.append(f"{_printable(source)}: its name is not UTF-8")
    _check_targets(files, problems)
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UsageError(
            f"nothing was uploaded: {'; '.join(problems[:5])}{more}",
            hint="--recursive uploads folders" if any("is a folder" in problem for problem in problems) else None,
            code="unreadable_file",
            details={"problems": problems},
        )
    if not files:
        raise UsageError(f"there is no file in {', '.join(paths)}", code="no_files")
    return files


def _segments(prefix: str | None) -> list[str]:
    segments = [segment for segment in (prefix or "").replace("\\", "/").split("/") if segment]
    if any(segment in (".", "..") for segment in segments):
        raise UsageError(f"--prefix {prefix!r} must not hold . or ..")
    return segments


def _walk(paths: Sequence[str], recursive: bool, problems: list[str]) -> Iterator[tuple[Path, list[str]]]:
    """Files and the segments of their path below the prefix: its name for a file, the way from the folder for one inside a folder."""
    for text in paths:
        path = Path(text)
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except OSError as error:
            problems.append(f"{_printable(path)}: {reason(error)}")
            continue
        if not is_folder:
            yield path, [path.name]
        elif not recursive:
            problems.append(f"{_printable(path)} is a folder")
        else:
            yield from _inside(path, problems)


def _inside(folder: Path, problems: list[str]) -> Iterator[tuple[Path, list[str]]]:
    def unreadable(error: OSError) -> None:
        problems.append(f"{error.filename}: {reason(error)}")

    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders.sort()
        for name in sorted(names):
            source = Path(place, name)
            yield source, list(source.relative_to(folder).parts)


def _local_file(source: Path, target: str, content_type: str | None) -> LocalFile:
    from crmctl.client.filetypes import SAMPLE
    from crmctl.client.filetypes import content_type as guessed
    from crmctl.client.uploads import LocalFile

    target.encode()
    if not stat.S_ISREG(source.stat().st_mode):
        raise OSError(0, "not a regular file")
    with source.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return LocalFile(source, target, size, content_type or guessed(source.name, stream.read(SAMPLE)))


def _check_targets(files: Sequence[LocalFile], problems: list[str]) -> None:
    taken: dict[str, Path] = {}
    for file in files:
        other = taken.setdefault(file.target, file.source)
        if other is not file.source:
            problems.append(f"{_printable(other)} and {_printable(file.source)} would both become {file.target}")


def _printable(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()
