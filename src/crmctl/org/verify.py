"""Check a folder, and compare it with what a service gave back after a restore."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from crmctl.errors import RejectedError
from crmctl.models import jsontext
from crmctl.models.jsontext import Json
from crmctl.org.compare import present_of
from crmctl.org.folder import ACTIVITIES, MOST_PROBLEMS, OrgFolder, OrgLine
from crmctl.org.tables import OrgTables, Problem, Side, load_folder
from crmctl.schema.apply import ChangeAction, compare

UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


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


def drill_differences(folder: OrgFolder, restored: OrgFolder, ids: Mapping[str, str]) -> list[Json]:
    """Compare a folder with what a throw-away service gave back; `ids` maps its ids to those of that service.

    Participants who are members do not count: a new service does not have them.
    """
    schema = compare(folder.schema, present_of(restored.schema))
    found = [{"place": change.place, "problem": change.summary} for change in schema if change.action is not ChangeAction.EXTRA]
    for slug in folder.objects:
        found += _different_lines(slug, folder.records(slug), restored.records(slug), ids)
    found += _different_lines(ACTIVITIES, folder.activities(), restored.activities(), ids)
    return found


def _different_lines(name: str, before: Iterable[OrgLine], after: Iterable[OrgLine], ids: Mapping[str, str]) -> Iterator[Json]:
    lines = {_bytes(line.document, ids): line.place for line in before}
    for line in after:
        text = _bytes(line.document, {})
        if lines.pop(text, None) is None:
            yield {"place": name, "problem": f"restored differently: {text[:200]}"}
    for place in lines.values():
        yield {"place": place, "problem": "not restored"}


def _bytes(document: Json, ids: Mapping[str, str]) -> str:
    text = UUID.sub(lambda found: ids.get(found[0], found[0]), jsontext.dumps(document))
    mapped: Json = jsontext.loads(text)
    participants = [each for each in mapped.pop("participants", ()) if each.get("type") != "user"]
    listed = {"links": sorted(mapped.pop("links", ())), "participants": sorted(participants, key=jsontext.dumps)}
    return jsontext.dumps(mapped | {name: value for name, value in listed.items() if value})
