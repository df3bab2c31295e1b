"""Writes the completion scripts of this folder from the command tree. Run by `make generated`."""

from __future__ import annotations

from pathlib import Path

from crmctl.cli.completions.scripts import FILES, completion_script
from crmctl.cli.framework import describe_tree


def main() -> None:
    """Write every shell's script; a test fails while one of them is out of date."""
    tree = describe_tree()
    for shell, name in FILES.items():
        (Path(__file__).parent / name).write_text(completion_script(shell, tree))


if __name__ == "__main__":
    main()
