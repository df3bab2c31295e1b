"""What can be completed where, read from the command tree. The scripts of the shells are rendered from this and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ANYTHING = "@anything"
FILES = "@files"
OBJECTS = "@objects"
ATTRIBUTES = "@attributes"
FIELDS = "@fields"
ASSIGNMENTS = "@assignments"
CONDITIONS = "@conditions"
PROFILES = "@profiles"
REPORTS = "@reports"
WORKFLOWS = "@workflows"
JOBS = "@jobs"
SETTINGS = "@settings"
SCOPES = "@scopes"
EVENTS = "@events"
DYNAMIC = (OBJECTS, ATTRIBUTES, FIELDS, ASSIGNMENTS, CONDITIONS, PROFILES, REPORTS, WORKFLOWS, JOBS, SETTINGS, SCOPES, EVENTS)
"""What `crmctl completion values` knows: object slugs; slugs, a comma list of fields, `slug=` and beginnings of conditions of one
object's attributes; profiles; names of reports and workflows, which may hold blanks; jobs of this machine, names of settings, scopes,
types of events."""

BY_METAVAR = {
    "OBJECT": OBJECTS,
    "ATTR": ATTRIBUTES,
    "FIELD,...": FIELDS,
    "SLUG=VALUE": ASSIGNMENTS,
    "CONDITION": CONDITIONS,
    "ID|ATTR=VALUE": ASSIGNMENTS,
    "PROFILE": PROFILES,
    "JOB": JOBS,
    "KEY": SETTINGS,
    "SCOPE": SCOPES,
    "EVENT,...": EVENTS,
    "REPORT": REPORTS,
    "WORKFLOW": WORKFLOWS,
}
NAMES_A_FILE = re.compile(r"(?:^|\|)(?:FILE|PATH|FOLDER|DIRECTORY|DIR|BODYFILE|DATABASE)(?:\||$)")
CHOICES = re.compile(r"[a-z0-9_.\-]+(?:\|[a-z0-9_.\-]+)+")


@dataclass(frozen=True)
class Option:
    """One option under all its names, short first; `value` is a kind, a tuple of the words it may be, or None for a switch."""

    names: tuple[str, ...]
    value: str | tuple[str, ...] | None
    repeatable: bool
    help: str


@dataclass(frozen=True)
class Argument:
    """One positional argument; the last may be repeatable."""

    name: str
    value: str | tuple[str, ...]
    repeatable: bool


@dataclass(frozen=True)
class Node:
    """A group or a command. `path` is the words after `crmctl`; a group has children, a command options and arguments."""

    path: str
    help: str
    children: tuple[Node, ...] = ()
    options: tuple[Option, ...] = ()
    arguments: tuple[Argument, ...] = ()

    @property
    def name(self) -> str:
        return self.path.rpartition(" ")[2]

    def walk(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Program:
    """The whole command line: the root and the options that every command takes."""

    root: Node
    common: tuple[Option, ...]


def read_program(tree: dict[str, Any]) -> Program:
    """From the tree that `crmctl commands --json` prints."""
    common = tuple(_option(item) for item in tree["commonOptions"])
    root = Node("", "", tuple(_node(item) for item in tree["commands"]))
    return Program(root, (*common, Option(("-h", "--help"), None, False, "Explain the command.")))


def _node(item: dict[str, Any]) -> Node:
    return Node(
        path=item["command"].partition(" ")[2],
        help=item["summary"],
        children=tuple(_node(child) for child in item.get("commands", ())),
        options=tuple(_option(option) for option in item.get("options", ())),
        arguments=tuple(Argument(one["name"], _kind(one["name"]), one["repeatable"]) for one in item.get("arguments", ())),
    )


def _option(item: dict[str, Any]) -> Option:
    names = tuple(sorted(item["names"], key=len))
    return Option(names, None if item["value"] is None else _kind(item["value"]), item["repeatable"], item["help"].rstrip("."))


def _kind(metavar: str) -> str | tuple[str, ...]:
    if CHOICES.fullmatch(metavar):
        return tuple(metavar.split("|"))
    if NAMES_A_FILE.search(metavar):
        return FILES
    return BY_METAVAR.get(metavar, ANYTHING)
