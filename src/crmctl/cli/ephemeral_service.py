"""`crmctl serve --ephemeral`: a test double with its fixture."""

from __future__ import annotations

import io
import os
import select
import stat
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crmctl.cli.app import run_command
from crmctl.cli.runtime import Runtime
from crmctl.config.settings import is_loopback
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
OWN_DATA = ("data", "database_url", "public_url", "ready_file", "files_s3")
"""Options that contradict --ephemeral."""


@dataclass(frozen=True)
class DoubleOptions:
    fixture: Path | None
    seed: int | None
    clock: str | None
    faults: tuple[str, ...]


def test_double_options(ctx: typer.Context, ephemeral: bool, options: DoubleOptions) -> DoubleOptions | None:
    """Return the options of a test double, None without --ephemeral. Raises UsageError for options that need it or exclude it."""

    def is_typed(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    if not ephemeral:
        named = {"fixture": options.fixture, "seed": options.seed, "clock": options.clock, "fault": options.faults or None}
        if option := next((name for name, value in named.items() if value is not None), None):
            raise UsageError(f"--{option} needs --ephemeral", hint=f"crmctl serve --ephemeral --{option} ...")
        return None
    if refused := next((name for name in OWN_DATA if is_typed(name)), None):
        raise UsageError(f"--{refused.replace('_', '-')} and --ephemeral exclude each other", hint="a test double keeps nothing")
    return options


def serve_double(runtime: Runtime, settings: ServiceSettings, options: DoubleOptions) -> None:
    """Serve from a temporary directory until a signal. Raises UsageError for a bad rule, and what loading the fixture raises."""
    host = settings.host.strip("[]")
    if not is_loopback(f"http://[{host}]" if ":" in host else f"http://{host}"):
        raise UsageError(f"--ephemeral listens on this machine only, not on {settings.host}", hint="leave out --host")
    from crmctl.service.server import Server
    from crmctl.service.testdouble.double import TestDouble

    start = None if options.clock is None else read_moment(options.clock, runtime.clock.now()).at.timestamp()
    fixture = None if options.fixture is None else Fixture.read(options.fixture)
    try:
        double = TestDouble(seed=options.seed, start=start, rules=options.faults)
    except BadRequest as error:
        raise UsageError(error.message, hint="crmctl serve --help-all has an example", code="bad_fault_rule") from error
    with tempfile.TemporaryDirectory(prefix="crmctl-ephemeral-", ignore_cleanup_errors=True) as folder:
        server = Server(replace(settings, data_dir=Path(folder) / "data", database_url=None, development=True), double=double)
        _run_double(runtime, server, double, fixture, Path(folder))


def _run_double(runtime: Runtime, server: Server, double: TestDouble, fixture: Fixture | None, folder: Path) -> None:
    """Serve until a signal, or until the fixture fails: it is loaded once the server listens. Raises its error."""
    failures: list[Exception] = []

    def announce(ready: Ready) -> None:
        double.begin()
        document = {"baseUrl": ready.base_url, "apiKey": ready.api_key, "data": str(server.settings.data_dir)}
        runtime.streams.write_out(jsontext.dumps(document) + "\n")

    def load() -> None:
        try:
            assert fixture is not None
            fixture.load(server.ready, folder / "client")
            announce(server.ready)
        except Exception as error:
            failures.append(error)
            server.stop()

    def listening(ready: Ready) -> None:
        threading.Thread(target=_stop_with_owner, args=[runtime, server], name="owner", daemon=True).start()
        if fixture is None:
            announce(ready)
        else:
            threading.Thread(target=load, name="fixture", daemon=True).start()

    server.run(listening)
    if failures:
        raise failures[0]


def _stop_with_owner(runtime: Runtime, server: Server) -> None:
    """Stop the server when the other end of stdin is closed, as a killed owner closes it. A pipe that is closed already has no owner."""
    try:
        stdin = runtime.streams.stdin.fileno()
        mode = os.fstat(stdin).st_mode
    except (OSError, ValueError):
        return
    poll = select.poll()
    poll.register(stdin, select.POLLIN)
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) or poll.poll(0):
        return
    while os.read(stdin, 65536):
        pass
    server.stop()


