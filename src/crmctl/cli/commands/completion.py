"""`crmctl completion`: the completion script of a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from crmctl.cli.app import CommandApp
from crmctl.cli.options import argument
from crmctl.cli.runtime import Runtime
from crmctl.errors import UsageError
from crmctl.models.ids import suggestion

app = CommandApp()

SCRIPTS = {"bash": "crmctl.bash", "zsh": "_crmctl", "fish": "crmctl.fish", "powershell": "crmctl.ps1"}
"""The script of each shell, a file of the folder `completions`."""


@app.command(
    "completion",
    local=True,
    examples=[
        "crmctl completion bash > ~/.local/share/bash-completion/completions/crmctl",
        "crmctl completion zsh > ~/.zfunc/_crmctl",
        "crmctl completion fish > ~/.config/fish/completions/crmctl.fish",
        "crmctl completion powershell >> $PROFILE",
    ],
)
def completion(
    runtime: Runtime,
    shell: Annotated[str, argument("bash|zsh|fish|powershell", "The shell that will read the script.")],
) -> None:
    """Print the completion script of a shell.

    The script asks crmctl for the candidates; object and attribute slugs and profiles come from its cache.
    """
    if shell not in SCRIPTS:
        raise UsageError(f"there is no completion for '{shell}'", hint=suggestion(shell, SCRIPTS, f"one of: {', '.join(SCRIPTS)}"))
    # The wheel has the folder in the package; in an editable installation it is the repository's.
    roots = (Path(__file__).parents[1], Path(__file__).parents[4])
    script = next(path for root in roots if (path := root / "completions" / SCRIPTS[shell]).is_file())
    runtime.streams.write_out(script.read_text(encoding="utf-8"))
