"""The way out for a command that there is none of: the nearest one, or what is done with the records of the object that was named."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crmctl.cli.registry import BY_NAME
from crmctl.models.nearest import nearest

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

OF_RECORDS = ("list", "search", "count", "get", "create", "update", "edit", "delete")


def way_out(runtime: Runtime, path: str, words: Sequence[str], names: Sequence[str]) -> str:
    """The hint for `words` behind `path`, where only `names` are commands. Reads what is kept of the schema; asks nobody."""
    typed = words[0]
    objects = _objects(runtime) if path == "crmctl" else []
    if path == "crmctl" and typed not in objects and (nouns := _nouns_of(typed)):
        return f"did you mean: {path} {'records' if 'records' in nouns else nouns[0]} {typed}"
    if typed not in objects and (near := nearest(typed, names)):
        return f"did you mean: {path} {near}"
    verb = next((word for word in words[1:] if word in OF_RECORDS), "list")
    if near := typed if typed in objects else nearest(typed, objects):
        return f"crmctl records {verb} {near}"
    help_text = f"{path} --help lists the commands"
    return f"{help_text}; records are asked for by their object: crmctl records {verb} OBJECT" if path == "crmctl" else help_text


def _nouns_of(verb: str) -> list[str]:
    """The groups that have a command of this name."""
    groups = {name: importlib.import_module(entry.import_name).app for name, entry in BY_NAME.items()}
    return [name for name, group in groups.items() if any(command.name == verb for command in group.registered_commands)]


def _objects(runtime: Runtime) -> Sequence[str]:
    from contextlib import suppress

    from crmctl.cli.completions.values import values

    with suppress(Exception):  # as for a shell that waits: without a configuration or a cache there are none
        return values("objects", "", str(runtime.flags.get("profile") or ""), runtime.environ)
    return []
