"""Check a folder, and compare it with what a service gave back after a restore."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from crmctl.models.jsontext import Json
from crmctl.org.compare import folders_compared
from crmctl.org.folder import OrgFolder
from crmctl.org.tables import OrgTables, Side, folder_problems
from crmctl.schema.apply import ChangeAction


def verify(path: Path) -> tuple[OrgFolder, list[Json]]:
    """Check checksums, JSON, schema, references and counts; return the folder and its first problems.

    Raises UsageError for a folder that crmctl did not write or cannot open.
    """
    folder = OrgFolder(path)
    with OrgTables() as tables:
        problems = folder_problems(tables, Side.RIGHT, folder)
    return folder, [{"place": place, "problem": text} for place, text in problems]


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
