"""The static table of top-level commands: name, module, one-line help, section. Help and completion read it without importing a command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommandEntry:
    """One top-level command; its module `crmctl.cli.commands.<module>` holds a Typer app named `app`."""

    name: str
    section: str
    help: str
    module: str = ""

    @property
    def import_name(self) -> str:
        return f"crmctl.cli.commands.{self.module or self.name}"


DATA = "Records and data"
SERVICE = "The embedded service"
SETUP = "Setting up"
MORE = "More"

COMMANDS: tuple[CommandEntry, ...] = (
    CommandEntry("records", DATA, "List, search, count, read and change records"),
    CommandEntry("bulk", DATA, "Import, export and delete many records safely"),
    CommandEntry("mirror", DATA, "Keep a proven copy of the data, and ask it in SQL"),
    CommandEntry("objects", DATA, "List and manage objects such as people or deals"),
    CommandEntry("attributes", DATA, "List and manage the fields of an object"),
    CommandEntry("schema", DATA, "Write objects and attributes down, compare them, apply them"),
    CommandEntry("activities", DATA, "List and manage notes, meetings and calls"),
    CommandEntry("reports", DATA, "Run reports, see their results"),
    CommandEntry("workflows", DATA, "Run workflows by hand, see their runs"),
    CommandEntry("files", DATA, "Upload files"),
    CommandEntry("webhooks", DATA, "See event types, open the portal, receive and check deliveries"),
    CommandEntry("members", DATA, "List the members of the organization"),
    CommandEntry("auth", SETUP, "Log in, log out, see what a key may do"),
    CommandEntry("config", SETUP, "Read and change settings and profiles"),
    CommandEntry("completion", SETUP, "Print the completion script of a shell"),
    CommandEntry("doctor", SETUP, "Check the installation, the settings and the connection"),
    CommandEntry("serve", SERVICE, "Run the embedded Customer Records Service"),
    CommandEntry("service", SERVICE, "Administer an embedded service's own data"),
    CommandEntry("demo", SERVICE, "Watch crmctl work on a throw-away service"),
    CommandEntry("api", MORE, "Call any endpoint of the service directly"),
    CommandEntry("commands", MORE, "Show the whole command tree, for people or machines", module="command_tree"),
    CommandEntry("help", MORE, "Explain a command or a topic", module="help"),
)

BY_NAME: dict[str, CommandEntry] = {entry.name: entry for entry in COMMANDS}
