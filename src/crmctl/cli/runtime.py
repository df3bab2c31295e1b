"""The runtime that every command gets; it creates costly parts on first use."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from crmctl.clock import Clock, SystemClock
from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.errors import ConfigError, CrmctlError, ServiceError, UsageError
from crmctl.models.ids import check_choice

if TYPE_CHECKING:
    from pathlib import Path

    from crmctl.cli.bulk_output import ScreenListener
    from crmctl.cli.shown_ids import ShownIds
    from crmctl.client.crm import Crm
    from crmctl.client.directory import Directory
    from crmctl.client.session import Session
    from crmctl.config.credentials import Credential
    from crmctl.config.settings import Paths, Settings
    from crmctl.models.jsontext import Json
    from crmctl.output.emitter import Emitter
    from crmctl.output.messages import Messages, Prompter
    from crmctl.output.progress import ProgressDisplay
    from crmctl.output.streams import Streams

PING_SECONDS = 10.0


class Runtime:
    """Parts of one run, and the `BulkContext` of a command. `flags` holds the given common options by parameter name."""

    def __init__(self, streams: Streams, environ: dict[str, str], arguments: Sequence[str] = (), clock: Clock | None = None) -> None:
        self.streams = streams
        self.environ = environ
        self.arguments = list(arguments)
        self.clock: Clock = clock or SystemClock()
        self.flags: Json = {}
        self._ping_url: str | None = None
        self._warnings_left = self._logs_bodies = True
        self._connected: Crm | None = None
        self._endings: list[Callable[[], object]] = []

    def at_end(self, close: Callable[[], object]) -> None:
        """Call `close` when the run ends."""
        self._endings.append(close)

    def end(self) -> None:
        """Close everything the run has opened."""
        while self._endings:
            self._endings.pop()()

    @cached_property
    def paths(self) -> Paths:
        from crmctl.config.settings import Paths

        return Paths.from_environment(self.environ)

    @cached_property
    def settings(self) -> Settings:
        """Every setting with its source. Raises ConfigError for a broken file or a bad value."""
        from crmctl.config.settings import load_settings

        return load_settings(self.environ, self.flags | ({"output": "json"} if self.flags.get("json") else {}), self.paths)

    @property
    def output_format(self) -> str:
        """Format of stdout: the chosen one, else a table on a terminal and JSON elsewhere."""
        if self.flags.get("raw_output") and not (self.flags.get("output") or self.flags.get("json")):
            return "json"
        return self.settings.output.value or ("table" if self.streams.stdout_is_terminal else "json")

    def check_options(self) -> None:
        """Check options and settings before the command starts. Raises UsageError and ConfigError."""
        self.streams.color_mode = self.settings.color.value
        output_format = self.flags.get("output")
        if self.flags.get("json") and output_format not in (None, "json"):
            raise UsageError(f"--json and --output {output_format} exclude each other", hint="leave one of them out")
        if self.flags.get("raw_output") and not OUTPUT_FORMATS[self.output_format].keeps_shape:
            raise UsageError(f"--raw-output is for JSON, not {self.output_format}", hint="leave it out, or -o json")
        _ = self.emitter, self.shape

    def check_plain(self, what: str, output_format: str) -> None:
        """Raise UsageError for options that would change an output that is always in this format."""
        flags = self.flags
        if flags.get("json") or flags.get("output") not in (None, output_format) or flags.get("query") or flags.get("fields"):
            raise UsageError(f"{what} excludes other formats, --query and --fields", hint="leave one of them out")

    def guard_write(self) -> None:
        """Check that this run may write, before its first request; a protected profile asks for its name on a terminal.

        Raises UsageError if it may not.
        """
        self.guard_read_only()
        if self.dry_run or not self.settings.protected.value:
            return
        name = self.settings.profile.value
        if not self.prompter.can_ask:
            raise UsageError(
                f"the profile {name!r} is protected: writes need its name typed on a terminal",
                hint=f"run this on a terminal, or lift the protection: crmctl config unset protected --profile {name}",
                code="protected_profile",
            )
        self.prompter.typed(f"The profile {name!r} ({self.settings.base_url.value}) is protected.", name)

    def guard_read_only(self) -> None:
        """Raise UsageError if all writes are refused."""
        if self.settings.read_only.value and not self.dry_run:
            source = self.settings.read_only.source
            raise UsageError(f"writes are refused: read-only is set ({source})", hint=f"unset {source} to write", code="read_only")
        self.emitter.is_after_write = not self.dry_run

    def start_ping(self, url: str | None) -> None:
        """With a URL, tell a monitor that the command starts, and at the end its exit code, also after SIGTERM. Raises UsageError."""
        from crmctl.config.settings import is_web_address

        if url is None:
            return
        if not is_web_address(url):
            raise UsageError(f"--ping {url!r} is no web address", hint="for example --ping https://hc.example.com/ping/UUID")
        self._ping_url = url.rstrip("/")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.send_ping("start")

    def send_ping(self, word: str) -> None:
        """Request URL/WORD of the monitor, if there is one. A monitor that cannot be reached gets a warning and changes nothing."""
        if self._ping_url is None:
            return
        from crmctl.client.transport import Request, send_once

        request = Request("GET", f"{self._ping_url}/{word}", timeout=PING_SECONDS)
        try:
            if (status := send_once(request, ca_bundle=self.settings.ca_bundle.value).status) >= 400:
                self.messages.warn(f"the monitor answered --ping with status {status}")
        except CrmctlError as error:
            self.messages.warn(f"the monitor did not get --ping {word}: {error.message}")

    def confirm(self, question: str, stake: Callable[[], str] | None = None) -> None:
        """Ask before a loss, unless --yes or --dry-run is given. `stake` describes the loss and is called only for a prompt.

        Raises UsageError naming --yes if crmctl cannot prompt, InterruptedByUser if the user declines.
        """
        if self.dry_run or self.assume_yes:
            return
        extra = f" and {stake()}" if stake is not None and self.prompter.can_ask else ""
        self.prompter.confirm(f"{question}{extra}?")

    def done(self, document: Any, sentence: str) -> None:
        """Show the result of an action without a resource: a sentence for people, a document for programs."""
        if self.output_format == "table":
            self.messages.success(sentence)
        else:
            self.emitter.emit_result(document)

    @property
    def needs_columns(self) -> bool:
        """Whether the output depends on the attributes of an object."""
        return OUTPUT_FORMATS[self.output_format].has_columns or bool(self.flags.get("fields"))

    @property
    def shape(self) -> str:
        """The form of composite values in csv. Raises UsageError for an unknown one."""
        shape = str(self.flags.get("shape") or "columns")
        check_choice("--shape", shape, ("columns", "json"))
        return shape

    def take_fields(self) -> list[str] | None:
        """Return the names of --fields and forget them, for commands that apply them to a file instead of their result."""
        names, self.emitter.fields = self.emitter.fields, None
        return names

    @property
    def dry_run(self) -> bool:
        return bool(self.flags.get("dry_run"))

    @property
    def excel_safe(self) -> bool:
        return bool(self.flags.get("excel_safe"))

    @property
    def assume_yes(self) -> bool:
        return bool(self.flags.get("yes"))

    @property
    def asks(self) -> bool:
        """Whether `confirm` prompts."""
        return not self.dry_run and not self.assume_yes and self.prompter.can_ask

    @cached_property
    def messages(self) -> Messages:
        """Notes, warnings and errors. Never fails, even with broken settings."""
        from crmctl.output.messages import Messages

        try:
            self.streams.color_mode = self.settings.color.value
        except CrmctlError:
            flag = self.flags.get("color")
            self.streams.color_mode = flag if flag in ("always", "never") else "auto"
        machine = self.message_format != "table"
        return Messages(self.streams, quiet=bool(self.flags.get("quiet")), verbose=bool(self.flags.get("verbose")), machine=machine)

    @property
    def message_format(self) -> str:
        """Output format for errors and for commands that repair settings, even if the settings are broken."""
        from crmctl.config.settings import load_settings

        chosen = self.flags.get("output") or ("json" if self.flags.get("json") else None) or self._format_in_arguments()
        if chosen in OUTPUT_FORMATS:
            return str(chosen)
        with suppress(CrmctlError):
            return self.output_format
        with suppress(CrmctlError):
            # The settings are broken: read only those that give the format.
            named = {name: value for name, value in self.environ.items() if name in ("CRMCTL_OUTPUT", "CRMCTL_PROFILE")}
            if (output_format := load_settings(named, {"profile": self.flags.get("profile")}, self.paths).output.value) is not None:
                return str(output_format)
        return "table" if self.streams.stdout_is_terminal else "json"

    def _format_in_arguments(self) -> str | None:
        """Return the format named by a command line that could not be parsed, for its usage error."""

        for position, word in enumerate(self.arguments):
            if word == "--json":
                return "json"
            if word in ("-o", "--output") and position + 1 < len(self.arguments):
                return self.arguments[position + 1]
            if word.startswith("--output="):
                return word.partition("=")[2]
            if word.startswith("-o") and word[2:] in OUTPUT_FORMATS:
                return word[2:]
        return None

    @cached_property
    def credential(self) -> Credential:
        """The API key. Raises DeniedError if there is none for this origin."""
        if self.settings.auth.value == "oidc":
            from crmctl.client.issued_keys import find_key

            return find_key(self.settings, self.environ, self.paths, self.clock)
        from crmctl.config.credentials import require_credential

        return require_credential(self.settings, self.environ, self.paths)

    @cached_property
    def crm(self) -> Crm:
        """Client of the service. Raises ConfigError or DeniedError if nothing is configured."""
        return self.connect()

    @cached_property
    def service(self) -> Crm:
        """The client in the lane of bulk work."""
        return self.connect(lane="bulk")

    def without_bodies(self) -> Self:
        """Let --debug show no bodies of requests, for work on whole objects."""
        self._logs_bodies = False
        return self

    def connect(self, lane: str = "interactive") -> Crm:
        """Return a client on a lane of the rate budget (`interactive` or `bulk`)."""
        from crmctl.client.crm import connect

        self.settings.require_base_url()
        warnings, self._warnings_left = self._warnings_left, False
        for warning in self.settings.warnings if warnings else ():
            self.messages.warn(warning)
        crm = connect(
            self.settings,
            self.credential,
            self.paths,
            clock=self.clock,
            log=self.messages.debug if self.flags.get("debug") else None,
            note=self.messages.note,
            lane=lane,
        )
        crm.session.logs_bodies = self._logs_bodies
        if self.dry_run:
            from crmctl.cli.preview import PreviewSession

            crm.session = cast("Session", PreviewSession(crm.session))
        self._connected = crm
        return crm

    @cached_property
    def directory(self) -> Directory:
        from crmctl.client.directory import Directory

        return Directory(self.crm, self.paths.cache, self.profile, self.origin, self.clock)

    @property
    def origin(self) -> str:
        return self.settings.require_origin()

    @property
    def profile(self) -> str:
        return self.settings.profile.value

    @property
    def key(self) -> str:
        return self.credential.key

    @property
    def state(self) -> Path:
        return self.paths.state

    @property
    def stdin(self) -> BinaryIO:
        stdin: BinaryIO = self.streams.stdin.buffer
        return stdin

    @cached_property
    def listener(self) -> ScreenListener:
        from crmctl.cli.bulk_output import ScreenListener

        return ScreenListener(self)

    @cached_property
    def shown_ids(self) -> ShownIds:
        from crmctl.cli.shown_ids import ShownIds

        return ShownIds(self.paths.cache)

    @property
    def _shortens_ids(self) -> bool:
        is_table = self.streams.stdout_is_terminal and self.message_format == "table"
        return is_table and not self.flags.get("wide") and not self.flags.get("fields")

    @cached_property
    def emitter(self) -> Emitter:
        from crmctl.output.emitter import Emitter

        fields = self.flags.get("fields")
        names = [name.strip() for name in fields.split(",") if name.strip()] if fields else None
        if names == []:
            raise UsageError(f"--fields {fields!r} names no field", hint="--fields id,name")
        try:
            form, pager = self.output_format, self.settings.pager.value
        except ConfigError:  # local commands work with broken settings
            form, pager = self.message_format, None
        return Emitter(
            self.streams,
            form,
            fields=names,
            query=self.flags.get("query"),
            excel_safe=self.excel_safe,
            pager=pager,
            raw=bool(self.flags.get("raw_output")),
            messages=self.messages,
            remember=self.shown_ids.remember if self._shortens_ids else None,
        )

    @cached_property
    def prompter(self) -> Prompter:
        from crmctl.output.messages import Prompter

        return Prompter(self.streams, no_input=self.settings.no_input.value)

    @cached_property
    def progress(self) -> ProgressDisplay:
        from crmctl.output.progress import ProgressDisplay

        # With a machine format a program may read stderr as one error document.
        is_document = self.settings.output.value not in (None, "table") and not self.streams.stderr_is_terminal
        return ProgressDisplay(
            self.streams,
            quiet=bool(self.flags.get("quiet")) or is_document,
            clock=self.clock,
            say=self.messages.progress,
            time_for=self._time_for,
            beat=1.0,
        )

    def _time_for(self, requests: int) -> float:
        # The newest connection is that of the bulk lane, if there is one: it knows what it waits for.
        return (self._connected or self.crm).session.time_for(requests)

    def browse(self, url: str) -> None:
        """Open an address in the browser, or tell the user to. Raises ServiceError if it is no web address."""
        import sys
        import webbrowser

        if not url.startswith(("https://", "http://")):
            raise ServiceError(f"{url!r} is no web address", code="unreadable_answer")
        has_display = sys.platform in ("darwin", "win32") or any(
            self.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
        )
        if not (self.streams.stderr_is_terminal and has_display and webbrowser.open(url)):
            self.messages.warn("there is no browser to open here: open the address yourself")

    def close(self) -> None:
        """Flush stdout and print the notes held back."""
        if "messages" in self.__dict__:
            self.messages.finish()
        self.streams.flush()
