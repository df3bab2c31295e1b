"""`crmctl help`: a command's help, or a topic that belongs to no single command."""

from __future__ import annotations

from typing import Annotated

import typer

from crmctl.cli.framework import CommandApp, command_help, common_option_rows
from crmctl.cli.help_text import WIDEST, HelpPage, Section, render
from crmctl.cli.help_topics import TOPICS
from crmctl.cli.registry import BY_NAME
from crmctl.errors import EXIT_CODE_MEANINGS, UsageError
from crmctl.models.nearest import suggestion

app = CommandApp()


@app.command("help", examples=["crmctl help exit-codes", "crmctl help records list"])
def explain(
    ctx: typer.Context, topic: Annotated[list[str] | None, typer.Argument(metavar="COMMAND|TOPIC", help="What to explain.")] = None
) -> None:
    """Explain a command or a topic.

    Topics: exit-codes, filters, matching, output, options, environment.
    """
    runtime = ctx.obj
    words = topic or []
    runtime.streams.write_out(_page(words, runtime.streams.width or WIDEST))


def _page(words: list[str], width: int) -> str:
    if words == ["exit-codes"]:
        rows = [(str(int(code)), meaning) for code, meaning in EXIT_CODE_MEANINGS.items()]
        return render(HelpPage(usage="crmctl <command>; echo $?", sections=[Section("Exit codes", rows)]), width)
    if words == ["options"]:
        return render(
            HelpPage(usage="crmctl [options] <command> [options]", sections=[Section("Common options", common_option_rows())]), width
        )
    if words == ["matching"]:
        from crmctl.cli.help_match import matching_page

        return render(matching_page(), width)
    if len(words) == 1 and words[0] in TOPICS:
        return render(TOPICS[words[0]], width)
    shown = command_help(words, width)
    if shown is None:
        topics = ["exit-codes", "matching", "options", *TOPICS]
        named = " ".join(words)
        listing = f"crmctl --help lists the commands; topics: {', '.join(topics)}"
        raise UsageError(f"there is no command or topic '{named}'", hint=suggestion(named, [*topics, *BY_NAME], listing))
    return shown
