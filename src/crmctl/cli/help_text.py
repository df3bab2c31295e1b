"""Help pages: their parts, and how they are set."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crmctl.cli.options import ADVANCED, WIDEST
from crmctl.cli.registry import CommandEntry

if TYPE_CHECKING:
    from crmctl.models.jsontext import Json


EXAMPLES = 5
"""Examples on a page; --help-all shows them all."""
TOPIC_NAMES = (
    *("exit-codes", "filters", "matching", "matching-words", "output", "options", "environment"),
    *("report-files", "workflow-files", "scheduling", "agents"),
)


Rows = Sequence[tuple[str, str]]
"""Two columns."""


@dataclass
class HelpPage:
    """One help page, top to bottom; its sections are rows by their heading."""

    usage: str
    description: str = ""
    sections: dict[str, Rows] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """Options that another page explains, by that page."""
    examples: list[str] = field(default_factory=list)
    last: dict[str, Rows] = field(default_factory=dict)
    footer: str = ""


def option_rows(options: Iterable[Json]) -> list[tuple[str, str]]:
    """Return the names and the explanation of options, as the command tree describes them."""
    rows = []
    for option in options:
        value = f" {option['value']}" if option["value"] else ""
        default = f" (default: {option['default']})" if option["default"] is not None else ""
        required = " (required)" if option["required"] else ""
        rows.append((", ".join(sorted(option["names"], key=len)) + value, option["help"] + default + required))
    return rows


def _usual_and_advanced(options: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    return [option for option in options if not option["advanced"]], [option for option in options if option["advanced"]]


def command_page(about: Json, common: Sequence[Json], *, is_whole: bool) -> HelpPage:
    """Return the page of a command, as the command tree describes it, or with `is_whole` of its --help-all."""
    words = [argument["name"] + ("..." if argument["repeatable"] else "") for argument in about["arguments"]]
    words = [word if argument["required"] else f"[{word}]" for word, argument in zip(words, about["arguments"], strict=True)]
    usual, advanced = _usual_and_advanced(about["options"])
    page = HelpPage(usage=" ".join([about["command"], *words, "[options]"]), description=about["help"], examples=about["examples"])
    rows = [(argument["name"], argument["help"]) for argument in about["arguments"]]
    page.sections = {"Arguments": rows, "Options": option_rows(usual)}
    names = [max(option["names"], key=len) for option in _usual_and_advanced(common)[0]]
    page.names["Common options (explained by: crmctl help options)"] = [*names, "..."]
    if is_whole:
        page.last = {ADVANCED: option_rows(advanced)}
    else:
        page.examples = page.examples[:EXAMPLES]
        names = [min(option["names"], key=len) for option in advanced]
        page.names[f"Advanced options (explained by: {about['command']} --help-all)"] = names
    return page


def root_page(entries: Sequence[CommandEntry], common: Sequence[Json], *, is_whole: bool) -> HelpPage:
    """Return the page of `crmctl --help`, or with `is_whole` of --help-all."""
    usual, advanced = _usual_and_advanced(common)
    page = HelpPage(usage="crmctl <command> [options]", description="The command line of the Customer Records Service.")
    for title in dict.fromkeys(entry.section for entry in entries):
        if title != ADVANCED or is_whole:
            page.sections[title] = [(entry.name, entry.help) for entry in entries if entry.section == title]
    page.sections["Common options, before or after any command"] = [
        *option_rows(usual),
        ("--version", "Print the version."),
        ("-h, --help", "Explain a command."),
        ("--help-all", "Also explain its advanced options."),
    ]
    page.last = {"Advanced common options": option_rows(advanced)} if is_whole else {}
    page.examples = [
        "crmctl demo",
        "crmctl auth login --base-url https://crm.example.com",
        "crmctl records list people --filter 'email endsWith @acme.com'",
        "crmctl bulk import people people.csv --dry-run",
    ]
    page.footer = f"crmctl help <topic>: {', '.join(TOPIC_NAMES)}"
    return page


def render(page: HelpPage, width: int) -> str:
    """The page as text, ending in a newline."""
    width = max(40, min(width, WIDEST))
    blocks = []
    if page.description:
        paragraphs = (" ".join(part.split()) for part in page.description.strip().split("\n\n"))
        blocks.append("\n\n".join(textwrap.fill(text, width, break_on_hyphens=False) for text in paragraphs))
    blocks.append(f"Usage\n  {page.usage}")
    blocks.extend(_columns(title, rows, width) for title, rows in page.sections.items() if rows)
    for title, names in page.names.items():
        if names:
            indented = textwrap.fill(", ".join(names), width - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            blocks.append(f"{title}\n{indented}")
    if page.examples:
        blocks.append("\n".join(["Examples", *(f"  $ {example}" for example in page.examples)]))
    blocks.extend(_columns(title, rows, width) for title, rows in page.last.items() if rows)
    if page.footer:
        blocks.append(page.footer)
    return "\n\n".join(blocks) + "\n"


def _columns(title: str, rows: Rows, width: int) -> str:
    first = min(max(len(term) for term, _ in rows), 34)
    lines = [title]
    for term, right in rows:
        wrapped = textwrap.wrap(right, max(20, width - first - 4), break_on_hyphens=False) or [""]
        if len(term) > first:
            lines.append(f"  {term}")
        else:
            lines.append(f"  {term.ljust(first)}  {wrapped.pop(0)}".rstrip())
        lines.extend(" " * (first + 4) + line for line in wrapped)
    return "\n".join(lines)