@dataclass(frozen=True)
class Fixture:
    """A folder of `crmctl org pull`, or one with a schema and one CSV file per object."""

    folder: Path
    tables: dict[str, Path]

    @property
    def is_organization(self) -> bool:
        return (self.folder / SETTINGS).is_file()

    @classmethod
    def read(cls, folder: Path) -> Fixture:
        """Raises UsageError for a folder that is neither."""
        if not folder.is_dir():
            raise UsageError(f"the fixture {folder} is no folder", hint=f"--fixture DIR holds {SCHEMA} and OBJECT.csv files")
        fixture = cls(folder, {})
        if fixture.is_organization:
            return fixture
        files = {path.name: path for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
        if other := next((name for name in files if name != SCHEMA and not name.endswith(".csv")), None):
            hint = suggestion(other, [SCHEMA], f"a fixture holds {SCHEMA} and OBJECT.csv files")
            raise UsageError(f"the fixture {folder} holds {other}, which is not read", hint=hint)
        if not files:
            raise UsageError(f"the fixture {folder} is empty", hint=f"it holds {SCHEMA} and OBJECT.csv files")
        return cls(folder, {path.stem: path for path in files.values() if path.suffix == ".csv"})

    def load(self, ready: Ready, home: Path) -> None:
        """Load everything with crmctl's own commands, referenced objects first. Raises RejectedError naming the file."""
        homes = {f"CRMCTL_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
        environ = homes | {"CRMCTL_BASE_URL": ready.base_url, "CRMCTL_API_KEY": ready.api_key or "", "NO_PROXY": "*"}
        if self.is_organization:
            _run(environ, self.folder, "org", "apply", str(self.folder), "--edited", "--yes")
            return
        if (schema := self.folder / SCHEMA).exists():
            _run(environ, schema, "schema", "apply", str(schema))
        keys, references = self._references(environ)
        targets = {slug: {*links.values()} & self.tables.keys() - {slug} for slug, links in references.items()}
        try:
            order = [*TopologicalSorter(targets).static_order()]
        except CycleError as error:
            problem = f"{' and '.join(sorted({*error.args[1]}))} refer to each other"
            raise RejectedError(f"the fixture {self.folder}: {problem}", hint="leave one of the reference columns out") from error
        for slug in order:
            path = self.tables[slug]
            options = [option for name, target in references[slug].items() for option in ("--ref", f"{name}={target}.{keys[target]}")]
            _run(environ, path, "bulk", "import", slug, str(path), "--concurrency", "1", "--mirror", "never", *options)

    def _references(self, environ: dict[str, str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Return the key of each object, and by CSV file the target of each reference that is a column."""
        from crmctl.schema.schema_document import read_service, to_document

        specs = {spec.slug: spec.attributes for spec in to_document(read_service(_runtime(environ, io.StringIO()).crm)).objects}
        keys = {
            slug: next((attribute.slug for attribute in attributes if attribute.is_unique), "name") for slug, attributes in specs.items()
        }
        references: dict[str, dict[str, str]] = {}
        for slug, path in self.tables.items():
            if slug not in specs:
                hint = suggestion(slug, specs, f"objects: {', '.join(specs)}")
                raise RejectedError(f"the fixture {path}: there is no object {slug!r}", hint=hint)
            columns = {column.strip().casefold() for column in _columns(path)}
            links = [
                attribute for attribute in specs[slug] if attribute.target and columns & {attribute.slug, (attribute.name or "").casefold()}
            ]
            references[slug] = {attribute.slug: attribute.target for attribute in links if attribute.target}
        return keys, references


def _columns(path: Path) -> list[str]:
    """Return the columns of a file, none if its import will refuse it."""
    from crmctl.files.sources import open_source

    with suppress(CrmctlError):
        return open_source(path).header
    return []


def _runtime(environ: dict[str, str], said: io.StringIO) -> Runtime:
    return Runtime(Streams(io.TextIOWrapper(io.BytesIO()), None, said, environ), environ)


def _run(environ: dict[str, str], path: Path, *command: str) -> None:
    """Run one command. Raises RejectedError with its message."""
    output = io.StringIO()
    runtime = _runtime(environ, output)
    try:
        code, problem = run_command(command, runtime), None
    except CrmctlError as error:
        code, problem = error.exit_code, error
    finally:
        runtime.end()
    if code:
        message = problem.message if problem else (output.getvalue().strip().splitlines() or ["it does not load"])[0]
        details = problem.details if problem else None
        if isinstance(details, dict) and (findings := details.get("findings")):
            finding = findings[0]
            column = f", {finding['column']}" if finding["column"] else ""
            message = f"line {finding['line']}{column}: {finding['message']}"
        place = "" if message.startswith(str(path)) else f"{path}: "
        raise RejectedError(f"the fixture {place}{message}", hint="see docs/guides/test-against-a-double.md")
