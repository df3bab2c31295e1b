"""`crmctl serve`: run the embedded service until it is stopped."""

from __future__ import annotations

import contextlib
import os
import re
import select
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from crmctl.cli.app import CommandApp, environment_variable, run_command
from crmctl.cli.options import advanced, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.config.settings import is_web_address
from crmctl.errors import CrmctlError, RejectedError, UsageError, install_command
from crmctl.models import jsontext
from crmctl.models.ids import check_choice, nearest, suggestion
from crmctl.models.jsontext import Json
from crmctl.output.streams import Streams
from crmctl.service.context import DAY, Kept, Quotas, S3Settings, ServiceSettings
from crmctl.service.faults import BadRequest
from crmctl.values.moments import read_moment

if TYPE_CHECKING:
    from crmctl.service.server import Ready

app = CommandApp()

DataOption = Annotated[
    Path | None, option("--data", "DIR", "Directory of the service's data (default: crmctl's own).", envvar="CRMCTL_SERVE_DATA")
]
DatabaseOption = Annotated[
    str | None, option("--database-url", "URL", "Database to use instead of a file in --data.", envvar="CRMCTL_SERVE_DATABASE_URL")
]
S3Option = Annotated[str | None, option("--files-s3", "PREFIX", "Keep files in S3, in buckets named PREFIX plus the bucket asked for.")]
KeepOption = Annotated[
    list[str] | None, option("--keep", "KIND=DAYS", "How long to keep history, requests or audit; 90, 7 and 365 days unless given.")
]
QuotaOption = Annotated[
    list[str] | None, option("--quota", "KIND=MB", "Most megabytes of all files, or of all report results; 10240 and 1024 unless given.")
]
FixtureOption = Annotated[
    Path | None, advanced("--fixture", "DIR", "Load a pulled organization, or schema.yaml and OBJECT.csv, into the test double.")
]
FaultOption = Annotated[
    list[str] | None, advanced("--fault", "FAULT", "Let requests fail: 'POST /api/v1/* [nth=3] -> drop=after'; repeatable.")
]
PREFIX = "CRMCTL_SERVE"
LOG_FORMATS = ("json", "text", "none")


