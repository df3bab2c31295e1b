"""Help pages: their parts, and how they are set."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crmctl.cli.options import ADVANCED, WIDEST
from crmctl.cli.registry import CommandEntry

EXAMPLES = 5
"""Examples on a page; --help-all shows them all."""
TOPIC_NAMES = (
    *("exit-codes", "filters", "matching", "matching-words", "output", "options", "environment"),
    *("report-files", "workflow-files", "scheduling", "agents"),
)


class Section(NamedTuple):
    """A heading and its two-column rows."""

    title: str
    rows: list[tuple[str, str]]


@dataclass
class HelpPage:
    """One help page, top to bottom."""

    usage: str
    description: str = ""
    sections: list[Section] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    """Options that another page explains, by that page."""
    examples: list[str] = field(default_factory=list)
    last: Section | None = None
    footer: str = ""


def root_page(entries: Sequence[CommandEntry], common_rows: list[tuple[str, str]], advanced_rows: list[tuple[str, str]] | None) -> HelpPage:
    """Return the page of `crmctl --help`, or of --help-all with the advanced options."""
    page = HelpPage(usage="crmctl <command> [options]", description="The command line of the Customer Records Service.")
    for title in dict.fromkeys(entry.section for entry in entries):
        if title != ADVANCED or advanced_rows:
            page.sections.append(Section(title, [(entry.name, entry.help) for entry in entries if entry.section == title]))
    page.sections.append(
        Section(
            "Common options, before or after any command",
            [
                *common_rows,
                ("--version", "Print the version."),
                ("-h, --help", "Explain a command."),
                ("--help-all", "Also explain its advanced options."),
            ],
        )
    )
    page.last = Section("Advanced common options", advanced_rows) if advanced_rows else None
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
        blocks.append("\n\n".join(_paragraph(part, width) for part in page.description.strip().split("\n\n")))
    blocks.append(f"Usage\n  {page.usage}")
    blocks.extend(_columns(section, width) for section in page.sections if section.rows)
    for title, names in page.names.items():
        if names:
            indented = textwrap.fill(", ".join(names), width - 2, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
            blocks.append(f"{title}\n{indented}")
    if page.examples:
        blocks.append("\n".join(["Examples", *(f"  $ {example}" for example in page.examples)]))
    if page.last is not None and page.last.rows:
        blocks.append(_columns(page.last, width))
    if page.footer:
        blocks.append(page.footer)
    return "\n\n".join(blocks) + "\n"


def _paragraph(text: str, width: int) -> str:
    if any(line.startswith(" ") for line in text.splitlines()):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_on_hyphens=False)


def _columns(section: Section, width: int) -> str:
    first = min(max(len(left) for left, _ in section.rows), 34)
    lines = [section.title]
    for left, right in section.rows:
        wrapped = textwrap.wrap(right, max(20, width - first - 4), break_on_hyphens=False) or [""]
        if len(left) > first:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left.ljust(first)}  {wrapped.pop(0)}".rstrip())
        lines.extend(" " * (first + 4) + line for line in wrapped)
    return "\n".join(lines)
