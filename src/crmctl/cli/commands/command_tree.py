"""`crmctl commands`: the whole command tree."""

from __future__ import annotations

from crmctl.cli.app import CommandApp, describe_tree, walk_commands
from crmctl.cli.runtime import Runtime

app = CommandApp()


@app.command("commands", local=True, examples=["crmctl commands", "crmctl commands --json"])
def show_commands(runtime: Runtime) -> None:
    """Show the whole command tree, for people or machines.

    As JSON: every command with its arguments, options, help and examples, and the common options once.
    """
    tree = describe_tree()
    if runtime.message_format == "table":
        leaves = list(walk_commands(tree))
        width = max(len(leaf["command"]) for leaf in leaves)
        runtime.streams.write_out("".join(f"{leaf['command'].ljust(width)}  {leaf['summary']}\n" for leaf in leaves))
    else:
        runtime.emitter.emit_result(tree)
