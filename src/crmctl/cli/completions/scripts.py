"""The completion scripts by shell: their text, and the file each is kept in below completions/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from crmctl.cli.completions import bash, fish, powershell, zsh
from crmctl.cli.completions.model import Program, read_program

RENDERERS: dict[str, Callable[[Program], str]] = {
    "bash": bash.render,
    "zsh": zsh.render,
    "fish": fish.render,
    "powershell": powershell.render,
}
FILES = {"bash": "crmctl.bash", "zsh": "_crmctl", "fish": "crmctl.fish", "powershell": "crmctl.ps1"}


def completion_script(shell: str, tree: dict[str, Any]) -> str:
    """The script of a shell (a key of RENDERERS) for the command tree that `crmctl commands --json` prints."""
    return RENDERERS[shell](read_program(tree))
