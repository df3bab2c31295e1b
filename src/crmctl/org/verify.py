"""Check a folder without a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crmctl.errors import RejectedError
from crmctl.models.jsontext import Json
from crmctl.org.folder import MOST_PROBLEMS, OrgFolder
from crmctl.org.tables import OrgTables, Problem, Side, load_folder


def verify(path: Path) -> tuple[OrgFolder, list[Json]]:
    """Check checksums, JSON, schema, references and counts; return the folder and its first problems.

    Raises UsageError for a folder that crmctl did not write or cannot open.
    """
    folder = OrgFolder(path)
    problems: list[Json] = []
    with OrgTables() as tables:
        for place, text in _problems(folder, tables):
            problems.append({"place": place, "problem": text})
            if len(problems) == MOST_PROBLEMS:
                break
    return folder, problems


def _problems(folder: OrgFolder, tables: OrgTables) -> Iterator[Problem]:
    try:
        yield from folder.checksum_problems()
        folder.members()
        yield from load_folder(tables, Side.RIGHT, folder)
    except RejectedError as error:
        for problem in error.details or [{"place": str(folder.path), "problem": error.message}]:
            yield problem["place"], problem["problem"]
