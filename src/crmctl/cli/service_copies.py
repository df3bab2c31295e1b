"""`crmctl service backup` and `restore`: all of a service in one file; and the records of an object as they were at a moment."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crmctl.cli.commands.serve import DatabaseOption, DataOption, service_libraries
from crmctl.cli.service_access import opened, settings_for, write
from crmctl.errors import PartialError, UsageError
from crmctl.models.numbers import size_text
from crmctl.service.settings import DATABASE_FILE

if TYPE_CHECKING:
    from crmctl.cli.runtime import Runtime

SHOWN = 20


def backup(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE|s3://BUCKET/NAME", help="Where the backup goes.")],
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Write all of a service into one file, while it runs.

    The database as of one moment, whichever engine it has, and the files that were uploaded to the service (not those in an S3-compatible
    storage). The file is read back before it gets its name: what has the name is whole. It holds everything, also what signs links: keep it
    as you keep keys.

    s3:// needs pip install 'crmctl[s3]'; credentials, region and AWS_ENDPOINT_URL are found as the AWS tools find them.
    """
    runtime: Runtime = ctx.obj
    settings = settings_for(runtime, data, database_url)
    if database_url is None and not (settings.data_dir / DATABASE_FILE).exists():
        raise UsageError(f"there is no service's data in {settings.data_dir}", hint="--data DIR, as crmctl serve was given it")
    with opened(runtime, data, database_url) as engine:
        from crmctl.service.backup.backup import make_backup

        if _is_remote(target):
            from crmctl.service.backup.remote import RemotePlace

            place = RemotePlace(target)
            with tempfile.TemporaryDirectory(prefix="crmctl-backup-") as folder:
                made = make_backup(engine, settings, Path(folder) / "backup", runtime.clock)
                place.put(Path(folder) / "backup")
        else:
            made = make_backup(engine, settings, Path(target), runtime.clock)
    _show(runtime, {"file": target}, made.wire())


def restore(
    ctx: typer.Context,
    what: Annotated[
        str, typer.Argument(metavar="FILE|OBJECT", help="A backup (FILE or s3://BUCKET/NAME); with --as-of, the slug of an object.")
    ],
    as_of: Annotated[str | None, typer.Option("--as-of", metavar="MOMENT", help="The moment, such as 'yesterday 15:30'.")] = None,
    data: DataOption = None,
    database_url: DatabaseOption = None,
) -> None:
    """Bring back a service from a backup, or records as of a moment.

    A backup goes where there is no data yet: an empty --data directory, an empty --database-url. It is checked first, and is there as a
    whole or not at all.

    With --as-of, what was created since that moment is deleted, what was deleted is created again under its id, and what was changed gets
    its values back: by ordinary changes, which webhooks and workflows are told of and which the history shows; so this can be taken back
    too. The service may run meanwhile. --dry-run says what would happen.
    """
    runtime: Runtime = ctx.obj
    if as_of is not None:
        restore_records(runtime, what, as_of, data, database_url)
        return
    if not _is_remote(what) and not Path(what).is_file():
        raise UsageError(f"there is no backup {what}", hint=f"for the records of an object: crmctl service restore {what} --as-of MOMENT")
    runtime.guard_read_only()
    with service_libraries(), contextlib.ExitStack() as stack:
        from crmctl.service.backup.archive import unpack
        from crmctl.service.backup.backup import restore_backup

        source = Path(what)
        if _is_remote(what):
            from crmctl.service.backup.remote import RemotePlace

            source = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crmctl-restore-"))) / "backup"
            RemotePlace(what).get(source)
        if runtime.dry_run:
            manifest = unpack(source, None)
            _show(runtime, {"dryRun": True, "file": what}, {name: manifest[name] for name in ("createdAt", "records", "files")})
            return
        restored = restore_backup(source, settings_for(runtime, data, database_url))
    _show(runtime, {"file": what}, restored.wire())


def _is_remote(place: str) -> bool:
    return place.startswith("s3://")


def _show(runtime: Runtime, about: dict[str, Any], found: dict[str, Any]) -> None:
    from crmctl.models.timestamps import in_a_sentence

    as_of = in_a_sentence(str(found["createdAt"]), runtime.clock.now())
    size = f", {size_text(found['bytes'])}" if "bytes" in found else ""
    text = f"{about['file']}: {found['records']:,} records, {found['files']:,} uploaded files{size}, as of {as_of}"
    runtime.emitter.emit_result(about | found, text=text)


def restore_records(runtime: Runtime, slug: str, as_of: str, data: Path | None, database_url: str | None) -> None:
    """Raises NotFoundError, RejectedError, PartialError when some records could not be restored."""
    from crmctl.models.moments import timestamp
    from crmctl.service.store.timestamps import micros_of, to_micros, to_wire
    from crmctl.service.values.dates import parse_instant

    moment = micros_of(parse_instant(timestamp(as_of, runtime.clock.now()))) / 1_000_000
    with opened(runtime, data, database_url, writes=True) as engine:
        from crmctl.service.data import new_id
        from crmctl.service.faults import NotFound
        from crmctl.service.store import objects, record_restore

        found = engine.read(lambda tx: objects.find_object_by_slug(tx, slug))
        if found is None:
            raise NotFound(f"there is no object with the slug {slug!r}")
        candidates = engine.read(lambda tx: record_restore.find_candidates(tx, found["id"], moment, now=runtime.clock.now()))
        _confirm(runtime, slug, candidates.count, to_wire(to_micros(moment)))
        restored = record_restore.restore(
            candidates, lambda work: write(runtime, engine, work), found["id"], lambda: {"ids": new_id, "now": runtime.clock.now()}
        )
    counts = {name: restored.counts[name] for name in ("created", "updated", "deleted", "unchanged")}
    summary: dict[str, Any] = {"dryRun": True} if runtime.dry_run else {}
    summary |= {"object": slug, "asOf": to_wire(to_micros(moment)), **counts, "failed": len(restored.failed)}
    summary |= {"leftOut": sorted(restored.left_out)} if restored.left_out else {}
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing has changed since"
    runtime.emitter.emit_result(summary, text=text)
    if restored.left_out:
        runtime.messages.warn(f"left out, because the object has no such attributes any more: {', '.join(sorted(restored.left_out))}")
    if restored.failed:
        first = dict(list(restored.failed.items())[:SHOWN])
        why = "; ".join([*dict.fromkeys(restored.failed.values())][:2])
        raise PartialError(f"{len(restored.failed):,} records stay as they are: {why}", details={"failed": first})


def _confirm(runtime: Runtime, slug: str, count: int, moment: str) -> None:
    if count:
        runtime.confirm(f"Take {count:,} records of {slug} back to {moment}")
