"""`crmctl mirror`: the mirror is synced, asked and shown. Parsing of its options, questions and exit codes; the work is crmctl.mirror's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.cli.bulk_context import RuntimeContext
from crmctl.cli.counted_words import counted
from crmctl.errors import ExitCode, NotFoundError, UsageError, reason
from crmctl.models.numbers import size_text

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime
    from crmctl.mirror.file import SyncState
    from crmctl.mirror.sync import SyncReport


def sync(runtime: Runtime, objects: Sequence[str], activities: bool | None, *, full: bool, exclude: Sequence[str], wait: float) -> int:
    """Bring the mirror up to date and say what was done; exit 7 where an object could not be proven."""
    from crmctl.mirror.sync import SyncRequest, result_document, sync_mirror
    from crmctl.output.views import MIRROR_SYNCS

    runtime.emitter.check_fields(MIRROR_SYNCS)
    request = SyncRequest(objects, activities or None, full, _excluded(exclude), wait)
    report = sync_mirror(_quiet_context(runtime), request)
    runtime.emitter.emit_items([result_document(result) for result in report.results], MIRROR_SYNCS)
    _tell(runtime, report)
    return ExitCode.OK if report.is_proven else ExitCode.SERVICE


def _quiet_context(runtime: Runtime) -> RuntimeContext:
    """A context whose client logs requests, but nothing of the data that a mirror holds."""
    context = RuntimeContext(runtime)
    context.service.session.logs_bodies = False
    return context


def _tell(runtime: Runtime, report: SyncReport) -> None:
    runtime.messages.note(f"{counted(report.requests, 'request')}; {report.path}")
    for slug in report.gone:
        runtime.messages.note(f"{slug} is no object of the service any more, and was dropped")
    for result in report.results:
        if not result.state.proven:
            runtime.messages.warn(f"{result.state.slug}: {result.state.proof}; the next sync reads it anew")
        elif result.how == "everything" and result.state.syncs > 1 and result.state.slug != "activities":
            runtime.messages.note(f"{result.state.slug} was read anew: {result.reason}")


def _excluded(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in given:
        name, dot, slug = text.partition(".")
        if not (name and dot and slug):
            raise UsageError(f"--exclude {text!r} is not OBJECT.ATTR", hint="for example --exclude people.phone")
        found.setdefault(name, []).append(slug)
    return found


def status(runtime: Runtime) -> None:
    """What is in the mirror."""
    from crmctl.mirror.sync import state_document
    from crmctl.output.views import MIRROR_OBJECTS

    place = existing(runtime)
    states = _states(place)
    runtime.emitter.emit_items([state_document(state) for state in states], MIRROR_OBJECTS)
    runtime.messages.note(f"{place}, {size_text(place.stat().st_size)}")


def verify(runtime: Runtime, objects: Sequence[str]) -> int:
    """Compare with everything the service has; exit 11 where the mirror was wrong."""
    from crmctl.mirror.verify import verify_mirror
    from crmctl.output.views import MIRROR_MISTAKES

    existing(runtime)
    runtime.emitter.check_fields(MIRROR_MISTAKES)
    found = verify_mirror(_quiet_context(runtime), list(objects))
    runtime.emitter.emit_items([each.to_document() for each in found.wrong], MIRROR_MISTAKES)
    compared = f"{counted(found.records, 'record')} compared, {counted(found.requests, 'request')}"
    if not found.wrong:
        runtime.messages.note(f"nothing was wrong: {compared}")
        return ExitCode.OK
    runtime.messages.warn(f"{counted(len(found.wrong), 'record')} were wrong and are right now; {compared}")
    return ExitCode.DIFFERENT


def search(runtime: Runtime, text: str, objects: Sequence[str], limit: int) -> None:
    """Show the best matches."""
    from crmctl.mirror.file import MirrorFile
    from crmctl.mirror.search import search
    from crmctl.output.views import MIRROR_HITS

    file = MirrorFile.read(existing(runtime))
    if file is None:
        raise NotFoundError("there is no mirror of this service", hint="crmctl mirror sync makes it", code="no_mirror")
    with file:
        hits = search(file, text, objects, limit)
    runtime.emitter.emit_items([hit.to_document() for hit in hits], MIRROR_HITS)


def sql(runtime: Runtime, statement: str, given: Sequence[str], *, expect_empty: bool) -> int:
    """Ask, and print the rows as they come."""
    from crmctl.mirror.sql import ask
    from crmctl.output.views import generic_view

    if statement == "-":
        statement = runtime.streams.stdin.read()
    parameters = dict(_parameter(text) for text in given)
    rows = ask(existing(runtime), statement, parameters, runtime.clock, runtime.settings.timeout.value)
    first = next(rows, None)
    view = generic_view([first], "rows") if first is not None else None
    count = runtime.emitter.emit_items(_from(first, rows), view)
    if count and expect_empty:
        runtime.messages.warn(f"{counted(count, 'row')} where none should be")
        return ExitCode.DIFFERENT
    return ExitCode.OK


def _from(first: dict[str, Any] | None, rest: Any) -> Any:
    if first is not None:
        yield first
    yield from rest


def _parameter(text: str) -> tuple[str, Any]:
    """A value for a name in a statement: a number where it is written as numbers are, else text; `:=` takes JSON."""
    from crmctl.models import jsontext

    name, sign, value = text.partition("=")
    if not sign or not name.strip(":"):
        raise UsageError(f"--param {text!r} is not NAME=VALUE")
    if name.endswith(":"):
        try:
            found = jsontext.loads(value)
        except ValueError as error:
            raise UsageError(f"--param {text!r}: what follows := is not JSON: {reason(error)}") from error
        return name[:-1], found if isinstance(found, int | float | str | None) else jsontext.dumps(found)
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if str(number) == value:
            return name, number
    return name, value


def path(runtime: Runtime) -> None:
    """Where the file is."""
    place = existing(runtime)
    if runtime.message_format in ("table", "ids"):
        runtime.streams.write_out(f"{place}\n")
    else:
        runtime.emitter.emit_result({"path": str(place), "bytes": place.stat().st_size})


def remove(runtime: Runtime) -> None:
    """Delete the file, after a question."""
    from crmctl.mirror.file import remove_mirror
    from crmctl.mirror.turn import writing_turn

    place = existing(runtime)
    runtime.confirm(f"Delete the mirror {place}, {size_text(place.stat().st_size)}")
    with writing_turn(place, runtime.clock, runtime.messages.note, patience=0):
        remove_mirror(place)
    runtime.done({"removed": str(place)}, f"removed {place}")


def existing(runtime: Runtime) -> Path:
    """The mirror of the profile's service. Raises NotFoundError where there is none."""
    from crmctl.mirror.place import mirror_path

    place = mirror_path(runtime.paths.state, runtime.settings.profile.value, runtime.settings.require_origin())
    if not place.is_file() or not place.stat().st_size:
        raise NotFoundError("there is no mirror of this service", hint="crmctl mirror sync makes it", code="no_mirror")
    return place


def _states(place: Path) -> list[SyncState]:
    from crmctl.mirror.file import MirrorFile

    file = MirrorFile.read(place)
    if file is None:
        return []
    with file:
        return file.states()
