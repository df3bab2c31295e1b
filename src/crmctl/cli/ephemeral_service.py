"""`crmctl serve --ephemeral`: a test double with its fixture."""

from __future__ import annotations

import os
import select
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crmctl.cli.app import run_command
from crmctl.cli.runtime import Runtime
from crmctl.errors import CrmctlError, RejectedError, UsageError
from crmctl.models import jsontext
from crmctl.models.ids import suggestion
from crmctl.output.streams import Streams
from crmctl.service.context import ServiceSettings
from crmctl.service.faults import BadRequest
from crmctl.values.moments import read_moment

if TYPE_CHECKING:
    from crmctl.service.server import Ready, Server
    from crmctl.service.testdouble.double import TestDouble

SCHEMA = "schema.yaml"
SETTINGS = "org.toml"
"""In a folder that `crmctl org pull` wrote."""
MISSING = "missing_reference"
"""Code of a row that refers to a missing record."""
Commands = dict[Path, tuple[str, ...]]
DOUBLE_OPTIONS = ("fixture", "seed", "clock", "fault")
"""Options that need --ephemeral."""
OWN_DATA = ("data", "database_url", "host", "public_url", "ready_file", "files_s3")
"""Options that contradict --ephemeral."""


def check_double_options(ctx: typer.Context, *, ephemeral: bool) -> None:
    """Raise UsageError for options that need --ephemeral or exclude it. Those of an ordinary service may be in the environment."""
    sources = ("COMMANDLINE",) if ephemeral else ("COMMANDLINE", "ENVIRONMENT")
    for name in OWN_DATA if ephemeral else DOUBLE_OPTIONS:
        source, option = ctx.get_parameter_source(name), f"--{name.replace('_', '-')}"
        if source is not None and source.name in sources:
            raise UsageError(f"{option} and --ephemeral exclude each other" if ephemeral else f"{option} needs --ephemeral")


def serve_double(
    runtime: Runtime, settings: ServiceSettings, fixture: Path | None, seed: int | None, clock: str | None, faults: Sequence[str]
) -> None:
    """Serve from a temporary directory until a signal. Raises UsageError for a bad option, and what loading the fixture raises."""
    from crmctl.service.server import Server
    from crmctl.service.testdouble.double import TestDouble

    start = None if clock is None else read_moment(clock, runtime.clock.now()).at.timestamp()
    commands = {} if fixture is None else _read_fixture(fixture)
    try:
        double = TestDouble(seed=seed, start=start, rules=faults)
    except BadRequest as error:
        raise UsageError(error.message, hint="crmctl serve --help-all has an example", code="bad_fault_rule") from error
    with tempfile.TemporaryDirectory(prefix="crmctl-ephemeral-", ignore_cleanup_errors=True) as folder:
        own = replace(settings, data_dir=Path(folder) / "data", database_url=None, files_s3=None)
        settings = replace(own, host="127.0.0.1", public_url=None, development=True)
        _run_double(runtime, Server(settings, double=double), double, commands, Path(folder))


def _run_double(runtime: Runtime, server: Server, double: TestDouble, commands: Commands, folder: Path) -> None:
    """Serve until a signal, until stdin closes, or until the fixture fails: it is loaded once the server listens. Raises its error."""
    failures: list[Exception] = []

    def prepare(ready: Ready) -> None:
        try:
            _load(commands, ready, folder / "client")
            double.begin()
            document = {"baseUrl": ready.base_url, "apiKey": ready.api_key, "data": str(server.settings.data_dir)}
            runtime.streams.write_out(jsontext.dumps(document) + "\n")
        except Exception as error:
            failures.append(error)
            server.stop()

    def listening(ready: Ready) -> None:
        threading.Thread(target=prepare, args=[ready], name="fixture", daemon=True).start()
        threading.Thread(target=_stop_with_owner, args=[runtime, server], name="owner", daemon=True).start()

    server.run(listening)
    if failures:
        raise failures[0]


def _stop_with_owner(runtime: Runtime, server: Server) -> None:
    """Stop the server when the other end of stdin is closed, as a killed owner closes it. What can be read at once is no owner's pipe."""
    try:
        stdin = runtime.streams.stdin.fileno()
        is_owned = not os.isatty(stdin) and not select.select([stdin], [], [], 0)[0]
    except (OSError, ValueError):
        return
    if is_owned:
        while os.read(stdin, 65536):
            pass
        server.stop()


def _read_fixture(folder: Path) -> Commands:
    """Return the files of a fixture, the schema first, with the commands that load them. Raises UsageError for any other folder."""
    if (folder / SETTINGS).is_file():
        return {folder: ("org", "apply", str(folder), "--edited", "--yes")}
    hint = f"a fixture holds {SCHEMA} and OBJECT.csv files"
    if not folder.is_dir():
        raise UsageError(f"the fixture {folder} is no folder", hint=hint)
    commands: Commands = {path: ("schema", "apply", str(path)) for path in folder.glob(SCHEMA)}
    for path in sorted(path for path in folder.glob("[!.]*") if path not in commands):
        if path.suffix != ".csv":
            raise UsageError(f"the fixture {folder} holds {path.name}, which is not read", hint=suggestion(path.name, [SCHEMA], hint))
        commands[path] = ("bulk", "import", path.stem, str(path), "--concurrency=1", "--mirror=never")
    if not commands:
        raise UsageError(f"the fixture {folder} is empty", hint=hint)
    return commands


def _load(commands: Commands, ready: Ready, home: Path) -> None:
    """Run the commands; a table waits for those that it refers to. Raises RejectedError naming the file."""
    homes = {f"CRMCTL_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
    environ = homes | {"CRMCTL_BASE_URL": ready.base_url, "CRMCTL_API_KEY": ready.api_key or "", "NO_PROXY": "*"}
    while commands:
        waiting: dict[Path, RejectedError] = {}
        for path, command in commands.items():
            try:
                _run(environ, path, *command)
            except RejectedError as error:
                if error.code != MISSING:
                    raise
                waiting[path] = error
        if waiting.keys() == commands.keys():
            raise next(iter(waiting.values()))
        commands = {path: commands[path] for path in waiting}


def _run(environ: dict[str, str], path: Path, *command: str) -> None:
    """Run one command. Raises RejectedError with its message, or its first finding."""
    runtime = Runtime(Streams(None, None, None, environ), environ)
    try:
        run_command(command, runtime)
    except CrmctlError as error:
        message, code = error.message, error.code
        if isinstance(error.details, dict) and (findings := error.details.get("findings")):
            finding = findings[0]
            column = f", {finding['column']}" if finding["column"] else ""
            message, code = f"line {finding['line']}{column}: {finding['message']}", finding["code"]
        place = "" if message.startswith(str(path)) else f"{path}: "
        raise RejectedError(f"the fixture {place}{message}", hint="see docs/guides/test-against-a-double.md", code=code) from error
    finally:
        runtime.end()
