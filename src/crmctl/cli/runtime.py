"""The one object every command gets as `ctx.obj`: cheap parts at once, costly parts on first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crmctl.clock import Clock, SystemClock
from crmctl.errors import CrmctlError

if TYPE_CHECKING:
    from crmctl.client.crm import Crm
    from crmctl.client.directory import Directory
    from crmctl.config.credentials import Credential
    from crmctl.config.paths import Paths
    from crmctl.config.settings import Settings
    from crmctl.output.emitter import Emitter
    from crmctl.output.messages import Messages
    from crmctl.output.progress import Progress
    from crmctl.output.prompts import Prompter
    from crmctl.output.streams import Streams

FORMATS = ("table", "json", "jsonl", "csv", "tsv", "yaml", "ids")


class Runtime:
    """Wiring of one run. `flags` holds the common options that were given, under their parameter names."""

    def __init__(self, streams: Streams, environ: dict[str, str], arguments: Sequence[str] = (), clock: Clock | None = None) -> None:
        self.streams = streams
        self.environ = environ
        self.arguments = list(arguments)
        self.clock: Clock = clock or SystemClock()
        self.flags: dict[str, Any] = {}

    @cached_property
    def paths(self) -> Paths:
        from crmctl.config.paths import Paths

        return Paths.from_environment(self.environ)

    @cached_property
    def settings(self) -> Settings:
        """Every setting with its source. Raises ConfigError for a broken file or a bad value."""
        from crmctl.config.settings import Flags, load_settings

        given = {name: self.flags[name] for name in Flags.names() if name in self.flags}
        if self.flags.get("json"):
            given["output"] = "json"
        return load_settings(self.environ, Flags(**given), self.paths)

    @property
    def output_format(self) -> str:
        """The format of stdout: what was asked for, else a table for a person and JSON for a program."""
        return self.settings.output.value or ("table" if self.streams.stdout_is_terminal else "json")

    @property
    def dry_run(self) -> bool:
        return bool(self.flags.get("dry_run"))

    @property
    def assume_yes(self) -> bool:
        return bool(self.flags.get("yes"))

    @cached_property
    def messages(self) -> Messages:
        """Notes, warnings and the error. Never fails: a run whose settings are broken must still be able to say so."""
        from crmctl.output.messages import Messages

        machine = self._format_for_messages() != "table"
        return Messages(self.streams, quiet=bool(self.flags.get("quiet")), verbose=bool(self.flags.get("verbose")), machine=machine)

    def _format_for_messages(self) -> str:
        try:
            chosen = self.flags.get("output") or ("json" if self.flags.get("json") else None) or self._format_in_arguments()
            return chosen or self.output_format
        except CrmctlError:
            return "table" if self.streams.stdout_is_terminal else "json"

    def _format_in_arguments(self) -> str | None:
        """The format a command line asks for that could not be parsed: its usage error should still come in that format."""
        for position, word in enumerate(self.arguments):
            if word == "--json":
                return "json"
            if word in ("-o", "--output") and position + 1 < len(self.arguments):
                return self.arguments[position + 1]
            if word.startswith("--output="):
                return word.partition("=")[2]
            if word.startswith("-o") and word[2:] in FORMATS:
                return word[2:]
        return None

    @cached_property
    def credential(self) -> Credential:
        """The API key. Raises DeniedError when there is none for this origin."""
        from crmctl.config.credentials import require_credential

        return require_credential(self.settings, self.environ, self.paths)

    @cached_property
    def crm(self) -> Crm:
        """The service, ready to be asked. Raises ConfigError or DeniedError when nothing is configured."""
        return self.connect()

    def connect(self, lane: str = "interactive") -> Crm:
        """A client on the given lane of the rate budget (`interactive` or `bulk`)."""
        from crmctl.client.connect import connect

        self.settings.require_base_url()
        return connect(
            self.settings,
            self.credential,
            self.paths,
            clock=self.clock,
            log=self.messages.debug if self.flags.get("debug") else None,
            note=self.messages.note,
            lane=lane,
        )

    @cached_property
    def directory(self) -> Directory:
        from crmctl.client.directory import Directory
        from crmctl.config.settings import origin_of

        return Directory(self.crm, self.paths.cache, self.settings.profile.value, origin_of(self.settings.require_base_url()), self.clock)

    @cached_property
    def emitter(self) -> Emitter:
        from crmctl.output.emitter import Emitter

        fields = self.flags.get("fields")
        return Emitter(
            self.streams,
            self.output_format,
            fields=[name.strip() for name in fields.split(",") if name.strip()] if fields else None,
            query=self.flags.get("query"),
            excel_safe=bool(self.flags.get("excel_safe")),
        )

    @cached_property
    def prompter(self) -> Prompter:
        from crmctl.output.prompts import Prompter

        return Prompter(self.streams, no_input=self.settings.no_input.value)

    @cached_property
    def progress(self) -> Progress:
        from crmctl.output.progress import Progress

        return Progress(self.streams, quiet=bool(self.flags.get("quiet")), clock=self.clock)

    def close(self) -> None:
        """Flush stdout and print what notes were held back; after this nothing more is said."""
        if "messages" in self.__dict__:
            self.messages.finish()
        self.streams.flush()