@app.command(
    "serve",
    local=True,
    prefix=PREFIX,
    examples=["crmctl serve", "crmctl serve --data ./crm --port 8787 --rate-limit 0"],
)
def run_service(
    ctx: typer.Context,
    data: DataOption = None,
    database_url: DatabaseOption = None,
    host: Annotated[str, option("--host", "ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port", "PORT", "Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8787,
    rate_limit: Annotated[int, option("--rate-limit", "N", "Requests per key and window; 0 is unlimited.", min=0)] = 100,
    rate_window: Annotated[int, option("--rate-window", "SECONDS", "Length of the rate window.", min=1)] = 60,
    public_url: Annotated[str | None, option("--public-url", "URL", "Address clients use, behind a proxy.")] = None,
    ready_file: Annotated[Path | None, option("--ready-file", "PATH", "Write the addresses here once it listens.")] = None,
    dev: Annotated[bool, flag("--dev", "Let webhooks and workflows call addresses of this machine.")] = False,
    file_limit: Annotated[int, option("--file-limit", "MB", "Most megabytes of one uploaded file.", min=1)] = 100,
    files_s3: S3Option = None,
    files_s3_endpoint: Annotated[str | None, option("--files-s3-endpoint", "URL", "An S3-compatible storage other than Amazon's.")] = None,
    files_s3_region: Annotated[str | None, option("--files-s3-region", "REGION", "Region of the buckets.")] = None,
    log: Annotated[str, option("--log", "json|text|none", "Log every request on stderr.")] = "none",
    metrics: Annotated[str, option("--metrics", "on|off", "Serve /metrics.")] = "on",
    docs: Annotated[str, option("--docs", "on|off", "Serve /openapi.json.")] = "on",
    keep: KeepOption = None,
    quota: QuotaOption = None,
    ephemeral: Annotated[bool, flag("--ephemeral", "Run a test double with data that disappears; controls under /_test.")] = False,
    fixture: FixtureOption = None,
    seed: Annotated[int | None, advanced("--seed", "N", "Let ids, times and faults of the test double repeat.", min=0)] = None,
    clock: Annotated[str | None, advanced("--clock", "MOMENT", "The time at which the test double begins.")] = None,
    fault: FaultOption = None,
) -> None:
    """Run the embedded Customer Records Service.

    The first start sets up people, companies and deals, and prints a full-access key, once. A terminal gets a panel, everything else one
    JSON line on stdout: {"baseUrl", "consoleUrl", "apiKey"}. SIGTERM or Ctrl-C stops it when the requests under way are answered.

    --files-s3 keeps uploaded files in an S3-compatible storage (pip install 'crmctl[s3]'; an empty PREFIX uses the buckets' own names). Its
    buckets must exist; credentials are found as the AWS tools find them. /healthz, /readyz, /metrics and /openapi.json need no key.
    Every option can come from the environment: CRMCTL_SERVE_RATE_LIMIT=50, CRMCTL_SERVE_KEEP="history=30 requests=0".

    --ephemeral runs a test double and prints {"baseUrl", "apiKey", "data"}.
    """
    runtime, texts = _source(ctx)
    own = _double_settings(ctx, ephemeral=ephemeral)
    settings = ServiceSettings(
        data_dir=data_directory(runtime, data),
        database_url=database_url,
        host=host,
        port=port,
        rate_limit=rate_limit,
        rate_window=rate_window,
        public_url=_public_url(texts("public_url"), public_url),
        request_log=_request_log(runtime, texts("log"), log),
        development=dev,
        file_limit=file_limit * 1024 * 1024,
        files_s3=_s3_settings(files_s3, files_s3_endpoint, files_s3_region),
        metrics=_switch(texts("metrics"), metrics),
        docs=_switch(texts("docs"), docs),
        kept=Kept(**_amounts(texts("keep"), keep, ("history", "requests", "audit"), int(DAY))),
        quotas=Quotas(**_amounts(texts("quota"), quota, ("files", "results"), 1024**2)),
    )
    if ephemeral:
        _serve_double(runtime, replace(settings, **own), fixture, seed, clock, fault or ())
    else:
        _serve(runtime, settings, ready_file)


def _serve(runtime: Runtime, settings: ServiceSettings, ready_file: Path | None) -> None:
    """Run the service. The ready file exists as long as it listens."""
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    try:
        with service_libraries():
            from crmctl.service.server import Server
        Server(settings).run(lambda ready: _announce(runtime, ready, ready_file))
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


@contextlib.contextmanager
def service_libraries() -> Iterator[None]:
    """Yield for imports of optional libraries. Raises UsageError when they are not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("crmctl"):
            raise
        raise UsageError(
            f"the embedded service is not installed ({error.name} is missing)", hint=install_command("service"), code="not_installed"
        ) from error


def data_directory(runtime: Runtime, data: Path | None) -> Path:
    """Return the directory of the service's data, with crmctl's own as default."""
    return data if data is not None else runtime.paths.state / "service"


def _s3_settings(prefix: str | None, endpoint: str | None, region: str | None) -> S3Settings | None:
    if prefix is not None:
        return S3Settings(prefix, endpoint, region)
    if endpoint or region:
        raise UsageError("--files-s3-endpoint and --files-s3-region need --files-s3", hint="--files-s3 PREFIX")
    return None


def _source(ctx: typer.Context) -> tuple[Runtime, Callable[[str], str]]:
    """Return the runtime, and a function that names an option as the user gave it: flag or variable. Warns of unknown variables."""
    runtime: Runtime = ctx.obj
    variables = [f"{PREFIX}_{parameter.name.upper()}" for parameter in ctx.command.params if parameter.name]
    for name in sorted(runtime.environ):
        if name.startswith(f"{PREFIX}_") and name not in variables:
            meant = nearest(name, variables)
            runtime.messages.warn(f"{name} is no option of serve and changes nothing{f'; did you mean {meant}?' if meant else ''}")
    return runtime, lambda name: environment_variable(ctx, name) or f"--{name.replace('_', '-')}"


def _public_url(option: str, said: str | None) -> str | None:
    if said is None:
        return None
    if not is_web_address(said) or not said.isascii() or not said.isprintable() or " " in said:
        raise UsageError(f"{option} must be an address such as https://crm.example.com, not {said!r}", hint="crmctl serve --help")
    return said


def _switch(option: str, said: str) -> bool:
    check_choice(option, said, ("on", "off"))
    return said == "on"


def _amounts(option: str, said: Sequence[str] | None, kinds: tuple[str, ...], unit: int) -> Json:
    """Return `["history=30"]` as `{"history": 30 * unit}`. Raises UsageError."""
    amounts = {}
    for text in said or ():
        kind, _, amount = text.partition("=")
        if kind not in kinds or not re.fullmatch(r"[0-9]{1,9}", amount, re.ASCII):
            raise UsageError(
                f"{option} must be KIND=NUMBER, not {text!r}", hint=f"kinds: {', '.join(kinds)}; for example {option} {kinds[0]}=30"
            )
        amounts[kind] = int(amount) * unit
    return amounts


def _announce(runtime: Runtime, ready: Ready, ready_file: Path | None) -> None:
    if ready_file is not None:
        from crmctl.files.whole_files import whole_file

        with whole_file(ready_file, mode=0o600) as file:  # the console link is as good as a key until it is used
            file.write(jsontext.dumps(ready.document(with_key=False)) + "\n")
    is_read = runtime.streams.stdout_is_terminal and runtime.flags.get("output") != "json" and not runtime.flags.get("json")
    if not is_read:
        runtime.streams.write_out(jsontext.dumps(ready.document()) + "\n")
    if not is_read and not runtime.streams.stderr_is_terminal:
        return
    lines = ["", "  The Customer Records Service is running", "", f"  Address   {ready.base_url}"]
    lines += [f"  Console   {ready.console_url}", "            works once, for ten minutes; later: crmctl service console"]
    if ready.api_key:
        lines += [f"  API key   {ready.api_key}", "            shown this once: keep it safe", "", "  In another terminal"]
        lines += [f"    crmctl auth login --base-url {ready.base_url}", "    crmctl records list people"]
    show = runtime.streams.write_out if is_read else runtime.streams.write_err
    show("\n".join([*lines, "", "  Ctrl-C stops it", "", ""]))


def _request_log(runtime: Runtime, option: str, log: str) -> Callable[[Mapping[str, Any]], None] | None:
    check_choice(option, log, LOG_FORMATS)
    if log == "none":
        return None
    if log == "json":
        return lambda entry: runtime.streams.write_err(jsontext.dumps(entry) + "\n")
    return lambda entry: runtime.streams.write_err(
        f"{entry['time']} {entry['method']} {quote(entry['path'])} {entry['status']} {entry['ms']} ms {entry['keyId'] or '-'}\n"
    )


SCHEMA = "schema.yaml"
Commands = dict[Path, tuple[str, ...]]
DOUBLE_OPTIONS = ("fixture", "seed", "clock", "fault")  # need --ephemeral
OWN_DATA = ("data", "database_url", "host", "public_url", "ready_file", "files_s3")  # contradict --ephemeral


def _double_settings(ctx: typer.Context, *, ephemeral: bool) -> Json:
    """Return the settings of a test double that the environment of an ordinary service must not change. Raises UsageError for options that
    need --ephemeral or exclude it."""
    sources = {name: source.name for name in ctx.params if (source := ctx.get_parameter_source(name)) is not None}
    for name in OWN_DATA if ephemeral else DOUBLE_OPTIONS:
        option = f"--{name.replace('_', '-')}"
        if sources[name] == "COMMANDLINE" or (sources[name] == "ENVIRONMENT" and not ephemeral):
            raise UsageError(f"{option} and --ephemeral exclude each other" if ephemeral else f"{option} needs --ephemeral")
    free = {name: 0 for name in ("port", "rate_limit") if sources[name] == "DEFAULT"}
    return free | {"host": "127.0.0.1", "public_url": None, "database_url": None, "files_s3": None, "development": True}


def _serve_double(
    runtime: Runtime, settings: ServiceSettings, fixture: Path | None, seed: int | None, clock: str | None, faults: Sequence[str]
) -> None:
    """Serve from a temporary directory until a signal, until the owner ends and so closes stdin, or until the fixture fails. Raises
    UsageError for a bad option, and the error of the fixture."""
    with service_libraries():
        from crmctl.service.server import Server
        from crmctl.service.testdouble.double import TestDouble

    start = None if clock is None else read_moment(clock, runtime.clock.now()).at.timestamp()
    commands = {} if fixture is None else _read_fixture(fixture)
    try:
        double = TestDouble(seed=seed, start=start, rules=faults)
    except BadRequest as error:
        raise UsageError(error.message, hint="crmctl serve --help-all has an example", code="bad_fault_rule") from error
    with tempfile.TemporaryDirectory(prefix="crmctl-ephemeral-", ignore_cleanup_errors=True) as folder:
        server = Server(replace(settings, data_dir=Path(folder) / "data"), double=double)
        failures: list[Exception] = []
        owner = _find_owner(runtime)

        def attend(ready: Ready) -> None:
            try:
                _load(commands, ready, Path(folder) / "client")
                double.begin()
                document = {"baseUrl": ready.base_url, "apiKey": ready.api_key, "data": str(server.settings.data_dir)}
                runtime.streams.write_out(jsontext.dumps(document) + "\n")
                while owner is not None and os.read(owner, 65536):
                    pass
            except Exception as error:
                failures.append(error)
            if failures or owner is not None:
                server.stop()

        server.run(lambda ready: threading.Thread(target=attend, args=[ready], name="attendant", daemon=True).start())
        if failures:
            raise failures[0]


def _find_owner(runtime: Runtime) -> int | None:
    """Return the stdin that an owner holds open, a pipe from which nothing can be read yet."""
    try:
        stdin = runtime.streams.stdin.fileno()
        return None if os.isatty(stdin) or select.select([stdin], [], [], 0)[0] else stdin
    except (OSError, ValueError):
        return None


def _read_fixture(folder: Path) -> Commands:
    """Return the files of a fixture, the schema first, with the commands that load them. Raises UsageError for any other folder."""
    if (folder / "org.toml").is_file():
        return {folder: ("org", "apply", str(folder), "--edited", "--yes")}
    hint = f"a fixture holds {SCHEMA} and OBJECT.csv files"
    commands: Commands = {path: ("schema", "apply", str(path)) for path in folder.glob(SCHEMA)}
    for path in sorted(path for path in folder.glob("[!.]*") if path not in commands):
        if path.suffix != ".csv":
            raise UsageError(f"the fixture {folder} holds {path.name}, which is not read", hint=suggestion(path.name, [SCHEMA], hint))
        commands[path] = ("bulk", "import", path.stem, str(path), "--concurrency=1", "--mirror=never")
    if not commands:
        raise UsageError(f"the fixture {folder} is {'empty' if folder.is_dir() else 'no folder'}", hint=hint)
    return commands


def _load(commands: Commands, ready: Ready, home: Path) -> None:
    """Run the commands; a table waits for those that it refers to. Raises RejectedError with the file and its first finding."""
    homes = {f"CRMCTL_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
    environ = homes | {"CRMCTL_BASE_URL": ready.base_url, "CRMCTL_API_KEY": ready.api_key or "", "NO_PROXY": "*"}
    waiting, tries = deque(commands.items()), len(commands)
    while waiting:
        path, command = waiting.popleft()
        runtime = Runtime(Streams(None, None, None, environ), environ)
        try:
            run_command(command, runtime)
            tries = len(waiting)
        except CrmctlError as error:
            message, code = error.message, error.code
            if isinstance(error.details, dict) and (findings := error.details.get("findings")):
                finding = findings[0]
                column = f", {finding['column']}" if finding["column"] else ""
                message, code = f"line {finding['line']}{column}: {finding['message']}", finding["code"]
            if code != "missing_reference" or not tries:
                place = "" if message.startswith(str(path)) else f"{path}: "
                raise RejectedError(f"the fixture {place}{message}", hint="see docs/guides/test-against-a-double.md", code=code) from error
            waiting.append((path, command))
            tries -= 1
        finally:
            runtime.end()
