"""The static table of top-level commands: name, module, one-line help, section. Help and completion read it without importing a command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
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

COMMANDS: tuple[Entry, ...] = (
    Entry("records", DATA, "List, search, count, read and change records"),
    Entry("bulk", DATA, "Import, export and delete many records safely"),
    Entry("objects", DATA, "List and manage objects such as people or deals"),
    Entry("attributes", DATA, "List and manage the fields of an object"),
    Entry("schema", DATA, "Write objects and attributes down, compare them, apply them"),
    Entry("activities", DATA, "List and manage notes, meetings and calls"),
    Entry("reports", DATA, "Run reports, see their results"),
    Entry("workflows", DATA, "Run workflows by hand, see their runs"),
    Entry("files", DATA, "Upload files"),
    Entry("webhooks", DATA, "See event types, open the portal, receive and check deliveries"),
    Entry("members", DATA, "List the members of the organization"),
    Entry("auth", SETUP, "Log in, log out, see what a key may do"),
    Entry("config", SETUP, "Read and change settings and profiles"),
    Entry("completion", SETUP, "Print the completion script of a shell"),
    Entry("doctor", SETUP, "Check the installation, the settings and the connection"),
    Entry("serve", SERVICE, "Run the embedded Customer Records Service"),
    Entry("service", SERVICE, "Administer an embedded service's own data"),
    Entry("demo", SERVICE, "Watch crmctl work on a throw-away service"),
    Entry("api", MORE, "Call any endpoint of the service directly"),
    Entry("commands", MORE, "Show the whole command tree, for people or machines", module="command_tree"),
    Entry("help", MORE, "Explain a command or a topic", module="help"),
)

BY_NAME: dict[str, Entry] = {entry.name: entry for entry in COMMANDS}
