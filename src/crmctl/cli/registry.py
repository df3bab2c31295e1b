"""The static table of commands, and suggestions for unknown ones."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crmctl.cli.options import ADVANCED
from crmctl.models.ids import nearest

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime


NOUN = "noun"
"""The module of a command that has only the verbs of `cli/verbs.py`."""


class CommandEntry(NamedTuple):
    """A top-level command; its module `crmctl.cli.commands.<module>` has an `app`."""

    name: str
    section: str
    help: str
    module: str = ""

    def load(self) -> Any:
        """Return the command's app: that of its module, or the shared verbs of a noun."""
        if self.module == NOUN:
            return importlib.import_module("crmctl.cli.verbs").noun_app(self.name)
        return importlib.import_module(f"crmctl.cli.commands.{self.module or self.name}").app


DATA = "Records and data"
SERVICE = "The embedded service"
SETUP = "Setting up"
MORE = "More"

COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("records", DATA, "List, search, count, read and change records"),
    CommandEntry("bulk", DATA, "Import, export and delete many records safely"),
    CommandEntry("mirror", DATA, "Keep a proven copy of the data, and ask it in SQL"),
    CommandEntry("org", DATA, "Keep an organization as a folder: pull, compare, apply, verify"),
    CommandEntry("check", DATA, "Check the data by rules in files, on the mirror"),
    CommandEntry("objects", DATA, "List and manage objects such as people or deals"),
    CommandEntry("attributes", DATA, "List and manage the fields of an object"),
    CommandEntry("schema", DATA, "Write objects and attributes down, compare them, apply them"),
    CommandEntry("activities", DATA, "List and manage notes, meetings and calls"),
    CommandEntry("reports", DATA, "Run reports, see their results"),
    CommandEntry("workflows", DATA, "Run workflows by hand, see their runs"),
    CommandEntry("files", DATA, "Upload, list and download files"),
    CommandEntry("webhooks", DATA, "See event types, open the portal, receive and check deliveries"),
    CommandEntry("members", DATA, "List members, change their roles, remove them"),
    CommandEntry("auth", SETUP, "Log in, log out, see what a key may do"),
    CommandEntry("config", SETUP, "Read and change settings and profiles"),
    CommandEntry("completion", SETUP, "Print the completion script of a shell"),
    CommandEntry("doctor", SETUP, "Check the installation, the settings and the connection"),
    CommandEntry("serve", SERVICE, "Run the embedded Customer Records Service"),
    CommandEntry("service", SERVICE, "Administer an embedded service's own data"),
    CommandEntry("demo", SERVICE, "Watch crmctl work on a throw-away service"),
    CommandEntry("api", MORE, "Call any endpoint of the service directly"),
    CommandEntry("commands", ADVANCED, "Show the whole command tree, for people or machines", module="command_tree"),
    CommandEntry("help", MORE, "Explain a command or a topic", module="help"),
)

BY_NAME: dict[str, CommandEntry] = {entry.name: entry for entry in COMMANDS}


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
"""Names of commands in other tools."""

OPTION_HABITS = {
    "where": "filter", "n": "limit", "count": "limit", "max": "limit", "top": "limit", "format": "output", "columns": "fields",
    "select": "fields", "url": "base-url", "host": "base-url", "force": "yes",
}  # fmt: skip

OPTION_CUTOFF = 0.7
"""Similarity from which an option counts as misspelt: `--filter` is not `--profile`."""


def way_out(runtime: Runtime, path: str, words: Sequence[str], names: Sequence[str]) -> str:
    """Return the hint for an unknown command: `words` behind `path`, which has the commands `names`. Reads only the cache."""
    typed = words[0]
    objects = _objects(runtime) if path == "crmctl" else []
    if typed == "help":
        return f"{path} --help"
    if meant := HABITS.get(f"{path} {typed}".removeprefix("crmctl ")):
        named = next((word for word in words[1:] if not word.startswith("-")), "OBJECT")
        return meant.replace("OBJECT", named)
    if path in ("crmctl records", "crmctl attributes") and typed in _objects(runtime):
        return f"{path} list {typed}"
    nouns = BY_NAME.items() if path == "crmctl" and typed not in objects else ()  # records come first
    if noun := next((name for name, entry in nouns if typed in entry.load().builders), None):
        return f"did you mean: {path} {noun} {typed}"
    if typed not in objects and (near := nearest(typed, names)):
        return f"did you mean: {path} {near}"
    verb = next((word for word in words[1:] if word in OF_RECORDS), "list")
    if near := typed if typed in objects else nearest(typed, objects):
        return f"crmctl records {verb} {near}"
    help_text = f"{path} --help lists the commands"
    return f"{help_text}; records are asked for by their object: crmctl records {verb} OBJECT" if path == "crmctl" else help_text


def option_hint(path: str, typed: str, options: Sequence[str]) -> str:
    """Return the hint for an unknown option of a command with these options."""
    if typed == "--filter" and path in ("crmctl records delete", "crmctl records update"):
        return f"{path.replace('records', 'bulk')} OBJECT --filter ... takes all that match"
    name, names = typed.lstrip("-"), [option[2:] for option in options if option.startswith("--")]
    meant = OPTION_HABITS.get(name)
    meant = meant if meant in names else nearest(name, names, OPTION_CUTOFF)
    return f"did you mean --{meant}?" if meant else f"{path} --help"


def extra_hint(path: str, message: str, options: Sequence[str]) -> str:
    """Return the hint for an extra word, such as the option it belongs to."""
    match = re.match(r"unexpected argument: (\S+)", message)
    extra = match[1] if match else ""
    if "--set" in options and re.match(r"[a-z][a-z0-9_.]*:?=", extra):
        return f"--set '{extra}'"
    if path == "crmctl bulk export" and extra:
        return f"-O {extra}"
    return f"{path} --help"


def _objects(runtime: Runtime) -> Sequence[str]:
    from crmctl.cli.complete_values import object_slugs

    return object_slugs(runtime.environ, str(runtime.flags.get("profile") or ""))
