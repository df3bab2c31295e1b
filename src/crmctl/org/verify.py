"""Check a folder, and compare it with what a service gave back after a restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from crmctl.errors import RejectedError
from crmctl.models.jsontext import Json
from crmctl.org.compare import folders_compared
from crmctl.org.folder import MOST_PROBLEMS, OrgFolder
from crmctl.org.tables import OrgTables, Problem, Side, load_folder
from crmctl.schema.apply import ChangeAction


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
        yield from load_folder(tables, Side.RIGHT, folder)
    except RejectedError as error:
        for problem in error.details or [{"place": str(folder.path), "problem": error.message}]:
            yield problem["place"], problem["problem"]


def drill_differences(folder: OrgFolder, restored: OrgFolder, ids: Mapping[str, str]) -> list[Json]:
    """Compare a folder with what a throw-away service gave back; `ids` maps its ids to those of that service.

    References to what the folder does not hold do not count.
    """
    with folders_compared(restored, folder, {}, ids) as compared:
        compared.is_exact = True
        found = [{"place": one.place, "problem": one.summary} for one in compared.schema if one.action is not ChangeAction.DELETE]
        words = {"added": "not restored", "removed": "restored although the folder lacks it", "changed": "restored differently"}
        for change in compared.changes(()):
            values = f": {', '.join(change.values)}" if change.change == "changed" else ""
            found.append({"place": f"{change.object} {change.other_id or change.id}", "problem": words[change.change] + values})
    return found
