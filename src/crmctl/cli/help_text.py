"""Help texts and topics."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crmctl.cli.options import ADVANCED
from crmctl.cli.registry import CommandEntry
from crmctl.config.output_formats import OUTPUT_FORMATS

WIDEST = 100
"""Help is never set wider than this: long lines are hard to read."""
EXAMPLES = 5
"""Examples on a page; --help-all shows them all."""


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


def _operator_rows() -> list[tuple[str, str]]:
    """Return the lines of the operators: those with a help text each with its negation, the others by kind."""
    from crmctl.values.operators import Operator

    lines: dict[str, list[Operator]] = {}
    for operator in Operator:
        meaning = operator.positive.meaning
        line = "no value" if not operator.takes_value else operator.positive if meaning.help else meaning.kind.value
        lines.setdefault(line, []).append(operator)
    valueless = lines.pop("no value")
    rows = []
    for operators in lines.values():
        helps = "; ".join(operator.meaning.help for operator in operators if operator.meaning.help)
        signs = "  ".join(operator.meaning.sign or "" for operator in operators)
        rows.append((signs, ", ".join(operators) + (f": {helps}" if helps else "")))
    rows.append(("in, not in", "'stage in won,lost', 'stage not in \"on hold, late\"'"))
    return [*rows, ("no value", f"{', '.join(valueless)}: 'phone isEmpty'")]


def filters_page() -> HelpPage:
    return HelpPage(
        usage="--filter 'ATTRIBUTE OPERATOR VALUE', repeatable: all must match",
        sections=[
            Section(
                "Operators: sign, or word in any case",
                _operator_rows(),
            ),
            Section(
                "Targets",
                [
                    ("a part", "'address.city=Rome', 'name.first~ad', 'amount>1000 EUR'"),
                    ("a reference", "'company=Acme' looks up the name, 'company.domain=acme.com' any field; 'company=ID'"),
                    ("a moment", "'created_at<2y', 'updated_at>-30d', 'birthday>=1990-01-01',"),
                    ("", "'created_at=today', yesterday, 3mo; = a day is all of that day"),
                    ("wire form", "'email[contains]=acme': every byte after = is the value"),
                ],
            ),
        ],
        examples=["crmctl records list people --filter 'email$=@acme.com' --filter 'score>=90'"],
        footer="--strict makes an impossible value an error. Many requests are announced first.",
    )


def _formats_by_help() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, row in OUTPUT_FORMATS.items():
        names.setdefault(row.help, []).append(name)
    return names


OUTPUT = HelpPage(
    usage=f"crmctl <command> --output {'|'.join(OUTPUT_FORMATS)}",
    description="stdout carries data only; all else goes to stderr. On a terminal the default is a table, in a pipe it is JSON.",
    sections=[
        Section(
            "Formats",
            [(", ".join(names), text) for text, names in _formats_by_help().items()],
        ),
        Section(
            "On stderr, with any format but table",
            [
                ("error", "one JSON object, always the last line: tail -n 1 | jq .error.code"),
                ("warning: ...", "one line each, before it; without a warning the object is all there is"),
                ("findings", "in .error.details, where a run that has some ends with an error"),
                ("notes", "at the end of a run that succeeds; at once when it is long and progress is shown"),
            ],
        ),
    ],
    examples=[
        "crmctl records list people --fields name,email",
        "crmctl records list people --query '[].data.email'",
        "crmctl records list people --all -o csv --excel-safe > people.csv",
    ],
)

ENVIRONMENT = HelpPage(
    usage="CRMCTL_NAME=value crmctl <command>",
    description="A flag wins over the environment, the environment over the profile, the profile over the default.",
    sections=[
        Section(
            "Variables",
            [
                ("CRMCTL_API_KEY", "the API key; wins over the keyring"),
                ("CRMCTL_BASE_URL", "the service's address"),
                ("CRMCTL_ID_TOKEN, CRMCTL_ID_TOKEN_FILE", "the identity token of a CI job, for auth login --oidc"),
                ("CRMCTL_PROFILE", "the profile to use"),
                ("CRMCTL_OUTPUT", "the default output format"),
                ("CRMCTL_TIMEOUT", "longest wait for one answer, in seconds"),
                ("CRMCTL_MAX_ANSWER_MB", "most MB that are read of one answer, decompressed; 128"),
                ("CRMCTL_NO_INPUT", "never ask"),
                ("CRMCTL_READ_ONLY", "refuse every write before any request"),
                ("CRMCTL_WEBHOOK_SECRET", "the signing secret of webhooks listen and verify"),
                ("CRMCTL_CONFIG_DIR, CRMCTL_STATE_DIR, CRMCTL_CACHE_DIR", "folders of settings, jobs and caches"),
                ("NO_COLOR, CLICOLOR_FORCE", "colour off, colour on"),
                ("HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE", "the usual network settings"),
            ],
        ),
    ],
    examples=["CRMCTL_API_KEY=... CRMCTL_BASE_URL=https://crm.example.com crmctl records count people"],
)

SCHEDULING = HelpPage(
    usage="crmctl <command> --ping https://hc.example.com/ping/UUID",
    description="crmctl has no scheduler. These run a nightly check; --ping tells a monitor of start, success and failure.",
    sections=[
        Section(
            "systemd: crm-check.timer, with ExecStart=crmctl check --ping URL in crm-check.service",
            [("[Timer]", ""), ("OnCalendar=", "*-*-* 06:00"), ("Persistent=", "true")],
        ),
        Section("cron", [("0 6 * * *", "cd /srv/crm && crmctl check --ping URL --quiet")]),
        Section("GitHub: in the workflow's file", [("on:", "{schedule: [{cron: '0 6 * * *'}]}"), ("run:", "crmctl check --ping URL")]),
        Section(
            "GitLab: Build > Pipeline schedules, and in .gitlab-ci.yml",
            [("rules:", "[{if: '$CI_PIPELINE_SOURCE == \"schedule\"'}]"), ("script:", "[crmctl check --ping URL]")],
        ),
    ],
    footer="Keep CRMCTL_STATE_DIR from run to run: it holds the mirror, the trend and interrupted jobs.",
)

TOPICS: dict[str, Callable[[], HelpPage]] = {
    "filters": filters_page,
    "output": lambda: OUTPUT,
    "environment": lambda: ENVIRONMENT,
    "scheduling": lambda: SCHEDULING,
}
TOPIC_NAMES = (
    *("exit-codes", "filters", "matching", "matching-words", "output", "options", "environment"),
    *("report-files", "workflow-files", "scheduling", "agents"),
)
