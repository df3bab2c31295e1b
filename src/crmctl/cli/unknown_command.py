"""The way out for a command, an option or a word that there is none of: what people of other tools mean by it, else the nearest one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crmctl.cli.registry import BY_NAME
from crmctl.models.nearest import nearest

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

OF_RECORDS = ("list", "search", "count", "get", "create", "update", "edit", "delete")

_LOG_IN, _ATTRIBUTES = "crmctl auth login", "crmctl attributes list OBJECT"
HABITS = {
    "whoami": "crmctl auth status", "auth whoami": "crmctl auth status", "version": "crmctl --version", "init": _LOG_IN, "setup": _LOG_IN,
    "configure": _LOG_IN, "user": "crmctl members list", "users": "crmctl members list", "fields": _ATTRIBUTES,
    "columns": _ATTRIBUTES,
    "describe": _ATTRIBUTES, "bulk status": "crmctl bulk jobs", "bulk list": "crmctl bulk jobs",
    "records export": "crmctl bulk export OBJECT", "records import": "crmctl bulk import OBJECT FILE",
    "schema export": "crmctl schema pull",
    "schema get": "crmctl schema pull",
}  # fmt: skip
"""What other tools call it."""

OPTION_HABITS = {
    "where": "filter", "n": "limit", "count": "limit", "max": "limit", "top": "limit", "format": "output", "columns": "fields",
    "select": "fields", "url": "base-url", "host": "base-url", "force": "yes",
}  # fmt: skip

OPTION_CUTOFF = 0.7
"""Options of other commands are no slips of the hand: `--filter` is not `--profile`."""


def way_out(runtime: Runtime, path: str, words: Sequence[str], names: Sequence[str]) -> str:
    """The hint for `words` behind `path`, where only `names` are commands. Reads what is kept of the schema; asks nobody."""
    typed = words[0]
    objects = _objects(runtime) if path == "crmctl" else []
    if typed == "help":
        return f"{path} --help"
    if meant := HABITS.get(f"{path} {typed}".removeprefix("crmctl ")):
        named = next((word for word in words[1:] if not word.startswith("-")), "OBJECT")
        return meant.replace("OBJECT", named)
    if path in ("crmctl records", "crmctl attributes") and typed in _objects(runtime):
        return f"{path} list {typed}"
    if path == "crmctl" and typed not in objects and (nouns := _nouns_of(typed)):
        return f"did you mean: {path} {'records' if 'records' in nouns else nouns[0]} {typed}"
    if typed not in objects and (near := nearest(typed, names)):
        return f"did you mean: {path} {near}"
    verb = next((word for word in words[1:] if word in OF_RECORDS), "list")
    if near := typed if typed in objects else nearest(typed, objects):
        return f"crmctl records {verb} {near}"
    help_text = f"{path} --help lists the commands"
    return f"{help_text}; records are asked for by their object: crmctl records {verb} OBJECT" if path == "crmctl" else help_text


def option_hint(path: str, typed: str, known: Sequence[str]) -> str:
    """The hint for an option that a command does not have; `known` are those it has."""
    if typed == "--filter" and path in ("crmctl records delete", "crmctl records update"):
        return f"{path.replace('records', 'bulk')} OBJECT --filter ... takes all that match"
    name, names = typed.lstrip("-"), [one[2:] for one in known if one.startswith("--")]
    meant = OPTION_HABITS.get(name)
    meant = meant if meant in names else nearest(name, names, OPTION_CUTOFF)
    return f"did you mean --{meant}?" if meant else f"{path} --help"


def extra_hint(path: str, message: str, known: Sequence[str]) -> str:
    """The hint for a word too much: what it would be behind an option, where that is what was meant."""
    found = re.search(r"extra argument(?:s|\(s\))? \(([^ )]+)", message)
    extra = found[1] if found else ""
    if "--set" in known and re.match(r"[a-z][a-z0-9_.]*:?=", extra):
        return f"--set '{extra}'"
    if path == "crmctl bulk export" and extra:
        return f"-O {extra}"
    return f"{path} --help"


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
