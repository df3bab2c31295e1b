"""Write the table of commands and options that completion reads. Run by `make generated`."""

from __future__ import annotations

import json
import re
from typing import Any

from crmctl.cli.app import describe_tree
from crmctl.cli.complete import FILES, TABLE
from crmctl.cli.help_text import TOPIC_NAMES
from crmctl.config.settings import KEYS
from crmctl.dedupe.merge_plan import SURVIVOR_RULES
from crmctl.models.resources import EVENT_TYPES, AttributeType
from crmctl.models.scopes import SCOPES

VALUES = {
    "OBJECT": "@objects",
    "ATTR": "@attributes",
    "FIELD,...": ",@fields",
    "SLUG=VALUE": "@assignments",
    "CONDITION": "@conditions",
    "ID|ATTR=VALUE": "@assignments",
    "PROFILE": "@profiles",
    "JOB": "@jobs",
    "REPORT": "@reports",
    "WORKFLOW": "@workflows",
    "COMMAND|TOPIC": "@topics",
    "ATTR=OBJECT.KEY": "@references",
    "COLUMN=SLUG": "@mapped",
    "EXPR": ",@attributes",
    "METHOD": "GET|POST|PATCH|PUT|DELETE",
    "KEY": "|".join(KEYS),
    "SCOPE": "|".join(SCOPES),
    "EVENT,...": "," + "|".join(EVENT_TYPES),
    "RULE": "|".join(SURVIVOR_RULES),
}
"""The kind of value behind each metavar; `crmctl.cli.complete` says what the kinds mean."""
OPTION_VALUES = {
    "--sort": "@sorts",
    "--by": "@groups",
    "--sum": "@numbers",
    "--avg": "@numbers",
    "attributes create --type": "|".join(AttributeType),
}
"""Options, or options of one command, whose metavar does not tell."""
JOBS = {"bulk resume": "@resumable", "bulk undo": "@undoable"}
"""Jobs that a command takes, where it does not take all."""
NAMES_A_FILE = re.compile(r"(?:^|\|)(?:FILE|PATH|FOLDER|DIRECTORY|DIR|BODYFILE|DATABASE)(?:\||$)")
CHOICES = re.compile(r"[a-z0-9_.\-]+(?:\|[a-z0-9_.\-]+)+")


def read_table(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the table for the tree that `crmctl commands --json` prints."""
    table: dict[str, Any] = {
        "topics": list(TOPIC_NAMES),
        "options": {
            **dict(_option("", item) for item in tree["commonOptions"]),
            "-h --help": [None, "Explain the command", False],
            "--help-all": [None, "Also explain its advanced options", False],
        },
        "commands": {},
    }
    _add(table["commands"], "", tree)
    return table


def _add(commands: dict[str, Any], path: str, item: dict[str, Any]) -> None:
    if "commands" not in item:
        kinds = [(_kind(argument["name"]), "..." * argument["repeatable"]) for argument in item["arguments"]]
        arguments = [(JOBS.get(path, kind) if kind == "@jobs" else kind) + more for kind, more in kinds]
        commands[path] = {"options": dict(_option(path, option) for option in item["options"]), "arguments": arguments}
        return
    children = {child["command"].rpartition(" ")[2]: child for child in item["commands"]}
    commands[path] = {"commands": {name: child["summary"] for name, child in children.items()}}
    for name, child in children.items():
        _add(commands, f"{path} {name}".strip(), child)


def _option(path: str, item: dict[str, Any]) -> tuple[str, list[Any]]:
    names = sorted(item["names"], key=len)
    special = OPTION_VALUES.get(f"{path} {names[-1]}") or OPTION_VALUES.get(names[-1])
    kind = None if item["value"] is None else special or _kind(item["value"])
    return " ".join(names), [kind, item["help"].rstrip("."), item["repeatable"]]


def _kind(metavar: str) -> str:
    if NAMES_A_FILE.search(metavar):
        return FILES
    return metavar if CHOICES.fullmatch(metavar) else VALUES.get(metavar.removesuffix("..."), VALUES.get(metavar, ""))


def main() -> None:
    """Write the table; a test fails while it is out of date."""
    text = json.dumps(read_table(describe_tree()), ensure_ascii=False)
    TABLE.write_text(re.sub(r"(?<=\}), (?=\"[^\"]*\": \{)", ",\n", text) + "\n")


if __name__ == "__main__":
    main()
