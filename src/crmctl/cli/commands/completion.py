"""`crmctl completion`: the completion script of a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from crmctl.cli.framework import CommandApp, describe_tree
from crmctl.errors import UsageError
from crmctl.models.nearest import suggestion

app = CommandApp()


@app.command(
    "completion",
    examples=[
        "crmctl completion bash > ~/.local/share/bash-completion/completions/crmctl",
        "crmctl completion zsh > ~/.zfunc/_crmctl",
        "crmctl completion fish > ~/.config/fish/completions/crmctl.fish",
        "crmctl completion powershell >> $PROFILE",
    ],
)
def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish|powershell", help="The shell that will read the script.")],
) -> None:
    """Print the completion script of a shell.

    Commands and options complete without starting crmctl; object and attribute slugs and profiles come from its cache.
    """
    from crmctl.cli.completions.scripts import RENDERERS, completion_script

    if shell not in RENDERERS:
        raise UsageError(f"there is no completion for '{shell}'", hint=suggestion(shell, RENDERERS, f"one of: {', '.join(RENDERERS)}"))
    ctx.obj.streams.write_out(completion_script(shell, describe_tree()))
