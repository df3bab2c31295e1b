"""`crmctl mirror`: a proven copy of the data, synced, searched and queried in SQL. The work is done by crmctl.mirror."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from crmctl.cli.app import CommandApp
from crmctl.cli.options import PingOption, argument, flag, option
from crmctl.cli.runtime import Runtime
from crmctl.errors import ExitCode, NotFoundError, UsageError
from crmctl.models.numbers import counted, size_text

if TYPE_CHECKING:
    from crmctl.mirror.file import MirrorFile

app = CommandApp("Keep a proven copy of the data in one SQLite file and query it.")

ObjectsArgument = Annotated[list[str] | None, argument("OBJECT", "Only these objects, or activities; by default all in the mirror.")]


@app.command(
    "sync",
    examples=[
        "crmctl mirror sync",
        "crmctl mirror sync people companies --activities",
        "crmctl mirror sync people --exclude people.phone",
    ],
)
def sync(
    runtime: Runtime,
    objects: Annotated[list[str] | None, argument("OBJECT", "Only these objects; by default those in the mirror, at first all.")] = None,
    activities: Annotated[bool | None, flag("--activities", "Also keep activities, now and in later syncs.")] = None,
    full: Annotated[bool, flag("--full", "Read everything again.")] = False,
    exclude: Annotated[list[str] | None, option("--exclude", "OBJECT.ATTR", "Never keep these values, now or later; repeatable.")] = None,
    wait: Annotated[float, option("--lock-wait", "SECONDS", "Longest wait for another sync of the mirror.", min=0)] = 3600.0,
    ping: PingOption = None,
) -> int:
    """Create the mirror, or update it with few requests.

    crmctl reads only changes, and proves that the copy is complete: the changes must join the last sync and the count must match.
    Otherwise it reads everything again and says why. Exit 7 if even that proves nothing.
    """
    from crmctl.mirror.sync import SyncRequest, result_document, sync_mirror
    from crmctl.output.views import MIRROR_SYNCS

    runtime.emitter.check_fields(MIRROR_SYNCS)
    request = SyncRequest(objects or [], activities or None, full, _excluded(exclude or []), wait)
    runtime.start_ping(ping)
    report = sync_mirror(runtime.without_bodies(), request)
    runtime.emitter.emit_items([result_document(result) for result in report.results], MIRROR_SYNCS)
    runtime.messages.note(f"{counted(report.requests, 'request')}; {report.path}")
    for slug in report.gone:
        runtime.messages.note(f"{slug} is no object of the service any more, and was dropped")
    for result in report.results:
        if not result.state.proven:
            runtime.messages.warn(f"{result.state.slug}: {result.state.proof}; the next sync reads it anew")
        elif result.how == "everything" and result.state.syncs > 1 and result.state.slug != "activities":
            runtime.messages.note(f"{result.state.slug} was read anew: {result.reason}")
    return ExitCode.OK if report.is_proven else ExitCode.SERVICE


@app.command("status", examples=["crmctl mirror status", "crmctl mirror status -q '[?!proven].object'"])
def status(runtime: Runtime) -> None:
    """Show the objects in the mirror, their age and the proof that they are complete."""
    from crmctl.mirror.sync import state_document
    from crmctl.output.views import MIRROR_OBJECTS

    place = _existing(runtime)
    with _open(place) as file:
        runtime.emitter.emit_items([state_document(state) for state in file.states()], MIRROR_OBJECTS)
    runtime.messages.note(f"{place}, {size_text(place.stat().st_size)}")


@app.command("verify", examples=["crmctl mirror verify people", "crmctl mirror verify || echo 'the mirror was wrong'"])
def verify(runtime: Runtime, objects: ObjectsArgument = None) -> int:
    """Compare the mirror with the service and correct wrong records.

    Changes made since the last sync do not count as wrong. Exit 11 if a record was wrong.
    """
    from crmctl.mirror.verify import verify_mirror
    from crmctl.output.views import MIRROR_MISTAKES

    _existing(runtime)
    runtime.emitter.check_fields(MIRROR_MISTAKES)
    report = verify_mirror(runtime.without_bodies(), objects or [])
    runtime.emitter.emit_items(report.wrong, MIRROR_MISTAKES)
    compared = f"{counted(report.records, 'record')} compared, {counted(report.requests, 'request')}"
    if not report.wrong:
        runtime.messages.note(f"nothing was wrong: {compared}")
        return ExitCode.OK
    runtime.messages.warn(f"{counted(len(report.wrong), 'record')} were wrong and are right now; {compared}")
    return ExitCode.DIFFERENT


@app.command("search", examples=["crmctl mirror search Hopper", "crmctl mirror search 'ada acme' people companies -o ids"])
def search(
    runtime: Runtime,
    text: Annotated[str, argument("TEXT", "Words, or beginnings of words, that a record must contain.")],
    objects: ObjectsArgument = None,
    limit: Annotated[int, option("--limit", "N", "Show at most N.", min=1)] = 20,
) -> None:
    """Find records of any object by their words, best first, without any request."""
    from crmctl.mirror.sql import search
    from crmctl.output.views import MIRROR_HITS

    with _open(_existing(runtime)) as file:
        runtime.emitter.emit_items(search(file, text, objects or [], limit), MIRROR_HITS)


@app.command(
    "sql",
    examples=[
        "crmctl mirror sql 'SELECT status, count(*) AS people FROM people GROUP BY status'",
        "crmctl mirror sql 'SELECT id, email FROM people WHERE score >= :least' --param least=90 -o csv",
        'crmctl mirror sql "SELECT id FROM people WHERE email IS NULL" --expect-empty',
    ],
)
def sql(
    runtime: Runtime,
    statement: Annotated[str, argument("SELECT", "One SELECT statement; - reads it from stdin.")],
    parameters: Annotated[
        list[str] | None, option("--param", "NAME=VALUE", "Value of :NAME; NAME:=JSON for other types; repeatable.")
    ] = None,
    expect_empty: Annotated[bool, flag("--expect-empty", "Exit 11 if the query returns rows, for CI.")] = False,
    chart: Annotated[bool, flag("--chart", "Draw the numbers as bars.")] = False,
) -> int:
    """Query the mirror in SQL, without any request and read-only.

    Each object is a table with a column per attribute: crmctl mirror sql 'SELECT * FROM attributes' lists them. --timeout limits the
    query's time.
    """
    from crmctl.mirror.sql import ask
    from crmctl.output.views import generic_view

    if statement == "-":
        statement = runtime.streams.stdin.read()
    values = dict(_parameter(text) for text in parameters or [])
    rows = ask(_existing(runtime), statement, values, runtime.clock, runtime.settings.timeout.value)
    first = [row for row in (next(rows, None),) if row is not None]
    if chart:
        from crmctl.output.chart import draw_chart

        runtime.check_plain("--chart", "table")
        drawn = [*first, *rows]
        runtime.streams.write_out(draw_chart(drawn, runtime.streams))
        count = len(drawn)
    else:
        count = runtime.emitter.emit_items(chain(first, rows), generic_view(first, "rows") if first else None)
    if count and expect_empty:
        runtime.messages.warn(f"{counted(count, 'row')} where none should be")
        return ExitCode.DIFFERENT
    return ExitCode.OK


@app.command(
    "changes",
    examples=[
        "crmctl mirror changes people -O people.jsonl",
        "crmctl mirror changes --since 2h",
        'crmctl mirror changes --since "$(cat token)" -O changes.parquet',
    ],
)
def changes(
    runtime: Runtime,
    name: Annotated[str | None, argument("OBJECT", "Only this object; by default all in the mirror.")] = None,
    since: Annotated[str | None, option("--since", "MOMENT", "A moment, or the token of the last call; by default everything.")] = None,
    file: Annotated[str | None, option("-O --out", "FILE", "Write to a .jsonl or .parquet file.")] = None,
    no_sync: Annotated[bool, flag("--no-sync", "Emit what the mirror already knows, without a request.")] = False,
) -> None:
    """Emit inserts, updates, deletions and merges as JSON lines, each once.

    Syncs the mirror first. The last line holds a token for the next call. The mirror remembers 30 days; exit 11 if it does not reach back
    that far. Without --since, every record is an insert.
    """
    from crmctl.files.export_formats import SUFFIXES
    from crmctl.files.whole_files import whole_file
    from crmctl.mirror.changes import emitted_states, read_changes, write_parquet
    from crmctl.mirror.sync import SyncRequest, sync_mirror
    from crmctl.models import jsontext
    from crmctl.plan.merge_records import survivors_of

    if file is None:
        runtime.check_plain("mirror changes", "jsonl")
    form = SUFFIXES.get(Path(file or "").suffix.lower(), "jsonl")
    if form not in ("jsonl", "parquet"):
        raise UsageError(f"changes are written as JSON lines or Parquet, not as {form}", hint="-O changes.jsonl or -O changes.parquet")
    place = _existing(runtime)
    context = runtime.without_bodies()
    if not no_sync:
        sync_mirror(context, SyncRequest([name] if name else []))
    with ExitStack() as stack:
        mirror = stack.enter_context(_open(place))
        for state in emitted_states(mirror, name):
            if not state.proven:
                runtime.messages.warn(f"{state.slug}: {state.proof}; changes may be missing until a sync proves it")
        reading = stack.enter_context(closing(read_changes(mirror, name, since, runtime.clock, survivors_of(context))))
        if file is None:
            for change in reading:
                runtime.streams.write_out(jsontext.dumps(change) + "\n")
        elif form == "parquet":
            token = write_parquet(Path(file), reading)
            runtime.done({"file": file, "token": token}, token)
        else:
            with whole_file(Path(file), mode=0o600) as text:
                for change in reading:
                    text.write(jsontext.dumps(change) + "\n")
            runtime.done({"file": file, "token": change["token"]}, str(change["token"]))


@app.command("path", examples=["crmctl mirror path", 'sqlite3 "$(crmctl mirror path -o ids)"'])
def path(runtime: Runtime) -> None:
    """Show the path of the mirror's file."""
    place = _existing(runtime)
    if runtime.message_format in ("table", "ids"):
        runtime.streams.write_out(f"{place}\n")
    else:
        runtime.emitter.emit_result({"path": str(place), "bytes": place.stat().st_size})


