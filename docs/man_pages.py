"""Man pages from the command tree: crmctl(1) and a page for each top-level command. hatchling runs the hook and ships them in the wheel."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):
    """Add the pages to share/man/man1 of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        self.folder = tempfile.TemporaryDirectory()
        for name, text in pages().items():
            path = Path(self.folder.name, name)
            path.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(path)] = f"share/man/man1/{name}"


def pages() -> dict[str, str]:
    """Return each page by its file name."""
    from crmctl.cli.app import describe_tree

    tree = describe_tree()
    return {"crmctl.1": _root(tree), **{f"{_name(item)}.1": _command_page(item) for item in tree["commands"]}}


def _root(tree: dict[str, Any]) -> str:
    from crmctl.cli.help_topics import PAGES
    from crmctl.errors import EXIT_CODE_MEANINGS

    commands = [(f"{_name(item)}(1)", item["summary"]) for item in tree["commands"]]
    return _page(
        "crmctl",
        "the command line of the Customer Records Service",
        [
            (".SH SYNOPSIS", "crmctl <command> [options]"),
            (".SH COMMANDS", *_terms(commands)),
            (".SH OPTIONS", "Every command accepts them too.", *_options(tree["commonOptions"])),
            (".SH EXIT STATUS", *_terms((str(int(code)), meaning) for code, meaning in EXIT_CODE_MEANINGS.items())),
            (".SH ENVIRONMENT", *_terms(row for rows in PAGES["environment"].sections.values() for row in rows)),
        ],
    )


def _command_page(item: dict[str, Any]) -> str:
    from crmctl.cli.app import walk_commands

    if "commands" in item:
        return _page(_name(item), item["summary"], [(f".SH {leaf['command'].upper()}", *_command(leaf)) for leaf in walk_commands(item)])
    return _page(_name(item), item["summary"], [(".SH DESCRIPTION", *_command(item))])


def _command(leaf: dict[str, Any]) -> Iterator[str]:
    words = [argument["name"] + "..." * argument["repeatable"] for argument in leaf["arguments"]]
    words = [word if argument["required"] else f"[{word}]" for word, argument in zip(words, leaf["arguments"], strict=True)]
    yield _bold(" ".join([leaf["command"], *words, "[options]"]))
    for paragraph in leaf["help"].strip().split("\n\n"):
        is_preformatted = any(line.startswith(" ") for line in paragraph.splitlines())
        yield f".EX\n{_text(paragraph)}\n.EE" if is_preformatted else f".PP\n{_text(' '.join(paragraph.split()))}"
    yield from _terms((word, argument["help"]) for word, argument in zip(words, leaf["arguments"], strict=True))
    yield from _options(leaf["options"])
    if leaf["examples"]:
        yield ".PP\nExamples:\n.PP\n.EX"
        yield from (_text(f"$ {line}") for line in leaf["examples"])
        yield ".EE"


def _options(options: Iterable[dict[str, Any]]) -> Iterator[str]:
    for option in options:
        names = ", ".join(sorted(option["names"], key=len)) + (f" {option['value']}" if option["value"] else "")
        default = "" if option["default"] is None else f" Default: {option['default']}."
        yield from _terms([(names, option["help"] + " Required." * option["required"] + default)])


def _terms(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return (f".TP\n{_bold(left)}\n{_text(right)}" for left, right in rows)


def _page(name: str, summary: str, sections: list[tuple[str, ...]]) -> str:
    from crmctl.version import __version__

    others = "Options of every command, exit codes and variables: crmctl(1)." if name != "crmctl" else "crmctl help lists further topics."
    parts = [
        f'.TH {_text(name.upper())} 1 "" "crmctl {__version__}" "crmctl"',
        ".ad l\n.nh",
        f".SH NAME\n{_text(f'{name} - {summary}')}",
        *("\n".join(map(_heading, section)) for section in sections),
        f".SH SEE ALSO\n{_text(others)}",
    ]
    return "\n".join(parts) + "\n"


def _heading(line: str) -> str:
    return line.replace("-", r"\-") if line.startswith(".SH ") else line


def _bold(text: str) -> str:
    return rf"\fB{_text(text)}\fR"


def _text(text: str) -> str:
    """Escape what roff would read as a request, an escape or a hyphen."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    return re.sub(r"^(?=\.)", r"\\&", escaped, flags=re.MULTILINE)


def _name(item: dict[str, Any]) -> str:
    return str(item["command"]).replace(" ", "-")
