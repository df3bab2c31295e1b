"""`crmctl help`: a command's help, or a topic that belongs to no single command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crmctl.cli.app import CommandApp, command_help
from crmctl.cli.help_text import TOPIC_NAMES, render
from crmctl.cli.options import WIDEST
from crmctl.cli.registry import BY_NAME
from crmctl.cli.runtime import Runtime
from crmctl.errors import UsageError
from crmctl.models.ids import suggestion

app = CommandApp()


@app.command("help", examples=["crmctl help exit-codes", "crmctl help records list", "crmctl help agents --install skills/crmctl"])
def explain(
    runtime: Runtime,
    topic: Annotated[list[str] | None, typer.Argument(metavar="COMMAND|TOPIC", help="What to explain.")] = None,
    folder: Annotated[Path | None, typer.Option("--install", metavar="DIR", help="With agents: write SKILL.md into DIR.")] = None,
) -> None:
    """Explain a command or a topic.

    Topics: exit-codes, filters, matching, matching-words, output, options, environment, report-files, workflow-files, scheduling, agents.

    agents prints a skill file: instructions for programs that use crmctl on their own. --install says whether a copy was outdated.
    """
    words = topic or []
    if folder is not None:
        if words != ["agents"]:
            raise UsageError("--install belongs to: crmctl help agents", hint="crmctl help agents --install DIR")
        from crmctl.cli.help_agents import install

        result = install(folder)
        runtime.done(result, f"{result['path']}: {result['state']}")
        return
    runtime.streams.write_out(_page(words, runtime.streams.width or WIDEST))


def _page(words: list[str], width: int) -> str:
    topic = " ".join(words)
    if topic == "agents":
        from crmctl.cli.help_agents import skill_file

        return skill_file()
    if topic in TOPIC_NAMES:
        from crmctl.cli.help_topics import PAGES

        return render(PAGES[topic](), width)
    page = command_help(words, width)
    if page is None:
        listing = f"crmctl --help lists the commands; topics: {', '.join(TOPIC_NAMES)}"
        raise UsageError(f"there is no command or topic '{topic}'", hint=suggestion(topic, [*TOPIC_NAMES, *BY_NAME], listing))
    return page