@app.command("remove", examples=["crmctl mirror remove"])
def remove(runtime: Runtime) -> None:
    """Delete the mirror from this machine, not the service's data; asks first."""
    from crmctl.mirror.file import remove_mirror, writing_turn

    place = _existing(runtime)
    runtime.confirm(f"Delete the mirror {place}, {size_text(place.stat().st_size)}")
    with writing_turn(place, runtime.clock, runtime.messages.note, patience=0):
        remove_mirror(place)
    runtime.done({"removed": str(place)}, f"removed {place}")


def _excluded(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the attributes that --exclude names, by object."""
    excluded: dict[str, list[str]] = {}
    for text in texts:
        name, dot, slug = text.partition(".")
        if not (name and dot and slug):
            raise UsageError(f"--exclude {text!r} is not OBJECT.ATTR", hint="for example --exclude people.phone")
        excluded.setdefault(name, []).append(slug)
    return excluded


def _parameter(text: str) -> tuple[str, Any]:
    """Return name and value of a --param: a number if it looks like one, else text; behind `:=` JSON."""
    from crmctl.cli.targets import named_value
    from crmctl.models import jsontext

    name, value, is_json = named_value("--param", text)
    if is_json:
        return name, value if isinstance(value, int | float | str | None) else jsontext.dumps(value)
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value:
            return name, number
    return name, value


def _existing(runtime: Runtime) -> Path:
    """Return the path of the service's mirror. Raises NotFoundError if there is none."""
    from crmctl.mirror.place import mirror_path

    place = mirror_path(runtime.paths.state, runtime.origin, runtime.key)
    if not place.is_file() or not place.stat().st_size:
        _refuse_no_mirror()
    return place


def _open(place: Path) -> MirrorFile:
    from crmctl.mirror.file import MirrorFile

    file = MirrorFile.read(place, any_format=False)
    if file is None:
        _refuse_no_mirror()
    return file


def _refuse_no_mirror() -> NoReturn:
    raise NotFoundError("there is no mirror of this service", hint="crmctl mirror sync makes it", code="no_mirror")
